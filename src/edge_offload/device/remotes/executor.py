"""Executors of this machine: in this process, or in a child process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any, Dict, List, Optional, Sequence

from edge_offload.cache import cache_dir
from edge_offload.errors import LinkLost, ProtocolError
from edge_offload.execute import heap
from edge_offload.execute.session.note import CrashNote, wait_until_ready
from edge_offload.execute.session.serve import serve_message
from edge_offload.ir.trace.calls import Buffer
from edge_offload.protocol.arriving import PendingAnswer
from edge_offload.protocol.channel import Channel
from edge_offload.protocol.messages import Answer, parse_answer
from edge_offload.protocol.remote import Remote
from edge_offload.replay.recovery.copies import UploadCopies

_NUMBERS = ("total_memory", "major", "minor", "multi_processor_count")


def valid_facts(reported: Any) -> Dict[str, Any]:
    """Facts that the other side reports of its device; empty if malformed."""
    if not isinstance(reported, dict) or not isinstance(reported.get("name"), str):
        return {}
    if not all(type(reported.get(name)) is int and 0 <= reported[name] < 1 << 62 for name in _NUMBERS):
        return {}
    return {"name": reported["name"][:200], **{name: reported[name] for name in _NUMBERS}}


class InProcessRemote(Remote):
    """Runs messages at once in this process."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session

    def submit(self, buffers: Sequence[Buffer], reusable: bool = False) -> PendingAnswer:
        self.messages += 1
        self.bytes_up += sum(len(memoryview(buffer).cast("B")) for buffer in buffers)
        answer = PendingAnswer()

        def count_and_parse(replies: List[Buffer]) -> Answer:
            self.bytes_down += sum(len(memoryview(buffer).cast("B")) for buffer in replies)
            return parse_answer(replies)

        def ahead(part: List[Buffer]) -> None:
            answer.add_part(count_and_parse(part))

        answer.complete_answer(
            count_and_parse(serve_message(self.session, [bytes(buffer) for buffer in buffers], ahead))
        )
        return answer

    def close(self) -> None:
        self.session = None


class WorkerRemote(Remote):
    """An executor process of our own (see :mod:`edge_offload.execute.session.worker`), reached over a socket pair.

    Args:
        device: where it computes, ``cpu`` or ``cuda``.
        threads: torch threads; 0 leaves torch's choice.
    """

    def __init__(self, device: str = "cpu", threads: int = 0, start_timeout_s: float = 240.0) -> None:
        super().__init__()
        ours, theirs = socket.socketpair()
        command = [*heap.LAUNCHER, sys.executable, "-m", "edge_offload.execute.session.worker", str(theirs.fileno())]
        note = self._note = CrashNote()
        command += ["--device", device, "--threads", str(threads), "--note", str(note.descriptor)]
        fds = [theirs.fileno(), note.descriptor]
        try:
            self.process = subprocess.Popen(
                command, pass_fds=fds, env=heap.executor_environment(os.environ), stdin=subprocess.DEVNULL
            )
        finally:
            note.close_descriptor()
            theirs.close()
        self._channel = Channel(ours)
        self._lock = threading.Lock()
        self._waiting: Dict[int, PendingAnswer] = {}
        self._lost: Optional[Exception] = None
        ours.settimeout(start_timeout_s)
        try:
            self.facts = valid_facts(wait_until_ready(self._channel).get("gpu"))
        except LinkLost as error:
            self.process.kill()
            self.process.wait()
            raise LinkLost(f"the executor process did not start: {error}") from None
        ours.settimeout(None)
        self._thread = threading.Thread(target=self._receive_answers, name="edge_offload-executor", daemon=True)
        self._thread.start()

    def submit(self, buffers: Sequence[Buffer], reusable: bool = False) -> PendingAnswer:
        answer = PendingAnswer()
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self.messages += 1
            number = self.messages
            self._waiting[number] = answer
        self.bytes_up += self._channel.send({"id": number, "parts": True}, buffers)
        return answer

    def _receive_answers(self) -> None:
        try:
            while True:
                header, buffers = self._channel.receive()
                self.bytes_down += sum(len(buffer) for buffer in buffers)
                answer = parse_answer(buffers)
                with self._lock:
                    ahead = "part" in header
                    waiting = self._waiting[header["id"]] if ahead else self._waiting.pop(header["id"])
                (waiting.add_part if ahead else waiting.complete_answer)(answer)
        except (LinkLost, ProtocolError) as error:
            reason = LinkLost(f"{error}{self._note.describe_end(self.process)}")
            with self._lock:
                self._lost = reason
                unanswered, self._waiting = list(self._waiting.values()), {}
            for waiting in unanswered:
                waiting.set_exception(reason)

    def close(self) -> None:
        self._channel.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self._thread is not threading.current_thread():
            self._thread.join()  # it frees tensors: a daemon thread that does so while Python ends aborts the process


class ExecutorHere:
    """Stand-in that is an executor process on this machine.

    Args:
        device: where it computes, ``cpu`` or ``cuda``.
        threads: torch threads; 0 leaves torch's choice.
    """

    def __init__(self, device: str, threads: int) -> None:
        self.copies = UploadCopies(cache_dir())
        self._device, self._threads = device, threads

    def start(self) -> Remote:
        """Start the process."""
        return WorkerRemote(self._device, self._threads)
