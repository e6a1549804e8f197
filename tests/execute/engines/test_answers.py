"""A robot and a server, each with an engine: every frame has one right result, which says what computed it."""

from __future__ import annotations

import time

import pytest
import torch

from edge_offload.execute.engines import seat as seats
from edge_offload.execute.engines.base import EAGER
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.mode import Mode
from edge_offload.runtime.module import OffloadedModule
from tests.server.small_nets import dense, slow

pytestmark = pytest.mark.process
NET, DENSE = "tests.server.small_nets:slow", "tests.server.small_nets:dense"
AT_ONCE = {"seconds": 0.0}
PATIENT = TimeoutLimits(floor_s=30.0, cap_s=60.0, first_s=60.0)


def robot(client, **options) -> OffloadedModule:
    return OffloadedModule(NET, slow(**AT_ONCE), client, options=AT_ONCE, hedging=False, patience=PATIENT, **options)


def frame() -> torch.Tensor:
    return torch.rand(3, 8)


def until_computed_by(module, mode, engine: str, make=frame) -> list:
    """What computed each frame, in their order, until one was computed by ``engine``."""
    ends, named = time.monotonic() + 120.0, []
    while True:
        given = make()
        _, report = module.run_inference([given], mode)
        if report.mode is mode:
            named.append(report.engine)
            if report.engine.startswith(engine):
                return named
        assert time.monotonic() < ends, (named[-5:], module.state())
        time.sleep(0.02)


def test_an_answer_names_torch_until_an_engine_has_taken_over_and_then_the_engine(engine, served):
    client = served(engine, NET)
    assert client.server.engine.startswith(f"{engine} ")
    module = robot(client)
    named = until_computed_by(module, Mode.SERVER, engine)
    assert named[0] == EAGER
    assert named[-1].startswith(client.server.engine)
    assert module.run_inference([frame()], Mode.LOCAL)[1].engine == EAGER
    note = f"may differ in the last digits (engine: eager here, {client.server.engine} there)"
    assert note in module.state()["server"]


def test_equal_engines_give_equal_bits_in_modes_local_and_server(engine, served):
    client = served(engine, DENSE)
    module = OffloadedModule(DENSE, dense(), client, engine=engine, hedging=False, patience=PATIENT)

    def fresh() -> torch.Tensor:
        return torch.rand(1, 3, 32, 32)

    for mode in (Mode.LOCAL, Mode.SERVER):
        until_computed_by(module, mode, engine, fresh)
    for _ in range(200):
        given = fresh()
        (mine, local_report), (theirs, remote_report) = (
            module.run_inference([given], Mode.LOCAL),
            module.run_inference([given], Mode.SERVER),
        )
        assert remote_report.mode is Mode.SERVER
        assert local_report.engine == remote_report.engine
        assert torch.equal(mine[0], theirs[0])
    assert module.state()["server"].endswith("results are bit-equal to local")


def test_a_request_for_exact_results_uses_no_engine_on_either_side(stand_in, served):
    module = robot(served("stand-in", NET), engine="stand-in", exact=True)
    ends = time.monotonic() + 60.0
    while "exact" not in (reason := module.unavailable_reason(Mode.SERVER, [frame()]) or ""):
        assert time.monotonic() < ends, reason
    assert reason.startswith("exact:=true, and results of this server may differ in the last digits (engine: ")
    given = frame()
    outputs, report = module.run_inference([given], Mode.SERVER)
    assert (report.mode, report.engine) == (Mode.LOCAL, EAGER)
    assert torch.equal(outputs[0], 2 * given)


def test_an_engine_of_one_model_is_refused_for_exact_results(stand_in, served):
    client = served(f"eager,{NET}=stand-in", NET)
    assert client.server.engine == EAGER
    module = robot(client, exact=True)
    ends = time.monotonic() + 60.0
    while "exact" not in (module.unavailable_reason(Mode.SERVER, [frame()]) or ""):
        assert time.monotonic() < ends
        time.sleep(0.02)
    assert module.run_inference([frame()], Mode.SERVER)[1].mode is Mode.LOCAL


@pytest.mark.parametrize("fault", ["raises", "hangs"])
@pytest.mark.parametrize("mode", [Mode.LOCAL, Mode.SERVER])
def test_an_engine_that_fails_at_a_frame_costs_no_frame(stand_in, served, monkeypatch, fault, mode):
    monkeypatch.setattr(seats, "MIN_HANG_S", 0.2)
    module = robot(served("stand-in", NET), engine="stand-in")
    until_computed_by(module, mode, "stand-in")
    results = 0
    for number in range(40):
        if number == 13:
            if fault == "raises":
                stand_in.fails = True
            else:
                stand_in.may_run.clear()
        given = frame()
        outputs, report = module.run_inference([given], mode)
        assert torch.equal(outputs[0], 2 * given)
        assert report.mode is mode
        assert report.engine.startswith("stand-in" if number < 13 else EAGER)
        results += 1
    stand_in.may_run.set()
    assert results == 40
