"""What ``edge-offload train`` can train: one module per target, found by name.

A module ``foo.py`` is the target ``foo``. It has a docstring, whose first line is the summary, and, like a module of
:mod:`edge_offload.commands`, ``add_arguments(parser)`` and ``run(args) -> int``. Heavy imports go inside ``run``.
"""
