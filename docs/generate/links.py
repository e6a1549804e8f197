"""Pages of results of the emulated link: the packet emulator against its settings, and both levels side by side."""

from __future__ import annotations

from typing import Any, List

from generate.tables import ms, percent, s, table


def packets(record: Any) -> List[str]:
    """The page of ``bench packets``."""
    return table(
        record,
        [
            ("case", "case", str),
            ("tool", "tool", lambda tool: "ping" if tool == "ping" else f"iperf3, {tool}"),
            ("quantity", "quantity", str),
            ("set", "set", lambda value: f"{value:.4g}"),
            ("measured", "measured", lambda value: f"{value:.4g}"),
            ("error", "error", lambda value: f"{value:+.1%}"),
            ("seconds", "seconds", lambda value: f"{value:g}"),
            ("packets", "packets", str),
            ("of a core", "core", percent),
            ("late at most, ms", "late_s", ms),
        ],
    )


def levels(record: Any) -> List[str]:
    """The page of ``bench levels``."""
    return table(
        record,
        [
            ("case", "case", str),
            ("level", "level", str),
            ("RTT, ms", "rtt_ms", lambda value: f"{value:g}"),
            ("impairments", "impairments", lambda terms: ", ".join(f"{key} {terms[key]:g}" for key in terms) or "none"),
            ("congestion control", "congestion", lambda name: name or "the kernel's"),
            ("estimate upwards off by (median)", "error_p50", percent),
            ("downwards", "error_down_p50", percent),
            ("frame p50, ms", "frame_s.p50", ms),
            ("p99", "frame_s.p99", ms),
            ("quiet at most, ms", "quiet_s", ms),
            ("false alarms", "false_alarms", str),
            ("dead path noticed, s", "noticed_s.p50", s),
            ("at most", "noticed_s.most", s),
            ("back, s", "back_s.p50", s),
            ("at most", "back_s.most", s),
            ("after another address, s", "moved_s.p50", s),
            ("at most", "moved_s.most", s),
        ],
    )
