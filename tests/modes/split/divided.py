"""Plans that divide every operator, whatever the machines' speeds are; for programs on the device of mode ``split``."""

from __future__ import annotations

import dataclasses
import random

from edge_offload.ir import sequence_hash
from edge_offload.modes.split.unmodified import recorded as recorded_split
from edge_offload.modes.timeouts import TimeoutLimits
from edge_offload.split.footprints.registry import EMPTY
from edge_offload.split.model.complete import backward, complete
from edge_offload.split.model.locality import Locality, union
from edge_offload.split.planners.table import Effort
from edge_offload.split.runtime.tables import ready

made = []
"""(network, plan) of each split."""


def divided(located, identity):
    """A plan that cuts every operator somewhere."""
    chooser = random.Random(3)

    def decide(index, robot, server):
        low, high = union(robot, server)
        if located.operators[index].kind is Locality.GLOBAL:
            return EMPTY, (low, high)
        cut = (low + high) // 2 + chooser.randint(-1, 1)
        return (low, max(low, cut)), (max(low, cut), high)

    return complete(located, *backward(located, decide), identity=identity)


class Divided(recorded_split.RecordedSplit):
    def __init__(self, network, client, slowdown):
        patient = TimeoutLimits(floor_s=30.0, cap_s=30.0, first_s=30.0)  # a stall of a busy machine is no fault here
        super().__init__(network, client, slowdown, effort=Effort(0.1, 5), planner="device_only", limits=patient)

    def _plan(self, network, model, shared):
        planned = super()._plan(network, model, shared)
        identity = sequence_hash(network.located.sequence)
        plan = divided(network.located, identity)
        assert plan.splits_an_operator
        made.append((network, plan))
        chosen = ready(plan, network.located, identity)
        return dataclasses.replace(planned, plans=(chosen,), place=(0,) * len(planned.place))


def divide_everything(recorder):
    learner = recorder.strategy.learner
    usual = learner.opener
    learner.opener = lambda network: Divided(network, usual(network)._client, 1.0)
