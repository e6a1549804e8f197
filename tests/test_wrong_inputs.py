"""What a user gets for a wrong argument, file, topic, key, port or disk: one line that says what to do, nothing lost.

Each row is a command line. ``{name}`` stands for a file of the folder that :func:`make_folder` makes, {taken} for a
port that somebody listens on. Every file in that folder must be as it was afterwards.

The rows are run by two processes that have imported everything and fork for each row, each with a folder of its own.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import queue
import random
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from typing import Any, Dict, Iterator

import pytest

pytestmark = pytest.mark.process

LIMIT_S = 20
TAIL = 2000

ROWS = """
# arguments
-
nonsense
track --frmes 3
track --frames abc
track --frames nan
track --frames 0
track --frames -1
track --frames 99999999999999999999999999
track --slowdown nan --frames 1
track --slowdown inf --frames 1
track --slowdown -3 --frames 1
track --slowdown 0.5 --frames 1
track --slowdown 1e308 --frames 1
track --threads -1 --frames 1
track --threads 100000 --frames 1
track --option size --frames 1 --model kapao_n
track --option size=abc --frames 1 --model kapao_n
track --option size=-64 --frames 1 --model kapao_n
track --option size=1e9 --frames 1 --model kapao_n
track --option sizes=320 --frames 1 --model kapao_n
track --option =3 --frames 1 --model kapao_n
track --model nothing --frames 1
track --model nothing.of:this --frames 1
track --model os:path --frames 1
track --model os.path: --frames 1
track --model kapao_n --frames 1
track --model sconet --frames 1
track --target tallest --frames 1 --model kapao_vtest
exec
exec --
exec -- {folder}/no_such_program
exec -- {binary}
exec --mode fast -- true
exec --mode split -- true
exec --mode local --server tcp://127.0.0.1:1 -- true
exec --slowdown nan -- true
exec --wait -5 -- true
exec --wait nan --server tcp://127.0.0.1:1 -- true
exec --threads -2 -- true
exec --codec zip -- true
exec --server nonsense -- true
exec --server tcp://127.0.0.1:99999 -- true
exec --server http://127.0.0.1:5700 -- true
exec --tally {binary}/t.json -- true
exec --keys {binary} --server tcp://127.0.0.1:1 --wait 0.2 -- true
serve --bind tcp://127.0.0.1:0 --allow nocolon
serve --bind tcp://127.0.0.1:0 --allow no.such.module:factory
serve --bind tcp://127.0.0.1:0 --allow os:no_such_function
serve --bind nonsense
serve --bind tcp://127.0.0.1:99999
serve --bind tcp://127.0.0.1:{taken}
serve --bind tcp://300.1.1.1:5700
serve --bind tcp://0.0.0.0:0 --keys {empty_folder}
serve --bind tcp://127.0.0.1:0 --device tpu
serve --bind tcp://127.0.0.1:0 --device cuda:99
serve --bind tcp://127.0.0.1:0 --threads -1
serve --bind tcp://127.0.0.1:0 --cores 99999
serve --bind tcp://127.0.0.1:0 --cores abc
serve --bind tcp://127.0.0.1:0 --preload nothing
serve --bind tcp://127.0.0.1:0 --option nonsense
serve --bind tcp://127.0.0.1:0 --option kapao_n.nonsense=3 --preload kapao_n
serve --bind tcp://127.0.0.1:0 --option kapao_n.checkpoint={binary} --preload kapao_n
serve --bind tcp://127.0.0.1:0 --max-models -1
serve --bind tcp://127.0.0.1:0 --max-models 0
serve --bind tcp://127.0.0.1:0 --queue 0
serve --bind tcp://127.0.0.1:0 --devices-per-robot 0
serve --bind tcp://127.0.0.1:0 --device-memory-mb 0
serve --bind tcp://127.0.0.1:0 --lease nan
serve --bind tcp://127.0.0.1:0 --weights-cache {binary}
serve --bind tcp://127.0.0.1:0 --weights-cache-mb -5
serve --bind tcp://127.0.0.1:0 --keys {binary}
serve --bind tcp://127.0.0.1:0 --status-every -1
doctor --json {binary}/report.json
doctor --json {folder}
doctor --json /dev/full
keys trust robot1 short
keys trust robot1 {long}
keys trust --server nowhere KEY
keys trust --server host:99999 {key}
keys trust --server host:5700 {key}x
keys revoke nobody
keys rotate client --finish
keys new thing
link
link emulate --listen nonsense --to 127.0.0.1:1
link emulate --listen 127.0.0.1:99999 --to 127.0.0.1:1
link emulate --listen 127.0.0.1:{taken} --to 127.0.0.1:1
link emulate --listen 127.0.0.1:0 --to nonsense
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:70000
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --link nothing
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --trace {missing}
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --trace {binary}
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --trace {empty}
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --trace {folder}
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --trace {nan_csv}
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --trace {negative_csv}
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --rate-mbps nan
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --rate-mbps -3
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --rate-mbps 1e300
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --rtt-ms inf
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --rtt-ms -1
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --queue-kib 1
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --queue-kib 999999999999
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --control 0.0.0.0:0
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --control nonsense
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --json-stats {binary}/s.json
link emulate --listen 127.0.0.1:0 --to 127.0.0.1:1 --json-stats {folder}
link control nonsense stats
link control 127.0.0.1:1 stats
link control 127.0.0.1:99999 stats
link control 127.0.0.1:1 set mbps
link make-traces {binary}
models info nothing
models fetch
models list --json {binary}/m.json
models list --json /dev/full
models info movenet --json {folder}
# files
track {missing} --model kapao_vtest
track {binary} --model kapao_vtest
track {empty} --model kapao_vtest
track {folder} --model kapao_vtest
track --frames 1 --model kapao_vtest --camera {missing}
track --frames 1 --model kapao_vtest --camera {binary}
track --frames 1 --model kapao_vtest --camera {list_json}
track --frames 1 --model kapao_vtest --camera {folder}
track --frames 1 --model kapao_vtest --camera {nan_yaml}
track --frames 1 --model kapao_vtest --out {binary}/o.mp4
track --frames 1 --model kapao_vtest --out {kept}
track --frames 1 --model kapao_vtest --out {folder}
track --frames 1 --model kapao_vtest --png {binary}/o.png
track --frames 1 --model kapao_vtest --png {kept}
track --frames 1 --model kapao_vtest --json {binary}/o.json
track --frames 1 --model kapao_vtest --json /dev/full
track --frames 1 --model kapao_vtest --json {folder}
track --frames 1 --model kapao_s --option checkpoint={missing}
track --frames 1 --model kapao_s --option checkpoint={binary}
track --frames 1 --model kapao_s --option checkpoint={folder}
track --frames 1 --model kapao_s --option checkpoint={empty}
track --frames 1 --model kapao_s --option checkpoint={broken_safetensors}
convert {missing} {folder}/o.safetensors
convert {binary} {folder}/o.safetensors
convert {folder} {folder}/o.safetensors
convert {empty} {folder}/o.safetensors
convert {binary} {binary}/o.safetensors
track --frames 1 --model kapao_vtest --keys {binary} --server tcp://127.0.0.1:1
track --frames 1 --model kapao_vtest --server nonsense
track --frames 1 --model kapao_vtest --server tcp://127.0.0.1:99999
report {missing}
report {folder}
report {binary}
report {empty}
report {list_json}
report {broken_bag}
report {run} -o {binary}/x.html
report {run} -o {folder}
report {run} -o /dev/full
report {run} -o {run}
report {run} --json /dev/full -o {folder}/new.html
top {missing}
top {folder}
top {broken_bag}
top {run} --interval 0
top {run} --window nan
top
exec --lost maybe -- python -c 1
dashboard {missing} --port 0
dashboard {folder} --port 0
dashboard {run} --port 99999
dashboard {run} --port -1
dashboard {run} --port {taken}
dashboard {run} --port 0 --host nonsense.invalid
dashboard {run} --port 0 --host 0.0.0.0
dashboard {run} --port 0 --host 0.0.0.0 --token-file {missing}
dashboard {run} --port 0 --host 0.0.0.0 --token-file {empty}
dashboard {run} --port 0 --host 0.0.0.0 --token-file {binary}
dashboard {run} --port 0 --host 0.0.0.0 --token-file {folder}
dashboard {run} --port 0 --speed nan
dashboard {run} --port 0 --speed -1
dashboard {run} --port 0 --loop --follow
dashboard - --port 0 --loop
dashboard {broken_bag} --port 0
dashboard {broken_bag} --port 0 --follow
sample-bag {binary}/x.bag
sample-bag {folder}
sample-bag {folder}/x.bag --video {missing}
sample-bag {folder}/x.bag --video {binary}
sample-bag {kept} --first 100000000
sample-bag {folder}/x.bag --first -1
sample-bag {folder}/x.bag --frames 0
sample-bag {folder}/x.bag --topic not~a~topic
regress {missing} --golden {kept}
regress {folder} --golden {kept}
regress {broken_bag} --golden {missing}
regress {broken_bag} --golden {binary}
regress {broken_bag} --golden {list_json}
regress {broken_bag} --golden {folder}
regress {broken_bag} --golden {wrong_version}
regress {broken_bag} --golden {kept} --launch nonsense
regress {broken_bag} --golden {kept} --launch mode:=server --timeout nan
regress {broken_bag} --golden {binary}/g.json --update
scene complete {missing}
scene complete {binary} --picture {binary}/x.png
scene complete {folder}
scene complete {empty}
scene complete {odd_bin}
scene complete {bad_pcd}
scene complete {nan_bin} --picture {folder}/s.png
scene complete {scan_bin} --weights {missing}
scene complete {scan_bin} --weights {binary}
scene complete {scan_bin} --weights {folder}
scene complete {scan_bin} --sensor-height nan
scene complete {scan_bin} --sensor-height -1
scene complete {scan_bin} --goal 1
scene complete {scan_bin} --goal nan nan
scene complete {scan_bin} --threads -1
scene complete {scan_bin} --picture {kept}
scene complete {scan_bin} --labels {binary}/x.npz
scene evaluate --scenes 0
scene evaluate --runs -1
scene evaluate --skip -1
scene evaluate --weights {binary}
scene evaluate --scenes 1 --runs 1 --json {binary}/x.json
scene make --count 1 --out {binary}
scene make --count -1 --out {folder}/scenes
scene make --count 1 --first -1 --out {folder}/scenes
plan nothing
plan kapao_n --option size=abc
plan kapao_n --option nothing=3
plan kapao_n --option size
plan kapao_n --option size=64 --profile {missing}
plan kapao_n --option size=64 --profile {binary}
plan kapao_n --option size=64 --profile {list_json}
plan kapao_n --option size=64 --profile {folder}
plan kapao_n --option size=64 --profile {wrong_version}
plan kapao_n --option size=64 --image {binary}
plan kapao_n --option size=64 --image {missing}
plan kapao_n --option size=64 --bandwidth nan
plan kapao_n --option size=64 --bandwidth -5
plan kapao_n --option size=64 --bandwidth 0
plan kapao_n --option size=64 --planner magic
plan kapao_n --option size=64 --slowdown nan
plan kapao_n --option size=64 --slowdown -1
plan kapao_n --option size=64 --seconds -1
plan kapao_n --option size=64 --latency nan
plan kapao_n --option size=64 --threads 0
plan kapao_n --option size=64 --out {binary}/x.json
plan kapao_n --option size=64 --plot {kept}
plan kapao_n --option size=64 --bounds {binary} --bound 10
profile kapao_n --option size=64
profile nothing --out {folder}/x.json
profile kapao_n --option size=64 --out {binary}/x.json
profile kapao_n --option size=64 --out {folder}/x.json --repeats 0
profile kapao_n --option size=64 --out {folder}/x.json --server tcp://127.0.0.1:1
chaos nothing
chaos --hold nan
chaos --hold -1
chaos --repeat 0
chaos --update
chaos blackhole --json {kept} --update
chaos blackhole --json {binary} --update
chaos blackhole --json {folder} --update
chaos blackhole --json {binary}/x.json
conformance --modes nothing
conformance --modes local --server tcp://127.0.0.1:1
conformance --jobs 0
conformance --limit -1
conformance --timeout nan
conformance --json {binary}/x.json --entries abs --limit 1
train kapao --video {missing}
train kapao --video {binary} --out {folder}/t
train kapao
train kapao --coco {missing} --images {folder}
train kapao --coco {binary} --images {folder} --out {folder}/t
train kapao --coco {list_json} --images {folder} --out {folder}/t
train kapao --video {missing} --train abc
train kapao --video {missing} --train 5:2
train kapao --video {missing} --window 10
train kapao --resume --out {empty_folder}
train sconet --steps 0
train sconet --data {missing}
train sconet --data {empty_folder} --folder {folder}/t
train sconet --export {folder}/x.safetensors --folder {empty_folder}
train sconet --device tpu --folder {folder}/t --steps 1
bench nothing
bench fuzz --messages -1
bench fuzz --json {binary}/x.json
bench codecs --json {binary}/x.json
bench transparent --models nothing
bench transparent --links nothing
bench transparent --app {missing}
bench papers --data {missing}
bench robots --robots 0
bench adaptive --trace {missing}
bench people --video {missing}
bench split --model nothing
bench bandwidth --scenario nothing
"""


def rows() -> list[str]:
    return [row for row in ROWS.strip().splitlines() if not row.startswith("#")]


def make_folder(folder: pathlib.Path) -> Dict[str, str]:
    """What the rows name, by name."""
    chance = random.Random(1)
    scan = b"".join(struct.pack("<4f", chance.uniform(0, 30), chance.uniform(-20, 20), -1.7, 0.3) for _ in range(2000))
    run = {"kind": "mode", "t_s": 1.0, "mode": "local", "reason": "", "policy": "auto"}
    contents = {
        "binary": ("binary.json", bytes(chance.randrange(256) for _ in range(4097))),
        "empty": ("empty.jsonl", b""),
        "kept": ("kept.txt", b"kept: a file of the user's\n"),
        "list_json": ("list.json", b"[1, 2]"),
        "wrong_version": ("version.json", b'{"version": 99, "schema": 99}'),
        "nan_csv": ("nan.csv", b"t_s,MBps\n0,nan\n1,2\n"),
        "negative_csv": ("negative.csv", b"t_s,MBps\n0,-4\n1,2\n"),
        "nan_yaml": ("nan.yaml", b"image_width: .nan\nimage_height: 3\n"),
        "broken_safetensors": ("broken.safetensors", struct.pack("<Q", 1 << 60) + b"{}"),
        "broken_bag": ("broken.bag", b"#ROSBAG V2.0\n" + bytes(100)),
        "odd_bin": ("odd.bin", b"1234567"),
        "nan_bin": ("nan.bin", struct.pack("<4f", *[float("nan")] * 4) * 100),
        "scan_bin": ("scan.bin", scan),
        "bad_pcd": ("bad.pcd", b"VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nPOINTS 999999999\nDATA binary\n"),
        "run": ("run.jsonl", (json.dumps(run) + "\n").encode()),
    }
    names = {"folder": str(folder), "missing": str(folder / "missing.file"), "long": "x" * 5000, "key": "k" * 40}
    for name, (file, data) in contents.items():
        (folder / file).write_bytes(data)
        names[name] = str(folder / file)
    (folder / "nothing_in_it").mkdir()
    names["empty_folder"] = str(folder / "nothing_in_it")
    return names


def digests(folder: pathlib.Path) -> Dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


class Worker:
    """Runs command lines, one after the other, in forks of a process that has imported all there is to import."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._names = {**make_folder(folder), "taken": str(self._listener.getsockname()[1])}
        self._folder = folder
        self._before = digests(folder)
        self._child = subprocess.Popen(
            [sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "EDGE_OFFLOAD_KEYS": str(folder / "keys"), "OMP_NUM_THREADS": "1",
                 "ROS_MASTER_URI": "http://127.0.0.1:1"},
        )  # fmt: skip

    def run(self, row: str) -> Dict[str, Any]:
        argv = [] if row == "-" else shlex.split(row.format(**self._names))
        assert self._child.stdin
        assert self._child.stdout
        print(json.dumps(argv), file=self._child.stdin, flush=True)
        outcome: Dict[str, Any] = json.loads(self._child.stdout.readline())
        after = digests(self._folder)
        outcome["lost"] = [path for path, digest in self._before.items() if after.get(path) != digest]
        self._before = after
        return outcome

    def close(self) -> None:
        self._child.stdin.close()
        self._child.wait(10)
        self._listener.close()


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory) -> Iterator[Dict[str, concurrent.futures.Future[Dict[str, Any]]]]:
    """What comes of every row that is tested here, by row."""
    folder = tmp_path_factory.mktemp("wrong")
    rows = [item.callspec.params["row"] for item in request.session.items if item.fspath == request.fspath
             and "row" in getattr(getattr(item, "callspec", None), "params", {})]  # fmt: skip
    workers: queue.Queue[Worker] = queue.Queue()
    made = [Worker(folder / str(number)) for number in range(2)]
    for worker in made:
        workers.put(worker)

    def run(row: str) -> Dict[str, Any]:
        worker = workers.get()
        try:
            return worker.run(row)
        finally:
            workers.put(worker)

    pool = concurrent.futures.ThreadPoolExecutor(len(made))
    pending = {row: pool.submit(run, row) for row in rows}
    yield pending
    for future in pending.values():
        future.cancel()
    pool.shutdown()
    for worker in made:
        worker.close()


def test_the_table_has_many_rows():
    assert len(set(rows())) >= 200


@pytest.mark.parametrize("row", rows())
def test_a_wrong_input_costs_one_line(outcomes, row):
    outcome = outcomes[row].result()
    lines = outcome["stderr"].strip().splitlines()
    shown = "\n".join([row, *lines])
    assert "Traceback" not in outcome["stderr"] + outcome["stdout"], shown
    assert outcome["code"] in (1, 2), f"{shown}\nexit code {outcome['code']}, standard output: {outcome['stdout']}"
    assert lines, shown
    assert lines[-1].startswith("edge-offload"), shown
    assert "; " in lines[-1], f"no remedy: {shown}"
    assert all(line.startswith("edge-offload") for line in lines), f"more than progress and one line: {shown}"
    assert not outcome["lost"], shown


def _run_forked(argv: list[str], folder: str) -> Dict[str, Any]:
    from edge_offload import cli

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            os.setsid()
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(folder)
            signal.alarm(LIMIT_S)
            code: Any = 99
            try:
                code = cli.main(argv)
            except SystemExit as stop:
                code = stop.code
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 98)
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace")[-TAIL:])
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return {"code": code, "stdout": texts[0], "stderr": texts[1]}


def serve(folder: str) -> None:
    """Run the command lines that come on standard input, each in a fork of its own."""
    import cv2  # noqa: F401
    import jsonschema  # noqa: F401
    import torch
    import zmq  # noqa: F401

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(_run_forked(json.loads(line), folder)), file=answers, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
