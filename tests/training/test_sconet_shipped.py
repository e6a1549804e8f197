"""The weights that come with edge_offload: what SCONet's card says of them, checked on one held-out scene."""

from __future__ import annotations

from edge_offload.cli import main
from edge_offload.models.sconet.baselines import BASELINES
from edge_offload.models.sconet.completer import SHIPPED, SceneCompleter
from edge_offload_training.sconet.evaluation import FIRST_SEED, method_of
from edge_offload_training.sconet.metrics import Confusion
from edge_offload_training.sconet.samples import make_pair

SCENE = FIRST_SEED + 100
"""Nobody looked at it before the weights were shipped: kinds and sizes of objects that training never shows."""

MIDDLE = slice(80, 176)
"""The part about the sensor, for time's sake; the card's figures are of the whole extent."""


def test_the_weights_are_small_and_declared_as_of_synthetic_scenes(capsys):
    assert SHIPPED.stat().st_size <= 2e6
    completer = SceneCompleter()
    assert completer.trained
    assert main(["models", "info", "sconet"]) == 0
    assert "procedural scenes only" in capsys.readouterr().out


def test_they_complete_a_validation_scene_better_than_no_network_does():
    made = make_pair(SCENE, validation=True)
    occupancy, labels = made.occupancy[MIDDLE, MIDDLE].copy(), made.labels[MIDDLE, MIDDLE]
    scores = {}
    for name, method in {**BASELINES, "sconet": method_of(SceneCompleter().module)}.items():
        scores[name] = Confusion()
        scores[name].add(method(occupancy), labels)
    best = max(scores[name].completion_iou for name in BASELINES)
    assert scores["sconet"].completion_iou > best
    assert scores["sconet"].mean_iou > max(scores[name].mean_iou for name in BASELINES)
