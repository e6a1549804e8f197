"""Results' metadata that the robot works out by itself is what the executor finds; a first inference asks seldom."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict, List, Tuple
from unittest.mock import Mock

import pytest
import torch

from edge_offload.device import shapes
from edge_offload.device.shapes import HOW, LAYOUTS, layouts_of, load_table
from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.devices import ON_CPU
from edge_offload_research.device.conformance.shapes import FEWEST, exact_rules, part_of, table_of

FIRST = """
import copy, json, torch
from torch import nn
from edge_offload.device.installation import current_installation

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixed = nn.Linear(16, 48)

    def forward(self, x):
        heads = self.mixed(x).reshape(len(x), -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(x.shape)

torch.manual_seed(0)
picture = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3),
    nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Dropout(0.1), nn.Hardswish(), nn.Flatten(2),
).eval()
words = nn.Sequential(
    nn.LayerNorm(16), Attention(), nn.GELU(), nn.Conv1d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Softmax(-1),
).eval()
networks = [picture, words]
there = [copy.deepcopy(network).to("cuda") for network in networks]
trips, equal, counters = [], [], current_installation().recorder.counters
for count, layout in ((1, torch.contiguous_format), (3, torch.contiguous_format), (2, torch.channels_last)):
    image = torch.rand(count, 3, 32, 32).contiguous(memory_format=layout)
    before = counters.round_trips
    with torch.no_grad():
        found, wanted = image.to("cuda"), image
        for network, remote in zip(networks, there):
            found, wanted = remote(found), network(wanted)
        found = (found.transpose(1, 2) * 2 + torch.arange(16, device="cuda") / 3).sum(-1).cpu()
        equal.append(torch.equal(found, (wanted.transpose(1, 2) * 2 + torch.arange(16) / 3).sum(-1)))
    trips.append(counters.round_trips - before)
print(json.dumps({"trips": trips, "equal": equal}))
"""
WRONG = """
import torch
from edge_offload.device.installation import current_installation

# its meta kernel knows nothing of channels_last
current_installation().native.trust([], [{"aten::_convolution": 63}, {}, {}])
with torch.no_grad():
    picture, filters = torch.rand(1, 3, 8, 8).contiguous(memory_format=torch.channels_last), torch.rand(4, 3, 3, 3)
    wanted = torch.nn.functional.conv2d(picture, filters)
    picture, filters = picture.to("cuda"), filters.to("cuda")
    for _ in range(2):
        try:
            print("a result", torch.equal(torch.nn.functional.conv2d(picture, filters).cpu(), wanted))
        except RuntimeError as error:
            print("refused", error)
"""
#: A size that was never seen, for which the robot works a layout out that is wrong, in a step that ran ahead.
WRONG_AHEAD = """
import torch
from edge_offload.device import shapes
from edge_offload.device.installation import current_installation

def trust(right):
    table = shapes.load_table()
    del table["meta"]["aten::amax"]  # the server is asked of it, and does the step that it expects
    if not right:
        table["meta"]["aten::_convolution"] = table["rules"].pop("aten::_convolution")
    before, shapes.load_table = shapes.load_table, lambda kind="": table
    shapes.trust_shapes(current_installation().native, current_installation().remote)
    shapes.load_table = before

trust(True)
filters = torch.rand(4, 3, 3, 3)
there = filters.to("cuda")
with torch.no_grad():
    for count in (1, 2, 3, 2, 4, 3, 5, 4, 2, 3, 7):
        if count == 7:
            trust(False)
        pictures = torch.rand(count + 1, 3, 8, 8)
        moved = pictures.to("cuda").contiguous(memory_format=torch.channels_last)
        filtered = torch.nn.functional.conv2d(moved, there)
        try:
            total = moved.amax().item()
            print(count, torch.equal(filtered.cpu(), torch.nn.functional.conv2d(pictures, filters)))
        except RuntimeError as error:
            print(count, "refused", error)
print(current_installation().recorder.counters.accepted)
"""
#: Put before a program: there is no table of any release.
NO_TABLE = """
import pathlib, torch
from edge_offload.device import installation, shapes

shapes.FOLDER = pathlib.Path("nowhere")
shapes.trust_shapes(installation.current_installation().native, installation.current_installation().remote)
"""
#: Meta kernels that now and then answer with strides and sizes of storages that no kernel makes.
WRONG_AT_RANDOM = """
import copy, functools, json, random, warnings
from torch import nn
from torch.utils._pytree import tree_map_only

warnings.simplefilter("ignore")
draws, wrong, library = random.Random(7), 0, torch.library.Library("aten", "IMPL")
CHOSEN = ("_convolution", "convolution", "native_layer_norm", "native_group_norm", "native_batch_norm", "_softmax",
          "gelu", "silu", "hardswish", "sigmoid", "add.Tensor", "mul.Tensor", "cat", "sum.dim_IntList", "mean.dim",
          "addmm", "bmm", "avg_pool2d", "amax", "clone", "upsample_nearest2d", "max_pool2d_with_indices")

def otherwise(result):
    global wrong
    if not isinstance(result, torch.Tensor) or draws.random() < 0.6:
        return result.to("meta")
    order, strides, step = draws.sample(range(result.dim()), result.dim()), [0] * result.dim(), 1
    for axis in order:
        strides[axis], step = step, step * max(result.size(axis), 1)
    wrong, whole = wrong + 1, torch.empty(step + draws.choice((0, 5)), dtype=result.dtype, device="meta")
    return whole.as_strided(result.shape, strides)

def kernel(op, *arguments, **named):
    on_host = lambda t: torch.zeros(t.untyped_storage().nbytes() // t.itemsize, dtype=t.dtype).as_strided(
        t.shape, t.stride(), t.storage_offset())
    arguments, named = tree_map_only(torch.Tensor, on_host, (arguments, named))
    found = op(*arguments, **named)
    return tuple(map(otherwise, found)) if isinstance(found, tuple) else otherwise(found)

getattr(torch.library, "_impls", set()).clear()  # what releases before 2.13 refuse to replace
for name in CHOSEN:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    library.impl(name, functools.partial(kernel, op), "Meta")

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.group = nn.Conv2d(16, 16, 3, stride=2), nn.GroupNorm(4, 16)
        self.mixed, self.layer, self.last = nn.Linear(16, 48), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.nn.functional.silu(self.norm(self.first(x)))
        x = torch.cat([x, torch.nn.functional.avg_pool2d(x, 3, 1, 1) * x], 1)
        x = torch.nn.functional.interpolate(self.group(self.second(x)), scale_factor=2)
        x = torch.nn.functional.max_pool2d(x, 2)
        words = self.layer(x.flatten(2).transpose(1, 2))
        q, k, v = self.mixed(words).reshape(len(x), -1, 3, 2, 8).permute(2, 0, 3, 1, 4)
        words = words + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(words.shape)
        words[:, ::2] += 1
        scores = (words[:, 1:, :4] @ words[:, 1:, :4].transpose(1, 2)).softmax(-1).sum(-1)
        return self.last(nn.functional.gelu(words)).mean(1) + scores.amax(1, keepdim=True), x.sigmoid().sum((1, 3))

torch.manual_seed(0)
torch.set_num_threads(1)
network = Network().eval()
there, equal = copy.deepcopy(network).to("cuda"), []
with torch.no_grad():
    for count, size in ((1, 16), (2, 16), (1, 16), (3, 12), (3, 12), (1, 16), (3, 12), (2, 20), (2, 20), (2, 20)):
        pictures = torch.rand(count, 3, size, size)
        equal += [torch.equal(a.cpu(), b) for a, b in zip(there(pictures.to("cuda")), network(pictures))]
print(json.dumps({"wrong": wrong, "equal": equal}))
"""
SURVEY = """
import json, sys, warnings
warnings.simplefilter("ignore")
from edge_offload_research.device.conformance.shapes import choose_entries, installed_device, survey

for counts in survey(choose_entries(sys.argv[1:], 0, 1), installed_device().native):
    print("found", json.dumps([[*key, *value] for key, value in counts.items()]))
"""
#: Entries of op_db with rules of their own or several layouts, and some that have none.
ENTRIES = (
    "mul",
    "cat",
    "nn.functional.gelu",
    "nn.functional.batch_norm",
    "nn.functional.conv2d",
    "nn.functional.unfold",
    "max_pool2d_with_indices*",
    "nn.functional.pixel_unshuffle",
)


def run(tmp_path: Any, source: str, *arguments: str, options: Tuple[str, ...] = ()) -> str:
    """What a program says that runs on the virtual device in mode lazy."""
    program = tmp_path / "program.py"
    program.write_text(source)
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "lazy", "--threads", "1", *options]
    ran = subprocess.run(
        [*command, "--", sys.executable, str(program), *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_exact_is_what_agreed_often_enough_and_never_differed():
    agreed = (FEWEST, 0)
    counts = {
        ("aten::sort", 1, 0): agreed, ("aten::sort", 2, 0): (50, 1), ("aten::sort", 4, 0): (FEWEST - 1, 0),
        ("aten::_convolution", 1, 0): agreed, ("aten::_convolution", 1, 1): agreed, ("other::c", 1, 0): agreed,
    }  # fmt: skip
    assert exact_rules(counts) == {"meta": {"aten::sort": "r"}, "rules": {"aten::_convolution": "r"}, "numbers": {}}


def test_operators_that_differ_in_rows_are_requested_of_another_torch_too(monkeypatch):
    generated, other = shapes.operators_with_exact_shapes()[:2]
    agreed, differed = [FEWEST, 0], [FEWEST, 1]
    table = table_of(
        [{"torch": "2.1.0", "counts": [
            ["aten::_fft_c2c", 1, 0, *differed], ["aten::sort", 1, 0, *agreed], ["aten::sort", 2, 0, *differed],
            ["aten::_convolution", 1, 0, *differed], ["aten::_convolution", 1, 1, *agreed],
            [generated, 2, 0, *differed], [generated, 1, 0, *agreed],
        ]}]
    )  # fmt: skip
    assert table[shapes.REQUESTED_KEY] == sorted(["aten::_fft_c2c", generated])
    monkeypatch.setattr(shapes, "load_table", lambda kind="": table)
    native, remote = Mock(), Mock(torches="2.1.0 here, 2.13.0 there", facts={"name": f"a CPU{ON_CPU}"})
    shapes.trust_shapes(native, remote)
    native.suppose.assert_called_once_with(True, sorted(["aten::_fft_c2c", generated]))
    names, ways = native.trust.call_args[0]
    assert ways == [{}, {}, {}], "the server's kernels are others"
    assert generated not in names
    assert other in names


@pytest.mark.process
def test_a_survey_continues_after_entries_that_end_their_process(tmp_path):
    program = tmp_path / "survey.py"
    program.write_text(
        "import sys\n"
        "for entry in range(int(sys.argv[-1]), 6):\n"
        "    if entry in (1, 2) or 'always' in sys.argv: sys.exit(1)\n"
        "    print('shapes [[\"aten::sin\", 1, 0, 1, 0]]')\n"
    )
    assert part_of([sys.executable, str(program)]) == {("aten::sin", 1, 0): (4, 0)}
    with pytest.raises(EdgeOffloadError, match="exit code 1"):
        part_of([sys.executable, str(program), "always"])


def test_the_iterator_and_operands_as_results_are_right_in_all_layouts_or_in_none():
    counts = {("aten::sin", 1, 1): (FEWEST, 0), ("aten::relu_", 4, 0): (FEWEST, 0), ("aten::exp", 1, 1): (FEWEST, 0)}
    counts["aten::exp", 8, 1] = (0, 1)
    assert exact_rules(counts) == {
        "meta": {"aten::relu_": "rcdg"},
        "rules": {"aten::exp": "r", "aten::sin": "rcdg"},
        "numbers": {},
    }


def test_layouts_are_a_set():
    assert layouts_of("rce") == 1 + 2 + 16
    assert layouts_of("") == 0


def trusted() -> Dict[Tuple[str, int, int], bool]:
    """What the file says of this torch."""
    sampled = load_table()
    if not sampled:
        pytest.skip(f"the operators of torch {torch.__version__} have not been sampled")
    return {
        (name, 1 << LAYOUTS.index(letter), way): True
        for way, how in enumerate(HOW)
        for name, letters in sampled[how].items()
        for letter in letters
    }


@pytest.mark.release
@pytest.mark.process
def test_no_operator_that_is_trusted_differs_on_samples(tmp_path):
    trusted_shapes, counts = trusted(), []
    for line in run(tmp_path, SURVEY, *ENTRIES).splitlines():
        counts += json.loads(line[len("found ") :]) if line.startswith("found ") else []
    wrong: List[Any] = [each for each in counts if each[4] and trusted_shapes.get(tuple(each[:3]))]
    assert not wrong
    assert sum(each[3] for each in counts) > 1000, "they were looked at"
    wrong_calls = [each[:3] for each in counts if each[4]]
    assert ["aten::_convolution", 2, 0] in wrong_calls, "a wrong meta kernel is found"
    assert ["aten::im2col", 1, 0] in wrong_calls, "one that is wrong on few samples as well: all are looked at"


@pytest.mark.process
def test_a_first_inference_requests_no_shape_that_is_cached(tmp_path):
    trusted()
    outcome = json.loads(run(tmp_path, FIRST).splitlines()[-1])
    assert outcome == {"trips": [1, 1, 1], "equal": [True, True, True]}


@pytest.mark.process
def test_shapes_can_be_requested_from_the_server_instead(tmp_path):
    outcome = json.loads(run(tmp_path, FIRST, options=("--shapes", "ask")).splitlines()[-1])
    assert min(outcome["trips"]) > 1
    assert outcome["equal"] == [True, True, True]


@pytest.mark.process
def test_what_the_server_finds_otherwise_is_what_the_program_goes_on_with(tmp_path):
    assert run(tmp_path, WRONG).splitlines() == ["a result True", "a result True"]


@pytest.mark.process
@pytest.mark.parametrize("mode", ["lazy", "replay"])
def test_layouts_that_are_worked_out_wrong_at_random_cost_no_result(tmp_path, mode):
    outcome = json.loads(run(tmp_path, NO_TABLE + WRONG_AT_RANDOM, options=("--mode", mode)).splitlines()[-1])
    assert outcome["wrong"] >= 20, "they were worked out wrong"
    assert outcome["equal"] == [True] * len(outcome["equal"])


@pytest.mark.process
def test_without_a_table_a_first_inference_requests_each_form_of_a_call_once(tmp_path):
    outcome = json.loads(run(tmp_path, NO_TABLE + FIRST).splitlines()[-1])
    assert outcome["trips"][0] <= 1.5 * 1 + 10, "one layer of each kind"
    assert outcome["trips"][1] <= 2, "other sizes have the forms of those before"
    assert outcome["equal"] == [True, True, True]


@pytest.mark.process
def test_what_ran_ahead_is_compared_before_any_result_too(tmp_path):
    trusted()
    lines = run(tmp_path, WRONG_AHEAD, options=("--mode", "replay")).splitlines()
    assert all(line.endswith("True") for line in lines[:-1]), lines
    assert int(lines[-1]) > 0


@pytest.mark.parametrize("release", ["2.0.1", "2.1.0a0+41361538.nv23.06", "2.13.0+cu126"])
def test_releases_of_robots_have_a_table(monkeypatch, release):
    monkeypatch.setattr(torch, "__version__", release)
    table = load_table()
    assert "aten::_convolution" in table["rules"]
    assert not any("aten::_linalg_svd" in table[how] for how in HOW), "its layout varies with its operands' sizes"


@pytest.mark.parametrize(
    ("release", "kind", "nearest"),
    [("2.14.1", "", "2.13.0"), ("2.12.0+cpu", "", "2.11.0"), ("2.99.0", "", None), ("2.14.1", "-cuda", None)],
)
def test_a_release_without_a_table_has_that_of_the_nearest_one(monkeypatch, tmp_path, release, kind, nearest):
    for name in ("2.11", "2.13"):
        (tmp_path / f"shapes-{name}{kind}.json").write_text(json.dumps({"torch": f"{name}.0"}))
    monkeypatch.setattr(shapes, "FOLDER", tmp_path)
    monkeypatch.setattr(torch, "__version__", release)
    assert shapes.load_table(kind).get("torch") == nearest
