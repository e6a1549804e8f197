"""Built engines on disk: told apart by all that decides them, never loaded when damaged, built once."""

import os
import resource
import stat
import subprocess
import sys
import threading
import time

import pytest
import torch

from edge_offload.errors import Unsupported
from edge_offload.execute.engines.cache import EngineCache, EngineEntry
from edge_offload.execute.engines.export import network_identity
from edge_offload.execute.module import ModuleExecutor
from edge_offload.execute.tensors import TensorSpec
from tests.execute.engines.conftest import Doubling

KEY = "a" * 64


def never() -> EngineEntry:
    raise AssertionError("it is there already")


def run_once(weight: float = 2.0, length: int = 6, factor: float = 1.0) -> None:
    executor = ModuleExecutor(Doubling(weight, factor), engine="stand-in")
    executor.run_module([torch.arange(length, dtype=torch.float32)])
    assert executor.engine_ready(60)


def test_a_second_start_builds_nothing_and_what_differs_is_another_entry(stand_in, cache, monkeypatch):
    run_once()
    run_once()
    assert stand_in.builds == 1
    for different in ({"weight": 2.001}, {"length": 7}, {"factor": 1.5}):
        run_once(**different)
    torch.set_num_threads(2)
    run_once()
    torch.set_num_threads(1)
    stand_in.precision = "fp16"
    run_once()
    stand_in.distributions = ("torch",)
    run_once()
    assert stand_in.builds == len(list(cache.iterdir())) == 7


def test_an_engine_that_was_wrong_on_noise_is_stored_and_never_trusted(stand_in, cache):
    stand_in.factor = 2.001
    for _ in range(2):
        executor = ModuleExecutor(Doubling(), engine="stand-in")
        executor.run_module([torch.zeros(6)])  # on which it is right
        assert executor.engine_ready(60)
        assert executor.run_module([torch.arange(6.0)]).engine == "eager"
        assert "off by" in executor.engine_state()[0]
    assert stand_in.builds == 1


def test_files_are_private(cache):
    EngineCache().get_or_build(KEY, lambda: EngineEntry(b"engine", "digest"))
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    (path,) = cache.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_damaged_entries_are_rebuilt(cache):
    entry = EngineEntry(b"engine", "digest")
    EngineCache().get_or_build(KEY, lambda: entry)
    (path,) = cache.iterdir()
    raw = path.read_bytes()
    damaged = [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] for at in range(len(raw))]
    for data in [*damaged, *(raw[:at] for at in range(len(raw))), raw + b"x"]:
        path.write_bytes(data)
        calls: list = []
        assert EngineCache().get_or_build(KEY, lambda calls=calls: calls.append(1) or entry) == entry
        assert calls == [1], f"{data!r} was loaded"
    assert EngineCache().get_or_build(KEY, never) == entry


def test_files_that_others_can_reach_are_not_loaded(cache, tmp_path):
    entry = EngineEntry(b"engine", "digest")
    EngineCache().get_or_build(KEY, lambda: entry)
    (path,) = cache.iterdir()
    path.chmod(0o640)
    with pytest.raises(AssertionError, match="there already"):
        EngineCache().get_or_build(KEY, never)
    EngineCache().get_or_build(KEY, lambda: entry)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AssertionError, match="there already"):
        EngineCache().get_or_build(KEY, never)
    EngineCache().get_or_build(KEY, lambda: entry)
    cache.chmod(0o777)
    with pytest.raises(AssertionError, match="there already"):
        EngineCache().get_or_build(KEY, never)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_the_entry_used_longest_ago_makes_room(cache):
    retained = EngineCache(most_bytes=1300)
    for name in "abc":
        retained.get_or_build(name * 64, lambda: EngineEntry(bytes(300), ""))
        os.utime(cache / f"{name * 64}.engine", ns=(ord(name), ord(name)))
    retained.get_or_build("a" * 64, never)
    for name in "de":
        retained.get_or_build(name * 64, lambda: EngineEntry(bytes(300), ""))
    assert {path.name[0] for path in cache.iterdir()} == {"a", "d", "e"}


def test_two_that_want_one_engine_build_it_once(cache):
    built, results = [], []
    ready = threading.Barrier(2)

    def want() -> None:
        ready.wait()
        results.append(EngineCache().get_or_build(KEY, lambda: built.append(1) or EngineEntry(b"engine", "")))

    threads = [threading.Thread(target=want) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (len(built), len(results)) == (1, 2)


def test_a_full_disk_leaves_torch_to_compute(stand_in, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EngineCache, "_write_entry", full)
    executor = ModuleExecutor(Doubling(), engine="stand-in")
    executor.run_module([torch.arange(6.0)])
    assert executor.engine_ready(60)
    assert executor.run_module([torch.arange(6.0)]).engine == "eager"
    assert "cannot be stored" in executor.engine_state()[0]


def test_a_folder_that_is_a_link_is_refused(cache, tmp_path):
    (tmp_path / "others").mkdir()
    cache.symlink_to(tmp_path / "others")
    with pytest.raises(Unsupported, match="is not a folder of yours"):
        EngineCache().get_or_build(KEY, never)


def test_a_module_that_cannot_be_seen_into_has_no_identity():
    specs = (TensorSpec("float32", (6,)),)
    network = Doubling()
    assert network_identity(network, specs) == network_identity(Doubling(), specs)
    network.factor = object()
    assert network_identity(network, specs) is None
    network.factor = 1.0
    network.register_forward_hook(lambda *_: None)
    assert network_identity(network, specs) is None


def test_an_engine_that_was_lost_is_rebuilt(stand_in, cache):
    run_once()
    (path,) = cache.iterdir()
    path.unlink()
    run_once()
    assert stand_in.builds == 2


def test_a_full_disk_leaves_no_partial_file(cache):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(Unsupported, match="its engine cannot be stored"):
            EngineCache().get_or_build(KEY, lambda: EngineEntry(bytes(5000), "digest"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(cache.iterdir()) == []


@pytest.mark.process
def test_two_processes_build_one_engine_once(cache, tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "from edge_offload.execute.engines.cache import EngineCache, EngineEntry\n"
        "def build():\n"
        "    with open(sys.argv[1], 'a') as stream: stream.write('built\\n')\n"
        "    while pathlib.Path(sys.argv[1] + '.hold').exists(): time.sleep(0.01)\n"
        "    return EngineEntry(b'engine', 'digest')\n"
        f"print('ready', flush=True); sys.stdin.readline(); print(EngineCache().get_or_build({KEY!r}, build).built)\n"
    )
    built = tmp_path / "built"
    hold = built.with_suffix(".hold")
    hold.touch()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", code, str(built)], **pipes) for _ in range(2)]
    for one in both:
        assert one.stdout.readline() == "ready\n"
    for one in both:
        one.stdin.write("go\n")
        one.stdin.flush()
    while not built.exists():
        time.sleep(0.01)
    hold.unlink()
    assert [one.communicate(timeout=60)[0] for one in both] == ["b'engine'\n"] * 2
    assert built.read_text() == "built\n"
