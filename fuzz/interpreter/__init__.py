"""Triton's interpreter, mended for CPU."""
