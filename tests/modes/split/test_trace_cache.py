"""What a server learned of a model outlives its process, and is used for the same model on the same machine alone."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from edge_offload.errors import EdgeOffloadError
from edge_offload.execute.fingerprint import fingerprint_of
from edge_offload.ir import sequence_hash
from edge_offload.ir.evaluate import make_kernel
from edge_offload.mode import Mode
from edge_offload.server.services.replica.replicas import ReplicaStore
from edge_offload.server.services.split import models as split_models
from edge_offload.server.services.split.models import SplitModelStore
from edge_offload.server.services.split.trace_cache import TraceCache
from edge_offload.split.runtime import places, tracing
from edge_offload.split.runtime.profile import Profile
from edge_offload.split.runtime.tracing import trace_module
from edge_offload_research.emulate.emulator import Emulator
from edge_offload_research.emulate.trace import Link, Trace
from tests.modes.split import split_nets
from tests.modes.split.waiting import until

PICTURE = torch.randint(0, 256, (3, 48, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def quick(network, repeats, report=None, device=None):
    """Stands for the measurement, which is another test's."""
    count = len(network.located.operators)
    points = (((1, 1e-3), (2, 2e-3)),) * count
    return Profile(network.name, sequence_hash(network.program.sequence), {}, fingerprint_of("cpu"), points)


def started(folder, factory="pictures"):
    """The models of a server that has just been started."""
    name = f"tests.modes.split.split_nets:{factory}"
    return SplitModelStore(ReplicaStore(torch.device("cpu"), [name]), TraceCache(folder), places.SplitDevice())


def opened(models, factory="pictures", sequence=None, seed=1):
    traced = models.trace_model(f"tests.modes.split.split_nets:{factory}", {"seed": seed}, None, [PICTURE], sequence)
    if traced.profile is None:
        models.profile_model(traced)
    return traced


def results(program):
    sequence = program.sequence
    contents = {number: program.constants[digest] for number, digest in sequence.constants.items()}
    contents.update(zip(sequence.inputs, [PICTURE]))
    with torch.no_grad():
        for operator in sequence.operators:
            contents.update(zip(operator.outputs, make_kernel(operator)(contents.__getitem__)))
    return [contents[number] for number in sequence.outputs]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "measure_profile", quick)
    return tmp_path / "splits"


def never(*_args, **_others):
    raise AssertionError("it was done again")


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("factory", ["pictures", "listed"])
def test_a_server_that_was_restarted_neither_traces_nor_measures(folder, monkeypatch, factory, names):
    """Whether the robot names its own trace, or has not traced yet."""
    before = opened(started(folder, factory), factory)
    monkeypatch.setattr(tracing, "trace_module", never)
    monkeypatch.setattr(places, "measure_profile", never)
    after = opened(started(folder, factory), factory, before.profile.sequence if names else None)
    assert after.profile == before.profile
    assert after.network.located.axes == before.network.located.axes
    for one, other in zip(results(after.network.program), results(before.network.program)):
        assert torch.equal(one, other)


def test_the_profile_of_another_machine_is_remeasured(folder, monkeypatch):
    before = opened(started(folder))
    monkeypatch.setattr(
        split_models, "fingerprint_of", lambda device: {**fingerprint_of(device), "device_name": "another"}
    )
    measured = []
    monkeypatch.setattr(places, "measure_profile", lambda *args, **named: measured.append(args) or quick(*args))
    opened(started(folder), sequence=before.profile.sequence)
    assert len(measured) == 1


def test_another_trace_than_the_robots_is_traced(folder, monkeypatch):
    before = opened(started(folder)).profile.sequence
    traced = []
    monkeypatch.setattr(tracing, "trace_module", lambda *args: traced.append(args) or trace_module(*args))
    opened(started(folder), sequence="0" * 32)  # whose code is another one
    opened(started(folder), sequence=before, seed=2)  # whose weights are
    opened(started(folder), sequence="../" + before)
    assert len(traced) == 3
    folder.joinpath(f"{before}.split").rename(folder / f"{'1' * 32}.split")  # a file that says that it is another
    opened(started(folder), sequence="1" * 32)
    assert len(traced) == 4


def test_a_trace_cached_by_checksum_belongs_to_that_model_only(folder, monkeypatch):
    before = opened(started(folder))
    traced = []
    monkeypatch.setattr(tracing, "trace_module", lambda *args: traced.append(args) or trace_module(*args))
    opened(started(folder), seed=2)
    assert len(traced) == 1, "other weights"
    taller = torch.zeros((3, 64, 64), dtype=torch.uint8)
    models = started(folder)
    models.trace_model("tests.modes.split.split_nets:pictures", {"seed": 1}, None, [taller], None)
    assert len(traced) == 2, "another shape"
    monkeypatch.setattr(torch, "__version__", "0.0.1")
    opened(started(folder))
    assert len(traced) == 3, "another torch"
    for path in folder.glob("*.model"):
        path.write_text("../" + before.profile.sequence)
    opened(started(folder))
    assert len(traced) == 4, "nothing that a file says is a path"


def test_a_robot_with_another_trace_gets_a_new_one(folder, monkeypatch):
    """The code has changed since, and the weights have not: both sides trace, and neither is held to the old trace."""
    opened(started(folder))
    models, traced = started(folder), []
    assert opened(models).from_cache
    monkeypatch.setattr(tracing, "trace_module", lambda *args: traced.append(args) or trace_module(*args))
    reopened = opened(models, sequence="0" * 32)
    assert len(traced) == 1
    assert not reopened.from_cache
    assert opened(models, sequence="0" * 32) is reopened
    assert opened(models) is reopened
    assert len(traced) == 1


def test_a_damaged_file_costs_a_trace_and_no_more(folder, monkeypatch):
    before = opened(started(folder))
    (path,) = folder.glob("*.split")
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:-1], bytes([content[0] ^ 1]) + content[1:]):
        path.write_bytes(damaged)
        reopened = opened(started(folder), sequence=before.profile.sequence)
        for one, other in zip(results(reopened.network.program), results(before.network.program)):
            assert torch.equal(one, other)
    folder.chmod(0o500)
    assert opened(started(folder)).profile is not None


def test_a_constant_that_is_no_weight_is_cached_too(tmp_path):
    class Shifted(torch.nn.Module):
        def forward(self, image):
            return image.float() + torch.tensor([[1.0], [2.0], [4.0]])[:, :, None]

    network = trace_module("shifted", Shifted(), [PICTURE])
    cache = TraceCache(tmp_path)
    profile = quick(network, 1)
    cache.save_trace(network.program, profile, Shifted())
    loaded = cache.load_trace(profile.sequence, Shifted())
    assert loaded is not None
    assert torch.equal(results(network.program)[0], results(loaded.trace.program)[0])


def test_outdated_profiles_are_ignored_and_few_are_retained(tmp_path, monkeypatch):
    network = trace_module("pictures", split_nets.pictures(1).eval(), [PICTURE])
    cache, profile = TraceCache(tmp_path), quick(network, 1)
    cache.save_trace(network.program, profile, None)
    assert cache.load_profile(profile.sequence) == profile
    assert cache.load_trace(profile.sequence, split_nets.pictures(1)) is None  # the profile alone
    monkeypatch.setattr("edge_offload.server.services.split.trace_cache.PROFILE_S", 0.0)
    assert cache.load_profile(profile.sequence) is None
    for number in range(40):
        cache.save_trace(network.program, dataclasses.replace(profile, sequence=f"{number:032x}"), None)
    assert len(list(tmp_path.iterdir())) == 32


@pytest.mark.process
def test_after_an_interruption_robot_and_server_go_on_with_what_they_had(server, robot, monkeypatch):
    """The connection is reset; nothing is traced, measured or planned for the next one."""
    emulator = Emulator(
        "127.0.0.1:0", server.address[len("tcp://") :], Link.of("fast", Trace.constant_trace(1e8), 1e-3)
    )
    with emulator.start():
        bot = robot(emulator.address)
        before = bot.open(PICTURE)
        monkeypatch.setattr(bot.runner.opener.source, "trace_operators", never)
        monkeypatch.setattr(bot.runner.opener, "make_plans", never)
        connections = bot.client.counters["connections"]
        emulator.cut("reset")
        until(lambda: bot.client.counters["connections"] > connections, 60.0)
        assert bot.open(PICTURE) is before
        got, report = bot.offloaded.run_inference([PICTURE], Mode.SPLIT)
        assert report.fallback_reason == ""
        with torch.no_grad():
            for one, other in zip(got, bot.module(PICTURE)):
                assert (one - other).abs().max() <= 1e-5 * other.abs().max()


def test_a_file_of_the_wrong_kind_is_not_used(tmp_path):
    cache = TraceCache(tmp_path)
    tmp_path.joinpath(f"{'a' * 32}.split").mkdir()
    assert cache.load_profile("a" * 32) is None
    with pytest.raises(EdgeOffloadError):
        started(tmp_path).trace_model("no:such", {}, None, [PICTURE], "a" * 32)
