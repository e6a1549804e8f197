"""Intra-DP: local-operator split by differential evolution."""

from __future__ import annotations

from typing import List

import numpy as np

from edge_offload.arrays import Array
from edge_offload.split.model.objective import Objective
from edge_offload.split.planners.space import RowSplit, RowSplits, ScoredPlan, Space, choose_best, insert_row_split
from edge_offload.split.planners.table import Choice, Effort, SearchBudget, baseline_plans, cost_of, layer_cut


def plan(space: Space, objective: Objective, effort: Effort) -> Choice:
    """Differential evolution (rand/1/bin) over the robot's fraction at a few anchor operators.

    A gene of at least 0.5 + 0.5 x is the fraction x at its anchor, anything smaller leaves the anchor alone.
    """
    chooser = np.random.default_rng(effort.seed)
    anchors = space.find_positions(most=6)
    if not anchors:
        return layer_cut(space, objective, effort)
    baselines = baseline_plans(space, objective, effort)
    stop = SearchBudget(space, effort)

    def decode_genes(genes: Array) -> RowSplits:
        row_splits = space.server_only
        for anchor, gene in zip(anchors, genes):
            if gene >= 0.5:
                row_splits = insert_row_split(row_splits, RowSplit(anchor, round(float(gene - 0.5) * 16) / 8))
        return row_splits

    size = max(8, 2 * len(anchors))
    population = chooser.random((size, len(anchors)))
    seen: List[ScoredPlan] = [space.score_row_splits(decode_genes(genes)) for genes in population]
    candidates = [choice for pair in zip(*baselines) for choice in pair] + seen
    while not stop():
        judged = int(chooser.integers(len(space.bandwidths)))  # each trial is judged at one bandwidth, kept for all
        for k in range(size):
            if stop():
                break
            a, b, c = population[chooser.choice(size, 3, replace=False)]
            trial = np.clip(np.where(chooser.random(len(anchors)) < 0.8, a + 0.6 * (b - c), population[k]), 0.0, 1.0)
            scored = space.score_row_splits(decode_genes(trial))
            candidates.append(scored)
            if cost_of(objective, scored, judged) <= cost_of(objective, seen[k], judged):
                population[k], seen[k] = trial, scored
    return [choose_best(candidates, objective, index) for index in range(len(space.bandwidths))]
