"""Playing a run again: from a file, from a stream, from a bag, and the command that does it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from edge_offload.cli import main
from edge_offload.dashboard import source
from edge_offload.dashboard.bag import open_run
from edge_offload.dashboard.history import History
from edge_offload.dashboard.source import Player
from edge_offload.errors import BadInput
from tests.dashboard import made_up

pytestmark = pytest.mark.process


def until(condition, what: str):
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, f"{what} did not happen"
        time.sleep(0.01)


def played(path, **options):
    history = History()
    player = Player(path.name, lambda _: open_run(path), history, **options)
    player.start()
    return history, player


def test_a_file_is_played_to_its_end(tmp_path):
    records = made_up.run(30)
    made_up.write(tmp_path / "run.jsonl", records)
    history, player = played(tmp_path / "run.jsonl", speed=0)
    until(lambda: player.status()["state"] == "ended", "the end")
    counts = history.count_records()
    counts.pop("event")
    assert sum(counts.values()) == len(records)
    # the clock stands where the file ends
    assert player.status()["now_s"] == records[-1]["t_s"]
    player.close()


@pytest.mark.parametrize("speed", [0.5, 8.0])
def test_speed_is_seconds_of_the_run_in_one_of_the_page(tmp_path, monkeypatch, speed):
    made_up.write(tmp_path / "run.jsonl", [made_up.power(float(n), 4.0, 0.0) for n in range(9)])
    clock, seen = types.SimpleNamespace(now=100.0), []
    monkeypatch.setattr(source, "time", types.SimpleNamespace(monotonic=lambda: clock.now))

    def pause(seconds):
        clock.now += seconds
        seen.append(player.status()["now_s"])
        return True

    player = Player("run.jsonl", lambda _: open_run(tmp_path / "run.jsonl"), History(), speed=speed)
    player.pause = pause
    player.start()
    until(lambda: player.status()["state"] == "ended", "the end")
    assert clock.now - 100.0 == pytest.approx(8.0 / speed)
    assert seen == [None, *(pytest.approx(float(n)) for n in range(1, 9))], "the clock runs on"
    player.close()


def test_a_loop_restarts_with_an_empty_history(tmp_path):
    records = made_up.run(2)
    made_up.write(tmp_path / "run.jsonl", records)
    history, looped = History(), threading.Event()

    def pause(_):
        assert looped.wait(60)
        return True

    player = Player("run.jsonl", lambda _: open_run(tmp_path / "run.jsonl"), history, speed=0, loop=True)
    player.pause = pause
    player.start()

    def read_count(cursor):
        batch, restarted = history.read(cursor)
        return restarted, sum(map(len, batch.records.values()))

    def is_complete():
        return sum(total for kind, total in history.count_records().items() if kind != "event") == len(records)

    until(is_complete, "the first time")
    cursor = history.open_cursor()
    assert read_count(cursor) == (False, len(records))
    looped.set()
    counts = []
    until(lambda: counts.append(read_count(cursor)) or counts[-1][0], "the second time")
    assert [each for each in counts[:-1] if each != (False, 0)] == [], "nothing is added to the first time"
    assert counts[-1][1] <= len(records), "the first time's are gone"
    player.close()


def test_an_unreadable_file_is_reported_on_the_page(tmp_path):
    (tmp_path / "run.jsonl").write_text("hello\n")
    _, player = played(tmp_path / "run.jsonl")
    until(lambda: player.status()["state"] == "failed", "the failure")
    assert "holds no record of a run" in player.status()["text"]
    player.close()


def test_damage_is_reported_at_the_end(tmp_path):
    made_up.write(tmp_path / "run.jsonl", made_up.run(1))
    with (tmp_path / "run.jsonl").open("a") as stream:
        stream.write("{\n")
    _, player = played(tmp_path / "run.jsonl", speed=0)
    until(lambda: player.status()["state"] == "ended", "the end")
    assert "1 lines left out" in player.status()["text"]
    player.close()


def start(*arguments, **options):
    # as a shell would: the command's own process group
    return subprocess.Popen(
        [sys.executable, "-m", "edge_offload.cli", "dashboard", "--port", "0", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def stop(process) -> int:
    process.send_signal(signal.SIGINT)
    return process.wait(120)


def test_the_command_prints_the_pages_address_and_ends_on_ctrl_c(tmp_path, browser):
    made_up.write(tmp_path / "run.jsonl", made_up.run(30))
    process = start(tmp_path / "run.jsonl", "--speed", "0")
    url = process.stdout.readline().split(": ", 1)[1].strip()
    tab = browser.tab(url)
    tab.until("document.querySelector('#tile-faults .big').textContent === '80 of 240'")
    assert tab.text("#connection") == "ended"
    assert tab.text("#title") == "run.jsonl"
    assert stop(process) == 0
    tab.until("document.querySelector('#connection').textContent === 'no connection'")
    tab.close()


def test_a_stream_and_a_growing_file_are_followed(tmp_path, browser):
    path = tmp_path / "run.jsonl"
    made_up.write(path, [made_up.mode(1.0, "server", "auto", "first")])
    following = start(path, "--follow")
    piped = start("-", stdin=subprocess.PIPE)
    piped.stdin.write(path.read_text())
    piped.stdin.flush()
    tabs = [browser.tab(one.stdout.readline().split(": ", 1)[1].strip()) for one in (following, piped)]
    for tab in tabs:
        tab.until("document.querySelector('#tile-mode .big').textContent === 'server'")
    made_up.write(tmp_path / "more", [made_up.mode(2.0, "local", "auto", "second")])
    with path.open("a") as stream:
        stream.write((tmp_path / "more").read_text())
    piped.stdin.write((tmp_path / "more").read_text())
    piped.stdin.flush()
    for tab in tabs:
        tab.until("document.querySelector('#tile-mode .big').textContent === 'local'")
        assert tab.text("#connection") == "playing"
        tab.close()
    piped.stdin.close()
    assert [stop(one) for one in (following, piped)] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl"], "no file absent.jsonl"),
        (["-", "--loop"], "--loop needs a file"),
        (["--port", "99999"], "no TCP port"),
        (["{file}", "--speed", "2000"], "--speed"),
        (["{file}", "--host", "0.0.0.0"], "no token protects"),
        (["{file}", "--token-file", "absent"], "cannot read the token"),
    ],
)
def test_impossible_requests_are_reported(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.delenv("EDGE_OFFLOAD_DASHBOARD_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    made_up.write(tmp_path / "run.jsonl", made_up.run(1))
    assert main(["dashboard", *(one.format(file=tmp_path / "run.jsonl") for one in arguments)]) == 1
    assert message in capsys.readouterr().err


def bag_of(path, topics):
    """A bag with a frame per second on each of these topics, and the messages of one robot otherwise."""
    try:
        import genpy
        import rosbag
        from std_msgs.msg import Header

        from edge_offload_msgs.msg import Latency, OffloadMode, Power, ResultOrigin, SemanticGrid
    except ImportError:
        pytest.skip("no ROS environment (source devel/setup.bash)")

    with rosbag.Bag(str(path), "w") as bag:
        for second in range(1, 11):
            at = genpy.Time(second)
            for topic in topics:
                if topic.endswith("semantic_grid"):
                    result = ResultOrigin(origin="carried" if second % 2 else "fresh")
                    bag.write(topic, SemanticGrid(header=Header(stamp=at), result=result), at)
                    continue
                if topic.endswith("power"):
                    bag.write(topic, Power(header=Header(stamp=at), watts=float("nan")), at)
                    continue
                kind = Latency if topic.endswith("latency") else OffloadMode
                made = kind(header=Header(stamp=at), mode="server")
                if kind is Latency:
                    made.total, made.energy = genpy.Duration(0, 90_000_000), float("nan")
                bag.write(topic, made, at)


@pytest.mark.ros
def test_a_bag_is_a_run_too(tmp_path):
    # what the server heard of the same frames is not counted again
    bag_of(tmp_path / "walk.bag", ["/offload/latency", "/server/offload/latency", "/offload/mode"])
    records, _ = open_run(tmp_path / "walk.bag")
    listed = list(records)
    assert [record["kind"] for record in listed].count("latency") == 10
    assert [record["t_s"] for record in listed if record["kind"] == "latency"] == list(range(1, 11))
    assert listed[-1].get("energy_j") is None
    assert main(["report", str(tmp_path / "walk.bag"), "-o", str(tmp_path / "walk.html")]) == 0


@pytest.mark.ros
def test_unknown_watts_in_a_bag_are_no_fault(tmp_path):
    bag_of(tmp_path / "walk.bag", ["/offload/latency", "/offload/power"])
    records, reading = open_run(tmp_path / "walk.bag")
    assert {record["kind"] for record in records} == {"latency"}
    assert (reading.bad, reading.first_problem) == (0, "")


@pytest.mark.ros
def test_a_bag_of_scenes_names_the_source_of_its_scenes(tmp_path):
    bag_of(tmp_path / "drive.bag", ["/offload/latency", "/agrnav/semantic_grid", "/server/agrnav/semantic_grid"])
    scenes = [record for record in open_run(tmp_path / "drive.bag")[0] if record["kind"] == "scene"]
    assert [record.get("origin", "fresh") for record in scenes] == ["carried", "fresh"] * 5
    figures = tmp_path / "figures.json"
    command = ["report", str(tmp_path / "drive.bag"), "-o", str(tmp_path / "drive.html"), "--json", str(figures)]
    assert main(command) == 0
    assert json.loads(figures.read_text(encoding="utf-8"))["results_by_origin"] == {"carried": 5, "fresh": 5}


@pytest.mark.ros
def test_of_several_robots_in_a_bag_one_is_chosen(tmp_path):
    bag_of(tmp_path / "two.bag", ["/r1/offload/latency", "/r2/offload/latency", "/r2/offload/mode"])
    with pytest.raises(BadInput, match=r"several robots: /r1/offload/latency and /r2/offload/latency.*--namespace"):
        list(open_run(tmp_path / "two.bag")[0])
    assert len(list(open_run(tmp_path / "two.bag", "r1")[0])) == 10
    with pytest.raises(BadInput, match="no topic of a run in the namespace r3"):
        list(open_run(tmp_path / "two.bag", "r3")[0])


@pytest.mark.ros
def test_a_bag_that_was_cut_off_is_refused_with_a_remedy(tmp_path):
    bag_of(tmp_path / "cut.bag", ["/offload/latency"])
    os.truncate(tmp_path / "cut.bag", 4500)
    with pytest.raises(BadInput, match="reindex"):
        list(open_run(tmp_path / "cut.bag")[0])
