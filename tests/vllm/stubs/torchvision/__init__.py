"""A stand-in for torchvision, whose wheels do not load beside a CPU build of torch.

vLLM's Qwen3.5 imports it for images; text needs none of it. Used only where the real one is missing or broken.
"""

__version__ = "0.28.0"
