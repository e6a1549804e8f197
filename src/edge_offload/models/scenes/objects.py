"""Kinds of objects, made of a few solids each. Some kinds, and all sizes beyond a range, are held out of training.

A kind is a function of a place and a random generator. ``HELD_OUT`` kinds never occur in a training world; the others
are made ``scale`` times as large, where training draws ``scale`` from 0.9 to 1.1 and held-out worlds from outside.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Tuple

import numpy as np

from edge_offload.models.scenes.labels import VALUE
from edge_offload.models.scenes.solids import BOX, Solid, ball, box, post

Maker = Callable[[float, float, float, float, np.random.Generator], List[Solid]]
"""``x``, ``y`` (m), ``yaw`` (rad), ``scale``, random generator -> solids that stand at height 0."""


def _local(x: float, y: float, yaw: float, along: float, across: float) -> Tuple[float, float]:
    cos, sin = float(np.cos(yaw)), float(np.sin(yaw))
    return x + cos * along - sin * across, y + sin * along + cos * across


def _vehicle(
    x: float, y: float, yaw: float, size: Tuple[float, float, float], cabin: Tuple[float, float, float], label: int
) -> List[Solid]:
    """A body, and on it a cabin of (length, height, offset along the body)."""
    length, width, height = size
    place = _local(x, y, yaw, cabin[2], 0.0)
    return [
        box(x, y, 0.22, (length, width, height - 0.22), yaw, label),
        box(*place, height, (cabin[0], 0.88 * width, cabin[1]), yaw, label),
        *(
            box(*_local(x, y, yaw, sign * 0.31 * length, 0.0), 0.0, (0.6, 0.96 * width, 0.3), yaw, label)
            for sign in (1, -1)
        ),
    ]


def saloon(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A car with a boot."""
    length = scale * random.uniform(4.0, 4.8)
    size = (length, scale * random.uniform(1.65, 1.85), scale * 0.85)
    return _vehicle(x, y, yaw, size, (0.5 * length, scale * 0.6, -0.05 * length), VALUE["car"])


def hatchback(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A short car."""
    length = scale * random.uniform(3.4, 4.1)
    size = (length, scale * random.uniform(1.6, 1.8), scale * 0.9)
    return _vehicle(x, y, yaw, size, (0.65 * length, scale * 0.6, -0.15 * length), VALUE["car"])


def van(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A delivery van: tall, with a short bonnet."""
    length = scale * random.uniform(4.8, 5.6)
    size = (length, scale * random.uniform(1.9, 2.05), scale * 1.05)
    return _vehicle(x, y, yaw, size, (0.82 * length, scale * random.uniform(1.0, 1.3), -0.08 * length), VALUE["car"])


def pickup(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A car with a cabin in the middle and an open bed."""
    length = scale * random.uniform(5.0, 5.5)
    size = (length, scale * 1.9, scale * 1.0)
    return _vehicle(x, y, yaw, size, (0.35 * length, scale * 0.75, 0.05 * length), VALUE["car"])


def lorry(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A lorry with a box."""
    length = scale * random.uniform(6.0, 8.5)
    cab = box(*_local(x, y, yaw, 0.5 * length - 0.9, 0.0), 0.4, (1.8, 2.3, 2.2 * scale), yaw, VALUE["truck"])
    load = box(*_local(x, y, yaw, -1.0, 0.0), 0.9, (length - 2.0, 2.4, 2.4 * scale), yaw, VALUE["truck"])
    axles = [
        box(*_local(x, y, yaw, part * length, 0.0), 0.0, (0.9, 2.2, 0.9), yaw, VALUE["truck"]) for part in (-0.33, 0.36)
    ]
    return [cab, load, *axles]


def adult(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """Somebody who stands or walks."""
    height = scale * random.uniform(1.55, 1.9)
    stride = random.uniform(0.05, 0.3)
    legs = [
        post(*_local(x, y, yaw, sign * stride, sign * 0.1), 0.0, 0.09, 0.5 * height, VALUE["person"])
        for sign in (1, -1)
    ]
    body = ball(x, y, 0.66 * height, (0.18, 0.27, 0.24 * height), yaw, VALUE["person"])
    head = ball(x, y, height - 0.12, (0.11, 0.1, 0.13), yaw, VALUE["person"])
    return [*legs, body, head]


def child(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """Somebody of 0.9 to 1.3 m."""
    return adult(x, y, yaw, scale * random.uniform(0.55, 0.72), random)


def cyclist(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """Somebody on a bicycle."""
    label = VALUE["bicyclist"]
    frame = box(x, y, 0.1, (1.7 * scale, 0.12, 0.8), yaw, label)
    rider = ball(*_local(x, y, yaw, -0.1, 0.0), 1.2, (0.3, 0.24, 0.5 * scale), yaw, label)
    head = ball(*_local(x, y, yaw, 0.1, 0.0), 1.72, (0.12, 0.11, 0.14), yaw, label)
    return [frame, rider, head]


def broadleaf(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A tree with a round crown."""
    trunk = scale * random.uniform(1.8, 3.2)
    wide, high = scale * random.uniform(1.2, 2.8), scale * random.uniform(1.2, 2.4)
    crown = ball(x, y, trunk + 0.8 * high, (wide, wide * random.uniform(0.8, 1.2), high), yaw, VALUE["vegetation"])
    return [
        post(x, y, 0.0, scale * random.uniform(0.12, 0.28), trunk + 0.4 * high, VALUE["trunk"]),
        _porous(crown, 0.35),
    ]


def conifer(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A tree that tapers from near the ground."""
    wide, tiers = scale * random.uniform(1.2, 2.0), 5
    step = scale * random.uniform(0.8, 1.2)
    parts = [post(x, y, 0.0, 0.16 * scale, 1.0 * scale, VALUE["trunk"])]
    for tier in range(tiers):
        radius = wide * (1.0 - tier / tiers)
        parts.append(_porous(post(x, y, 0.6 * scale + tier * step, radius, step, VALUE["vegetation"]), 0.25))
    return parts


def bush(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A low round bush."""
    wide, high = scale * random.uniform(0.5, 1.4), scale * random.uniform(0.4, 0.9)
    half = (wide, wide * random.uniform(0.6, 1.4), high)
    return [_porous(ball(x, y, 0.6 * high, half, yaw, VALUE["vegetation"]), 0.25)]


def hedge(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A long clipped hedge."""
    size = (scale * random.uniform(4.0, 10.0), scale * random.uniform(0.7, 1.1), scale * random.uniform(1.0, 1.8))
    return [_porous(box(x, y, 0.0, size, yaw, VALUE["vegetation"]), 0.15)]


def lamp(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A street lamp with an arm across the road."""
    height = scale * random.uniform(4.5, 7.5)
    reach = random.uniform(0.6, 1.6)
    arm = box(*_local(x, y, yaw, 0.0, 0.5 * reach), height - 0.15, (0.14, reach, 0.14), yaw, VALUE["pole"])
    return [post(x, y, 0.0, random.uniform(0.06, 0.12), height, VALUE["pole"]), arm]


def bollard(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A short thick post."""
    return [post(x, y, 0.0, random.uniform(0.1, 0.18) * scale, random.uniform(0.7, 1.1) * scale, VALUE["pole"])]


def sign(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A traffic sign on its pole."""
    height = scale * random.uniform(2.0, 2.9)
    plate = box(x, y, height - 0.4, (0.08, random.uniform(0.5, 0.8), 0.7), yaw, VALUE["traffic-sign"])
    return [post(x, y, 0.0, 0.05, height, VALUE["pole"]), plate]


def planks(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A closed fence or low wall."""
    size = (scale * random.uniform(3.0, 12.0), random.uniform(0.12, 0.3), scale * random.uniform(0.8, 1.8))
    return [box(x, y, 0.0, size, yaw, VALUE["fence"])]


def railing(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """An open fence, through which most rays pass."""
    size = (scale * random.uniform(3.0, 9.0), 0.1, scale * random.uniform(1.0, 1.3))
    return [_porous(box(x, y, 0.0, size, yaw, VALUE["fence"]), 0.6)]


def house(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A building block; ``yaw`` is along its front."""
    size = (scale * random.uniform(8.0, 20.0), scale * random.uniform(8.0, 14.0), scale * random.uniform(4.0, 14.0))
    return [_hollow(box(x, y, -0.5, (size[0], size[1], size[2] + 0.5), yaw, VALUE["building"]))]


def winged_house(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A building with a wing in front and a porch, at an angle to the street."""
    turned = yaw + random.uniform(-0.25, 0.25)
    parts = house(x, y, turned, scale, random)
    low = scale * random.uniform(2.4, 3.5)
    wing = box(
        *_local(x, y, turned, random.uniform(-4, 4), 0.0), -0.5, (4.0, 16.0, low + 0.5), turned, VALUE["building"]
    )
    return [*parts, _hollow(wing)]


def crate(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A box, now and then on another one."""
    size = tuple(scale * random.uniform(0.4, 1.2, 3))
    parts = [box(x, y, 0.0, size, yaw, VALUE["other-object"])]
    if random.random() < 0.3:
        upper = (0.8 * size[0], 0.8 * size[1], scale * random.uniform(0.3, 0.7))
        parts.append(box(x, y, size[2], upper, yaw + 0.3, VALUE["other-object"]))
    return parts


def cupboard(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A tall piece of furniture."""
    size = (scale * random.uniform(0.8, 2.4), scale * random.uniform(0.4, 0.7), scale * random.uniform(1.2, 2.2))
    return [box(x, y, 0.0, size, yaw, VALUE["other-object"])]


def table(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A table on four legs."""
    length, width, height = scale * random.uniform(1.2, 2.2), scale * random.uniform(0.7, 1.0), 0.75 * scale
    legs = [
        post(*_local(x, y, yaw, a * 0.45 * length, b * 0.42 * width), 0.0, 0.04, height, VALUE["other-object"])
        for a in (1, -1)
        for b in (1, -1)
    ]
    return [box(x, y, height - 0.06, (length, width, 0.06), yaw, VALUE["other-object"]), *legs]


def barrel(x: float, y: float, yaw: float, scale: float, random: np.random.Generator) -> List[Solid]:
    """A barrel or bin."""
    return [post(x, y, 0.0, scale * random.uniform(0.25, 0.4), scale * random.uniform(0.8, 1.2), VALUE["other-object"])]


def _porous(solid: Solid, porosity: float) -> Solid:
    return Solid(solid.shape, solid.centre, solid.half, solid.yaw, solid.label, porosity)


def _hollow(solid: Solid, shell: float = 0.5) -> Solid:
    assert solid.shape == BOX
    return Solid(solid.shape, solid.centre, solid.half, solid.yaw, solid.label, shell=shell)


TRAINING: Dict[str, Tuple[Maker, ...]] = {
    "vehicle": (saloon, saloon, hatchback, lorry),
    "walker": (adult, adult, adult, cyclist),
    "tree": (broadleaf,),
    "plant": (bush,),
    "post": (lamp, sign),
    "fence": (planks,),
    "house": (house,),
    "furniture": (crate, cupboard),
}
"""Kinds by role, as often as listed, in worlds for training."""

HELD_OUT: Dict[str, Tuple[Maker, ...]] = {
    "vehicle": (van, pickup),
    "walker": (child, adult),
    "tree": (conifer, broadleaf),
    "plant": (hedge,),
    "post": (bollard, lamp),
    "fence": (railing, planks),
    "house": (winged_house,),
    "furniture": (table, barrel),
}
"""The same for worlds that no training sees; where a kind occurs in both, the sizes differ."""


def scale_of(held_out: bool, random: np.random.Generator) -> float:
    """A size factor: 0.9 to 1.1, or outside that for held-out worlds (0.75 to 0.88, or 1.12 to 1.3)."""
    if not held_out:
        return float(random.uniform(0.9, 1.1))
    return float(random.uniform(0.75, 0.88) if random.random() < 0.5 else random.uniform(1.12, 1.3))
