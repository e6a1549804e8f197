"""What holds of every estimate of drops, whatever is measured."""

from __future__ import annotations

import math
import pickle
import random
from typing import Callable, Mapping, Optional

from edge_offload.manager.drop import DropEstimator


def check_curves(
    estimator: DropEstimator,
    chance: random.Random,
    draw_content: Callable[[], Optional[Mapping[str, float]]] = lambda: None,
) -> None:
    """Curves are bounded and memory is constant over 3,000 random comparisons.

    Args:
        estimator: has seen nothing yet.
        chance: draws times, staleness and drops.
        draw_content: draws the features of a frame, for an estimator that takes them; None: it takes none.
    """
    now, sizes = 0.0, []
    for step in range(3000):
        now += chance.choice([0.0, 1e-3, 0.4, 30.0, -5.0])
        content = draw_content()
        features = () if content is None else (content,)
        estimator.add_comparison(
            now, chance.choice([1e-3, 0.4, 60.0]), chance.choice([0.0, 1.0, chance.random()]), *features
        )
        estimator.add_local_comparison(now, chance.random())
        curve = estimator.curve(now, *features)
        assert 0 <= curve.intercept <= 1
        assert 0 <= curve.slope < math.inf
        assert 0 <= curve.slope_error < math.inf
        assert 0 <= (curve.local or 0) <= 1
        assert 0 <= curve.carried(chance.random() * 100) <= 1
        if step in (10, 2999):
            sizes.append(len(pickle.dumps(estimator)))
    assert abs(sizes[1] - sizes[0]) < 200
