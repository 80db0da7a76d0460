"""The process that runs mutants, one after the other: names come in by stdin, results go out as lines of JSON.

    python -m gdn_apc.fuzz.mutants.worker '{"folder": ..., "seed": 0, "budget": null, "shrink_seconds": 5}'

A mutant may crash its process, hang it, or (on a GPU) break its CUDA context, so ``run`` watches it from outside.
Imports torch, hypothesis and ``fuzz``. Exercise it with ``gdn-apc mutants``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO


def main(settings: dict, names: TextIO, answers: TextIO) -> None:
    """Answer every name with one line. On a GPU the process ends after a mutant: its context may be broken."""
    import torch
    from hypothesis import configuration

    from gdn_apc.fuzz import targets
    from gdn_apc.fuzz.runs import HOME

    targets.prepare_triton(targets.DEFAULT)
    torch.set_num_threads(1)
    configuration.set_hypothesis_home_dir(Path.cwd() / HOME / "hypothesis")
    for line in names:
        last = torch.cuda.is_available()
        answer = {**dataclasses.asdict(_hunt(line.strip(), settings)), "last": last}
        print(json.dumps(answer), file=answers, flush=True)
        if last:
            return


def _hunt(name: str, settings: dict):
    from gdn_apc.fuzz.mutants import hunt, load
    from gdn_apc.fuzz.mutants.catalogue import CATALOGUE
    from gdn_apc.fuzz.runs import RunFolder

    folder = RunFolder(Path(settings["folder"]) / name)
    options = {key: settings[key] for key in ("seed", "budget", "shrink_seconds")}
    try:
        return hunt.hunt(CATALOGUE[name], folder, **options)
    except load.Stale as e:  # the code changed while this ran
        return hunt.Result(name, hunt.BROKEN, message=str(e))
    except Exception:
        return hunt.Result(name, hunt.BROKEN, message=traceback.format_exc())


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not mix with answers
    main(json.loads(sys.argv[1]), sys.stdin, answers)
