"""Files that commands write: a place that cannot be written is told before the work, a full disk costs no figure."""

from __future__ import annotations

import contextlib

import pytest

from edge_offload import outputs
from edge_offload.cli import main
from edge_offload.errors import BadInput

NOWHERE = "/dev/null/out"

COMMANDS = [
    "report run.jsonl --json",
    "report run.jsonl -o",
    "doctor --json",
    "scene complete scan.bin --picture",
    "scene complete scan.bin --labels",
    "scene evaluate --json",
    "scene make --out",
    "models list --json",
    "conformance --json",
    "conformance --markdown",
    "conformance --journal",
    "plan kapao_s --out",
    "plan kapao_s --bounds",
    "plan kapao_s --plot",
    "profile kapao_s --out",
    "profile kapao_s --out profile.json --server-out",
    "link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --json-stats",
    "sample-bag",
    "track --json",
    "track --out",
    "track --png",
    "bench papers --data . --json",
    "bench fuzz --json",
    "bench overhead --json",
    "bench codecs --json",
    "bench codecs --plot",
    "bench bandwidth --json",
    "bench packets --json",
    "bench levels --json",
    "bench split --json",
    "bench transparent --json",
    "bench transparent --plot",
    "bench robots --json",
    "bench adaptive --json",
    "bench adaptive --save-workload",
    "bench people --json",
    "chaos --json",
    "train sconet --export",
    "train sconet --folder",
    "train kapao --out",
]


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_cannot_be_written_is_reported_in_one_line_before_the_work(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if command.startswith(("bench", "chaos")):
        pytest.importorskip("edge_offload_benchmarks")
    if command.startswith("train"):
        pytest.importorskip("edge_offload_training")
    assert main([*command.split(), NOWHERE]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"edge-offload {command.split()[0]}: cannot write /dev/null")
    assert not list(tmp_path.iterdir())


def test_exec_checks_the_path_of_its_tally_first(capsys):
    assert main(["exec", "--tally", NOWHERE, "--", "true"]) == 1
    assert "cannot write /dev/null" in capsys.readouterr().err


def test_a_golden_is_looked_at_before_the_bag_is_stepped_through(capsys, tmp_path):
    (tmp_path / "walk.bag").touch()
    assert main(["regress", str(tmp_path / "walk.bag"), "--golden", NOWHERE, "--update"]) == 1
    assert "cannot write /dev/null" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/dev/null/x.json", "Not a directory"),
        ("/proc/x.json", "cannot write /proc"),
        (".", "is a folder"),
    ],
)
def test_what_is_wrong_with_a_place_is_named(place, message):
    with pytest.raises(BadInput, match=message):
        outputs.check_output(place)


def test_looking_at_a_place_changes_nothing(tmp_path):
    path = tmp_path / "there.json"
    path.write_text("kept")
    outputs.check_output(path)
    outputs.check_output(tmp_path / "deep" / "new.json")
    outputs.check_folder(tmp_path / "folder")
    outputs.check_output("/dev/stdout")
    outputs.check_output("/dev/full")
    assert path.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_without_room_is_reported_before_the_work(tmp_path, monkeypatch):
    def no_room(*_: object, **__: object):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outputs.tempfile, "TemporaryFile", no_room)
    with pytest.raises(BadInput, match="No space left on device; make room"):
        outputs.check_output(tmp_path / "x.json")


def test_an_old_file_stays_until_the_new_one_is_complete(tmp_path, monkeypatch):
    file = tmp_path / "summary.json"
    outputs.write_text(file, "old")

    def no_room(*_: object):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outputs.os, "replace", no_room)
    with pytest.raises(BadInput, match="No space left"):
        outputs.write_text(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file], "nothing half written stays"


def test_a_link_is_written_through_and_a_file_keeps_its_permissions(tmp_path):
    file = tmp_path / "real.json"
    file.write_text("old")
    file.chmod(0o600)
    (tmp_path / "link.json").symlink_to(file)
    outputs.write_text(tmp_path / "link.json", "new")
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "link.json").is_symlink()


def test_one_file_that_cannot_be_written_keeps_no_other_from_it(tmp_path):
    with pytest.raises(BadInput, match="/dev/full: No space left on device"):
        outputs.write_each(
            lambda: outputs.write_text("/dev/full", "lost"), lambda: outputs.write_text(tmp_path / "kept", "kept")
        )
    assert (tmp_path / "kept").read_text() == "kept"


def test_work_goes_on_while_its_file_cannot_be_written_and_a_later_success_makes_good(tmp_path):
    saver = outputs.Kept()
    for place in ("/dev/full", tmp_path / "x"):
        saver("json", lambda place=place: outputs.write_text(place, "text"))
    saver.settle()
    saver("json", lambda: outputs.write_text("/dev/full", "text"))
    with pytest.raises(BadInput, match="/dev/full"):
        saver.settle()


def test_figures_are_printed_though_the_disk_is_full_at_the_end(capsys):
    for command in (["models", "list", "--json"], ["doctor", "--json"]):
        assert main([*command, "/dev/full"]) == 1
        captured = capsys.readouterr()
        assert len(captured.out.splitlines()) > 1, command
        assert captured.err.splitlines()[-1].endswith("cannot write /dev/full: No space left on device; make room")


def test_every_file_that_a_command_writes_is_declared():
    """An argument that says so in its help, and is not looked at, would be found out after hours of work."""
    from edge_offload import cli

    parsers = [(["edge-offload"], cli.build_parser())]
    count = 0
    while parsers:
        path, parser = parsers.pop()
        if getattr(parser, "_module", None):
            with contextlib.suppress(SystemExit):  # something is required; what it knows it has declared by now
                parser.parse_known_args([])
        for action in parser._actions:
            if isinstance(action.choices, dict):
                parsers += [([*path, name], child) for name, child in action.choices.items()]
            elif action.nargs != 0 and (action.help or "").startswith(
                ("write", "draw", "where the", "annotated video", "page to write")
            ):
                count += 1
                assert action.dest in (parser.get_default("outputs") or {}), " ".join([*path, action.dest])
    assert count > 10
