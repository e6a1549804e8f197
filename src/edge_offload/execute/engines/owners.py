"""Who runs an engine: the thread that asks, or one of its own that may be left behind when the engine hangs."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import Any, Callable, Optional, Protocol, Sequence, Tuple

import torch

from edge_offload.errors import Unsupported
from edge_offload.execute.engines.base import Engine

Tensors = Tuple[torch.Tensor, ...]


class EngineOwner(Protocol):
    """Runs an engine and closes it."""

    def run(self, inputs: Sequence[torch.Tensor], timeout_s: float) -> Tensors:
        """The outputs.

        Raises:
            concurrent.futures.TimeoutError: it takes longer than ``timeout_s`` (seconds).
            Exception: what the engine raises.
        """

    def close(self) -> None:
        """Give the engine back."""


class CallersThread:
    """Runs an engine that does not hang on the thread that asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def run(self, inputs: Sequence[torch.Tensor], timeout_s: float) -> Tensors:
        return tuple(self._engine.run(inputs))

    def close(self) -> None:
        self._engine.close()


class EngineThread:
    """The one thread that loads an engine, runs it and closes it, so that it may be left behind when it hangs."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        self.loaded: Future[Any] = Future()
        self._work: queue.SimpleQueue[Optional[Tuple[Sequence[torch.Tensor], Future[Any]]]] = queue.SimpleQueue()
        self._turn = threading.Lock()
        threading.Thread(target=self._serve, args=(load,), name="edge-offload-engine", daemon=True).start()

    def run(self, inputs: Sequence[torch.Tensor], timeout_s: float) -> Tensors:
        answer: Future[Any] = Future()
        with self._turn:
            self._work.put((inputs, answer))
            return tuple(answer.result(timeout_s))

    def close(self) -> None:
        """Let the thread end, which gives the engine back."""
        self._work.put(None)

    def _serve(self, load: Callable[[], Engine]) -> None:
        try:
            engine = load()
        except BaseException as error:
            self.loaded.set_exception(error)
            return
        self.loaded.set_result(None)
        while True:
            work = self._work.get()
            if work is None:
                engine.close()
                return
            inputs, answer = work
            try:
                answer.set_result(engine.run(inputs))
            except BaseException as error:
                answer.set_exception(error)
            del work, inputs, answer


def load_engine(load: Callable[[], Engine], failed: str, own_thread: bool = True) -> EngineOwner:
    """Loads an engine; raises Unsupported, with a message that begins with ``failed``, if ``load`` fails."""
    try:
        if not own_thread:
            return CallersThread(load())
        owner = EngineThread(load)
        owner.loaded.result()
    except Exception as error:
        raise Unsupported(f"{failed}: {type(error).__name__}: {str(error)[:300]}") from error
    return owner
