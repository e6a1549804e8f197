"""The command line as a user meets it: help that lists every command, errors in one line."""

import argparse
import pathlib
import pkgutil
import subprocess
import sys

import pytest

from edge_offload import cli, commands
from edge_offload.errors import BadInput

COMMANDS = sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(commands.__path__))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_teaches(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"edge-offload {command}" in text
    assert len(text.splitlines()) >= 5, "a help text that says nothing"


def test_help_does_not_import_torch():
    code = """
import sys
from edge_offload import cli
for command in sys.argv[1:]:
    try:
        cli.main([command, "--help"])
    except SystemExit:
        assert "torch" not in sys.modules, command
"""
    source = pathlib.Path(cli.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, *COMMANDS], env={"PYTHONPATH": str(source)}, capture_output=True, check=False
    )
    assert done.returncode == 0, f"help must stay quick: import torch inside run(): {done.stderr.decode()}"


def test_a_command_imports_no_other():
    code = "import sys; from edge_offload import cli; cli.build_parser(); print(*sys.modules)"
    source = pathlib.Path(cli.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, check=True
    )
    assert not {f"edge_offload.commands.{name}".encode() for name in ("bench", "plan", "serve")} & set(
        done.stdout.split()
    )


def test_error_is_one_line_with_the_remedy(monkeypatch, capsys):
    def fail(_args):
        raise BadInput("no such thing", remedy="use another")

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=fail, command="thing")
    monkeypatch.setattr(cli, "build_parser", lambda: parser)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "edge-offload thing: no such thing; use another\n"
