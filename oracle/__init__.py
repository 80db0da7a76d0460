"""What is right: the gated delta rule and what every cache block must hold, in plain PyTorch and Python.

Imports nothing else of this project, no Triton, no vLLM. Exercise it with ``pytest tests/oracle``.
"""
