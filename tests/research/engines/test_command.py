"""What ``edge-offload engines`` says of engines that are here, and of what cannot be meant."""

from __future__ import annotations

import json

import pytest

from edge_offload.cli import main


def test_every_engine_is_listed_with_what_to_install(capsys):
    assert main(["engines"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "eager", "onnxruntime", "openvino", "openvino:bf16", "tensorrt", "tensorrt:fp16", "onnxruntime:cuda",
        "onnxruntime:tensorrt", "eager+graph", "eager+steps", "inductor",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["check"], "no model to check; edge-offload engines check kapao_vtest"),
        (["list", "movenet"], "'list' takes no model"),
        (["check", "movenet", "--engine", "fast"], "no engine 'fast'; use one of: eager, auto, exact, onnxruntime, "),
        (["build", "nothing"], "nothing"),
    ],
)
def test_meaningless_arguments_are_reported_in_one_line(arguments, remedy, capsys):
    assert main(["engines", *arguments]) != 0
    error = capsys.readouterr().err
    assert remedy in error
    assert "Traceback" not in error


def test_an_engine_is_compared_with_torch_and_the_difference_reported(engine, tmp_path):
    report = tmp_path / "report.json"
    assert main(["engines", "check", "kapao_vtest", "--engine", engine, "--frames", "4", "--json", str(report)]) == 0
    (row,) = json.loads(report.read_text())["results"][0]["engines"]
    assert row["why_not"] == ""
    assert row["worst_error"] < 2e-5
    assert row["engine_ms"] > 0
