"""``edge-offload track``: a video in, an annotated video and a summary out."""

from __future__ import annotations

import json
import pathlib

import cv2
import numpy as np
import pytest
import stand_in  # noqa: F401  (named by its path below)

from edge_offload import records
from edge_offload.cli import main
from edge_offload.perception.video import VideoWriter

MODEL = "stand_in:make"


@pytest.fixture
def video(tmp_path: pathlib.Path) -> str:
    with VideoWriter(tmp_path / "people.avi", fps=10) as writer:
        for frame in range(12):
            image = np.full((96, 160, 3), 40, np.uint8)
            image[20:80, 10 + 4 * frame : 34 + 4 * frame] = 250
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
    assert record["energy_j"] > 0
    assert record["overlay"] == [str(out), str(picture)]
    text = capsys.readouterr().out
    assert "1.0 a frame, 1 ids" in text
    capture = cv2.VideoCapture(str(out))
    assert int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) == 12
    assert cv2.imread(str(picture)).shape == (96, 160, 3)


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


def test_untrained_weights_are_refused_unless_asked_for(
    video: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["track", video, "--model", MODEL, "--option", "trained=false"]
    assert main(arguments) == 1
    assert "no trained weights" in capsys.readouterr().err
    assert main([*arguments, "--allow-untrained"]) == 0
    assert "0.0 a frame, 0 ids" in capsys.readouterr().out
