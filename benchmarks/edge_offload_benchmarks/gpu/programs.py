"""Small programs whose results are compared bit for bit between plain CUDA and the offloaded device."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import torch
from torch import nn
from torch.nn import functional

Program = Callable[[torch.device, int], List[torch.Tensor]]
PROGRAMS: Dict[str, Program] = {}


def add_program(function: Program) -> Program:
    """Add a program to :data:`PROGRAMS`."""
    PROGRAMS[function.__name__] = function
    return function


def draw_numbers(turn: int, *shape: int) -> torch.Tensor:
    """Draw the same numbers on every side: on the host."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 + turn))


def make_seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A module with the same weights on every side."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return make().eval()


@add_program
def random_seeded(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute random seeded."""
    torch.manual_seed(11 + turn)
    return [torch.randn(64, device=at), torch.rand(64, device=at), torch.randint(0, 9, (64,), device=at)]


@add_program
def random_again(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Draw twice with one seed: the difference is zero."""
    torch.manual_seed(5)
    one = torch.randn(64, device=at)
    torch.manual_seed(5)
    return [one - torch.randn(64, device=at)]


@add_program
def random_goes_on(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute random goes on."""
    if turn == 0:
        torch.manual_seed(17)
    return [torch.rand(32, device=at).cpu(), torch.rand(32, device=at)]


@add_program
def random_generator(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute random generator."""
    generator = torch.Generator(device=at).manual_seed(23 + turn)
    return [torch.randn(64, device=at, generator=generator), torch.rand(64, device=at, generator=generator)]


@add_program
def random_state(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute random state."""
    torch.manual_seed(2)
    state = torch.cuda.get_rng_state() if at.type == "cuda" else torch.get_rng_state()
    one = torch.rand(16, device=at)
    (torch.cuda.set_rng_state if at.type == "cuda" else torch.set_rng_state)(state)
    return [one, torch.rand(16, device=at)]


@add_program
def dropout_training(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute dropout training."""
    torch.manual_seed(4)
    return [
        functional.dropout(draw_numbers(turn, 512).to(at), 0.5, True),
        torch.bernoulli(torch.full((64,), 0.5, device=at)),
    ]


@add_program
def convolutions(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute convolutions."""
    net = make_seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 8, 1), nn.ConvTranspose2d(8, 4, 4, 2, 1)
        )
    ).to(at)
    return [net(draw_numbers(turn, 2, 3, 32, 32).to(at))]


@add_program
def channels_last(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute channels last."""
    net = make_seeded(lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())).to(at)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return [net(draw_numbers(turn, 2, 3, 32, 32).to(at).contiguous(memory_format=torch.channels_last))]


@add_program
def batch_norm(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute batch_norm in inference."""
    net: Any = make_seeded(lambda: nn.BatchNorm2d(16)).to(at)
    net.running_mean.copy_(draw_numbers(1, 16))
    net.running_var.copy_(draw_numbers(2, 16).abs() + 0.1)
    net.weight.data.copy_(draw_numbers(3, 16))
    net.bias.data.copy_(draw_numbers(4, 16))
    return [net(draw_numbers(turn, 2, 16, 20, 20).to(at))]


@add_program
def batch_norm_training(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute batch_norm in training."""
    net: Any = make_seeded(lambda: nn.BatchNorm2d(16)).train().to(at)
    return [net(draw_numbers(turn, 2, 16, 20, 20).to(at)), net.running_mean.clone(), net.running_var.clone()]


@add_program
def norms(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute norms."""
    x = draw_numbers(turn, 2, 16, 20, 20).to(at)
    return [
        functional.group_norm(x, 4),
        functional.layer_norm(x, (20, 20)),
        functional.instance_norm(x),
        functional.group_norm(x.contiguous(memory_format=torch.channels_last), 4),
    ]


@add_program
def matrices(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute matrices."""
    a, b = draw_numbers(turn, 130, 70).to(at), draw_numbers(turn + 9, 70, 50).to(at)
    net = make_seeded(lambda: nn.Linear(70, 33)).to(at)
    return [
        a @ b,
        net(a),
        torch.bmm(a[None].expand(3, -1, -1), b[None].expand(3, -1, -1)),
        torch.einsum("ij,jk->ki", a, b),
    ]


@add_program
def half(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute half."""
    net = make_seeded(lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10)))
    x = draw_numbers(turn, 1, 3, 32, 32).to(at)
    return [net.half().to(at)(x.half()).float(), net.bfloat16().to(at)(x.bfloat16()).float()]


@add_program
def autocast(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute autocast."""
    net = make_seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10))
    ).to(at)
    with torch.autocast(at.type, dtype=torch.bfloat16):
        return [net(draw_numbers(turn, 1, 3, 32, 32).to(at)).float()]


@add_program
def attention(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute attention."""
    q, k, v = (draw_numbers(turn + n, 2, 4, 40, 32).to(at) for n in range(3))
    mask = (draw_numbers(7, 40, 40) > 0).to(at)
    return [
        functional.scaled_dot_product_attention(q, k, v),
        functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        functional.scaled_dot_product_attention(q, k, v, mask),
        torch.softmax(q, -1),
    ]


@add_program
def recurrent(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute recurrent."""
    net = make_seeded(lambda: nn.LSTM(24, 32, 2, batch_first=True)).to(at)
    gates = make_seeded(lambda: nn.GRU(24, 32, batch_first=True)).to(at)
    x = draw_numbers(turn, 3, 11, 24).to(at)
    output, (h, c) = net(x)
    return [output, h, c, gates(x)[0]]


@add_program
def sizes_by_data(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute sizes by data."""
    x = draw_numbers(turn, 200).to(at)
    places = x.abs().gt(1).nonzero()[:, 0]
    return [places, x[places], x[x > 0], torch.unique((x * 3).long()), x[places].sort(descending=True).values[:5]]


@add_program
def suppression(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute suppression."""
    from torchvision.ops import nms

    corners = draw_numbers(turn, 100, 2).abs().to(at) * 50
    boxes = torch.cat([corners, corners + 30], 1)
    scores = draw_numbers(turn + 1, 100).to(at)
    survivors = nms(boxes, scores, 0.4)
    return [survivors, boxes[survivors[:10]]]


@add_program
def orders(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute orders."""
    x = draw_numbers(turn, 50, 40).to(at)
    top = x.topk(5)
    return [
        top.values,
        top.indices,
        x.sort(0).indices,
        x.cumsum(1),
        x.argmax(1),
        x.median(1).values,
        x.sum(),
        x.mean((0, 1)),
        x.std(0),
        x.var(1),
        x.norm(),
        x.amax(0),
        x.logsumexp(1),
    ]


@add_program
def scattered(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute scattered."""
    index = torch.randint(0, 20, (300,), generator=torch.Generator().manual_seed(turn)).to(at)
    x = draw_numbers(turn, 300).to(at)
    base = torch.zeros(20, device=at)
    return [
        base.index_add(0, index, torch.ones_like(x)),
        base.scatter(0, index[:1], x[:1]),
        x.index_select(0, index),
        base.clone().index_put_((index[:1],), x[:1]),
    ]


@add_program
def pictures(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute pictures."""
    x = draw_numbers(turn, 1, 3, 24, 24).to(at)
    grid = functional.affine_grid(
        torch.tensor([[[1.0, 0.1, 0], [0, 1.0, 0.2]]]).to(at), [1, 3, 20, 20], align_corners=False
    )
    return [
        functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
        functional.interpolate(x, size=(9, 9)),
        functional.grid_sample(x, grid, align_corners=False),
        functional.max_pool2d(x, 3, 2, 1),
        functional.avg_pool2d(x, 3),
        functional.adaptive_avg_pool2d(x, 5),
        functional.pad(x, (1, 2, 3, 4), "reflect"),
        functional.pixel_shuffle(x.expand(1, 3, 24, 24).repeat(1, 4, 1, 1), 2),
    ]


@add_program
def elementwise(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute elementwise."""
    x = draw_numbers(turn, 400).to(at)
    return [
        x.exp(),
        x.sin(),
        x.abs().log(),
        x.sigmoid(),
        x.tanh(),
        functional.gelu(x),
        functional.silu(x),
        x.erf(),
        x.pow(3),
        x.abs().sqrt(),
        functional.hardswish(x),
        x.clamp(-1, 1),
        torch.where(x > 0, x, -x),
        (x * 100).long() % 7,
    ]


@add_program
def linear_algebra(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute linear algebra."""
    a = draw_numbers(turn, 12, 12)
    a = (a @ a.T + 12 * torch.eye(12)).to(at)
    return [
        torch.linalg.inv(a),
        torch.linalg.cholesky(a),
        torch.linalg.svdvals(a),
        torch.linalg.solve(a, a[:, :2]),
        a.det(),
    ]


@add_program
def waves(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute waves."""
    x = draw_numbers(turn, 4, 60).to(at)
    spectrum = torch.fft.rfft(x)
    return [
        torch.view_as_real(spectrum),
        torch.fft.irfft(spectrum, 60),
        spectrum.abs(),
        torch.stft(x, 16, return_complex=True).abs(),
    ]


@add_program
def sparse(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute sparse."""
    x = (draw_numbers(turn, 20, 20) * (draw_numbers(turn + 1, 20, 20) > 1)).to(at)
    return [torch.sparse.mm(x.to_sparse(), draw_numbers(3, 20, 4).to(at)), x.to_sparse().to_dense()]


@add_program
def in_place(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute in place."""
    state = torch.zeros(30, device=at)
    x = draw_numbers(turn, 30).to(at)
    for _ in range(4):
        state.mul_(0.9).add_(x)
        if state.sum().item() > 0:
            state[3:9] = x[:6]
    return [state, state[::2].clone()]


@add_program
def embedded(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute embedded."""
    net = make_seeded(lambda: nn.Embedding(50, 16)).to(at)
    tokens = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(turn)).to(at)
    return [
        net(tokens),
        functional.one_hot(tokens, 50),
        functional.cross_entropy(draw_numbers(turn, 4, 9).to(at), tokens[0, :4] % 9),
    ]


@add_program
def gradients(at: torch.device, turn: int) -> List[torch.Tensor]:
    """Compute gradients."""
    net = make_seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 5))).to(
        at
    )
    x = draw_numbers(turn, 1, 3, 16, 16).to(at).requires_grad_()
    with torch.enable_grad():
        return [torch.autograd.grad(net(x)[0, 2], x)[0]]
