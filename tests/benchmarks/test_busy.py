"""The bench of a busy machine judges what it says it judges; its processes end."""

import contextlib
import subprocess
import sys

import pytest

from edge_offload import records
from edge_offload.cli import main
from edge_offload.errors import RemoteError
from edge_offload_benchmarks import processes
from edge_offload_benchmarks.experiments import busy
from edge_offload_research.emulate.trace import BYTES_PER_MBIT


def frame(t, requested="server", total_s=0.1, forecast_s=0.1, mbps=93.0, mode=""):
    return {
        "t": t,
        "asked": requested,
        "mode": mode or requested,
        "total_s": total_s,
        "forecast_s": forecast_s,
        "forecast_error_s": 0.01,
        "worst_s": max(forecast_s, 0.3),
        "uplink": mbps * BYTES_PER_MBIT,
        "scheduling_s": [0.012, 0.004],
    }


def record(frames, fallen, fell=60.0):
    row = {"busy": 8, "cores": 2, "load_average": 9.0, "link_favoured": True, "mbps": 93.0, "seconds": 60.0}
    row.update({**busy.judge_frames(frames, 1.0), **busy.judge_fall(fallen, fell)})
    return {**row, "bars": busy.judge_bars(row)}


def test_a_steady_robot_meets_the_bars_and_the_record_fits_its_schema():
    fallen = [frame(60.2, mbps=90.0), *(frame(61.0 + 0.5 * i, mbps=10.0) for i in range(20))]
    row = record([frame(0.1 * i, total_s=0.05) for i in range(600)], fallen)
    assert row["changes_per_min"] == 0
    assert row["ratio"]["p50"] == pytest.approx(2.0)
    assert row["followed_s"] == pytest.approx(1.0)
    assert row["near_share"] == 1.0
    assert [bar["met"] for bar in row["bars"]] == [True, True, True]
    records.validate("busy_bench", row)


def test_flapping_nonsense_and_blindness_do_not_meet_them():
    frames = [frame(i, "local" if i % 10 == 5 else "server", 0.1, 44.7) for i in range(60)]
    row = record(frames, [frame(61.0 + i) for i in range(20)])
    assert row["changes_per_min"] == 11
    assert row["worst_forecast_s"] == 44.7
    assert row["followed_s"] is None
    assert [bar["met"] for bar in row["bars"]] == [False, False, False]
    records.validate("busy_bench", row)


def test_a_frame_that_ended_elsewhere_is_not_what_was_forecast():
    frames = [frame(0.0), frame(0.1), frame(0.2, total_s=9.0, mode="local")]
    assert busy.judge_frames(frames, 1.0)["ratio"]["p95"] == pytest.approx(1.0)
    with pytest.raises(RemoteError, match="only 1 frames were finished; give it more --seconds"):
        busy.judge_frames(frames[:1], 1.0)


@pytest.mark.process
def test_busy_processes_end_with_what_they_are_for(monkeypatch):
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args: started.append(popen(*args)) or started[-1])
    with contextlib.suppress(KeyboardInterrupt), processes.burn_cores(2, 1.0):
        running = [process.poll() is None for process in started]
        raise KeyboardInterrupt
    assert running == [True, True]
    assert all(process.poll() is not None for process in started)
    assert started[0].args[0] == sys.executable


def test_absurd_arguments_are_refused(capsys):
    assert main(["bench", "busy", "--seconds", "1"]) != 0
    assert "--seconds 10" in capsys.readouterr().err
