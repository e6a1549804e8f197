"""Executors that start before they are needed, and weights that wait neither for them nor for the disk."""

from __future__ import annotations

import contextlib
import threading

import psutil
import pytest

from edge_offload import background
from edge_offload.execute import heap
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.protocol.blobs import digest
from edge_offload.protocol.messages import DeviceMessage
from edge_offload.protocol.remote import HAVE, PUT, RUN
from edge_offload.server import blobs
from edge_offload.server.blobs import BlobStore
from edge_offload.server.quota import DeviceQuota
from edge_offload.server.server import OffloadServer
from edge_offload.server.settings import Compute, Limits
from tests.server.server_rig import TIMINGS, until

SESSION = b"s" * 16
DATA = bytes(range(256)) * 100
PATIENCE_S = 60.0


@contextlib.contextmanager
def served(tmp_path, **quota):
    keys = KeyStore(tmp_path / "keys")
    limits = Limits(devices=DeviceQuota(**quota))
    store = BlobStore(tmp_path / "blobs")
    with OffloadServer(keys=keys, compute=Compute("cpu", threads=1), limits=limits, blobs=store) as server:
        yield server, lambda: Client(server.address, keys=keys, timings=TIMINGS, hello={"device": True})


def ask(client, kind, buffers=(), **body):
    future = client.request(kind, {"session": SESSION, **body}, buffers, timeout_s=PATIENCE_S)
    return background.result(future, PATIENCE_S)


def workers():
    present = set()
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "execute.session.worker" in " ".join(each.cmdline()):
                present.add(each.pid)
    return present


@pytest.fixture
def gate(monkeypatch, tmp_path):
    """Executors start once this file is there."""
    path = tmp_path / "gate"
    wait = f'while [ ! -e "{path}" ]; do sleep 0.02; done; exec "$@"'
    monkeypatch.setattr(heap, "LAUNCHER", ["sh", "-c", wait, "executor"])
    yield path
    path.touch()


@pytest.mark.process
def test_weights_are_taken_in_while_the_executor_starts(gate, tmp_path):
    with served(tmp_path) as (_, connect), connect() as client:
        client.wait_ready(PATIENCE_S)
        names = [digest(DATA)]
        assert ask(client, HAVE, number=1, names=names).body == {"missing": [0]}
        ask(client, PUT, [DATA], number=1, name=names[0])
        first = DeviceMessage().to_wire()
        body = {"session": SESSION, "number": 1, "answered": 0, "codec": "auto", "coded": []}
        run = client.request(RUN, body, first, timeout_s=PATIENCE_S)
        assert ask(client, HAVE, number=2, names=names).body == {"missing": []}, "the next message's weights"
        assert not run.done()
        gate.touch()
        assert background.result(run, PATIENCE_S).buffers


@pytest.mark.process
def test_more_weights_than_may_wait_are_taken_in_once_the_executor_has_started(gate, tmp_path):
    size = len(DATA)
    with served(tmp_path, staged_bytes=size + size // 2) as (_, connect), connect() as client:
        client.wait_ready(PATIENCE_S)
        runs, puts = [], []
        for number in (1, 2):
            data = bytes([number]) * size
            body = {"session": SESSION, "number": number, "name": digest(data)}
            puts.append(client.request(PUT, body, [data], timeout_s=PATIENCE_S))
            body = {"session": SESSION, "number": number, "answered": 0, "codec": "auto", "coded": []}
            runs.append(client.request(RUN, body, DeviceMessage().to_wire(), timeout_s=PATIENCE_S))
        background.result(puts[0], PATIENCE_S)
        gate.touch()
        for each in (*puts, *runs):
            background.result(each, PATIENCE_S)


@pytest.mark.process
def test_an_executor_starts_when_its_robot_connects_and_ends_if_it_is_not_used(gate, tmp_path):
    gate.touch()
    with served(tmp_path) as (_, connect):
        before = workers()
        with connect() as client:
            client.wait_ready(PATIENCE_S)
            until(lambda: len(workers() - before) == 1, PATIENCE_S)
        until(lambda: workers() <= before, PATIENCE_S)


def test_weights_can_be_used_before_they_are_written(monkeypatch, tmp_path):
    store, gate = BlobStore(tmp_path), threading.Event()
    write = store._write_blob

    def write_late(name, data):
        assert gate.wait(PATIENCE_S)
        write(name, data)

    monkeypatch.setattr(store, "_write_blob", write_late)
    store.put_blob(digest(DATA), DATA)
    assert not list(tmp_path.rglob(digest(DATA).hex()))
    assert store.get_blob(digest(DATA)) == DATA
    gate.set()
    store.flush()
    assert BlobStore(tmp_path).get_blob(digest(DATA)) == DATA


def test_what_waits_to_be_written_is_bounded(monkeypatch, tmp_path):
    monkeypatch.setattr(blobs, "MAX_UNWRITTEN_BYTES", len(DATA) - 1)
    BlobStore(tmp_path).put_blob(digest(DATA), DATA)
    assert BlobStore(tmp_path).get_blob(digest(DATA)) == DATA
