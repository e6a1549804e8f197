"""What a process of low priority learns is what is learnt here, and whatever becomes of it a split is learnt."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from edge_offload.errors import Refused, Unsupported
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.ir import sequence_hash
from edge_offload.models import registry
from edge_offload.split.learning import process, worker
from edge_offload.split.learning.planning import (
    DistinctPlans,
    PlanSettings,
    costs_from_facts,
    costs_to_facts,
    make_plans,
    settings_from_facts,
    settings_to_facts,
)
from edge_offload.split.learning.process import SplitLearning
from edge_offload.split.model.cost import CodecCost, CopyCosts, CostModel, LinkCosts, OperatorCost
from edge_offload.split.model.objective import Objective
from edge_offload.split.model.plan import Side
from edge_offload.split.planners.space import Space
from edge_offload.split.planners.table import Effort, plan_table
from edge_offload.split.runtime.places import SplitDevice
from edge_offload.split.runtime.tracing import trace_module
from tests.modes.split import split_nets

NAME = f"{split_nets.__name__}:pictures"
PICTURE = torch.randint(0, 256, (3, 48, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
BANDWIDTHS = (1e5, 1e6, 4e6, 2e7)
SEARCH = PlanSettings(effort=Effort(seconds=600.0, evaluations=60))


@pytest.fixture(autouse=True)
def _as_it_is_delivered(monkeypatch):
    monkeypatch.delenv(process.SWITCH, raising=False)
    OTHERS[:] = []
    OTHERS[:] = children()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def model_of(factory="pictures", seed=1):
    return registry.build_module(f"{split_nets.__name__}:{factory}", seed=seed)


def learning_of(module, factory="pictures", **options):
    name = f"{split_nets.__name__}:{factory}"
    return SplitLearning(name, options or {"seed": 1}, lambda: registry.state_hash(module))


def costs(network):
    located = network.located
    robot = tuple(OperatorCost(1e-5 * (index % 3), 1e-5) for index in range(len(located.operators)))
    server = tuple(OperatorCost(1e-5, 2e-6) for _ in located.operators)
    codecs = {network.program.sequence.inputs[0]: (CodecCost("shuffle+zstd", 1.9, 3e8, 4e8, 5e8, 6e8),)}
    return CostModel(located, robot, server, codecs, LinkCosts(2e-3), request_s=1e-3, alone_s=0.01)


OTHERS = []
"""Processes of robots of other tests, which learn on."""


def children():
    pids = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"split.learning.worker" in path.read_bytes():
                state = (path.parent / "stat").read_text().rpartition(")")[2].split()
                pid = int(path.parent.name)
                if int(state[1]) == os.getpid() and state[0] != "Z" and pid not in OTHERS:
                    pids.append(pid)
        except OSError:
            continue
    return pids


def the_child(timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not children():
        assert time.monotonic() < end, "no process was begun"
        time.sleep(0.01)
    return children()[0]


def test_costs_and_settings_are_the_same_as_data():
    network = trace_module(NAME, model_of(), [PICTURE])
    copies = CopyCosts(OperatorCost(1e-4, 1e-9), OperatorCost(2e-4, 2e-9))
    model = costs(network)
    copied = CostModel(**{**vars(model), "copies": {Side.SERVER: copies}})
    for each in (model, copied):
        assert costs_from_facts(costs_to_facts(each), network.located) == each
    for settings in (PlanSettings(), PlanSettings("dsccs", Objective("deadline", deadline_s=0.2), Effort(1.0, 5, 3))):
        assert settings_from_facts(settings_to_facts(settings)) == settings
    made = make_plans(model, BANDWIDTHS, SEARCH)
    assert DistinctPlans.from_facts(made.to_facts()) == made
    table = plan_table(Space(model, BANDWIDTHS), effort=SEARCH.effort)
    steps = [(plan.robot, plan.server, plan.transfers) for plan in table.plans]
    assert [(plan.robot, plan.server, plan.transfers) for plan in made.table.plans] == steps, "each in its own place"


@pytest.mark.process
@pytest.mark.parametrize("factory", ["pictures", "listed"])
def test_learning_in_a_process_equals_learning_in_process(factory):
    module = model_of(factory)
    local = trace_module("here", module, [PICTURE])
    learning, reports = learning_of(module, factory), []
    with learning.keep_process():
        learned = learning.trace_model(module, [PICTURE], reports.append)
        if sys.platform == "linux":
            assert os.getpriority(os.PRIO_PROCESS, the_child()) >= worker.NICE_LEVEL
            assert pathlib.Path(f"/proc/{the_child()}/oom_score_adj").read_text() == "1000\n"
        profile = learning.measure_profile(learned, SplitDevice(), 1)
        made = learning.make_plans(costs(learned), BANDWIDTHS, SEARCH)
        assert learning.problem == ""
        assert len(children()) == 1, "one for all of it"
    assert children() == []
    assert "it is being traced" in reports or "the model is being built" in reports
    identity = sequence_hash(local.program.sequence)
    assert sequence_hash(learned.program.sequence) == identity == profile.sequence
    assert learned.located.axes == local.located.axes
    for digest, tensor in local.program.constants.items():
        assert torch.equal(learned.program.constants[digest], tensor)
    weights = {tensor.data_ptr() for tensor in module.parameters() if tensor.dim() == 4}
    constants = {tensor.data_ptr() for tensor in learned.program.constants.values()}
    assert weights <= constants, "the weights are there once"
    with torch.no_grad():
        for one, other in zip(learned.module(PICTURE), module(PICTURE)):
            assert torch.equal(one, other)
    assert len(profile.points) == len(local.located.operators)
    assert profile.machine == fingerprint_of("cpu"), "it counts for this machine"
    assert profile.whole_s > 0
    assert made == make_plans(costs(local), BANDWIDTHS, SEARCH)


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_split_is_learned_whatever_the_process_does(how, monkeypatch):
    module = model_of()
    if how is signal.SIGSTOP:
        monkeypatch.setattr(process, "PROCESS_LIMIT_S", 3.0)
    learning, reports, traced = learning_of(module), [], []
    thread = threading.Thread(target=lambda: traced.append(learning.trace_model(module, [PICTURE], reports.append)))
    thread.start()
    os.kill(the_child(), how)
    thread.join(120.0)
    assert sequence_hash(traced[0].program.sequence) == sequence_hash(
        trace_module("x", module, [PICTURE]).program.sequence
    )
    problem = "has not done it within 3 s" if how is signal.SIGSTOP else "ended with code -9"
    assert problem in learning.problem
    assert any("in this process" in each and problem in each and "another one is tried" in each for each in reports)
    assert children() == []
    assert learning.measure_profile(traced[0], SplitDevice(), 1) is None, "a process knows what it has traced itself"
    assert children() == []


class Dying:
    """Kills every process that learns, as soon as it begins."""

    def __init__(self, most):
        self.pids, self._most = [], most
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self):
        while not self._over.wait(0.005):
            for pid in children():
                if pid not in self.pids and len(self.pids) < self._most:
                    self.pids.append(pid)
                    os.kill(pid, signal.SIGKILL)

    def stop(self):
        self._over.set()
        self._thread.join()


@pytest.fixture
def dying():
    made = []

    def make(most):
        made.append(Dying(most))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.release
@pytest.mark.process
def test_after_a_failure_another_process_learns_the_next_split(dying):
    module = model_of()
    learning, killed, reports = learning_of(module), dying(1), []
    with learning.keep_process():
        network = learning.trace_model(module, [PICTURE])
        assert learning.make_plans(costs(network), BANDWIDTHS, SEARCH, reports.append) == make_plans(
            costs(network), BANDWIDTHS, SEARCH
        )
        assert reports == [f"in this process, for {learning.problem}"], "not twice for one thing"
    assert len(killed.pids) == 1
    assert learning.problem == (
        "the process of low priority ended with code -9 (1 in a row); another one is tried next time"
    )
    with learning.keep_process():
        network = learning.trace_model(module, [PICTURE])
        assert learning.measure_profile(network, SplitDevice(), 1) is not None, "it was traced in a process"
        assert len(children()) == 1
    assert learning.problem == ""
    assert children() == []


@pytest.mark.release
@pytest.mark.process
def test_after_some_that_failed_in_a_row_none_is_tried_any_more(dying):
    module = model_of()
    learning, killed = learning_of(module), dying(99)
    for _ in range(process.MOST_FAILURES + 2):
        traced = learning.trace_model(module, [PICTURE])
        assert sequence_hash(traced.program.sequence) == sequence_hash(
            trace_module("x", module, [PICTURE]).program.sequence
        )
    assert len(killed.pids) == process.MOST_FAILURES
    assert learning.problem == "the process of low priority ended with code -9 (3 in a row)"
    assert children() == []


@pytest.mark.release
@pytest.mark.process
def test_a_model_that_cannot_be_built_by_name_is_learned_in_process():
    module = model_of(seed=2)
    for learning, problem in (
        (learning_of(module, seed=1), "other weights"),
        (SplitLearning("no.such.module:factory", {}, lambda: registry.state_hash(module)), "cannot import"),
    ):
        network, reports = learning.trace_model(module, [PICTURE]), []
        assert problem in learning.problem
        learning.make_plans(costs(network), BANDWIDTHS, SEARCH, reports.append)
        assert reports == [f"in this process, for {learning.problem}"], (
            "what one process refused the next one would, too"
        )
        assert sequence_hash(network.program.sequence) == sequence_hash(
            trace_module("x", module, [PICTURE]).program.sequence
        )
        assert torch.equal(network.module(PICTURE)[0], module(PICTURE)[0])
    assert children() == []


@pytest.mark.process
def test_an_untraceable_model_is_reported_as_in_process():
    module = model_of("branching")
    learning = learning_of(module, "branching")
    with pytest.raises(Unsupported, match="cannot be traced"):
        learning.trace_model(module, [PICTURE])
    assert learning.problem == ""
    assert children() == []


@pytest.mark.process
def test_closing_ends_the_process_and_nothing_more_is_learned():
    module = model_of()
    learning, raised = learning_of(module), []

    def learn():
        try:
            learning.trace_model(module, [PICTURE])
        except Refused as error:
            raised.append(error)

    thread = threading.Thread(target=learn)
    thread.start()
    the_child()
    learning.close()
    thread.join(60.0)
    assert raised
    assert children() == []


PARENT = f"""
import sys, torch
torch.set_num_threads(1)
from edge_offload.models import registry
from edge_offload.split.learning.process import SplitLearning
module = registry.build_module({NAME!r}, seed=1)
learning = SplitLearning({NAME!r}, {{"seed": 1}}, lambda: registry.state_hash(module))
with learning.keep_process():
    learning.trace_model(module, [torch.zeros(3, 48, 64, dtype=torch.uint8)])
    print(learning._process._process.pid, learning.problem, flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
@pytest.mark.parametrize("how", ["kill", "leave"])
def test_the_process_ends_with_its_parent(how):
    root = str(pathlib.Path(__file__).parents[3])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    pid, problem = parent.stdout.readline().rstrip("\n").split(" ", 1)
    assert problem == ""
    if how == "kill":
        parent.kill()
    else:
        parent.stdin.close()
    parent.wait(60)
    end = time.monotonic() + 60.0
    while pathlib.Path(f"/proc/{pid}/cmdline").exists() and pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end, "it goes on without its parent"
        time.sleep(0.01)
