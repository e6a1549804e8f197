"""Plans that divide every operator, whatever the machines' speeds are; for programs on the device of mode ``split``."""

from __future__ import annotations

import dataclasses
import random

from edge_offload.ir import sequence_hash
from edge_offload.manager.lateness import Lateness, TimeoutLimits
from edge_offload.split.footprints.registry import EMPTY
from edge_offload.split.model.complete import complete_plan, decide_backward
from edge_offload.split.model.locality import Locality, unite_rows
from edge_offload.split.planners.table import Effort
from edge_offload.split.runtime.tables import compile_ready

made = []
"""(network, plan) of each split."""


def divided(located, identity):
    """A plan that cuts every operator somewhere."""
    chooser = random.Random(3)

    def decide(index, robot, server):
        low, high = unite_rows(robot, server)
        if located.operators[index].kind is Locality.GLOBAL:
            return EMPTY, (low, high)
        cut = (low + high) // 2 + chooser.randint(-1, 1)
        return (low, max(low, cut)), (max(low, cut), high)

    return complete_plan(located, *decide_backward(located, decide), identity=identity)


def divide_everything(recorder):
    learner = recorder.strategy.learner
    # a stall of a busy machine is no fault here
    recorder.strategy.lateness = Lateness(TimeoutLimits(floor_s=30.0, cap_s=30.0, first_s=30.0))
    usual = learner.opener

    def opener(network):
        runner = usual(network, effort=Effort(0.1, 5), planner="device_only")
        by_planner = runner.opener.make_plans

        def plan(network, model, shared, *progress):
            planned = by_planner(network, model, shared, *progress)
            identity = sequence_hash(network.located.sequence)
            result = divided(network.located, identity)
            assert result.splits_an_operator
            made.append((network, result))
            chosen = compile_ready(result, network.located, identity)
            return dataclasses.replace(planned, plans=(chosen,), place=(0,) * len(planned.place), undivided=())

        runner.opener.make_plans = plan
        return runner

    learner.opener = opener
