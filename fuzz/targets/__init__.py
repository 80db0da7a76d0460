"""Adapters for the implementations under test, one module each."""
