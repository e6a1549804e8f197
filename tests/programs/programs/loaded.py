"""State and modules that were saved, copied and loaded onto the device; generators, casts, shared storages."""

import copy
import io

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(9)
net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3)).eval()


def show(name, y):
    print(name, y.dtype, y.device.type == device, [v.hex() for v in y.float().cpu().flatten().tolist()])


def through_file(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return torch.load(stream, map_location=device, **options)


with torch.no_grad():
    module = through_file(net, weights_only=False)
    on_device = copy.deepcopy(net).to(device)
    restored = copy.deepcopy(net).to(device)
    restored.load_state_dict(through_file(on_device.state_dict(), weights_only=True))
    half = copy.deepcopy(on_device).to(torch.bfloat16)
    for _ in range(4):
        x = torch.randn(2, 2, 6, 6)
        show("whole", module(x.to(device)))
        show("restored", restored(x.to(device)))
        show("copied", copy.deepcopy(restored)(x.to(device)))
        show("half", half(x.to(device).to(torch.bfloat16)))
    base = torch.arange(12.0).to(device)
    twice = through_file([base, base.view(3, 4)[1:]], weights_only=True)
    show("offset", twice[1])
    base.view(3, 4)[1].fill_(7)
    show("view", base)
    show(
        "ranges", torch.arange(3, device=device) + torch.linspace(0, 1, 3, device=device) + torch.eye(3, device=device)
    )
    show("tensor", torch.tensor([[1.5, 2.5]], device=device).repeat(2, 1).new_full((2,), 3.0))
generator = torch.Generator(device).manual_seed(11)
before = generator.get_state()
first = torch.randn(3, device=device, generator=generator)
generator.set_state(before)
print(torch.equal(first, torch.randn(3, device=device, generator=generator)), [v.hex() for v in first.cpu().tolist()])
