"""What learns a split: ``python -m edge_offload.split.learning.worker FD THREADS``, begun by robot or server alone.

It answers the process that began it over the socket that it inherited, and ends when that hangs up.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Tuple

Answer = Tuple[Dict[str, Any], List[Any]]


NICE_LEVEL = 13
"""Leaves this process about 5 % of a core that others want as well, so that it ends; frames have the other 95 %."""


def lower_priority() -> None:
    """Give way to all others but for a small share, and be the first to go where memory runs out.

    Threads that begin from here on do likewise.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")
    with contextlib.suppress(OSError, AttributeError):
        os.nice(NICE_LEVEL)


class LearningWorker:
    """Learns models by name."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._networks: Dict[str, Any] = {}

    def trace_model(self, tensors: Any, name: str, built_from: str, options: Dict[str, Any], state_hash: str) -> Answer:
        """Answer ``{name, built_from, options, state_hash}`` and inputs with ``{sequence, encoded, tensors}``."""
        from edge_offload.errors import Refused
        from edge_offload.ir import sequence_hash
        from edge_offload.models import registry
        from edge_offload.split.runtime import traces, tracing

        self._report("the model is being built")
        module = registry.build_module(built_from, **options)
        if registry.state_hash(module) != state_hash:
            raise Refused(f"model {name!r} is built with other weights there")
        self._report("it is being traced")
        network = tracing.trace_module(name, module, tensors)
        written = traces.write_trace(network.program, module)
        if written is None:
            raise Refused("the trace has constants that cannot be handed over")
        sequence = sequence_hash(network.program.sequence)
        self._networks[sequence] = network
        facts = {"sequence": sequence, "encoded": written.sequence, "tensors": written.descriptors}
        return facts, list(written.buffers)

    def measure_profile(self, tensors: Any, sequence: str, repeats: int) -> Answer:
        """Answer ``{sequence, repeats}`` with ``{profile}`` of a model that was traced here."""
        del tensors
        from edge_offload.split.runtime.places import SplitDevice

        return {
            "profile": SplitDevice().measure_profile(self._networks[sequence], repeats, self._report).to_record()
        }, []

    def make_plans(
        self, tensors: Any, sequence: bytes, costs: Dict[str, Any], bandwidths: List[float], settings: Dict[str, Any]
    ) -> Answer:
        """Answer ``{sequence, costs, bandwidths, settings}`` with ``{plans}``."""
        del tensors
        from edge_offload.ir import wire
        from edge_offload.split.learning import planning
        from edge_offload.split.planners.table import Effort
        from edge_offload.split.runtime.tracing import locate_along

        self._report("plans are being made")
        model = planning.costs_from_facts(costs, locate_along("a model", wire.decode(sequence), None))
        chosen = planning.settings_from_facts(settings)
        if chosen.effort is None:
            # seconds of which this process does not get all
            chosen.effort = Effort(seconds=30.0)
        plans = planning.make_plans(model, bandwidths, chosen)
        return {"plans": plans.to_facts()}, []


def serve_requests(channel: Any) -> None:
    """Answer requests one by one, until the other end is gone."""
    from edge_offload.errors import EdgeOffloadError, LinkLost
    from edge_offload.execute.tensors import unpack_tensors

    requests: queue.Queue[Any] = queue.Queue()

    def read_requests() -> None:
        try:
            while True:
                requests.put(channel.receive())
        except LinkLost:  # whatever is under way, nobody wants it any more
            os._exit(0)

    threading.Thread(target=read_requests, name="edge-offload-listen", daemon=True).start()
    reported_s = 0.0

    def report(doing: str) -> None:
        nonlocal reported_s
        # each report wakes a thread beside the frames
        if time.monotonic() - reported_s >= 0.2:
            reported_s = time.monotonic()
            channel.send({"doing": doing})

    learner = LearningWorker(report)
    answers: Dict[str, Callable[..., Answer]] = {
        "trace": learner.trace_model,
        "measure": learner.measure_profile,
        "plans": learner.make_plans,
    }
    while True:
        header, buffers = requests.get()
        try:
            tensors = unpack_tensors(header["tensors"], buffers)
            facts, answer_buffers = answers[header["what"]](tensors, **header["facts"])
        except LinkLost:
            return
        except EdgeOffloadError as error:
            channel.send({"failed": [type(error).__name__, error.cause, error.remedy]})
        except Exception as error:
            channel.send({"failed": ["", f"{type(error).__name__}: {error}", ""]})
        else:
            channel.send({"facts": facts}, answer_buffers)


def main(arguments: List[str]) -> int:
    """Answer over the socket of that number, with that number of torch's threads."""
    lower_priority()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program decides when it ends
    import torch

    from edge_offload.execute import heap
    from edge_offload.protocol.channel import Channel

    heap.retain_freed_memory()
    torch.set_num_threads(int(arguments[1]))
    serve_requests(Channel(socket.socket(fileno=int(arguments[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
