"""Print a completion script, so that a shell completes edge-offload's commands, options and files by TAB.

  edge-offload completion bash > ~/.local/share/bash-completion/completions/edge-offload
  edge-offload completion zsh > ~/.zfunc/_edge-offload          # a folder of your fpath

The script knows the commands that are installed now; print it again after installing others. A shell reads it at its
start.
"""

from __future__ import annotations

import argparse

#: Words for an argument's value by which help texts name files and folders.
FILES, FOLDERS = ("FILE", "CSV", "JSON", "YAML", "PNG", "HTML", "SCRIPT"), ("DIR",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="shell to print the script for")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from edge_offload.subcommands import filled

    parser = args.root_parser
    for each in filled(parser):
        for action in each._actions:
            if isinstance(action.metavar, str) and not action.choices:
                kind = shtab.FILE if action.metavar in FILES else shtab.DIRECTORY if action.metavar in FOLDERS else None
                if kind is not None:
                    action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=args.shell))
    return 0
