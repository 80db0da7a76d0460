"""Triage: what a failing case says about the target, down to the first wrong block.

After a case was made small (``fuzz/shrink.py``): ``observe`` runs it again and tells a wrong target from a fickle one,
``survey`` compares every row and block with the oracle, ``seams``, ``moves``, ``models`` and ``twins`` ask what would explain the
difference, by giving the target or the oracle something else at one place, ``localise`` puts the answers together,
``classes`` names the kind of fault, ``picture`` and ``report`` show it, ``standalone`` writes a script that needs no suite, and
``bisect`` finds the first revision or release that fails.

Importing this package imports the standard library only. Exercise it with ``pytest tests/fuzz/test_triage.py``.
"""
