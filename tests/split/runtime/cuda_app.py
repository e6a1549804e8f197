"""Plans run by the runtime on the virtual CUDA device: started by test_device_half.py under ``exec --mode local``.

``cuda_app.py zoo NAME...``: random plans of networks of the zoo, in float64, an error each, in a line of JSON.
``cuda_app.py mutations``: a small network with each copy, event and wait of the runtime taken out in turn.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import random
import sys

import torch
from torch import nn

from edge_offload.execute import clocks, lanes
from edge_offload.ir import sequence_hash
from edge_offload.ir.build import from_module
from edge_offload.models import zoo
from edge_offload.split.model.locality import analyse_locality, axis_choices
from edge_offload.split.model.network import TracedNetwork
from edge_offload.split.model.plan import Side
from edge_offload.split.model.reference import copy_values, shared_values
from edge_offload.split.runtime import device_half, places, profile
from edge_offload.split.runtime.pieces import cut_transfer, decode_piece, encode_piece
from edge_offload.split.runtime.progress import SplitProgress
from edge_offload.split.runtime.tables import compile_ready
from edge_offload_research.split.model.exactness import as_double, random_split, relative_error
from tests.split.runtime.mutations import MUTATIONS
from tests.split.split_plans import random_plan, unsplit
from tests.split.test_zoo import SIZES

SEEDS = (0, 1, 2, 3, 5, 8, 11)
"""Of random plans that together need each copy, event and wait."""
GPU, CPU = torch.device("cuda"), torch.device("cpu")
PLACES = {"robot": (GPU, CPU), "server": (CPU, GPU), "both": (GPU, GPU)}


def infer(plan, located, shared, inputs, streams, piece_bytes=4096, slowdown=1.0):
    """One inference as the runtime carries it out, each side on its device; what travels does so as on a link."""
    sides = {
        side: SplitProgress(plan, side, located, shared[device.type], slowdown, place=streams.get(side))
        for side, device in zip(Side, places_of(streams))
    }
    for number, tensor in zip(located.sequence.inputs, inputs):
        sides[Side.ROBOT].give_input(number, tensor)
    while not sides[Side.ROBOT].has_results:
        moved = False
        for side, progress in sides.items():
            while progress.can_compute():
                progress.compute_block()
                moved = True
            for index in progress.take_sendable():
                moved = True
                transfer = progress.transfer_at(index)
                for low, high in cut_transfer(located, transfer, piece_bytes):
                    descriptors, buffers = encode_piece(progress.read_payload(index, low, high), transfer.codec)
                    body = {"transfer": index, "low": low, "high": high, "tensors": descriptors}
                    views = [memoryview(bytes(memoryview(part).cast("B"))) for part in buffers]
                    sides[side.opposite].add_rows(*decode_piece(sides[side.opposite], body, views))
        assert moved, "the plan stands still"
    results = [tensor.clone() for tensor in sides[Side.ROBOT].read_results()]
    for progress in sides.values():
        progress.half.wait_blocks()
        assert 0.0 <= progress.compute_s < 60.0
    return results


def places_of(streams):
    return [streams[side].device if side in streams else CPU for side in Side]


def placed(where):
    return {side: places.GpuSplitDevice(device) for side, device in zip(Side, PLACES[where]) if device.type == "cuda"}


@torch.no_grad()
def of_the_zoo(name, seeds=2):
    size = SIZES.get(name, 64)
    x = zoo.smooth_images(1, size)
    x = x.double()  # what float32 rounds differs by where tensors lie in memory
    program = as_double(from_module(zoo.build_network(name, size), (x.float(),)))
    truth = unsplit(program, [x])
    identity = sequence_hash(program.sequence)
    where = itertools.cycle(PLACES)
    for choice in axis_choices(program.sequence)[:2]:
        located = analyse_locality(program.sequence, choice)
        host = shared_values(located, program.constants)
        shared = {"cpu": host, "cuda": copy_values(host, GPU)}
        for seed in range(seeds):
            make = random_plan if seed % 2 else random_split
            plan = compile_ready(make(located, random.Random(seed)), located, identity)
            place = next(where)
            outputs = infer(plan, located, shared, [x], placed(place), 1 << 20)
            yield {
                "name": name,
                "axis": str(choice),
                "seed": seed,
                "on": place,
                "error": relative_error(outputs, truth),
            }


class Small(nn.Module):
    """Convolutions, a branch, a global mean: enough for values that go to and fro, come in pieces and are reused."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(6))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return self.head(x.mean(dim=(2, 3))), x


@torch.no_grad()
def what_is_wrong():
    """What is wrong with a small network's plans, or with its profile; empty: nothing."""
    x = torch.randn(1, 4, 24, 8, generator=torch.Generator().manual_seed(5))
    module = Small().eval()
    expected = module(x)
    program = from_module(module, (x,))
    (choice,) = [each for each in axis_choices(program.sequence) if 2 in each.values()]
    located = analyse_locality(program.sequence, choice)
    host = shared_values(located, program.constants)
    shared = {"cpu": host, "cuda": copy_values(host, GPU)}
    identity = sequence_hash(program.sequence)
    try:
        for place in PLACES:
            streams = placed(place)
            for seed in SEEDS:
                plan = compile_ready(random_plan(located, random.Random(seed)), located, identity)
                outputs = infer(plan, located, shared, [x], streams, 256, 1.01 if seed == 1 else 1.0)
                if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(outputs, expected)):
                    return f"the results of plan {seed} on {place}"
        network = TracedNetwork("small", program, located, (x,), None, module)
        made = profile.measure_profile(network, 2, codecs=False, device=GPU)
        timed = [seconds for points in made.points for _, seconds in points]
        copied = places.GpuSplitDevice(GPU).measure_profile(network, 1).fit_copies()
        timed += [cost.seconds_for(1 << 20) for cost in (copied.to_device, copied.to_host)]
        return "" if min(*timed, made.alone_s) > 0 else "the profile"
    except RuntimeError as error:
        return str(error)


@contextlib.contextmanager
def mutated(module, old, new):
    """The module with one line of it changed."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{module.__name__} has {source.count(old)} times {old!r}"
    define(module, source.replace(old, new))
    try:
        yield
    finally:
        define(module, source)


def define(module, source):
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    places.CopyStreams, places.DeviceHalf, profile.clock_of = lanes.CopyStreams, device_half.DeviceHalf, clocks.clock_of


def mutations():
    modules = {"lanes": lanes, "clocks": clocks, "device_half": device_half}
    yield {"mutation": "", "wrong": what_is_wrong()}
    for name, old, new in MUTATIONS:
        with mutated(modules[name], old, new):
            yield {"mutation": f"{name}: {old} -> {new}", "wrong": what_is_wrong()}
    yield {"mutation": "", "wrong": what_is_wrong()}


def main(what, *names):
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    facts = mutations() if what == "mutations" else itertools.chain.from_iterable(map(of_the_zoo, names))
    for item in facts:
        print(json.dumps(item), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
