"""Splits of a robot whose torch is another one than the server's, and of networks that this torch cannot trace."""

from __future__ import annotations

import types
from concurrent.futures import Future
from typing import Any, Dict, List

import pytest
import torch
from torch import nn

from edge_offload.errors import Unsupported
from edge_offload.execute.sequence_runner import SequenceRunner
from edge_offload.ir import build, wire
from edge_offload.ir.build import from_module
from edge_offload.modes.split.robot.opening import MOST_REOPEN_S, SplitOpener
from edge_offload.modes.split.unmodified import other_torch
from edge_offload.modes.split.unmodified.other_torch import AnyTorchSource
from edge_offload.split.learning.planning import PlanSettings


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(inplace=True), nn.MaxPool2d(2))
        self.register_buffer("scale", torch.full((4, 1, 1), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.parts(x)
        y += 1
        return y * self.scale


class Counting(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.add_(1)
        return super().forward(x)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


PICTURE = torch.rand(1, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def test_make_fx_traces_where_torch_exports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "can_export", lambda: False)
    module = Net().eval()
    program = from_module(module, [PICTURE])
    outputs = SequenceRunner(program.sequence, program.constants).run([PICTURE])
    with torch.no_grad():
        assert torch.equal(outputs[0], module(PICTURE))
    storages = {tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    assert {tensor.data_ptr() for tensor in program.constants.values()} <= storages  # not copied
    assert program.sequence.is_functional
    for module, message in ((Counting().eval(), "own buffers"), (Branching(), "cannot be traced")):
        with pytest.raises(Unsupported, match=message):
            from_module(module, [PICTURE])


def source_of(module: nn.Module) -> AnyTorchSource:
    source = AnyTorchSource("", {}, module, lambda: "", lambda inputs: pytest.fail("not asked for"))  # type: ignore[arg-type]
    return source


def client_with(server_torch: str, requests: List[Any]) -> Any:
    def request(kind: str, body: Dict[str, Any], buffers: Any = (), **_: Any) -> Any:
        requests.append((kind, body, [bytes(memoryview(buffer).cast("B")) for buffer in buffers]))
        done: Any = Future()
        missing = list(range(len(body.get("names", ()))))
        done.set_result(types.SimpleNamespace(body={"missing": missing}, buffers=[]))
        return done

    welcome = {"fingerprint": {"torch": server_torch}}
    return types.SimpleNamespace(welcome=welcome, request=request, counters={"connections": 1})


def test_another_torch_gets_the_robots_trace_and_the_same_torch_the_models_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_torch, "other_operators", lambda client: {"aten::relu": "refused"})
    source = source_of(Net().eval())
    for server_torch, recorded in ((torch.__version__, False), ("9.9.0", True)):
        requests: List[Any] = []
        source.request_open(client_with(server_torch, requests), [PICTURE], None, lambda doing: None)
        kind, body, buffers = requests[-1]
        assert kind == "split_open"
        assert ("constants" in body) == recorded
        if recorded:
            sent = wire.decode(buffers[0])
            assert sent == source.trace_operators([PICTURE], lambda doing: None).program.sequence
            assert [item[0] for item in requests[:-1]] == ["split_have", "split_put"]


def test_an_operator_that_the_server_has_otherwise_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_torch, "other_operators", lambda client: {"aten::silu": "operator 'aten::silu' differs"})
    requests: List[Any] = []
    with pytest.raises(Unsupported, match="aten::silu"):
        source_of(Net().eval()).request_open(client_with("9.9.0", requests), [PICTURE], None, lambda doing: None)
    assert requests == []


def test_an_untraceable_program_is_tried_once_and_requested_from_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: List[int] = []

    def trace(*_: Any) -> Any:
        tried.append(1)
        raise Unsupported("it cannot be traced")

    source, requests = source_of(Branching()), []  # type: ignore[var-annotated]
    monkeypatch.setattr(source, "trace_operators", trace)
    opener = SplitOpener(source, client_with(torch.__version__, requests), 1.0, PlanSettings())
    for _ in range(3):
        with pytest.raises(Unsupported, match="cannot be traced"):
            opener.open_split([PICTURE], lambda doing: None)
    assert len(tried) == 1
    assert [kind for kind, *_ in requests].count("split_open") == 1
    assert [source.retry_s(count) for count in (1, 2, 3, 30)] == [5.0, 10.0, 20.0, MOST_REOPEN_S]
