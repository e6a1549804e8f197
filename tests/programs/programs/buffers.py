"""Buffers that are freed, resized, rewritten and shared while the same calls go on."""

import copy
import io

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(6)
weight = torch.randn(4, 4).to(device)
for i in range(14):
    x = torch.randn(2, 4).to(device)
    if i == 5:
        weight.mul_(0.5)
    if i == 7:
        weight = torch.randn(4, 4).to(device)
    if i == 9:
        old = weight
        weight = weight.t()
        old[0, 0] = 7.0
    if i == 11:
        weight.data = torch.ones(4, 4, device=device)
    if i == 12:
        weight.resize_(4, 2)
    y = x @ weight
    print(i, [v.hex() for v in y.cpu().flatten().tolist()])
out = torch.empty(0, device=device)
torch.add(torch.ones(3, device=device), 1, out=out)
print(out.shape, out.cpu().tolist())
model = torch.nn.Linear(4, 2).to(device)
other = copy.deepcopy(model)
with torch.no_grad():
    other.weight.zero_()
print(model.weight.abs().sum().item().hex(), other.weight.abs().sum().item())
stream = io.BytesIO()
torch.save(model.state_dict(), stream)
stream.seek(0)
loaded = torch.load(stream, map_location=device)
print(loaded["weight"].device.type == device, torch.equal(loaded["weight"].cpu(), model.weight.cpu()))
half = torch.randn(3, 3).to(device).half()
print((half + 1).float().cpu().sum().item().hex())
z = torch.fft.fft(torch.randn(8).to(device)).conj()
print([v.hex() for v in (z * 2).imag.cpu().tolist()])

for dtype in (torch.float16, torch.float32, torch.complex64):  # one value with strides that no dense tensor has
    one = torch.randn(7).to(dtype).to(device)
    print(one[3:4].expand(1, 1).cpu().tolist(), one[::9].cpu().tolist(), one[2].as_strided((1,), (0,)).cpu().tolist())
