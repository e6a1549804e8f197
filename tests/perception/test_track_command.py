"""``edge-offload track``: a video in, an annotated video and a summary out."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import types

import cv2
import numpy as np
import pytest

from edge_offload import records
from edge_offload.cli import main
from edge_offload.commands import track
from edge_offload.errors import BadInput
from edge_offload.perception import video as video_module
from edge_offload.perception.video import VideoWriter

MODEL = "tests.perception.stand_in:make"


@pytest.fixture
def video(tmp_path: pathlib.Path) -> str:
    return film(tmp_path / "people.avi", 12)


def film(path: pathlib.Path, frames: int) -> str:
    """One person who walks through the picture again and again."""
    with VideoWriter(path, fps=10) as writer:
        for frame in range(frames):
            image = np.full((96, 160, 3), 40, np.uint8)
            image[20:80, 10 + 4 * (frame % 12) : 34 + 4 * (frame % 12)] = 250
            writer.write(image)
    return str(writer.path)


def test_a_video_becomes_an_overlay_and_a_record(
    video: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, picture, summary = tmp_path / "out.avi", tmp_path / "last.png", tmp_path / "run.json"
    code = main(["track", video, "--model", MODEL, "--out", str(out), "--png", str(picture), "--json", str(summary)])
    assert code == 0
    record = json.loads(summary.read_text())
    records.validate("run", record)
    assert (record["frames_in"], record["results_out"], record["mode"]) == (12, 12, "local")
    assert record["frames_by_mode"] == {"local": 12}
    assert "model of" not in track.__doc__, "no watts of this machine are known without a sensor"
    assert record["energy_j"] is None if record["energy_source"] == "unknown" else record["energy_j"] > 0, "not made up"
    assert record["overlay"] == [str(out), str(picture)]
    text = capsys.readouterr().out
    assert "1.0 a frame, 1 ids" in text
    capture = cv2.VideoCapture(str(out))
    assert int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == 12
    assert cv2.imread(str(picture)).shape == (96, 160, 3)


@pytest.mark.parametrize("newer", [False, True])
def test_a_codec_that_is_tried_is_quiet_with_opencv_4_6_to_5(newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 4.13 on the level of what OpenCV writes is turned in a module of its own."""
    levels = [3]
    functions = {"getLogLevel": lambda: levels[-1], "setLogLevel": levels.append}
    logging = types.SimpleNamespace(**functions)
    older = types.SimpleNamespace(**functions, utils=types.SimpleNamespace())
    of = types.SimpleNamespace(utils=types.SimpleNamespace(logging=logging)) if newer else older
    monkeypatch.setattr(video_module, "cv2", of)
    with video_module._silence_opencv():
        assert levels[-1] == 0
    assert levels[-1] == 3


def test_frames_bound_the_run(video: str, tmp_path: pathlib.Path) -> None:
    summary = tmp_path / "run.json"
    assert main(["track", video, "--model", MODEL, "--frames", "3", "--json", str(summary)]) == 0
    assert json.loads(summary.read_text())["frames_in"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.avi"], "absent.avi cannot be read"),
        (["--frames", "0"], "at least 1"),
        (["--option", "size"], "NAME=VALUE"),
        (["--camera", "absent.yaml"], "absent.yaml"),
        (["--target", "tallest"], "use one of"),
    ],
)
def test_mistakes_are_named(arguments: list, message: str, video: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = arguments if arguments[0].endswith(".avi") else [video, *arguments]
    assert main(["track", *given, "--model", MODEL]) == 1
    assert message in capsys.readouterr().err


def test_untrained_weights_are_refused_unless_requested(
    video: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["track", video, "--model", MODEL, "--option", "trained=false"]
    assert main(arguments) == 1
    assert "no trained weights" in capsys.readouterr().err
    assert main([*arguments, "--allow-untrained"]) == 0
    assert "0.0 a frame, 0 ids" in capsys.readouterr().out


def run_track(video: str, *arguments: str, **options):
    """As a process, in which Ctrl-C is what it is on a terminal."""
    command = [sys.executable, "-m", "edge_offload.cli", "track", video, "--model", MODEL, *arguments]
    path = f"{pathlib.Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, text=True, **options)


@pytest.mark.process
def test_ctrl_c_ends_it_with_the_summary_of_what_was_done(tmp_path: pathlib.Path) -> None:
    video = film(tmp_path / "long.avi", 200)  # it lasts, however long this process is kept from running
    summary = tmp_path / "run.json"
    slow = ["--slowdown", "400", "--out", str(tmp_path / "out.avi"), "--json", str(summary)]
    process = run_track(video, *slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output = ""
    while "frame 1 of 200: 1 people" not in output:
        line = process.stderr.readline()
        assert line, output
        output += line
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "(ended by Ctrl-C)" in out
    frames = json.loads(summary.read_text())["frames_in"]
    assert 1 <= frames < 200
    assert int(cv2.VideoCapture(str(tmp_path / "out.avi")).get(cv2.CAP_PROP_FRAME_COUNT)) == frames


@pytest.mark.process
def test_progress_on_a_terminal_is_one_line_with_count_time_and_path(video: str) -> None:
    master, terminal = pty.openpty()
    process = run_track(video, stdout=subprocess.DEVNULL, stderr=terminal)
    shown = ""
    while "frame 12 of 12" not in shown:
        shown += os.read(master, 4096).decode()
    assert process.wait(60) == 0
    os.close(terminal)
    os.close(master)
    assert "\r\033[Kframe 1 of 12: 1 people, " in shown
    assert " ms, local" in shown


def test_a_video_that_cannot_be_written_is_reported_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["track", "nowhere.mp4", "--model", MODEL, "--out", "people.mkv"]) == 1
    assert capsys.readouterr().err == "edge-offload track: --out people.mkv; name a .mp4 or .avi\n"


@pytest.mark.parametrize("option", ["--json", "--out", "--png"])
def test_a_place_that_cannot_be_written_is_reported_before_the_model_is_loaded(
    option: str, video: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["track", video, "--model", MODEL, option, "/dev/null/people.avi"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot write /dev/null" in line


def test_figures_are_printed_though_the_disk_is_full_at_the_end(
    video: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """/dev/full takes what is written and loses it; the picture finds no room, either."""
    monkeypatch.setattr(video_module, "write_bytes", no_room)
    assert main(["track", video, "--model", MODEL, "--json", "/dev/full", "--png", str(tmp_path / "last.png")]) == 1
    output = capsys.readouterr()
    assert "1.0 a frame, 1 ids" in output.out
    assert "No space left on device" in output.err.splitlines()[-1]


def no_room(path: pathlib.Path, _: bytes) -> None:
    raise BadInput(f"cannot write {path}: No space left on device", remedy="make room")


@pytest.mark.process
def test_a_command_whose_output_goes_to_a_full_disk_reports_it_in_one_line() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "edge_offload.cli", "link", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("edge-offload link: No space left on device; ")
