"""The links of phase ``papers``: two constant ones, and a piece of each synthetic trace that stands for all of it."""

from __future__ import annotations

import pathlib
import statistics
from typing import Any, Dict, List, Sequence, Tuple

from edge_offload_research.emulate.control import Control
from edge_offload_research.emulate.trace import synthesise_rows

#: Links by name, most important first: Mbps, or None for the trace of that name. The papers' means are 93 and 73.
LINKS = {"93 Mbps": 93.0, "73 Mbps": 73.0, "wifi_indoors": None, "wifi_outdoors": None}
#: Rate while networks are opened, and seconds of a trace.
OPENING_MBPS, PIECE_S = 1000.0, 4.0

Rows = List[Tuple[float, float]]


def cut_piece(rows: Sequence[Tuple[float, float]], seconds: float = PIECE_S) -> Rows:
    """The rows (s, Mbps) of ``seconds`` whose mean and deviation are closest to those of the whole trace."""
    count = max(2, round(seconds / (rows[1][0] - rows[0][0])))
    rates = [rate for _, rate in rows]
    mean, deviation = statistics.fmean(rates), statistics.pstdev(rates)

    def distance(first: int) -> float:
        piece = rates[first : first + count]
        return abs(statistics.fmean(piece) - mean) / mean + abs(statistics.pstdev(piece) - deviation) / deviation

    first = min(range(len(rows) - count + 1), key=distance)
    return [(time_s - rows[first][0], rate) for time_s, rate in rows[first : first + count]]


class Links:
    """Changes an emulated link between measurements.

    Args:
        control: address of the link's control socket.
        folder: for the traces' pieces.
    """

    def __init__(self, control: str, folder: pathlib.Path) -> None:
        self._control, self._folder = Control(control), folder
        self._traces: Dict[str, str] = {}

    def restart(self, name: str) -> None:
        """Set a link of :data:`LINKS`; a trace begins at its beginning."""
        mbps = LINKS[name]
        if mbps is not None:
            self._control.do("set", mbps=mbps)
        else:
            self._control.do("link", trace=self._traces.get(name) or self._write_trace(name))

    def _write_trace(self, name: str) -> str:
        path = self._folder / f"{name}.csv"
        lines = [f"{time_s:g},{rate:g}" for time_s, rate in cut_piece(synthesise_rows(name))]
        path.write_text("\n".join(["t_s,Mbps", *lines]) + "\n", encoding="utf-8")
        self._traces[name] = str(path)
        return str(path)

    def close(self) -> None:
        """Hang up."""
        self._control.close()

    def __enter__(self) -> Links:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
