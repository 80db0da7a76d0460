"""What all tests share: kernels run in the mended interpreter where there is no GPU, on one thread."""

import os

import torch

os.environ.pop("GITHUB_STEP_SUMMARY", None)  # campaigns of the tests are not this job's

if not torch.cuda.is_available():
    from gdn_apc.fuzz import interpreter

    # Before any test module imports a kernel: Triton decides at decoration.
    interpreter.activate()
    torch.set_num_threads(1)
