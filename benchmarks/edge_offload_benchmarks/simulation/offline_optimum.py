"""The ceiling: the best that two tasks can do with one offload at a time, by one who knows every drop beforehand.

A dynamic programme backwards over (frame, staleness of either task): at every frame at which the server is idle it
may stay so, or take the frame of one task. Exact; no bound on turns in a row.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array

#: When (frame), and whose frame (0 or 1).
Offload = Tuple[int, int]


def optimum(
    costs: Sequence[Array], latencies: Sequence[int], begin: int, end: int, seen: Sequence[int]
) -> Tuple[float, List[Offload]]:
    """The least sum of costs over the frames ``begin`` to ``end`` (not included), and how it is reached.

    Args:
        costs: of each of two tasks [frames, far + 1]: what its result costs in a frame that is so many frames stale,
            column 1 on; whatever is staler costs what is in the last column.
        latencies: frames from an offload of each task until its result is used, 1 on.
        begin: the first frame that may be offloaded.
        end: frame that does not count any more.
        seen: frame of the newest result of each task, before ``begin``.
    """
    far = costs[0].shape[1] - 1
    older = np.minimum(np.arange(1, far + 1), far - 1)  # index of the staleness one frame later; index i: i + 1 frames
    value = np.zeros((end - begin + 1, far, far))
    choice = np.full((end - begin, far, far), -1, dtype=np.int8)

    def passing(frame: int, frames: int) -> Tuple[List[Array], Array]:
        """Return each task's cost over some frames, by its staleness in the first [far], and the staleness after."""
        index, sums = np.arange(far), [np.zeros(far), np.zeros(far)]
        for now in range(frame, frame + frames):
            for k, cost in enumerate(costs):
                sums[k] += cost[now, 1:][index]
            index = older[index]
        return sums, index

    for frame in range(end - 1, begin - 1, -1):
        row = frame - begin
        (first, second), after = passing(frame, 1)
        value[row] = first[:, None] + second[None, :] + value[row + 1][np.ix_(after, after)]
        for k, latency in enumerate(latencies):
            frames = min(latency, end - frame)
            (first, second), after = passing(frame, frames)
            fresh = np.full(far, min(latency, far) - 1)
            places = (fresh, after) if k == 0 else (after, fresh)
            total = first[:, None] + second[None, :] + value[row + frames][np.ix_(*places)]
            better = total < value[row]
            value[row][better], choice[row][better] = total[better], k
    stale = [min(begin - frame, far) for frame in seen]
    least, schedule, frame = float(value[0, stale[0] - 1, stale[1] - 1]), [], begin
    while frame < end:
        k = int(choice[frame - begin, stale[0] - 1, stale[1] - 1])
        passed = 1 if k < 0 else latencies[k]
        stale = [min(age + passed, far) for age in stale]
        if k >= 0:
            schedule.append((frame, k))
            stale[k] = min(latencies[k], far)
        frame += passed
    return least, schedule
