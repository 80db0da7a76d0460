"""Planted faults: copies of ``impl`` with one edit each, and the campaign that must find every one of them.

A suite that has never caught a wrong kernel proves nothing by being green. ``catalogue`` lists the faults, ``load``
plants one in a copy and wraps it as a target, ``hunt`` drives the campaign's properties at it, ``run`` does so for
many in watched processes, and ``report`` writes the kill table. ``targets`` names each one for ``gdn-apc replay``.

Importing this package imports the standard library only. Exercise it with ``gdn-apc mutants`` and
``pytest tests/fuzz/test_mutants.py``.
"""
