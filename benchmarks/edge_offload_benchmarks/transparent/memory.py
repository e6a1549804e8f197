"""Memory of both sides over many inferences in mode replay: whether it stops growing."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

#: Networks, inferences, and between how many the memory is read.
PLANS = {"tiny": (10_000, 500), "kapao_n_128": (500, 25)}
#: A side has stopped growing if its second half grows by no more than this share and this many bytes.
SHARE, BYTES = 0.03, 4 << 20


def measure(robot: Any, server_pid: int, names: Sequence[str], scale: float = 1.0) -> List[Dict[str, Any]]:
    """A record for each network (``transparent_memory`` in the schema).

    Args:
        robot: the robot's process, as :mod:`~edge_offload_benchmarks.experiments.transparent` starts it.
        server_pid: of the server; its executors are its children.
        names: of :data:`PLANS`.
        scale: of the numbers of inferences.
    """
    import psutil

    from edge_offload.errors import RemoteError

    def resident(pid: int) -> int:
        total = 0
        process = psutil.Process(pid)
        for item in [process, *process.children(recursive=True)]:
            total += item.memory_info().rss
        return total

    def send_request(request: Dict[str, Any]) -> Dict[str, Any]:
        answer: Dict[str, Any] = robot.request_answer(request)
        if "error" in answer:
            raise RemoteError(f"{name}: {answer['error']}")
        return answer

    outcomes = []
    for name in names:
        count, every = (max(1, int(value * scale)) for value in PLANS[name])
        send_request({"do": "steady", "model": name})
        points: List[Dict[str, Any]] = []
        for done in range(every, count + 1, every):
            answer = send_request({"do": "repeat", "count": every})
            points.append({
                "inferences": done, "robot_bytes": resident(robot.pid), "server_bytes": resident(server_pid),
                "round_trips": answer["round_trips"],
            })  # fmt: skip
        outcomes.append(
            {
                "model": name,
                "points": points,
                "equal": send_request({"do": "repeat", "count": 1})["equal"] == 1,
                **{
                    f"{side}_plateau": plateau([point[f"{side}_bytes"] for point in points])
                    for side in ("robot", "server")
                },
            }
        )
    return outcomes


def plateau(sizes: Sequence[int]) -> bool:
    """Return whether the second half is at most what was read before, within the noise of pages."""
    half = len(sizes) // 2
    before, after = max(sizes[: half + 1]), max(sizes[half:])
    return after - before <= max(SHARE * before, BYTES)


def show(records: Sequence[Dict[str, Any]]) -> None:
    """Print what was measured."""
    for record in records:
        print(f"{record['model']}, resident MB (robot, server), and round trips per inference since the line before:")
        before = 0
        for point in record["points"]:
            trips = point["round_trips"] / max(1, point["inferences"] - before)
            before = point["inferences"]
            print(f"  {point['inferences']:>7}  {point['robot_bytes'] / 1e6:8.1f}  {point['server_bytes'] / 1e6:8.1f}"
                  f"  {trips:5.2f}")  # fmt: skip
        sides = [f"{side} {'has stopped growing' if record[f'{side}_plateau'] else 'GROWS'}"
                 for side in ("robot", "server")]  # fmt: skip
        print(f"  {', '.join(sides)}; last result {'equal' if record['equal'] else 'DIFFERS'}")
