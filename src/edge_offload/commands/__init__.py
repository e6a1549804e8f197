"""Subcommands of ``edge-offload``: one module each, found by name.

A module ``commands/foo_bar.py`` is the command ``edge-offload foo-bar``. It has

* a docstring, whose first line is the summary in ``edge-offload --help``,
* ``add_arguments(parser: argparse.ArgumentParser) -> None``,
* ``run(args: argparse.Namespace) -> int``, which returns the exit code and may raise ``EdgeOffloadError``.

Heavy imports (torch, zmq, matplotlib) go inside ``run``, so that ``--help`` stays quick.
"""
