"""Programs that wait, and programs that do not, on a device whose calls lag; started by test_lagging.py."""

from __future__ import annotations

import json

import torch

torch.set_num_threads(1)
host = torch.arange(6.0)
on_device = host.cuda()
EXPECTED = (host * 2 + 1).tolist()


def worked(stream, behind=None):
    """host * 2 + 1, computed on a stream."""
    with torch.cuda.stream(stream):
        if behind is not None:
            stream.wait_event(behind)
        return on_device * 2 + 1


def to_host(source, wait):
    copied = torch.zeros(6).pin_memory()
    copied.copy_(source, non_blocking=True)
    if wait:
        torch.cuda.synchronize()
    return copied.tolist() == source.tolist() if wait else bool(copied.isnan().all())


def on_a_stream(wait):
    side = torch.cuda.Stream()
    product = worked(side)
    if wait:
        torch.cuda.current_stream().wait_stream(side)
    return product.tolist()


def from_page_locked(wait):
    side, source = torch.cuda.Stream(), host.clone().pin_memory()
    with torch.cuda.stream(side):
        uploaded = source.to("cuda", non_blocking=True)
        copied = side.record_event()
    if wait:
        copied.synchronize()
    source.zero_()
    side.synchronize()
    return uploaded.tolist()


def from_pageable():
    side, source = torch.cuda.Stream(), host.clone()
    with torch.cuda.stream(side):
        uploaded = source.to("cuda", non_blocking=True)
    source.zero_()
    side.synchronize()
    return uploaded.tolist()


def in_place(wait):
    side, written = torch.cuda.Stream(), on_device.clone()
    with torch.cuda.stream(side):
        written.mul_(2).add_(1)
    if wait:
        side.synchronize()
    return written.tolist()


def given_back(record):
    """Memory of one stream that another still reads when it is given back."""
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(one):
        made = on_device * 2
    ready = one.record_event()
    with torch.cuda.stream(other):
        other.wait_event(ready)
        sums = made + 1
    if record:
        made.record_stream(other)
    del made
    one.synchronize()
    other.synchronize()
    return sums.tolist()


def timed(wait):
    side = torch.cuda.Stream()
    start, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side):
        start.record()
        torch.ones(200, 200, device="cuda").mm(torch.ones(200, 200, device="cuda"))
        ended.record()
    if wait:
        ended.synchronize()
    try:
        return start.elapsed_time(ended) > 0
    except RuntimeError as error:
        return str(error)


def network_on_a_stream():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.SiLU()).eval()
    picture = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        expected = net(picture)
        net.cuda()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            outputs = net(picture.pin_memory().to("cuda", non_blocking=True))
            outputs = torch.cat([outputs, outputs[outputs > 10.0].sum() + outputs], 1).cpu()
    return torch.equal(outputs[:, :8], expected) and torch.equal(outputs[:, 8:], expected)


@torch.no_grad()
def fused_attention_on_a_stream():
    """An operator that torch itself calls by a handle of the moment."""
    x, weight, bias = torch.randn(1, 10, 24), torch.randn(72, 24), torch.randn(72)
    out, last = torch.randn(24, 24), torch.randn(24)

    def attend(device):
        rows = x.to(device)
        given = [tensor.to(device) for tensor in (weight, bias, out, last)]
        return torch.ops.aten._native_multi_head_attention(rows, rows, rows, 24, 4, *given, None, False)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attended = attend("cuda")
        event = stream.record_event()
    event.synchronize()
    return torch.equal(attended.cpu(), attend("cpu"))


print(json.dumps({
    "to the host, waited for": to_host(on_device, True), "to the host": to_host(on_device, False),
    "stream, waited for": on_a_stream(True) == EXPECTED, "stream": on_a_stream(False) == EXPECTED,
    "locked, waited for": from_page_locked(True) == host.tolist(), "locked": from_page_locked(False) == host.tolist(),
    "pageable": from_pageable() == host.tolist(),
    "in place, waited for": in_place(True) == EXPECTED, "in place": in_place(False) == EXPECTED,
    "given back, recorded": given_back(True) == EXPECTED, "given back": given_back(False) == EXPECTED,
    "timed, waited for": timed(True), "timed": timed(False), "network": network_on_a_stream(),
    "attention": fused_attention_on_a_stream(),
}))  # fmt: skip
