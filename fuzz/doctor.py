"""``gdn-apc doctor``: versions, devices, and which targets can run here or why not.

Each target is loaded in a process of its own, as a campaign would load it. Imports the standard library and
``fuzz``. Exercise it with ``pytest tests/fuzz/test_cli.py``.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from gdn_apc.fuzz import targets
from gdn_apc.fuzz.runs import environment
from gdn_apc.impl.vllm import plugin, sizes

PROBE = """
import sys
from gdn_apc.fuzz import targets
from gdn_apc.fuzz.session import device_name
try:
    target = targets.load(sys.argv[1])
except targets.TargetUnavailable as e:
    sys.exit(f"no: {e}")
print("yes, on", device_name(target) + "; seams:", ", ".join(sorted(target.claims.seams)))
"""

OTHERS = ("vllm", "flash-linear-attention", "fla-core", "transformers", "ml_dtypes", "pytest-xdist", "rich")


def main(model: Path | None = None, memory: float | None = None, tp: int = 1) -> int:
    """Print the report, with the cache sizes of a served model if one is named. Returns 0 if the default target can run, else 4."""
    print("versions")
    for name, version in _versions().items():
        print(f"  {name:24} {version}")
    print("devices")
    for line in devices():
        print(f"  {line}")
    print("serving")
    try:
        served = sizes.of_model(model, memory, tp=tp) if model else []
    except ValueError as e:
        print(e, file=sys.stderr)
        return 4
    for line in [*plugin.status(), *served]:
        print(f"  {line}")
    print("targets")
    answers = {name: probe(name) for name in targets.BUILTIN}
    for name, answer in answers.items():
        print(f"  {name:24} {answer}")
    return 0 if answers[targets.DEFAULT].startswith("yes") else 4


def _versions() -> dict[str, str]:
    found = environment()
    for package in OTHERS:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def devices() -> list[str]:
    """The GPUs, or what happens without one."""
    try:
        import torch
    except ImportError:
        return [
            "torch is not installed: nothing can run; pip install 'gdn-apc[fuzz]' and a torch for this machine"
        ]
    if not torch.cuda.is_available():
        return ["no GPU: Triton kernels run in the mended interpreter, on the CPU"]
    return [
        f"cuda:{i} {torch.cuda.get_device_name(i)}, sm_{''.join(map(str, torch.cuda.get_device_capability(i)))}"
        for i in range(torch.cuda.device_count())
    ]


def probe(name: str) -> str:
    """``yes, …`` or ``no: …`` with the reason."""
    done = subprocess.run([sys.executable, "-c", PROBE, name], capture_output=True, text=True)
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return said[-1] if said else f"no: it ended with status {done.returncode} and no message"
