"""``bench peers``: rows of pairs, peers that cannot be installed or fail, and the command with a peer of plain HTTP."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest
import torch

from edge_offload import records
from edge_offload.cli import main
from edge_offload_benchmarks.experiments import peers
from edge_offload_benchmarks.peers import environments, ways
from edge_offload_benchmarks.peers.raw_tensors import pack_tensors, unpack_tensors
from edge_offload_benchmarks.peers.rounds import Failures, read_cpu_s
from tests.server.server_rig import until

#: Computes as a peer does, with what Python has.
STAND_IN = """
import http.server, sys
from edge_offload_benchmarks.peers.served_network import ServedNetwork

network = ServedNetwork(sys.argv[1])

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = network.compute(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def stand_in(name, server):
    """A peer in this Python: a server from source text, and the client of LitServe."""

    class Here(environments.Environment):
        @property
        def python(self):
            return sys.executable

        def install(self):
            return ""

    real = next(way for way in ways.WAYS if way.name == "litserve")
    return ways.Way(
        name,
        ways.SERVED,
        lambda network, port, folder: [sys.executable, "-c", server, network, str(port)],
        lambda network, address, folder: [sys.executable, *real.client(network, address, folder)[1:]],
        environment=Here("here", ()),
    )


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_command_compares_a_served_network_with_a_peer_and_names_one_that_fails(tmp_path, monkeypatch, capsys):
    own = next(way for way in ways.WAYS if way.name == "server")
    broken = stand_in("broken", "import sys; sys.exit('no such port')")
    monkeypatch.setattr(ways, "WAYS", (own, stand_in("litserve", STAND_IN), broken))
    path = tmp_path / "peers.json"
    assert main(["bench", "peers", "--tiny", "--link", "loopback", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    records.validate("peers_bench", record)
    assert record["failed"] == {"broken": "broken's server does not listen: no such port"}
    quantities = {row["quantity"]: row for row in record["rows"]}
    assert set(quantities) == {"start", "first", "steady", "robot_cpu", "server_cpu", "answers"}
    for row in record["rows"]:
        assert (row["own"], row["best"], row["differing"]) == ("server", "litserve", [])
        assert min(row["medians"].values()) > 0.0
        assert row["medians"]["server"] == pytest.approx(row["ratio"][0] * row["medians"]["litserve"], rel=0.5)
    # a start includes torch, and an inference needs the processor of the server
    assert quantities["start"]["medians"]["litserve"] > quantities["steady"]["medians"]["litserve"]
    assert "x litserve" in capsys.readouterr().err


@pytest.mark.process
def test_a_server_ends_with_the_processes_that_it_started(tmp_path):
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    server = f"import subprocess, time; print(subprocess.Popen({child!r}).pid, flush=True); time.sleep(600)"
    with peers.serve(stand_in("parent", server), tmp_path) as served:
        pid = int(served.process.wait_line(""))
        assert psutil.pid_exists(pid)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 20.0)


def values(*numbers):
    return {"steady": list(numbers)}


def test_the_best_peer_of_a_row_is_the_fastest_and_over_two_percent_is_behind():
    sides = {"replay": values(1.03, 2.06, 3.09), "slow": values(9, 9, 9), "rgpu": values(1, 2, 3)}
    row = peers.judge_quantity("steady", "replay", sides)
    assert (row["best"], row["ratio"], row["behind"]) == ("rgpu", [1.03, 1.03, 1.03], True)
    sides["replay"] = values(1.01, 2.02, 3.03)
    assert not peers.judge_quantity("steady", "replay", sides)["behind"]


def test_of_answers_more_are_better():
    sides = {"server": {"answers": [96.0]}, "grpc": {"answers": [100.0]}, "litserve": {"answers": [50.0]}}
    row = peers.judge_quantity("answers", "server", sides)
    assert (row["best"], row["ratio"][0], row["behind"]) == ("grpc", 0.96, True)
    sides["server"] = {"answers": [110.0]}
    assert not peers.judge_quantity("answers", "server", sides)["behind"]


def test_a_peer_that_fails_has_a_reason_and_no_part_in_the_rows():
    record, failures = {"failed": {}, "rows": []}, Failures()
    with failures.note("rgpu"):
        raise OSError("its server has gone")
    sides = {"replay": values(2.0), "rgpu": {"steady": []}, "skytorch": {**values(4.0), "differs": [1.0]}}
    peers.add_rows(record, {"program": "net", "link": "loopback"}, sides, failures)
    assert record["failed"] == {"rgpu: net, loopback": "its server has gone"}
    (row,) = record["rows"]
    assert (row["best"], row["ratio"][0], row["differing"]) == ("skytorch", 0.5, ["skytorch"])


@pytest.mark.process
def test_what_pip_refuses_is_named_with_its_last_error(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path))
    wanted = environments.Environment("none", (str(tmp_path / "absent-1.0-py3-none-any.whl"),), options=("--no-index",))
    reason = wanted.install()
    assert "absent-1.0" in reason
    assert "\n" not in reason
    assert not (tmp_path / "peers/none/installed").exists()


@pytest.mark.process
def test_an_environment_has_the_torch_of_this_python_and_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path))
    wheel = environments.Environment("empty", (), options=("--no-index", "pip"))
    assert wheel.install() == ""
    text = "import torch; print(torch.__file__)"
    run = subprocess.run([wheel.python, "-c", text], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == torch.__file__
    made_at = wheel.python.parents[1].stat().st_ctime_ns
    assert wheel.install() == ""
    assert wheel.python.parents[1].stat().st_ctime_ns == made_at


def test_tensors_of_a_message_are_those_that_were_packed():
    tensors = [torch.randn(2, 3), torch.arange(4, dtype=torch.uint8), torch.zeros(0, 5), torch.tensor(7)]
    for one, other in zip(tensors, unpack_tensors(pack_tensors(tensors))):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.process
def test_processor_time_of_a_process_is_that_of_its_children_too():
    child = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"done\n"
        assert read_cpu_s(process.pid) >= 0.3
        process.stdin.close()
    assert read_cpu_s(process.pid) == 0.0
