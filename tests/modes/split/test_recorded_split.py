"""An unmodified program under ``edge-offload exec --mode split``: its steady inference is divided, exactly; and what a
server takes from a robot that recorded an inference."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import msgpack
import pytest
import torch
from torch import nn

from edge_offload.errors import BadInput, EdgeOffloadError, ProtocolError, Refused, Unsupported
from edge_offload.execute.tensors import TensorSpec
from edge_offload.ir import wire
from edge_offload.ir.build import from_module
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.manager.lateness import Budget
from edge_offload.memory import flat_bytes
from edge_offload.modes.split.robot.runner import SplitRunner
from edge_offload.modes.split.unmodified.recorded import RecordedSource
from edge_offload.native import libraries
from edge_offload.protocol.blobs import digest
from edge_offload.server.blobs import BlobStore
from edge_offload.server.services.split import recorded
from edge_offload.split.planners.table import Effort
from edge_offload.split.runtime.tracing import trace_module
from edge_offload_benchmarks.fuzzing.calls import replace_value

FOLDER = pathlib.Path(__file__).parent
needs_compiler = pytest.mark.skipif(
    not libraries.device_is_possible(), reason="no C++ compiler: the native device cannot be built"
)


@pytest.mark.process
@needs_compiler
def test_a_program_is_divided_and_gives_what_it_gives_by_itself(killable_server, keys, tmp_path):
    command = [sys.executable, "-m", "edge_offload.cli", "exec", "--mode", "split", "--server", killable_server.address,
               "--keys", str(keys), "--tally", str(tmp_path / "tally.json"), "--",
               sys.executable, str(FOLDER / "recorded_app.py")]  # fmt: skip
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    by_situation = {}
    for line in program.stdout:
        if line == "kill\n":
            killable_server.stop(signal.SIGKILL)
            program.stdin.write("\n")
            program.stdin.flush()
        else:
            result = json.loads(line)
            by_situation[result.pop("situation")] = result
    assert program.wait(300) == 0
    assert list(by_situation) == ["steady", "another shape", "begun alike", "left on the device", "held for long",
                          "weights changed", "server gone", "weights changed behind a result"]  # fmt: skip
    for situation, result in by_situation.items():
        assert result["distance"] <= 1e-12, situation
    assert by_situation["steady"]["counted"]["operators_split"] >= 3, by_situation["steady"]["state"]
    assert by_situation["steady"]["counted"]["owed"] == 0, "what nobody looks at is not computed"
    assert by_situation["begun alike"]["distance"] == 0, "computed here"
    assert by_situation["left on the device"]["same"]
    assert by_situation["left on the device"]["counted"]["owed"] == 1
    assert "uses what the inference leaves" in by_situation["held for long"]["state"]
    assert (
        by_situation["weights changed"]["counted"]["operators_split"]
        > by_situation["held for long"]["counted"]["operators_split"]
    )
    assert by_situation["server gone"]["split"] == 0
    computed_later = [
        by_situation[situation]["counted"]["owed"] for situation in ("server gone", "weights changed behind a result")
    ]
    assert computed_later[1] == computed_later[0] + 1, "computed with the weights that it was issued with"
    tally = json.loads((tmp_path / "tally.json").read_text())
    assert tally["split"]["inferences"] >= 5
    assert tally["split"]["bytes_up"] > 0


@pytest.mark.process
def test_a_sequence_is_opened_by_itself_and_its_weights_are_sent_once(server, keys):
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 7)).double().eval()
    picture = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    network = trace_module("recorded", module, [picture])
    sent = []
    with Client(server.address, keys=KeyStore(keys)) as client:
        client.wait_ready(60.0)
        for _ in range(2):
            source = RecordedSource(network)
            split = SplitRunner(source, client, planner="server_only", effort=Effort(0.1, 5))
            end = time.monotonic() + 200.0
            while split.unavailable_reason([picture]) is not None:
                assert time.monotonic() < end, split.state()
                time.sleep(0.01)
            assert not split.stays_local([picture])
            with torch.no_grad():
                want = module(picture)
            (got,) = split.attempt_inference([picture], {}, Budget(60.0, 60.0)).outputs
            assert (got - want).abs().max() <= 1e-12 * want.abs().max()
            sent.append(source.weights_sent)
            split.close()
    assert sent == [sum(tensor.nbytes for tensor in network.program.constants.values()), 0]


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "body", "buffers"),
    [
        ("split_have", {"names": 7}, []),
        ("split_have", {"names": [b"short"]}, []),
        ("split_have", {"names": [b"0" * 32] * 257}, []),
        ("split_put", {"name": b"0" * 32}, [b"another content"]),
        ("split_put", {}, [b"something"]),
        ("split_open", {"constants": [], "inputs": []}, []),
        ("split_open", {"constants": [], "inputs": [{"dtype": "float32", "shape": [2]}]}, [b"no sequence"]),
        ("split_open", {"constants": None, "inputs": None}, [b"no sequence"]),
    ],
)
def test_what_is_malformed_is_refused_and_the_server_lives(server, keys, kind, body, buffers):
    with Client(server.address, keys=KeyStore(keys)) as client:
        client.wait_ready(60.0)
        with pytest.raises((ProtocolError, BadInput)):
            client.request(kind, body, buffers, timeout_s=60.0).result(61.0)
        client.request("split_echo", {}, timeout_s=60.0).result(61.0)


@pytest.fixture(scope="module")
def recording():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 7)).eval()
    picture = torch.rand(1, 3, 8, 8)
    return from_module(module, [picture]), [TensorSpec.of(picture)]


def bytes_of(program):
    digests = dict.fromkeys(program.sequence.constants.values())
    return b"".join(bytes(flat_bytes(program.constants[name]).numpy().data) for name in digests)


def test_a_sequence_is_read_and_gets_its_constants(recording, tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "MAX_BLOB_BYTES", 4000)
    program, inputs = recording
    sequence = recorded.read_sequence(wire.encode(program.sequence), inputs)
    data = bytes_of(program)
    names = [digest(data[:4000]), digest(data[4000:])]
    store = BlobStore(tmp_path)
    with pytest.raises(Refused, match="not here"):
        recorded.add_constants(sequence, names, store)
    store.put_blob(names[0], data[:4000])
    store.put_blob(names[1], data[4000:])
    completed = recorded.add_constants(sequence, names, store)
    assert set(completed.constants) == set(program.constants)
    assert all(torch.equal(tensor, program.constants[name]) for name, tensor in completed.constants.items())
    for wrong in (names[:1], names[::-1], [*names, names[0]], ["text"], None):
        with pytest.raises(ProtocolError):
            recorded.add_constants(sequence, wrong, store)


def changed(sequence, which, **what):
    """``sequence`` with its first operator called ``which`` changed."""
    operators = list(sequence.operators)
    place = next(index for index, operator in enumerate(operators) if operator.name == which)
    operators[place] = dataclasses.replace(operators[place], **what)
    return dataclasses.replace(sequence, operators=tuple(operators))


def test_what_a_sequence_may_not_contain_is_refused_by_name(recording):
    program, inputs = recording
    for name in ("aten.from_file.default", "aten._cummax_helper.default", "aten.bernoulli.default", "os.system.default",
                 "aten.resize_.default", "aten.empty.memory_format", "aten.empty_like.default",
                 "aten.new_empty.default", "aten._scaled_dot_product_flash_attention.default"):  # fmt: skip
        with pytest.raises((Unsupported, ProtocolError)) as caught:
            recorded.read_sequence(wire.encode(changed(program.sequence, "aten.relu.default", name=name)), inputs)
        assert name.split(".")[1] in str(caught.value)


@pytest.mark.parametrize("number", [6, 1 << 40])
def test_a_dtype_comes_by_name(recording, number):
    """torch looks beyond its table of names for a number that is none: this would end the server."""
    program, inputs = recording
    relu = next(operator for operator in program.sequence.operators if operator.name == "aten.relu.default")
    for call in ({"args": (*relu.args, number)}, {"kwargs": (("dtype", number),)}):
        wrong = changed(program.sequence, relu.name, name="aten.sum.default", **call)
        with pytest.raises(ProtocolError, match=r"aten\.sum\.default': dtype is a number"):
            recorded.read_sequence(wire.encode(wrong), inputs)


class InOnePiece(nn.Module):
    """What has no footprint, between operators that have: encoders look for padding so, graphs add up neighbours."""

    def __init__(self):
        super().__init__()
        self.register_buffer("padding", torch.tensor([0, 3]))

    def forward(self, x, near):
        seen = torch.isin(near, self.padding).any() | (near == 2).all()
        summed = torch.zeros_like(x).scatter_add(0, near[:, None].expand(-1, 4), x).index_add(0, near, x)
        best = summed.scatter_reduce(0, near[:, None].repeat(1, 4), x, "amax").index_put((near[:2],), x[0])
        spread, middle = torch.var_mean(best)
        return torch.where(seen, best * spread, best) + middle + best.median() + best.prod() + torch.mv(x, x[0]).sum()


def test_an_operator_of_one_piece_does_not_prevent_dividing_an_inference():
    torch.manual_seed(0)
    module, tensors = InOnePiece(), (torch.rand(6, 4), torch.randint(0, 6, (6,)))
    program, inputs = from_module(module, tensors), [TensorSpec.of(tensor) for tensor in tensors]
    assert recorded.read_sequence(wire.encode(program.sequence), inputs).operators == program.sequence.operators


@pytest.mark.parametrize("place", [-7, 6, 1 << 40])
def test_a_row_that_does_not_exist_is_an_error_for_all_that_names_rows(place):
    """Tensors without data know nothing of it; the kernel of a CPU has to look."""
    x, near = torch.rand(6, 4), torch.tensor([0, place, 1])
    for call in (
        lambda: x.scatter_add(0, near[:, None].expand(-1, 4), x[:3]),
        lambda: x.scatter_add(1, near[None].repeat(6, 1), x),
        lambda: x.scatter_reduce(0, near[:, None].expand(-1, 4), x[:3], "mean"),
        lambda: x.index_add(0, near, x[:3]),
        lambda: x.index_put((near,), x[0], True),
    ):
        with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
            call()


class Sampled(nn.Module):
    def forward(self, volume, grid):
        return nn.functional.grid_sample(volume, grid, align_corners=False)


def test_a_mode_that_the_operator_does_not_have_is_refused():
    """torch checks none of these in three dimensions: what comes back is what lay in the server's memory."""
    tensors = torch.rand(1, 2, 4, 4, 4), torch.rand(1, 3, 3, 3, 3)
    program, inputs = from_module(Sampled(), tensors), [TensorSpec.of(tensor) for tensor in tensors]
    recorded.read_sequence(wire.encode(program.sequence), inputs)
    (call,) = program.sequence.operators
    for name in ("aten.grid_sampler.default", "aten.grid_sampler_3d.default"):
        for modes in ((7, 0), (-1, 0), (0, 3), (0, None)):
            wrong = changed(program.sequence, call.name, name=name, args=(*call.args[:2], *modes, False), kwargs=())
            with pytest.raises(ProtocolError, match=r"there is no (interpolation|padding)_mode"):
                recorded.read_sequence(wire.encode(wrong), inputs)


def test_a_mutated_sequence_is_refused_or_correct(recording, monkeypatch):
    """Reading runs in the server's own process: nothing else may come of it."""
    program, inputs = recording
    monkeypatch.setattr(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True)
    facts = msgpack.unpackb(wire.encode(program.sequence))
    draw = random.Random(1)
    refused = 0
    for _ in range(800):
        field = draw.choice(["operators", "operators", "values", *sorted(facts)])
        try:
            recorded.read_sequence(msgpack.packb({**facts, field: replace_value(facts[field], draw)}), inputs)
        except EdgeOffloadError:
            refused += 1
    assert 400 < refused < 800


def test_an_incorrect_sequence_is_refused(recording):
    program, inputs = recording
    sequence = program.sequence
    (relu,) = [operator for operator in sequence.operators if operator.name == "aten.relu.default"]
    made = sequence.values[relu.output_ids()[0]]
    lies = [
        dataclasses.replace(made, shape=(1, 4, 6, 7)),
        dataclasses.replace(made, dtype="float64"),
    ]
    for lie in lies:
        with pytest.raises(ProtocolError, match="relu"):
            recorded.read_sequence(
                wire.encode(dataclasses.replace(sequence, values={**sequence.values, made.id: lie})), inputs
            )
    with pytest.raises(ProtocolError, match="samples"):
        recorded.read_sequence(wire.encode(sequence), [TensorSpec("float32", (1, 3, 8, 9))])
    huge = dataclasses.replace(made, shape=(1 << 20, 1 << 14))
    with pytest.raises(Refused, match="larger values"):
        recorded.read_sequence(
            wire.encode(dataclasses.replace(sequence, values={**sequence.values, made.id: huge})), inputs
        )
    with pytest.raises(ProtocolError):
        recorded.read_sequence(wire.encode(changed(sequence, "aten.relu.default", args=(1.0,))), inputs)
    with pytest.raises(ProtocolError):
        recorded.read_sequence(wire.encode(sequence)[:-1], inputs)
