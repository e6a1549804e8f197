"""Every network of the registry, from each of torch's exporters, goes through TensorRT's own parser and builder."""

from __future__ import annotations

import sys

import pytest

from edge_offload.errors import Unsupported
from edge_offload.execute.engines import export
from edge_offload.execute.engines.tensor_rt import TensorRT
from edge_offload.execute.module import Divided
from edge_offload.models import registry
from edge_offload.models.video import synthetic_frame
from edge_offload_research.networks import build_module
from tests.execute.engines.driver import prepare

QUICK = ("kapao_vtest",)
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in registry.entries()]


def dense(name):
    try:
        module, inputs = build_module(name, {}, synthetic_frame(480, 640))
    except Unsupported as error:
        pytest.skip(str(error))
    return (module.eval().dense_part()[0] if isinstance(module, Divided) else module.eval()), inputs


@pytest.mark.parametrize("name", NAMES)
def test_as_the_product_exports_it(name, trt):
    network, inputs = dense(name)
    onnx = export.export_onnx(network, inputs)
    assert len(TensorRT(bindings=lambda: trt).build(onnx, 1)) > len(onnx) / 2, "the weights are in it"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(registry.entries()))
def test_by_the_exporter_of_later_releases_of_torch(name, trt, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(prepare.folder() / "site")])
    pytest.importorskip("onnxscript", reason="torch's later exporter needs it")
    network, inputs = dense(name)
    onnx = export.export_onnx(network, inputs, dynamo=True)
    assert len(TensorRT(bindings=lambda: trt).build(onnx, 1)) > len(onnx) / 2
