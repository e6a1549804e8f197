"""Experiments: every number that the documentation quotes comes out of here.

A module ``foo_bar.py`` with ``add_arguments(parser)`` and ``run(args) -> int`` is the experiment
``edge-offload bench foo-bar``; its docstring is the help. Heavy imports go inside ``run``.
"""
