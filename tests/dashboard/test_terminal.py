"""What edge-offload top shows of records, in the units that it names."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from edge_offload.dashboard.terminal import TerminalView, summary_line
from edge_offload.timing import STAGES


def frame(t_s: float, **changed: Any) -> Dict[str, Any]:
    stages = dict.fromkeys(STAGES, 0.0)
    return {
        "kind": "latency", "t_s": t_s, "mode": "replay", "model": "net", "fallback_reason": "", "error": "",
        "total_s": 0.081, "stages_s": {**stages, "uplink": 0.02, "compute_server": 0.06}, "bytes_up": 246000,
        "bytes_down": 1000, "round_trips": 1, "connected": True, "deadline_s": 0.2, "deadline_met": True,
        "energy_j": 0.5, "energy_source": "model", **changed,
    }  # fmt: skip


@pytest.fixture
def view() -> TerminalView:
    made = TerminalView(30.0, lambda: 100.0)
    made.put({"kind": "mode", "t_s": 90.0, "mode": "replay", "policy": "auto", "reason": "expected 81 ms at 11 MB/s"})
    for number in range(20):
        made.put(frame(98.0 + number / 10))
    return made


def test_frames_are_reported_in_milliseconds_kilobytes_and_joules(view: TerminalView) -> None:
    lines = view.render_lines(200)
    assert lines[0] == "mode      replay (auto): expected 81 ms at 11 MB/s"
    assert lines[1] == "frames    10.0 a second; replay 100 %; 0 fell back, 0 late"
    assert lines[2] == "latency   mean 81.0 ms, median 81.0 ms, p99 81.0 ms, most 81.0 ms"
    bars = {line.split()[0]: line.count("█") for line in lines if "█" in line}
    assert bars == {"uplink": 6, "compute_server": 18}
    assert "a frame   246.0 kB up, 1.0 kB down, 1.00 round trips" in lines
    assert "energy    0.50 J a frame (model)" in lines
    assert summary_line(lines).startswith("replay (auto): expected 81 ms at 11 MB/s | 10.0 a second")


def test_what_fell_back_or_was_late_is_counted_and_old_frames_are_not() -> None:
    view = TerminalView(30.0, lambda: 100.0)
    for number in range(10):
        view.put(frame(60.0 + number, mode="local", total_s=9.0))
    for number in range(19):
        view.put(frame(98.0 + number / 10))
    view.put(frame(99.9, mode="local", fallback_reason="no answer", round_trips=0, total_s=0.3, deadline_met=False))
    text = "\n".join(view.render_lines(200))
    assert "replay 95 %, local 5 %; 1 fell back, 1 late" in text
    assert "most 300 ms" in text
    assert "no answer" in text


def test_an_empty_display_names_what_is_awaited_and_lines_are_cut_to_the_terminal() -> None:
    view = TerminalView(30.0, lambda: 100.0)
    assert view.render_lines(200, ": nothing comes on /offload/latency") == [
        "frames    none in the last 30 s: nothing comes on /offload/latency"
    ]
    view.put({"kind": "mode", "t_s": 1.0, "mode": "local", "policy": "fixed", "reason": "x" * 500})
    assert max(map(len, view.render_lines(80))) == 80


def test_split_frames_show_their_overlap(view: TerminalView) -> None:
    assert not any(line.startswith("split") for line in view.render_lines(200))
    for number in range(2):
        view.put(frame(99.0, mode="split", overlap_ratio=0.1 + 0.2 * number, idle_robot=0.5, idle_server=0.25))
    assert "split     both sides compute 20 % of the time; robot idle 50 %, server idle 25 %" in view.render_lines(200)
