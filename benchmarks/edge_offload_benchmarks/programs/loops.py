"""Loops that the host steers: solvers, cascades, TorchScript: torchdiffeq and plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from edge_offload_benchmarks.programs.catalogue import Infer, add_program
from edge_offload_benchmarks.programs.inputs import draw_noise, prepare_module


def _add_solver(method: str) -> None:
    @add_program(f"torchdiffeq/{method}", varies=True, quick=True)
    def make(device: str) -> Infer:
        from torchdiffeq import odeint

        torch.manual_seed(0)
        field = prepare_module(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)), device)

        def infer(number: int) -> Any:
            times = torch.linspace(0.0, 1.0, 4).to(device)
            with torch.no_grad():
                return odeint(
                    lambda _t, y: field(y),
                    draw_noise(number, 1, 4).to(device),
                    times,
                    method=method,
                    rtol=1e-3,
                    atol=1e-4,
                ).cpu()

        return infer


_add_solver("rk4")
_add_solver("dopri5")


@add_program("plain/cascade", varies=True, quick=True)
def _make_cascade(device: str) -> Infer:
    """A small network proposes windows, a second one looks at those that remain (as MTCNN does)."""
    torch.manual_seed(0)
    first = prepare_module(nn.Conv2d(3, 1, 8, stride=8), device)
    second = prepare_module(nn.Sequential(nn.Flatten(), nn.Linear(192, 1)), device)

    def infer(number: int) -> Any:
        image = draw_noise(number, 1, 3, 64, 64).to(device)
        with torch.no_grad():
            scores = first(image)[0, 0]
            rows, columns = torch.nonzero(scores > scores.mean(), as_tuple=True)
            parts = [
                second(image[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8])
                for row, column in list(zip(rows.tolist(), columns.tolist()))[:8]
            ]
            return torch.cat(parts).cpu()

    return infer


@add_program("plain/until_converged", varies=True, quick=True)
def _make_converged(device: str) -> Infer:
    """A loop that ends when a value read on the host says so."""
    torch.manual_seed(0)
    step = prepare_module(nn.Linear(16, 16), device)

    def infer(number: int) -> Any:
        value = draw_noise(number, 1, 16).to(device)
        with torch.no_grad():
            for _ in range(12):
                later = torch.tanh(step(value))
                if (later - value).abs().max().item() < 0.05:
                    break
                value = later
        return value.cpu()

    return infer


@add_program("torchscript/frozen", quick=True)
def _make_frozen(device: str) -> Infer:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(6)]
    network = prepare_module(nn.Sequential(nn.Conv2d(3, 8, 3), *blocks), device)
    frozen = torch.jit.freeze(torch.jit.script(network))

    def infer(number: int) -> Any:
        with torch.no_grad():
            return frozen(draw_noise(number, 1, 3, 24, 24).to(device)).cpu()

    return infer


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 8)

    def forward(self, value: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            value = torch.relu(self.step(value)) + value
        return value


@add_program("torchscript/scripted_loop", varies=True, quick=True)
def _make_scripted(device: str) -> Infer:
    torch.manual_seed(0)
    network = torch.jit.script(prepare_module(_Counting(), device))

    def infer(number: int) -> Any:
        with torch.no_grad():
            return network(draw_noise(number, 1, 8).to(device), 2 + number % 3).cpu()

    return infer


@add_program("plain/top_k_tracks", varies=True, quick=True)
def _make_tracks(device: str) -> Infer:
    """A table of tracks on the device that matches what it sees to what it has."""
    table = {"rows": draw_noise(0, 6, 4).to(device)}

    def infer(number: int) -> Any:
        seen = draw_noise(number, 4, 4).to(device)
        with torch.no_grad():
            distances = torch.cdist(seen, table["rows"])
            best, place = distances.min(1)
            near = best < best.median()
            table["rows"] = torch.cat([table["rows"][2:], seen[:2]])
            return [place[near].cpu(), best.cpu()]

    return infer
