"""Which engine a name means, for which model, and what happens where it is absent."""

import pytest
import torch
from torch import nn

from edge_offload.errors import BadInput
from edge_offload.execute.engines import measured, table
from edge_offload.execute.engines.base import EAGER, Built, engine_facts
from edge_offload.execute.module import ModuleExecutor

CLOSE = [one for one in table.BACKENDS if (one.accuracy, one.device) == (table.CLOSE, "cpu") and isinstance(one, Built)]


@pytest.fixture
def all_engines_present(monkeypatch):
    monkeypatch.setattr(table, "installed_version", lambda backend: "1.0")
    monkeypatch.setattr(table, "_has_exporter", lambda: True)


def test_an_engine_is_requested_for_all_models_or_for_single_ones():
    assert table.engine_for_model("eager", "movenet") == "eager"
    assert table.engine_for_model("auto,movenet=openvino:bf16, kapao_n=eager", "movenet") == "openvino:bf16"
    assert table.engine_for_model("auto,movenet=openvino:bf16, kapao_n=eager", "kapao_n") == "eager"
    assert table.engine_for_model("auto,movenet=openvino:bf16", "resnet50") == "auto"
    assert table.engine_for_model("own.module:factory=openvino", "own.module:factory") == "openvino"
    assert table.engine_for_model("movenet=openvino", "resnet50") == "eager"


@pytest.mark.parametrize("spec", ["speed", "auto,movenet=speed", "movenet="])
def test_a_requested_engine_must_exist(spec):
    with pytest.raises(BadInput, match=r"no engine '.*'; use one of: eager, auto, exact, onnxruntime, openvino"):
        table.engine_for_model(spec, "resnet50")


def test_fewer_bits_are_for_a_named_model_only(all_engines_present):
    with pytest.raises(BadInput, match="fewer bits than float32; ask for it for a model by name"):
        table.engine_for_model("openvino:bf16", "movenet")
    assert table.pick_backend("auto") in CLOSE


def test_an_absent_engine_leaves_torch_to_compute_and_names_the_package(monkeypatch):
    monkeypatch.setattr(table, "installed_version", lambda backend: None)
    executor = ModuleExecutor(nn.ReLU(), engine="openvino")
    done = executor.run_module([torch.tensor([-1.0, 2.0])])
    assert torch.equal(done.outputs[0], torch.tensor([0.0, 2.0]))
    assert done.engine == EAGER
    state, amber = executor.engine_state()
    assert amber
    assert state.startswith("eager: engine 'openvino' is absent: not installed: openvino")
    assert "pip install" in state
    assert executor.engine_facts() == {}


def test_auto_is_what_was_measured_to_be_the_fastest_for_these_weights(all_engines_present, cache):
    network, other = nn.Linear(3, 3), nn.Linear(3, 3)
    names = {backend.name: str(engine_facts(backend)) for backend in CLOSE}
    assert table.pick_backend("auto", network=network) is CLOSE[0]
    for best in CLOSE:
        measured.store_seconds(
            network, 1, {EAGER: 3.0, **{text: 2.0 - (name == best.name) for name, text in names.items()}}
        )
        assert table.pick_backend("auto", network=network) is best
    assert table.pick_backend("auto", network=other) is CLOSE[0], "it was not measured"
    measured.store_seconds(network, 1, {EAGER: 0.5, **dict.fromkeys(names.values(), 1.0)})
    assert table.pick_backend("auto", network=network) is None, "torch itself is faster"
    assert ModuleExecutor(network, engine="auto").engine_state() == (EAGER, False)


def test_measurements_of_another_version_are_ignored(all_engines_present, cache):
    network = nn.Linear(3, 3)
    measured.store_seconds(network, 1, {EAGER: 1.0, f"{CLOSE[-1].name} 0.1 fp32": 0.1})
    assert table.pick_backend("auto", network=network) is CLOSE[0]
    path = measured.store_seconds(network, 1, {str(engine_facts(CLOSE[-1])): 0.1})
    assert table.pick_backend("auto", network=network) is CLOSE[-1]
    for text in ("", "[]", '{"a": 1}', "{" + "x" * (2 << 20)):
        path.write_text(text)
        assert table.pick_backend("auto", network=network) is CLOSE[0]
    measured.store_seconds(network, 1, {str(engine_facts(CLOSE[-1])): 0.1})
    assert table.pick_backend("auto", network=network) is CLOSE[-1]
