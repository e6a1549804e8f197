"""The process of low priority that learns a split: begun when something is to be learnt, ended when nothing is.

It runs when nobody else wants a processor. Where that is too seldom, or where it ends, its work is done in the thread
that waited for it, in slices between frames, and that is said; another process is tried when something is to be learnt
again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from edge_offload import background
from edge_offload.errors import EdgeOffloadError, LinkLost, Refused, RemoteError, Unsupported
from edge_offload.execute.tensors import pack_tensors
from edge_offload.ir import sequence_hash, wire
from edge_offload.models.entry import Scalar
from edge_offload.protocol.channel import Channel
from edge_offload.split.learning.planning import (
    DistinctPlans,
    PlanSettings,
    costs_to_facts,
    make_plans,
    settings_to_facts,
)
from edge_offload.split.model.cost import CostModel
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.runtime import traces, tracing
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.profile import Profile

PROCESS_LIMIT_S = 120.0
"""The process has so long for all that it is asked."""
END_S = 5.0
"""It is waited for so long when it ends."""
MOST_FAILURES = 3
"""After so many processes that ended or were late, in a row, none is begun any more."""
SWITCH = "EDGE_OFFLOAD_LEARNING"
"""``threads`` in the environment: no process is begun, all is learnt in threads: for tests on full machines."""

CLOSED_MESSAGE = "nothing is learnt here any more"

ReportProgress = Callable[[str], None]
_log = logging.getLogger(__name__)


class SplitLearning:
    """Learns one model's split, in a process while that can be had. Thread-safe; one question at a time.

    Args:
        name, options: of the model, as :func:`edge_offload.models.registry.build_module` takes them; a name of ""
            is a record, which cannot be built: it is only planned there.
        state_hash: of this process's weights.
        built_from: what builds the model here, if that is not its name.
    """

    def __init__(
        self, name: str, options: Mapping[str, Scalar], state_hash: Callable[[], str], built_from: str = ""
    ) -> None:
        self._name, self._options, self._state_hash = name, dict(options), state_hash
        self._built_from = built_from or name
        self._process: Optional[_LearningProcess] = None
        self._traced: Set[str] = set()
        self._users = 0
        self._failures, self._disabled = 0, os.environ.get(SWITCH) == "threads"
        self._closed = False
        self._request_lock, self._lock = threading.Lock(), threading.Lock()
        #: Why there is no process, or was none when something was learnt last, in words.
        self.problem = "the environment says so" if self._disabled else ""
        self._in_thread = bool(self.problem)

    @contextlib.contextmanager
    def keep_process(self) -> Iterator[None]:
        """Retain the process during the context; after a failure, the next context tries another one."""
        with self._lock:
            if not self._users:
                self._without = self._disabled
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                ended = self._process if not self._users else None
                if ended is not None:
                    self._process = None
                    self._traced.clear()
            if ended is not None:
                ended.close()

    def close(self) -> None:
        """End the process, whatever is asked of it; nothing more is learnt (Refused)."""
        with self._lock:
            self._closed, process = True, self._process
        if process is not None:
            process.close()

    def trace_model(
        self, module: nn.Module, examples: Sequence[torch.Tensor], report: ReportProgress = lambda doing: None
    ) -> TracedNetwork:
        """Trace ``module``, which the name builds; see :func:`edge_offload.split.runtime.tracing.trace_module`."""
        if self._name:
            with self._request_lock, self.keep_process():
                request = {"name": self._name, "built_from": self._built_from, "options": self._options}
                answer = self._request_answer("trace", report, examples, state_hash=self._state_hash, **request)
                network = None if answer is None else self._bind_trace(module, examples, *answer)
            if network is not None:
                return network
        return tracing.trace_module(self._name, module, examples)

    def measure_profile(
        self, network: TracedNetwork, place: SplitDevice, repeats: int, report: ReportProgress = lambda doing: None
    ) -> Optional[Profile]:
        """The profile of a network that the process has traced; None where ``place`` has to measure it.

        What several threads, a GPU or another process compute is measured where it is computed: beside frames a process
        of low priority knows of one thread alone how long it computed.
        """
        identity = sequence_hash(network.program.sequence)
        with self._request_lock, self.keep_process():
            if identity not in self._traced or type(place) is not SplitDevice or torch.get_num_threads() != 1:
                return None
            answer = self._request_answer("measure", report, (), sequence=identity, repeats=repeats)
        return None if answer is None else Profile.from_record(answer[0]["profile"])

    def make_plans(
        self,
        model: CostModel,
        bandwidths: Sequence[float],
        settings: PlanSettings,
        report: ReportProgress = lambda doing: None,
    ) -> DistinctPlans:
        """Make plans like :func:`.planning.make_plans`."""
        facts = {
            "sequence": wire.encode(model.located.sequence),
            "costs": costs_to_facts(model),
            "bandwidths": list(bandwidths),
            "settings": settings_to_facts(settings),
        }
        with self._request_lock, self.keep_process():
            answer = self._request_answer("plans", report, (), **facts)
        if answer is not None:
            return DistinctPlans.from_facts(answer[0]["plans"])
        with background.sliced():
            return make_plans(model, bandwidths, settings)

    def _request_answer(
        self, kind: str, report: ReportProgress, tensors: Sequence[torch.Tensor], **facts: Any
    ) -> Optional[Tuple[Dict[str, Any], List[Any]]]:
        """Return the answer of the process; None if there is none (any more)."""
        if self._closed:
            raise Refused(CLOSED_MESSAGE)
        if self._in_thread:
            report(f"in this process, for {self.problem}")
            return None
        try:
            if callable(facts.get("state_hash")):
                facts["state_hash"] = facts["state_hash"]()
            if self._process is None:
                report("a process of low priority is being started")
                self._start_process()
            assert self._process is not None
            answer = self._process.request_answer(kind, report, tensors, facts)
        except Unsupported:
            raise  # so it would be here
        except (EdgeOffloadError, OSError) as error:
            background.check()
            if self._closed:
                raise Refused(CLOSED_MESSAGE) from error
            self._record_failure(str(error), for_good=isinstance(error, RemoteError))
            report(f"in this process, for {self.problem}")
            return None
        self._failures, self.problem = 0, ""
        return answer

    def _start_process(self) -> None:
        process = _LearningProcess(torch.get_num_threads())
        with self._lock:
            closed = self._closed
            if not closed:
                self._process = process
        if closed:
            process.close()
            raise Refused(CLOSED_MESSAGE)

    def _record_failure(self, reason: str, for_good: bool) -> None:
        """Learn without a process until the next context; a refusal is permanent, since any process would refuse."""
        self._failures += 1
        self._disabled = for_good or self._failures >= MOST_FAILURES
        self._in_thread = True
        ended, self._process = self._process, None
        self._traced.clear()
        if ended is not None:
            ended.close()
        retry_note = "" if self._disabled else "; another one is tried next time"
        self.problem = f"{reason} ({self._failures} in a row){retry_note}" if not for_good else reason
        _log.warning("%s is learnt in this process, in slices between frames: %s", self._name or "it", self.problem)

    def _bind_trace(
        self, module: nn.Module, examples: Sequence[torch.Tensor], facts: Dict[str, Any], buffers: List[Any]
    ) -> Optional[TracedNetwork]:
        written = traces.WrittenTrace(facts["encoded"], facts["tensors"], buffers)
        try:
            bound = traces.read_trace(written, facts["sequence"], module)
        except (EdgeOffloadError, ValueError, TypeError, KeyError, RecursionError) as error:
            self._record_failure(f"what it traced does not fit: {error}", for_good=True)
            return None
        self._traced.add(facts["sequence"])
        return tracing.bind_network(self._name, module, examples, bound)


class _LearningProcess:
    """The process, and questions to it.

    Args:
        threads: torch's there.
    """

    def __init__(self, threads: int) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._channel = ours, Channel(ours)
        self._remaining_s = PROCESS_LIMIT_S
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("EDGE_OFFLOAD_EXEC")}
        # what can be imported here can be there; a GPU is nothing that it uses
        import_path = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))
        command = [sys.executable, "-m", "edge_offload.split.learning.worker", str(theirs.fileno()), str(threads)]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env={**inherited, "PYTHONPATH": import_path, "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        background.on_shutdown(self._channel.close)

    def request_answer(
        self, kind: str, report: ReportProgress, tensors: Sequence[torch.Tensor], facts: Dict[str, Any]
    ) -> Tuple[Dict[str, Any], List[Any]]:
        """What it answers; ``report`` hears how far it is.

        Raises:
            LinkLost: it has ended, or did not answer in time.
            Unsupported, RemoteError: what it said.
        """
        descriptors, buffers = pack_tensors(tensors, "raw")
        until_s = time.monotonic() + self._remaining_s
        try:
            least_s = 1e-3  # of a wait for an answer
            self._socket.settimeout(max(self._remaining_s, least_s))
            self._channel.send({"what": kind, "facts": facts, "tensors": descriptors}, buffers)
            while True:
                header, answer_buffers = self._channel.receive()
                self._remaining_s = until_s - time.monotonic()
                if "doing" not in header:
                    break
                report(str(header["doing"]))
                self._socket.settimeout(max(self._remaining_s, least_s))
        except LinkLost:
            late = time.monotonic() >= until_s
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.0 if late else END_S)
            reason = (
                f"has not done it within {PROCESS_LIMIT_S:g} s" if late else f"ended with code {self._process.poll()}"
            )
            self.close()
            raise LinkLost(f"the process of low priority {reason}") from None
        failed = header.get("failed")
        if failed is not None:
            kind, cause, remedy = (str(part) for part in failed)
            raise (Unsupported if kind == Unsupported.__name__ else RemoteError)(cause, remedy)
        return dict(header["facts"]), answer_buffers

    def close(self) -> None:
        """End it: it has nothing that would be lost."""
        self._channel.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has no processor to end on
            self._process.wait(END_S)
