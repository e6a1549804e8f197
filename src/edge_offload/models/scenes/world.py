"""Worlds: a ground with regions, and objects on it. Unbounded streets, made block by block, and rooms."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import List, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.scenes.labels import VALUE
from edge_offload.models.scenes.objects import HELD_OUT, TRAINING, Spot, scale_of
from edge_offload.models.scenes.solids import Solid, make_box

BLOCK_M = 32.0
REACH_M = 2 * BLOCK_M


@dataclass(frozen=True)
class Strip:
    """A straight strip of ground of one kind, unbounded along ``yaw``.

    Attributes:
        x, y: m, a point on its middle line.
        yaw: rad.
        low, high: m, its borders to the right (negative) and left of the middle line.
        label: label value.
        height: m above the rest.
    """

    x: float
    y: float
    yaw: float
    low: float
    high: float
    label: int
    height: float = 0.0


@dataclass(frozen=True)
class Ground:
    """A gently sloping and rolling ground with strips; later strips lie over earlier ones.

    Attributes:
        slope: metres per metre along x and y.
        waves: of amplitude (m), wave numbers along x and y (rad/m), and phase (rad).
        label: where there is no strip.
    """

    label: int
    strips: Tuple[Strip, ...] = ()
    slope: Tuple[float, float] = (0.0, 0.0)
    waves: Tuple[Tuple[float, float, float, float], ...] = ()

    def swell(self, x: Array, y: Array) -> Array:
        """Height without the strips, m."""
        height = self.slope[0] * x + self.slope[1] * y
        for amplitude, along, across, phase in self.waves:
            height = height + amplitude * np.sin(along * x + across * y + phase)
        return height

    def at(self, x: Array, y: Array) -> Tuple[Array, Array]:
        """Height (m) and label of the ground at positions (m)."""
        height = self.swell(x, y)
        label = np.full(np.shape(height), self.label, dtype=np.uint8)
        for strip in self.strips:
            across = (y - strip.y) * np.cos(strip.yaw) - (x - strip.x) * np.sin(strip.yaw)
            within = (across >= strip.low) & (across < strip.high)
            label[within] = strip.label
            height = height + np.where(within, strip.height, 0.0)
        return height, label


@dataclass(frozen=True)
class World:
    """A ground and solids.

    Attributes:
        ground: with its height at every position.
        solids: with their feet on the ground; moving ones at time 0.
        bounds: m, x_min, y_min, x_max, y_max of the knowable region (a room); infinite: unbounded.
    """

    ground: Ground
    solids: Tuple[Solid, ...] = field(default_factory=tuple)
    bounds: Tuple[float, float, float, float] = (-np.inf, -np.inf, np.inf, np.inf)


@dataclass(frozen=True)
class Street:
    """An unbounded street along the x axis: two lanes, pavements, gardens, houses, cars, people, trees.

    Equal seeds make equal streets; each block of :data:`BLOCK_M` is made on demand.
    """

    seed: int
    held_out: bool = False

    def world_around(self, x: float) -> World:
        """Make the world within :data:`REACH_M` of ``x`` (m) along the street."""
        first, last = (int(np.floor((x + sign * REACH_M) / BLOCK_M)) for sign in (-1, 1))
        solids: List[Solid] = []
        for block in range(first, last + 1):
            solids.extend(_street_block(self, block))
        return World(self.ground, tuple(solids))

    @functools.lru_cache(maxsize=64)  # noqa: B019 (streets are small values)
    def _dimensions(self) -> Tuple[float, float, float, bool]:
        random = np.random.default_rng((self.seed, 1))
        return (
            float(random.uniform(3.0, 5.5)),
            float(random.uniform(1.5, 3.5)),
            float(random.uniform(0.0, 7.0)),
            bool(random.random() < 0.5),
        )

    @property
    def road(self) -> float:
        """m, half the width of the road."""
        return self._dimensions()[0]

    @property
    def pavement(self) -> float:
        """m, width of each pavement."""
        return self._dimensions()[1]

    @property
    def ground(self) -> Ground:
        """Road, kerbs, pavements, and a crossing every few blocks."""
        road, pavement, _, parking = self._dimensions()
        random = np.random.default_rng((self.seed, 2))
        edge = road + (2.2 if parking else 0.0)
        strips = [Strip(0, 0, 0, -edge - pavement, edge + pavement, VALUE["sidewalk"], 0.12)]
        if parking:
            strips.append(Strip(0, 0, 0, -edge, edge, VALUE["parking"], -0.12))
            strips.append(Strip(0, 0, 0, -road, road, VALUE["road"]))
        else:
            strips.append(Strip(0, 0, 0, -road, road, VALUE["road"], -0.12))
        waves = []
        for _ in range(3):
            amplitude, numbers = float(random.uniform(0, 0.06)), random.uniform(-0.15, 0.15, 2)
            waves.append((amplitude, float(numbers[0]), float(numbers[1]), float(random.uniform(0, 6.3))))
        slope = tuple(map(float, random.normal(0.0, 0.004, 2)))
        return Ground(VALUE["terrain"], tuple(strips), (slope[0], slope[1]), tuple(waves))


@functools.lru_cache(maxsize=256)
def _street_block(street: Street, block: int) -> Tuple[Solid, ...]:
    random = np.random.default_rng((street.seed, 3, block + 1_000_000))
    road, pavement, garden, parking = street._dimensions()
    edge = road + (2.2 if parking else 0.0)
    kinds = HELD_OUT if street.held_out else TRAINING
    solids: List[Solid] = []

    def spawn(role: str, x: float, y: float, yaw: float, velocity: Tuple[float, float] = (0.0, 0.0)) -> None:
        makers = kinds[role]
        maker = makers[int(random.integers(len(makers)))]
        height = float(street.ground.at(np.array(x), np.array(y))[0])
        for solid in maker(Spot(x, y, yaw, scale_of(street.held_out, random), random)):
            solids.append(replace(solid.raised_by(height), velocity=velocity))

    def random_x() -> float:
        return (block + float(random.random())) * BLOCK_M

    for side in (1, -1):
        front = side * (edge + pavement + garden)
        place = block * BLOCK_M
        while random.random() < 0.85 and place < (block + 1) * BLOCK_M:
            spawn("house", place + 9.0, front + side * 7.5, 0.0)
            place += random.uniform(14.0, 26.0)
        for _ in range(random.poisson(1.2)):
            spawn("fence", random_x(), side * (edge + pavement + random.uniform(0.2, 0.6)), random.choice((0.0, 0.03)))
        for _ in range(random.poisson(1.6)):
            spawn("tree", random_x(), side * (edge + pavement + random.uniform(-0.6, 3.0)), random.uniform(0, 6.3))
        for _ in range(random.poisson(1.5)):
            spawn("plant", random_x(), side * (edge + pavement + random.uniform(0.5, 4.0)), random.choice((0.0, 1.57)))
        for _ in range(random.poisson(1.4)):
            spawn("post", random_x(), side * (edge + random.uniform(0.3, 0.8)), -1.57 + side * 1.57)
        for _ in range(random.poisson(2.0 if parking else 1.0)):
            spawn("vehicle", random_x(), side * (edge - 1.1), random.normal(0, 0.03) + (3.14 if side > 0 else 0.0))
        for _ in range(random.poisson(1.8)):
            pace = float(random.choice((-1.0, 0.0, 1.0)) * random.uniform(0.8, 1.5))
            walk = side * (edge + random.uniform(0.3, pavement))
            spawn("walker", random_x(), walk, 0.0 if pace >= 0 else 3.14, (pace, 0.0))
    if random.random() < 0.5:
        lane = float(random.choice((-1.0, 1.0)))
        spawn("vehicle", random_x(), lane * 0.5 * road, 0.0 if lane < 0 else 3.14)
    if random.random() < 0.4:
        spawn("walker", random_x(), random.uniform(-road, road), random.uniform(0, 6.3))
    return tuple(solids)


def make_room(seed: int, held_out: bool = False) -> World:
    """Make a hall with inner walls, pillars, furniture and people; its middle is free for the robot.

    The space behind the outer walls is unknowable.
    """
    random = np.random.default_rng((seed, 4))
    kinds = HELD_OUT if held_out else TRAINING
    long, wide, high = random.uniform(5, 20), random.uniform(4, 12), random.uniform(2.6, 5.0)
    wall, solids = VALUE["building"], []
    for sign in (1, -1):
        solids.append(make_box(sign * (long + 0.15), 0, -0.3, (0.3, 2 * wide + 0.6, high + 0.3), 0.0, wall))
        solids.append(make_box(0, sign * (wide + 0.15), -0.3, (2 * long + 0.6, 0.3, high + 0.3), 0.0, wall))
    solids.append(make_box(0, 0, high, (2 * long + 0.6, 2 * wide + 0.6, 0.3), 0.0, wall))

    def free_place(margin: float) -> Tuple[float, float]:
        while True:
            x, y = random.uniform(-long + margin, long - margin), random.uniform(-wide + margin, wide - margin)
            if np.hypot(x, y) > 1.5:
                return float(x), float(y)

    for _ in range(random.integers(0, 4)):
        x, y = free_place(1.0)
        size = (random.uniform(2, 8), 0.2, high) if random.random() < 0.5 else (0.2, random.uniform(2, 8), high)
        part = make_box(x, y, 0, size, 0.0, wall)
        # the robot's place stays free
        if part.depth(np.zeros(1), np.zeros(1), np.array([0.5]), 1.2)[0] < 0:
            solids.append(part)
    for _ in range(random.integers(0, 6)):
        x, y = free_place(1.0)
        solids.append(make_box(x, y, 0, (random.uniform(0.3, 0.7), random.uniform(0.3, 0.7), high), 0.0, wall))
    for role, count in (("furniture", random.integers(3, 22)), ("walker", random.integers(0, 7))):
        for _ in range(count):
            x, y = free_place(0.7)
            makers = [maker for maker in kinds[role] if maker.__name__ != "cyclist"]
            maker = makers[int(random.integers(len(makers)))]
            yaw = float(random.choice((0.0, 1.57)) + random.normal(0, 0.1))
            solids.extend(maker(Spot(x, y, yaw, scale_of(held_out, random), random)))
    return World(Ground(VALUE["other-ground"]), tuple(solids), (-long - 0.3, -wide - 0.3, long + 0.3, wide + 0.3))
