"""Modules that were saved, scripted, traced, copied and cast, and what autocast makes of them."""

import copy
import io

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(9)
net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3)).eval()
x = torch.randn(2, 2, 6, 6)


def show(name, y):
    print(name, y.dtype, y.device.type == device, [v.hex() for v in y.float().cpu().flatten().tolist()])


def through_file(save, load):
    stream = io.BytesIO()
    save(stream)
    stream.seek(0)
    return load(stream)


with torch.no_grad():
    scripted = torch.jit.script(net)
    loaded = through_file(lambda f: torch.jit.save(scripted, f), lambda f: torch.jit.load(f, map_location=device))
    traced = torch.jit.trace(copy.deepcopy(net).to(device), x.to(device))
    reloaded = through_file(lambda f: torch.jit.save(traced, f), lambda f: torch.jit.load(f)).to(device)
    module = through_file(
        lambda f: torch.save(net, f), lambda f: torch.load(f, map_location=device, weights_only=False)
    )
    on_device = copy.deepcopy(net).to(device)
    state = through_file(lambda f: torch.save(on_device.state_dict(), f), lambda f: torch.load(f, map_location=device))
    restored = copy.deepcopy(net).to(device)
    restored.load_state_dict(state)
    half = copy.deepcopy(on_device).to(torch.bfloat16)
    for _ in range(5):
        x = torch.randn(2, 2, 6, 6)
        pinned = x.pin_memory().to(device, non_blocking=True) if device == "cuda" else x
        show("scripted", loaded(pinned))
        show("traced", reloaded(x.to(device)))
        show("whole", module(x.to(device)))
        show("restored", restored(x.to(device)))
        show("copied", copy.deepcopy(restored)(x.to(device)))
        show("half", half(x.to(device).to(torch.bfloat16)))
        with torch.autocast(device, dtype=torch.bfloat16):
            show("autocast", on_device[4](torch.ones(1, 64).to(device)))
generator = torch.Generator(device).manual_seed(11)
before = generator.get_state()
first = torch.randn(3, device=device, generator=generator)
generator.set_state(before)
print(torch.equal(first, torch.randn(3, device=device, generator=generator)), [v.hex() for v in first.cpu().tolist()])
torch.manual_seed(12)
with torch.random.fork_rng():
    torch.rand(3, device=device)
print([v.hex() for v in torch.rand(3, device=device).cpu().tolist()])
