"""scripts/gpu: results come back whatever is killed, no phase begins without room, a failed measurement is a record."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from edge_offload_benchmarks.gpu import carried, networks, results, runner, served, settings, table
from edge_offload_benchmarks.gpu.phases import install

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu"


def command(tmp_path, *arguments):
    places = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    return [str(SCRIPT), "run", "--python", sys.executable, "--device", "cpu", "--tiny", *places, *arguments]


def read(tmp_path):
    return json.loads((tmp_path / "out" / "results.json").read_text())


def wait_for(condition, timeout_s=120.0):
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "nothing came in time"
        time.sleep(0.05)


def is_done(tmp_path, phase):
    try:
        return read(tmp_path)["phases"][phase]["status"] == "done"
    except (OSError, KeyError):
        return False


@pytest.fixture
def phase(tmp_path):
    return results.Phase("facts", settings.Settings("cpu", str(tmp_path)), 30.0)


def test_a_failed_measurement_is_a_record_and_the_phase_goes_on(phase):
    with phase.guard_errors("first"):
        raise ValueError("no such kernel")
    phase.record("second", value=2)
    first, second = results.read_json(phase.path)["records"]
    assert first["name"] == "first"
    assert first["failed"] == "ValueError: no such kernel"
    assert first["where"].startswith("test_gpu_kit.py:")
    assert second["value"] == 2


def test_records_of_an_earlier_attempt_stay(phase):
    results.begin_phase(phase.settings, "facts")
    phase.record("machine", cores=1)
    results.finish_phase(phase.settings, "facts", "killed at its time limit", 3.0)
    results.begin_phase(phase.settings, "facts")
    document = results.read_json(phase.path)
    assert document["status"] == "running"
    assert [one["records"][0]["cores"] for one in document["earlier"]] == [1]


def test_facts_of_the_machine_are_listed_first(phase):
    results.begin_phase(phase.settings, "bits")
    results.begin_phase(phase.settings, "facts")
    phase.record("machine", cores=16)
    merged = results.merge_phases(phase.settings, list(table.PHASES))
    assert next(iter(merged)) == "machine"
    assert merged["machine"][0]["cores"] == 16
    assert list(merged["phases"]) == ["facts", "bits"]


def test_carried_libraries_do_not_serve_changed_sources(tmp_path):
    source = tmp_path / "src" / "edge_offload" / "native" / "cpp" / "device.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("int one;")
    before = carried.source_key(tmp_path)
    assert before == carried.source_key(tmp_path)
    source.write_text("int two;")
    assert before != carried.source_key(tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shtab-1.13.0-py3-none-any.whl", True),
        ("pyzmq-27.3.0-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("pyzmq-27.3.0-cp399-abi3-manylinux_2_28_x86_64.whl", False),
        ("lz4-4.4.5-cp399-cp399-manylinux2014_x86_64.whl", False),
        (f"lz4-4.4.5-cp3{sys.version_info[1]}-cp3{sys.version_info[1]}-manylinux2014_x86_64.whl", True),
    ],
)
def test_wheels_of_another_python_are_omitted(name, expected):
    assert install.fits_python(name) == expected


def test_a_server_opens_each_network_by_its_name():
    assert set(served.BENCH_NETWORKS) == set(networks.BUILDERS)
    assert networks.__name__ == served.MODULE
    assert served.allow_options(["tiny", "movenet"]) == ["--allow", f"{networks.__name__}:tiny"]


def test_joined_phases_run_at_once_with_the_longest_limit():
    joined = table.entry_of("facts+correct+batches")
    assert joined.parts == ("facts", "bits", "conformance", "modules", "build", "batches")
    assert joined.seconds == table.PHASES["correct"].seconds
    assert runner.list_unknown(["facts+nothing", "pool", "facts:60"]) == ["facts+nothing"]


def test_a_tiny_rehearsal_has_every_default_phase():
    every = [part for entry in table.DEFAULT for part in table.list_members(entry)]
    assert sorted(part for entry in table.TINY_DEFAULT for part in table.list_members(entry)) == sorted(every)


def test_eight_cores_are_shared_and_fewer_are_not():
    assert settings.share_cores(16) == {"server_cores": "8-15", "client_cores": "0-7"}
    assert settings.share_cores(2) == {"server_cores": "", "client_cores": ""}


@pytest.mark.process
def test_an_unknown_phase_is_named_before_anything_starts(tmp_path):
    done = subprocess.run(command(tmp_path, "fact"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no phase 'fact'; there are: install, facts, " in done.stderr
    assert not (tmp_path / "work").exists()


@pytest.mark.process
def test_a_phase_that_does_not_fit_is_not_begun(tmp_path):
    done = subprocess.run(
        command(tmp_path, "facts", "--limit", "5"), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "== facts: not begun: 5 s are left, it takes 60 to 120 s" in done.stdout
    assert read(tmp_path)["phases"] == {}
    assert "not begun" in (tmp_path / "out" / "log.txt").read_text()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_results_remain_when_a_later_phase_is_killed(tmp_path, number):
    arguments = command(tmp_path, "install", "pool", "facts")
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: is_done(tmp_path, "pool"))
        os.kill(process.pid, number)
        process.wait(60)
    phases = read(tmp_path)["phases"]
    assert phases["install"]["status"] == phases["pool"]["status"] == "done"
    assert phases["pool"]["records"]
    if number == signal.SIGTERM:
        assert phases.get("facts", {"status": "killed with the run"})["status"] == "killed with the run"
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"results.json", "log.txt"}


@pytest.mark.process
def test_a_phase_that_is_done_is_repeated_only_when_it_is_forced(tmp_path):
    outputs = [
        subprocess.run(command(tmp_path, "pool", *more), capture_output=True, text=True, timeout=120, check=True).stdout
        for more in ([], [], ["--again"])
    ]
    assert ["== pool: done before" in output for output in outputs] == [False, True, False]
    assert len(read(tmp_path)["phases"]["pool"]["earlier"]) == 1


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(1300)
def test_a_rehearsal_without_a_gpu_measures_and_compares(tmp_path):
    done = subprocess.run(
        command(tmp_path, "--limit", "1200"), capture_output=True, text=True, timeout=1250, check=False
    )
    phases = read(tmp_path)["phases"]
    assert {name: one["status"] for name, one in phases.items()} == {
        name: "done" for entry in table.DEFAULT for name in table.list_members(entry)
    }, done.stdout[-3000:]
    failed = [record for one in phases.values() for record in one["records"] if "failed" in record]
    assert failed == []

    def record(name, start):
        return next(one for one in phases[name]["records"] if one["name"].startswith(start))

    total = record("bits", "total replay")
    assert total["bits"] == total["programs"] > 0
    calls = record("conformance", "replay")
    assert calls["bits"] == calls["calls"] > 0
    assert record("modules", "tiny server")["equal"] == "3 of 3"
    replay = record("speed", "tiny replay")
    assert replay["wall"]["n"] > 0
    assert replay["over_eager"] > 0
    assert record("faults", "killed")["code"] == 0
