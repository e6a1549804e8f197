"""The weights that come with edge_offload: what the model card says of them, checked on labelled validation frames."""

from __future__ import annotations

import numpy as np
import pytest

from edge_offload.cli import main
from edge_offload.models.checkpoint import read
from edge_offload.models.kapao import SHIPPED
from edge_offload.models.kapao.checkpoint import facts_of
from edge_offload.models.registry import build_estimator, entries
from edge_offload.models.video import read_frames, sample_video
from edge_offload_benchmarks.experiments.people import LABELS, read_labels
from edge_offload_training import evaluation

NUMBERS = (601, 636, 671, 701, 731, 761, 791)


def test_the_weights_are_small_and_contain_their_confidence():
    assert SHIPPED.stat().st_size <= 10e6
    facts = facts_of(SHIPPED, read(SHIPPED)[1])
    assert (facts["depth"], facts["width"], facts["size"]) == (0.33, 0.25, 512)
    estimator = build_estimator("kapao_vtest")
    assert estimator.trained
    assert estimator.name == "kapao_vtest"
    assert estimator.thresholds.conf == facts["conf"]
    assert sum(p.numel() for p in estimator.module.parameters()) <= 3.3e6
    assert build_estimator("kapao_vtest", conf=0.9).thresholds.conf == 0.9


def test_vtest_weights_are_marked_as_for_this_scene_only(capsys):
    assert main(["models", "info", "kapao_vtest"]) == 0
    assert "scene only" in capsys.readouterr().out
    assert not build_estimator("kapao_n").trained, "without a checkpoint there are no weights under the general name"
    assert entries()["kapao_vtest"].path_options == ()


@pytest.mark.usefixtures("vtest")
def test_it_finds_the_people_of_frames_that_it_was_not_trained_on():
    estimator = build_estimator("kapao_vtest")
    frames, labels = read_frames(sample_video(), NUMBERS), read_labels(LABELS)
    matched = evaluation.match([estimator.infer(frames[n]) for n in NUMBERS], [labels[n] for n in NUMBERS])
    recall, precision, _ = evaluation.at_threshold(matched, 0.0)
    assert sum(frame.labelled for frame in matched) > 40
    assert recall >= 0.85
    assert precision >= 0.9


@pytest.mark.usefixtures("vtest")
def test_an_empty_street_is_empty():
    """The median over time shows the scene without people: a network that had learnt places would still find some."""
    frames = read_frames(sample_video(), range(0, 795, 53))
    empty = np.median(np.stack(list(frames.values())), axis=0).astype(np.uint8)
    assert len(build_estimator("kapao_vtest").infer(empty)) == 0
