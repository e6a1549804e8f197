"""The command line as a user meets it: help that lists every command, errors in one line."""

import argparse
import importlib.metadata
import pathlib
import subprocess
import sys

import pytest

from edge_offload import beside, cli, commands, subcommands
from edge_offload.errors import BadInput

COMMANDS = sorted({*subcommands.modules_of(commands), *beside.VERBS})
ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_teaches(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"edge-offload {command}" in text
    assert len(text.splitlines()) >= 5, "a help text that says nothing"


@pytest.mark.process
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


@pytest.mark.process
def test_a_command_imports_no_other():
    code = "import sys; from edge_offload import cli; cli.build_parser(); print(*sys.modules)"
    source = pathlib.Path(cli.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, check=True
    )
    assert not {f"edge_offload.commands.{name}".encode() for name in ("bench", "plan", "serve")} & set(
        done.stdout.split()
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (["ke"], {"keys"}),
        (["keys", ""], {"new", "list", "trust", "rotate", "revoke"}),
        (["serve", "--bi"], {"--bind"}),
        (["completion", ""], {"bash", "zsh"}),
    ],
)
def test_bash_completes_what_the_commands_take(arguments, offered, completion):
    program = f""". {completion}
        COMP_WORDS=(edge-offload "$@"); COMP_CWORD=$#; _shtab_edge_offload edge-offload "${{@: -1}}"
        echo "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", program, "bash", *arguments], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


@pytest.fixture(scope="module")
def completion(tmp_path_factory):
    pytest.importorskip("shtab")
    path = tmp_path_factory.mktemp("completion") / "edge-offload"
    command = [sys.executable, "-m", "edge_offload.cli", "completion", "bash"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    path.write_text(done.stdout)
    return path


@pytest.mark.process
def test_zsh_gets_a_script_with_every_command():
    pytest.importorskip("shtab")
    done = subprocess.run(
        [sys.executable, "-m", "edge_offload.cli", "completion", "zsh"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("#compdef edge-offload")
    assert all(f"\n    {command}:'" in done.stdout for command in COMMANDS)


def test_error_is_one_line_with_the_remedy(monkeypatch, capsys):
    def fail(_args):
        raise BadInput("no such thing", remedy="use another")

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=fail, command="thing")
    monkeypatch.setattr(cli, "build_parser", lambda: parser)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "edge-offload thing: no such thing; use another\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("track --frmaes 3", "unrecognized arguments: --frmaes; is it --frames?; see 'edge-offload track --help'"),
        ("keys trust --frob", "see 'edge-offload keys trust --help'"),
        ("track --frmaes=3", "is it --frames?; see 'edge-offload track --help'"),
    ],
)
def test_an_option_that_a_command_lacks_names_the_nearest_one_and_its_help(capsys, arguments, line):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments.split())
    assert ended.value.code == 2
    assert line in capsys.readouterr().err


def test_ctrl_c_while_the_commands_are_imported_is_no_traceback(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)
    assert cli.main([]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("verb", sorted(beside.VERBS))
def test_a_verb_of_a_missing_distribution_names_the_install_command(monkeypatch, capsys, verb):
    monkeypatch.setattr(beside, "commands", dict)
    folder = beside.FOLDERS[beside.VERBS[verb].package]
    assert cli.main([verb, "--at-all", "anything"]) == 1
    assert capsys.readouterr().err.rstrip().endswith(f"pip install ./{folder}")
    assert (ROOT / folder / "setup.cfg").exists()
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert f"(not installed) {beside.VERBS[verb].summary[:10]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["pool", "plan", "--profiles", "DIR"], "research"),
        (["pool", "simulate", "--help"], "research"),
    ],
)
def test_an_action_of_a_missing_distribution_names_the_install_command(monkeypatch, capsys, arguments, folder):
    monkeypatch.setattr(beside, "commands", lambda group=beside.GROUP: {})
    assert cli.main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"pip install ./{folder}")


@pytest.mark.parametrize(
    ("package", "folder"),
    [("edge_offload_research.testbed", "research"), ("pycocotools", "training"), ("motmetrics", "benchmarks")],
)
def test_a_missing_package_names_the_install_command(monkeypatch, capsys, package, folder):
    def run(_args):
        raise ModuleNotFoundError(name=package)

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=run, command="bench")
    monkeypatch.setattr(cli, "build_parser", lambda: parser)
    assert cli.main([]) == 1
    assert capsys.readouterr().err.rstrip().endswith(f"pip install ./{folder}")


def test_a_verb_whose_distribution_was_removed_by_hand_breaks_no_other(monkeypatch, capsys):
    broken = importlib.metadata.EntryPoint("bench", "no_such_distribution.commands.bench", beside.GROUP)
    points = importlib.metadata.EntryPoints([broken]) if sys.version_info >= (3, 10) else {beside.GROUP: [broken]}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: points)
    assert cli.main(["completion", "bash"]) == 0
    assert "serve" in capsys.readouterr().out
