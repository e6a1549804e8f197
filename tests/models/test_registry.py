"""The registry: names, options, a user's own model, the hash of weights, and the command that shows it."""

from __future__ import annotations

import json
import re
import sys

import pytest
import torch
from torch import nn

from edge_offload import records
from edge_offload.cli import main
from edge_offload.errors import BadInput
from edge_offload.models import zoo
from edge_offload.models.base import PersonEstimator
from edge_offload.models.registry import build_estimator, build_module, entries, is_user_model, state_hash


def test_names_that_others_rely_on_exist_and_declare_their_path_options():
    table = entries()
    assert {"movenet", "kapao_n", "kapao_s", "kapao_m", "kapao_l", "resnet50"} <= set(table)
    for entry in table.values():
        assert set(entry.path_options) <= set(entry.options)
        assert entry.kind in ("people", "scene", "classifier")
    assert table["kapao_s"].path_options == ("checkpoint",)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("yolo", {}, "no model named 'yolo'"),
        ("kapao_n", {"depth": 3}, "no option 'depth'"),
        ("kapao_n", {"size": "640"}, "is str, expected int"),
        ("kapao_n", {"size": 640.0}, "is float, expected int"),
        ("kapao_n", {"fuse": 1}, "is int, expected bool"),
        ("kapao_n", {"size": True}, "is bool, expected int"),
        ("kapao_n", {"size": [640]}, "use a scalar"),
        ("no.such.package:make", {}, "cannot import"),
        ("json:", {}, "cannot import"),
        ("json:dumps", {"obj": 1}, "returned a str"),
    ],
)
def test_wrong_names_and_options_are_refused_with_what_would_be_right(name, options, message):
    with pytest.raises(BadInput, match=message):
        build_module(name, **options)


def test_a_users_module_is_built_with_its_options(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "import torch\n"
        "class Zoo:\n"
        "    @staticmethod\n"
        "    def make(width=2):\n"
        "        return torch.nn.Sequential(torch.nn.Linear(width, 1), torch.nn.Dropout())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = build_module("my_nets:Zoo.make", width=5)
    sys.modules.pop("my_nets")
    assert is_user_model("my_nets:Zoo.make")
    assert module[0].in_features == 5
    assert not module.training
    with pytest.raises(BadInput, match="not a PersonEstimator"):
        build_estimator("my_nets:Zoo.make")


def test_a_classifier_is_a_module_but_not_a_person_estimator(monkeypatch):
    monkeypatch.setattr(zoo, "build_network", lambda name, size, seed: nn.Linear(size, seed + 1))
    assert build_module("resnet50", size=64).in_features == 64
    with pytest.raises(BadInput, match="not a PersonEstimator"):
        build_estimator("resnet50", size=64)


def test_every_part_of_the_state_changes_the_hash():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    reference = state_hash(module)
    assert state_hash(module) == reference
    assert len(reference) == 64
    with torch.no_grad():
        module[1].running_var[0] += 1e-6
    changed = state_hash(module)
    assert changed != reference
    assert state_hash(module.to(torch.float64)) != changed
    assert state_hash(nn.Sequential(nn.Identity(), *module)) != state_hash(module)
    wide, tall = nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False)
    tall.weight.data.copy_(wide.weight.data.view(3, 2))
    assert state_hash(wide) != state_hash(tall)


def test_the_hash_ignores_memory_layout_and_sees_the_sign_of_zero():
    a, b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        a.weight.zero_()
        b.weight.zero_()
    b.weight.data = b.weight.data.t().contiguous().t()
    assert not b.weight.is_contiguous()
    assert state_hash(a) == state_hash(b)
    with torch.no_grad():
        b.weight[0, 0] = -0.0
    assert state_hash(a) != state_hash(b)


def test_estimators_are_ready_to_infer():
    estimator = build_estimator("kapao_n")
    assert isinstance(estimator, PersonEstimator)
    assert not estimator.module.training
    assert not any(parameter.requires_grad for parameter in estimator.module.parameters())


def test_models_list_and_info_name_the_source_of_weights(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path / "empty"))
    assert main(["models", "list"]) == 0
    states = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert (states["movenet"], states["sconet"], states["kapao_s"]) == ("to", "shipped", "-")
    assert main(["models", "info", "movenet", "--json", str(tmp_path / "m.json")]) == 0
    text = capsys.readouterr().out
    for word in ("human-models@3.0.4", "MIT", "9.5 MB", "sha256", "to fetch"):
        assert word in text
    (record,) = json.loads((tmp_path / "m.json").read_text())
    records.validate("model", record)
    assert record["cached"] is None
    assert record["options"]["people"] == 10
    assert main(["models", "info", "sconet", "--json", str(tmp_path / "s.json")]) == 0
    (shipped,) = json.loads((tmp_path / "s.json").read_text())
    assert shipped["weights_bytes"] > 500_000
    assert f"{shipped['weights_bytes'] / 1e6:.1f} MB" in capsys.readouterr().out
    assert re.fullmatch("[0-9a-f]{64}", shipped["sha256"])
    assert main(["models", "fetch", "kapao_s"]) == 0
    assert "nothing to fetch" in capsys.readouterr().out
    assert main(["models", "info", "nope"]) == 1
    assert "the models are" in capsys.readouterr().err
