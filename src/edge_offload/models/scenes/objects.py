"""Kinds of objects, made of a few solids each. Some kinds, and all sizes beyond a range, are held out of training.

A kind is a function of a spot: a position, a size and a random generator. ``HELD_OUT`` kinds never occur in a training
world. The size is multiplied by ``scale``, which training draws from 0.9 to 1.1 and held-out worlds from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from edge_offload.models.scenes.labels import VALUE
from edge_offload.models.scenes.solids import BOX, CYLINDER, ELLIPSOID, Solid

Size = Tuple[float, float, float]


@dataclass(frozen=True)
class Spot:
    """Position of an object on the ground, with its random generator. Solids are placed along and across its yaw.

    Attributes:
        x, y: m.
        yaw: rad.
        scale: of the object.
        random: generator of everything else.
    """

    x: float
    y: float
    yaw: float
    scale: float
    random: np.random.Generator

    def draw(self, low: float, high: float) -> float:
        """Draw a length from ``low`` to ``high`` (m), times the scale."""
        return self.scale * self.random.uniform(low, high)

    def make_box(self, label: str, size: Size, low: float = 0.0, along: float = 0.0, across: float = 0.0,
            yaw: float = 0.0, **more: Any) -> Solid:  # fmt: skip
        """Make a box of full ``size`` whose lower face is at height ``low``, turned by a further ``yaw``."""
        half = (size[0] / 2, size[1] / 2, size[2] / 2)
        return Solid(BOX, self._place_solid(along, across, low + half[2]), half, self.yaw + yaw, VALUE[label], **more)

    def make_post(self, label: str, radius: float, height: float, low: float = 0.0, along: float = 0.0,
             across: float = 0.0, **more: Any) -> Solid:  # fmt: skip
        """Make a round post whose foot is at height ``low``."""
        half = (radius, radius, height / 2)
        return Solid(CYLINDER, self._place_solid(along, across, low + height / 2), half, 0.0, VALUE[label], **more)

    def make_ellipsoid(self, label: str, z: float, half: Size, along: float = 0.0, **more: Any) -> Solid:
        """Make an ellipsoid whose middle is at height ``z``."""
        return Solid(ELLIPSOID, self._place_solid(along, 0.0, z), half, self.yaw, VALUE[label], **more)

    def _place_solid(self, along: float, across: float, z: float) -> Size:
        cos, sin = float(np.cos(self.yaw)), float(np.sin(self.yaw))
        return self.x + cos * along - sin * across, self.y + sin * along + cos * across, z


Maker = Callable[[Spot], List[Solid]]


def _make_car(at: Spot, size: Size, cabin: Size) -> List[Solid]:
    """A body, and on it a cabin of (length, height, offset along the body)."""
    length, width, height = size
    return [
        at.make_box("car", (length, width, height - 0.22), 0.22),
        at.make_box("car", (cabin[0], 0.88 * width, cabin[1]), height, along=cabin[2]),
        *(at.make_box("car", (0.6, 0.96 * width, 0.3), along=sign * 0.31 * length) for sign in (1, -1)),
    ]


def make_saloon(at: Spot) -> List[Solid]:
    """A car with a boot."""
    length = at.draw(4.0, 4.8)
    return _make_car(at, (length, at.draw(1.65, 1.85), at.scale * 0.85), (0.5 * length, at.scale * 0.6, -0.05 * length))


def make_hatchback(at: Spot) -> List[Solid]:
    """A short car."""
    length = at.draw(3.4, 4.1)
    return _make_car(at, (length, at.draw(1.6, 1.8), at.scale * 0.9), (0.65 * length, at.scale * 0.6, -0.15 * length))


def make_van(at: Spot) -> List[Solid]:
    """A delivery van: tall, with a short bonnet."""
    length = at.draw(4.8, 5.6)
    return _make_car(
        at,
        (length, at.draw(1.9, 2.05), at.scale * 1.05),
        (0.82 * length, at.draw(1.0, 1.3), -0.08 * length),
    )


def make_pickup(at: Spot) -> List[Solid]:
    """A car with a cabin in the middle and an open bed."""
    length = at.draw(5.0, 5.5)
    return _make_car(at, (length, at.scale * 1.9, at.scale * 1.0), (0.35 * length, at.scale * 0.75, 0.05 * length))


def make_lorry(at: Spot) -> List[Solid]:
    """A lorry with a box."""
    length = at.draw(6.0, 8.5)
    return [
        at.make_box("truck", (1.8, 2.3, 2.2 * at.scale), 0.4, along=0.5 * length - 0.9),
        at.make_box("truck", (length - 2.0, 2.4, 2.4 * at.scale), 0.9, along=-1.0),
        *(at.make_box("truck", (0.9, 2.2, 0.9), along=part * length) for part in (-0.33, 0.36)),
    ]


def make_adult(at: Spot, share: float = 1.0) -> List[Solid]:
    """A standing or walking person of ``share`` of an adult's height."""
    height = at.scale * share * at.random.uniform(1.55, 1.9)
    stride = at.random.uniform(0.05, 0.3)
    return [
        *(at.make_post("person", 0.09, 0.5 * height, along=sign * stride, across=sign * 0.1) for sign in (1, -1)),
        at.make_ellipsoid("person", 0.66 * height, (0.18, 0.27, 0.24 * height)),
        at.make_ellipsoid("person", height - 0.12, (0.11, 0.1, 0.13)),
    ]


def make_child(at: Spot) -> List[Solid]:
    """A person of 0.9 to 1.3 m."""
    return make_adult(at, at.random.uniform(0.55, 0.72))


def make_cyclist(at: Spot) -> List[Solid]:
    """A person on a bicycle."""
    return [
        at.make_box("bicyclist", (1.7 * at.scale, 0.12, 0.8), 0.1),
        at.make_ellipsoid("bicyclist", 1.2, (0.3, 0.24, 0.5 * at.scale), along=-0.1),
        at.make_ellipsoid("bicyclist", 1.72, (0.12, 0.11, 0.14), along=0.1),
    ]


def make_broadleaf(at: Spot) -> List[Solid]:
    """A tree with a round crown."""
    trunk, wide, high = at.draw(1.8, 3.2), at.draw(1.2, 2.8), at.draw(1.2, 2.4)
    half = (wide, wide * at.random.uniform(0.8, 1.2), high)
    crown = at.make_ellipsoid("vegetation", trunk + 0.8 * high, half, porosity=0.35)
    return [at.make_post("trunk", at.draw(0.12, 0.28), trunk + 0.4 * high), crown]


def make_conifer(at: Spot) -> List[Solid]:
    """A tree that tapers from near the ground."""
    wide, tiers = at.draw(1.2, 2.0), 5
    step = at.draw(0.8, 1.2)
    lows = [0.6 * at.scale + tier * step for tier in range(tiers)]
    radii = [wide * (1.0 - tier / tiers) for tier in range(tiers)]
    crown = (at.make_post("vegetation", radius, step, low, porosity=0.25) for radius, low in zip(radii, lows))
    return [at.make_post("trunk", 0.16 * at.scale, 1.0 * at.scale), *crown]


def make_bush(at: Spot) -> List[Solid]:
    """A low round bush."""
    wide, high = at.draw(0.5, 1.4), at.draw(0.4, 0.9)
    half = (wide, wide * at.random.uniform(0.6, 1.4), high)
    return [at.make_ellipsoid("vegetation", 0.6 * high, half, porosity=0.25)]


def make_hedge(at: Spot) -> List[Solid]:
    """A long clipped hedge."""
    return [at.make_box("vegetation", (at.draw(4.0, 10.0), at.draw(0.7, 1.1), at.draw(1.0, 1.8)), porosity=0.15)]


def make_lamp(at: Spot) -> List[Solid]:
    """A street lamp with an arm across the road."""
    height = at.draw(4.5, 7.5)
    reach = at.random.uniform(0.6, 1.6)
    arm = at.make_box("pole", (0.14, reach, 0.14), height - 0.15, across=0.5 * reach)
    return [at.make_post("pole", at.random.uniform(0.06, 0.12), height), arm]


def make_bollard(at: Spot) -> List[Solid]:
    """A short thick post."""
    return [at.make_post("pole", at.draw(0.1, 0.18), at.draw(0.7, 1.1))]


def make_sign(at: Spot) -> List[Solid]:
    """A traffic sign on its pole."""
    height = at.draw(2.0, 2.9)
    plate = at.make_box("traffic-sign", (0.08, at.random.uniform(0.5, 0.8), 0.7), height - 0.4)
    return [at.make_post("pole", 0.05, height), plate]


def make_planks(at: Spot) -> List[Solid]:
    """A closed fence or low wall."""
    return [at.make_box("fence", (at.draw(3.0, 12.0), at.random.uniform(0.12, 0.3), at.draw(0.8, 1.8)))]


def make_railing(at: Spot) -> List[Solid]:
    """An open fence, through which most rays pass."""
    return [at.make_box("fence", (at.draw(3.0, 9.0), 0.1, at.draw(1.0, 1.3)), porosity=0.6)]


def make_house(at: Spot) -> List[Solid]:
    """A building block; its yaw is along its front."""
    size = (at.draw(8.0, 20.0), at.draw(8.0, 14.0), at.draw(4.0, 14.0) + 0.5)
    return [at.make_box("building", size, -0.5, shell=0.5)]


def make_winged_house(at: Spot) -> List[Solid]:
    """A building with a wing in front and a porch, at an angle to the street."""
    turned = replace(at, yaw=at.yaw + at.random.uniform(-0.25, 0.25))
    parts = make_house(turned)
    low = at.draw(2.4, 3.5)
    wing = turned.make_box("building", (4.0, 16.0, low + 0.5), -0.5, along=at.random.uniform(-4, 4), shell=0.5)
    return [*parts, wing]


def make_crate(at: Spot) -> List[Solid]:
    """A box, sometimes with another one on it."""
    long, wide, high = at.scale * at.random.uniform(0.4, 1.2, 3)
    parts = [at.make_box("other-object", (long, wide, high))]
    if at.random.random() < 0.3:
        parts.append(at.make_box("other-object", (0.8 * long, 0.8 * wide, at.draw(0.3, 0.7)), high, yaw=0.3))
    return parts


def make_cupboard(at: Spot) -> List[Solid]:
    """A tall piece of furniture."""
    return [at.make_box("other-object", (at.draw(0.8, 2.4), at.draw(0.4, 0.7), at.draw(1.2, 2.2)))]


def make_table(at: Spot) -> List[Solid]:
    """A table on four legs."""
    length, width, height = at.draw(1.2, 2.2), at.draw(0.7, 1.0), 0.75 * at.scale
    corners = [(a * 0.45 * length, b * 0.42 * width) for a in (1, -1) for b in (1, -1)]
    legs = [at.make_post("other-object", 0.04, height, along=along, across=across) for along, across in corners]
    return [at.make_box("other-object", (length, width, 0.06), height - 0.06), *legs]


def make_barrel(at: Spot) -> List[Solid]:
    """A barrel or bin."""
    return [at.make_post("other-object", at.draw(0.25, 0.4), at.draw(0.8, 1.2))]


TRAINING: Dict[str, Tuple[Maker, ...]] = {
    "vehicle": (make_saloon, make_saloon, make_hatchback, make_lorry),
    "walker": (make_adult, make_adult, make_adult, make_cyclist),
    "tree": (make_broadleaf,),
    "plant": (make_bush,),
    "post": (make_lamp, make_sign),
    "fence": (make_planks,),
    "house": (make_house,),
    "furniture": (make_crate, make_cupboard),
}
"""Kinds by role, as often as listed, in worlds for training."""

HELD_OUT: Dict[str, Tuple[Maker, ...]] = {
    "vehicle": (make_van, make_pickup),
    "walker": (make_child, make_adult),
    "tree": (make_conifer, make_broadleaf),
    "plant": (make_hedge,),
    "post": (make_bollard, make_lamp),
    "fence": (make_railing, make_planks),
    "house": (make_winged_house,),
    "furniture": (make_table, make_barrel),
}
"""Kinds by role in held-out worlds; of kinds that occur in both, the sizes differ."""


def scale_of(held_out: bool, random: np.random.Generator) -> float:
    """Draw a size factor: 0.9 to 1.1, or for held-out worlds 0.75 to 0.88 or 1.12 to 1.3."""
    if not held_out:
        return float(random.uniform(0.9, 1.1))
    return float(random.uniform(0.75, 0.88) if random.random() < 0.5 else random.uniform(1.12, 1.3))
