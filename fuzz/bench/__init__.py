"""``gdn-apc bench``: how fast, against the floor and against whoever else is installed.

    gdn-apc bench                          everything that makes sense on this machine
    gdn-apc bench prefill --only 1x8192    one shape
    gdn-apc bench decode metadata fuzz     some areas

One module a question: ``problems`` (what is measured), ``inputs`` (random tensors, rotating beyond the L2), ``peers``
(who), ``check`` (is the answer right: a wrong kernel gets no time), ``timing``, ``floors`` (how fast could it be),
``goals`` (what was promised), ``table``, ``plot`` and ``compare`` (what is left behind), ``campaign`` (the fuzzer's own
speed), ``tune`` (configurations). Importing this package imports neither torch nor triton.
Exercise it with ``pytest tests/benchmarks``.
"""
