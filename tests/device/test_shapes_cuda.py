"""Tables of what a GPU's results look like: a first inference asks less, and a wrong entry gives no result."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Dict

import pytest
import torch

from edge_offload.device import shapes
from edge_offload.errors import BadInput
from edge_offload.execute.devices import ON_CPU
from edge_offload.native import libraries
from edge_offload_research.device.conformance import shapes as survey

SESSIONS = pathlib.Path(__file__).parents[1] / "programs" / "virtual_gpu_sessions.py"
RELEASE = ".".join(torch.__version__.split(".")[:2])
GPU = {"name": "NVIDIA H100", "major": 9, "minor": 0}
NETWORK = """
import copy, json, torch
from torch import nn
from edge_offload.device.installation import current_installation

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3), nn.SiLU(),
    nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5), nn.Softmax(-1),
).eval()
there, counters = copy.deepcopy(network).to("cuda"), current_installation().recorder.counters
picture = torch.rand(1, 3, 24, 24)
before = counters.round_trips
with torch.no_grad():
    result = there(picture.to("cuda")).cpu()
    print(json.dumps({"trips": counters.round_trips - before, "equal": torch.equal(result, network(picture))}))
"""
CHANNELS_LAST = """
import json, torch
torch.manual_seed(0)
with torch.no_grad():
    picture = torch.rand(1, 3, 8, 8).contiguous(memory_format=torch.channels_last).to("cuda")
    filtered = torch.nn.functional.conv2d(picture, torch.rand(4, 3, 3, 3).to("cuda"))
    print(json.dumps({"result": filtered.cpu().contiguous().sum().item()}))
"""
SURVEY = """
import json, warnings
warnings.simplefilter("ignore")
from edge_offload_research.device.conformance.shapes import choose_entries, installed_device, survey

names = ["nn.functional.batch_norm", "nn.functional.instance_norm", "nn.functional.grid_sample"]
agreed = set()
for counts in survey(choose_entries(names, 0, 1), installed_device().native, 0.3):
    agreed |= {name for (name, _, _), (agree, _) in counts.items() if agree}
print(json.dumps({"agreed": sorted(agreed)}))
"""
needs_compiler = pytest.mark.skipif(
    not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built"
)


@pytest.fixture
def tables(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of tables in place of those of the package."""
    folder = tmp_path / "tables"
    folder.mkdir()
    monkeypatch.setattr(shapes, "FOLDER", folder)
    return folder


def write(folder: pathlib.Path, table: Dict[str, Any], kind: str = "-cuda") -> None:
    (folder / f"shapes-{RELEASE}{kind}.json").write_text(json.dumps(table), encoding="utf-8")


def run(tmp_path: pathlib.Path, folder: pathlib.Path, text: str, **variables: str) -> Dict[str, Any]:
    """What a program says whose executor is not a CPU by its name."""
    program = tmp_path / "program.py"
    program.write_text(text)
    done = subprocess.run(
        [sys.executable, str(SESSIONS), "lazy", str(program)],
        env={**os.environ, "SHAPES_TABLES": str(folder), **variables},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@needs_compiler
@pytest.mark.process
def test_a_first_inference_on_a_gpu_requests_less_with_a_table(tmp_path: pathlib.Path) -> None:
    sampled = shapes.load_table()
    if not sampled:
        pytest.skip(f"the operators of torch {torch.__version__} have not been sampled")
    sampled["meta"]["aten::batch_norm"] = "r"  # a GPU's alone: for a CPU its parts are recorded
    empty, full = tmp_path / "empty", tmp_path / "full"
    for folder in (empty, full):
        folder.mkdir()
    write(full, sampled)
    queried, worked_out = (run(tmp_path, folder, NETWORK) for folder in (empty, full))
    assert queried["equal"]
    assert worked_out["equal"]
    assert queried["trips"] > worked_out["trips"], (queried, worked_out)


@needs_compiler
@pytest.mark.process
def test_a_wrong_layout_in_a_table_changes_no_result(tmp_path: pathlib.Path, tables: pathlib.Path) -> None:
    write(tables, {"meta": {"aten::_convolution": "c"}})  # its meta kernel knows nothing of channels that lie last
    right = run(tmp_path, tables, CHANNELS_LAST, EDGE_OFFLOAD_EXEC_SHAPES="ask")
    assert run(tmp_path, tables, CHANNELS_LAST) == right, "the executor goes on with the layout that there is"


@needs_compiler
@pytest.mark.process
def test_a_survey_counts_what_is_recorded_as_one_call_for_a_gpu(tmp_path: pathlib.Path, tables: pathlib.Path) -> None:
    agreed = set(run(tmp_path, tables, SURVEY)["agreed"])
    assert {"aten::batch_norm", "aten::instance_norm", "aten::grid_sampler"} <= agreed
    assert "aten::native_batch_norm" not in agreed


def test_each_kind_of_executor_has_its_table(tables: pathlib.Path) -> None:
    write(tables, {"meta": {"aten::sort": "r"}}, kind="")
    write(tables, {"meta": {"aten::sort": "c"}})
    assert shapes.table_for_device({"name": f"a CPU{ON_CPU}"}) == {"meta": {"aten::sort": "r"}}
    assert shapes.table_for_device(GPU) == {"meta": {"aten::sort": "c"}}
    assert shapes.table_for_device({}) == {}, "what computes there is not known"


def test_a_table_of_one_gpu_holds_for_that_capability(tables: pathlib.Path) -> None:
    write(tables, {"meta": {"aten::sort": "r"}, "capability": [9, 0], "asked": ["aten::addmm"]})
    assert shapes.table_for_device(GPU)["meta"] == {"aten::sort": "r"}
    assert shapes.table_for_device({**GPU, "major": 8}) == {"asked": ["aten::addmm"]}


class Native:
    """What the device is told to work out."""

    def __init__(self) -> None:
        self.gpu = False
        self.always, self.ways = [], []  # type: ignore[var-annotated]

    def computed_by_gpu(self, on: bool) -> None:
        self.gpu = on

    def trust(self, always: Any, ways: Any) -> None:
        self.always, self.ways = always, ways

    def suppose(self, on: bool, requested: Any) -> None:
        self.supposes, self.requested = on, requested


class Remote:
    def __init__(self, torches: str = "") -> None:
        self.facts, self.torches = GPU, torches


def test_another_torch_is_queried_despite_the_table(tables: pathlib.Path) -> None:
    write(tables, {"meta": {"aten::sort": "r"}})
    same, other = Native(), Native()
    shapes.trust_shapes(same, Remote())
    shapes.trust_shapes(other, Remote("torch 2.4.1 on the robot, 2.13.0 on the server"))
    assert same.gpu
    assert other.gpu
    assert same.ways[0] == {"aten::sort": 1}
    assert not any(other.ways)
    assert (same.supposes, other.supposes) == (False, True), "what is in no table is asked once for each form"


def test_a_generated_meta_kernel_that_differed_on_a_gpu_is_queried(tables: pathlib.Path) -> None:
    name = shapes.operators_with_exact_shapes()[0]
    native = Native()
    shapes.trust_shapes(native, Remote())
    assert name in native.always
    write(tables, {"asked": [name]})
    shapes.trust_shapes(native, Remote())
    assert native.always
    assert name not in native.always
    assert native.requested == [name]


def counted(*rows: Any, **facts: Any) -> Dict[str, Any]:
    return {"torch": "2.11.0", "device": "NVIDIA H100", "capability": [9, 0], "counts": list(rows), **facts}


def test_a_table_is_made_of_what_several_surveys_counted(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    generated = shapes.operators_with_exact_shapes()[0]
    first = counted(["aten::sort", 1, 0, 2, 0], ["aten::sort", 2, 0, 9, 0], [generated, 1, 0, 5, 1], entries={"of": 9})
    second = counted(["aten::sort", 1, 0, 1, 0], ["aten::sort", 2, 0, 0, 1])
    for number, document in enumerate((first, second)):
        (tmp_path / f"{number}.json").write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["shapes", "--counts", str(tmp_path / "0.json"), str(tmp_path / "1.json")])
    assert survey.main() == 0
    assert json.loads(capsys.readouterr().out) == {
        "torch": "2.11.0", "device": "NVIDIA H100", "capability": [9, 0], "asked": [generated],
        "meta": {"aten::sort": "r"}, "rules": {}, "numbers": {},
    }  # fmt: skip


def test_surveys_of_two_gpus_are_no_table() -> None:
    with pytest.raises(BadInput, match="several devices"):
        survey.table_of([counted(), counted(device="NVIDIA L4", capability=[8, 9])])
