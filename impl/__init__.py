"""What runs: block-index metadata, Triton kernels, the CPU path. Imports nothing of ours outside ``impl``."""
