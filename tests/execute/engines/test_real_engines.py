"""ONNX Runtime and OpenVINO on the CPU, on the networks that ship; and torch alone without any of their packages."""

import functools
import subprocess
import sys

import pytest
import torch

from edge_offload.execute.engines.base import CLOSE, TOLERANCE, relative_error
from edge_offload.execute.module import ModuleExecutor
from edge_offload.models import registry
from edge_offload.models.video import synthetic_frame
from tests.server import small_nets


def taken_over(executor: ModuleExecutor, frames) -> None:
    executor.run_module([frames[0]])
    assert executor.engine_ready(120)
    for number in range(2):
        executor.run_module([frames[number]])
    assert executor.engine != "eager", executor.engine_state()


def test_people_are_detected_where_torch_detects_them(engine):
    estimator = registry.build_estimator("kapao_vtest")
    before = registry.state_hash(estimator.module)
    frames = [estimator.prepare(synthetic_frame(480, 640 + 2 * number))[0] for number in range(3)]
    plain, fast = ModuleExecutor(estimator.module), ModuleExecutor(estimator.module, engine=engine)
    taken_over(fast, frames)
    assert registry.state_hash(estimator.module) == before
    for frame in frames:
        want, report = plain.run_module([frame]), fast.run_module([frame])
        assert report.engine.startswith(engine)
        assert [one.shape for one in want.outputs] == [one.shape for one in report.outputs]
        assert max(map(relative_error, want.outputs, report.outputs)) < 1e-4, "boxes and keypoints after read-out"
    twin = ModuleExecutor(registry.build_estimator("kapao_vtest").module, engine=engine)
    taken_over(twin, frames)
    for frame in frames:
        mine, other = fast.run_module([frame]), twin.run_module([frame])
        assert mine.engine == other.engine
        assert all(map(torch.equal, mine.outputs, other.outputs)), "equal engines give equal bits"


def test_a_classifier_is_within_the_tolerance_of_its_class(engine):
    torch.manual_seed(0)
    network = registry.build_module("mobilenet_v3_large")
    frames = [torch.rand(1, 3, 224, 224) for _ in range(3)]
    plain, fast = ModuleExecutor(network), ModuleExecutor(network, engine=engine)
    taken_over(fast, frames)
    for frame in frames:
        want, output = plain.run_module([frame]).outputs[0], fast.run_module([frame]).outputs[0]
        assert relative_error(want, output) < TOLERANCE[CLOSE]


def test_a_second_start_exports_nothing_and_has_the_bits_of_the_first(engine, cache, monkeypatch):
    from edge_offload.execute.engines import seat

    # ResNets and vision transformers of torchvision hold such attributes
    plain = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.SiLU()).eval()
    plain._norm_layer, plain.norm_layer = torch.nn.BatchNorm2d, functools.partial(torch.nn.LayerNorm, eps=1e-6)
    for network in (registry.build_module("mobilenet_v3_large"), plain):
        frames = [torch.rand(1, 3, 64, 64) for _ in range(3)]
        exports, real = [], seat.export_onnx

        def counted(*given, exports=exports, real=real):
            exports.append(1)
            return real(*given)

        monkeypatch.setattr(seat, "export_onnx", counted)
        first = ModuleExecutor(network, engine=engine)
        taken_over(first, frames)
        restarted = ModuleExecutor(network, engine=engine)
        taken_over(restarted, frames)
        monkeypatch.setattr(seat, "export_onnx", real)
        assert len(exports) == 1
        for frame in frames:
            one, other = first.run_module([frame]), restarted.run_module([frame])
            assert one.engine == other.engine
            assert all(map(torch.equal, one.outputs, other.outputs))
            assert all(map(torch.equal, one.outputs, _built_in_one_go(engine, network, frame)))


def _built_in_one_go(engine, network, frame):
    """What the engine gives without anything kept between its steps."""
    from edge_offload.execute.engines.export import export_onnx

    document = export_onnx(network, [frame])
    if engine == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(document, options, providers=["CPUExecutionProvider"])
        return [torch.from_numpy(one) for one in session.run(None, {"input0": frame.numpy()})]
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
    core = openvino.Core()
    request = core.compile_model(core.read_model(document, b""), "CPU", options).create_infer_request()
    request.infer({"input0": frame.numpy()})
    return [torch.from_numpy(request.get_output_tensor(0).data.copy())]


def test_a_network_whose_outputs_depend_on_data_is_right_or_with_torch(engine):
    network = small_nets.net(3)
    plain, fast = ModuleExecutor(network), ModuleExecutor(network, engine=engine)
    draw = torch.Generator().manual_seed(0)
    for _ in range(6):
        frame = torch.randint(0, 256, (3, 32, 48), dtype=torch.uint8, generator=draw)
        want, report = plain.run_module([frame]).outputs, fast.run_module([frame])
        assert fast.engine_ready(120)
        assert [one.shape for one in want] == [one.shape for one in report.outputs]
        assert max(map(relative_error, want[:2], report.outputs[:2])) < TOLERANCE[CLOSE]


def test_weights_off_by_a_thousandth_never_take_over(engine, monkeypatch):
    from edge_offload.execute.engines import seat

    network = registry.build_module("mobilenet_v3_large")
    real = seat.export_onnx

    def off(given, inputs, *typed):
        import copy

        other = copy.deepcopy(given)
        with torch.no_grad():
            for one in other.parameters():
                one.mul_(1.001)
        return real(other, inputs, *typed)

    monkeypatch.setattr(seat, "export_onnx", off)
    executor = ModuleExecutor(network, engine=engine)
    frame = torch.rand(1, 3, 224, 224)
    executor.run_module([frame])
    assert executor.engine_ready(120)
    assert executor.run_module([frame]).engine == "eager"
    assert "off by" in executor.engine_state()[0]


@pytest.mark.process
def test_without_engines_no_package_of_an_engine_is_imported():
    code = (
        "import sys, torch; from torch import nn; from edge_offload.execute.module import ModuleExecutor; "
        "from edge_offload.execute.engines import table; import edge_offload.server.server; "
        "import edge_offload.runtime.module; "
        "ModuleExecutor(nn.ReLU()).run_module([torch.ones(3)]); table.list_engines(); "
        "print([name for name in ('onnx', 'onnxruntime', 'openvino', 'tensorrt', 'pycuda') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
