"""Times of frames on a monotonic timeline, robust to faulty stamps. Independent of ROS.

A driver's stamp may be 0, constant, jump, be out of order, or lie in the future. The :class:`Instant` of a frame is
made at its arrival: unique, and above all earlier ones. Its distance from them follows the stamps while these are
plausible, else the monotonic clock of the arrivals.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Deque, Optional, Tuple
from typing import Counter as Counts

ZERO, STANDING, SLOW, BACKWARD, JUMP, FUTURE = "zero", "standing", "slow", "backward", "jump", "future"
PAST = "past"
"""Faults of a stamp: 0; equal to the previous one; hardly newer; slightly older; far off; ahead of the clock; far
behind it."""

BACK_S = 0.5
"""Stamps that go back by at most this belong to images out of order; by more, perhaps to another recording."""

FORWARD_S = 1.5
"""Largest plausible advance of a stamp over its arrival, compared with earlier frames."""

AHEAD_S = 0.5
"""Plausible difference of two machines' clocks."""

BEHIND_S = 10.0
"""Larger delays show another clock, up to a day; above that they belong to a recording, which is no fault."""

SLOW_S = 0.002
"""Stamps nearer than this, of frames that arrive 20 times as far apart, have another unit."""

TRUST = 16
"""Consecutive plausible stamps after which stamps determine the distance of frames again."""

RUN = 2
"""Consecutive stamps on another clock after which it is accepted; after implausible stamps, twice as many."""

LEAST_NS = 1_000_000
"""Least distance of two instants."""


class Instant(int):
    """Time of a frame: nanoseconds on the timeline, equal to its stamp while all stamps are plausible.

    Attributes:
        stamp_ns: the unmodified stamp.
        number: of the frame, counted at its arrival; 0: it did not arrive at a timeline.
        recording: number of the recording; stamps that went back for good start another.
        fault: one of the faults above; empty: the stamp is plausible.
    """

    stamp_ns: int
    number: int
    recording: int
    fault: str

    def __new__(
        cls, time_ns: int, stamp_ns: Optional[int] = None, number: int = 0, recording: int = 0, fault: str = ""
    ) -> Instant:
        """Make an instant; without ``stamp_ns`` it is the stamp itself."""
        made = super().__new__(cls, time_ns)
        made.stamp_ns = time_ns if stamp_ns is None else stamp_ns
        made.number, made.recording, made.fault = number, recording, fault
        return made

    def __reduce__(self) -> Tuple[Any, ...]:
        return Instant, (int(self), self.stamp_ns, self.number, self.recording, self.fault)

    @property
    def seconds(self) -> float:
        """Seconds on the timeline."""
        return int(self) * 1e-9

    @property
    def has_valid_stamp(self) -> bool:
        """True where the stamp can be used to look up transforms."""
        return self.fault in ("", BACKWARD, PAST)


UNKNOWN = Instant(0)
"""Instant of a frame that did not arrive at a timeline."""


def stamp_of(instant: int) -> int:
    """Return the stamp (ns) of the frame of ``instant``; plain integers are stamps themselves."""
    return instant.stamp_ns if isinstance(instant, Instant) else instant


@dataclass(frozen=True)
class _StampedFrame:
    number: int
    stamp: int
    arrival_s: float

    @property
    def offset_s(self) -> float:
        """Offset of the stamps' clock from that of the arrivals."""
        return self.stamp * 1e-9 - self.arrival_s


class Timeline:
    """Makes the :class:`Instant` of each frame of one source. Not thread-safe.

    A stamp is compared with the newest plausible one and with the frames' arrivals. A stamp that is far off becomes
    plausible when the next one follows it, because clocks are set. If both are far before earlier stamps, another
    recording has started, unless they continue an earlier clock.
    """

    def __init__(self) -> None:
        self._newest = 0
        self._arrival_s = math.nan
        self._number = self._recording = 0
        self._before: Optional[_StampedFrame] = None
        #: Newest plausible stamp, number of stamps in line with it, and offsets of the newest of them.
        self._anchor: Optional[_StampedFrame] = None
        self._in_line = 0
        self._offsets: Deque[float] = deque(maxlen=64)
        #: Offsets of clocks that stamps followed earlier.
        self._earlier: Deque[float] = deque(maxlen=8)
        #: Newest stamp that was far off, number of consecutive ones, and the number that is accepted.
        self._candidate: Optional[_StampedFrame] = None
        self._run, self._needed = 0, RUN
        #: From stamps to instants; None: unknown.
        self._shift: Optional[int] = 0
        self._step = 0
        self._trust = TRUST
        self._faults: Deque[str] = deque(maxlen=100)

    def make_instant(self, stamp_ns: int, arrival_s: float, now_ns: int = 0) -> Instant:
        """Make the instant of a frame at its arrival.

        Args:
            stamp_ns: its stamp.
            arrival_s: monotonic seconds.
            now_ns: current time of the stamps' clock; 0: unknown.
        """
        waited_s = 0.0 if math.isnan(self._arrival_s) else max(0.0, arrival_s - self._arrival_s)
        fault = self._find_fault(_StampedFrame(self._number, stamp_ns, arrival_s), waited_s)
        waited = round(waited_s * 1e9)
        self._trust = 0 if fault in (ZERO, STANDING, SLOW, JUMP) else min(TRUST, self._trust + (fault == ""))
        if not self._number and fault:
            time_ns = max(LEAST_NS, round(arrival_s * 1e9))
        elif self._trust < TRUST or self._shift is None:
            time_ns = self._newest + max(LEAST_NS, waited)
            # later stamps continue from here
            self._shift = time_ns - stamp_ns
        elif fault == BACKWARD:
            time_ns = self._newest + max(LEAST_NS, min(waited, self._step))
        else:
            time_ns = max(self._newest + LEAST_NS if self._number else LEAST_NS, stamp_ns + self._shift)
        self._newest, self._arrival_s = time_ns, arrival_s
        self._number += 1
        if not fault and now_ns and stamp_ns - now_ns > AHEAD_S * 1e9:
            fault = FUTURE
        elif not fault and (
            BEHIND_S * 1e9 < now_ns - stamp_ns < 86400e9  # a day
            or stamp_ns < 10**18 < now_ns - BEHIND_S * 1e9  # before 2001: counted from the start of a device
        ):
            fault = PAST
        self._faults.append(fault)
        return Instant(time_ns, stamp_ns, self._number, self._recording, fault)

    @property
    def fault_counts(self) -> Counts[str]:
        """Number of the last 100 stamps with each fault."""
        return Counter(fault for fault in self._faults if fault)

    @property
    def counted_frames(self) -> int:
        """Number of frames in :attr:`fault_counts`."""
        return len(self._faults)

    def _find_fault(self, seen: _StampedFrame, waited_s: float) -> str:
        """Return the fault of a stamp, except FUTURE and PAST, and update the clock that stamps follow."""
        before, self._before = self._before, seen
        if not seen.stamp:
            return ZERO
        anchor = self._anchor
        if anchor is None:
            self._accept_stamp(seen)
            return ""
        passed_s = (seen.stamp - anchor.stamp) * 1e-9
        if not passed_s:
            return STANDING
        step_s = 0.0 if before is None else (seen.stamp - before.stamp) * 1e-9
        if 0 < step_s < SLOW_S and waited_s > max(SLOW_S, 20.0 * step_s):
            return SLOW
        if passed_s > 0 and seen.offset_s <= max(self._offsets) + FORWARD_S:
            self._step = seen.stamp - anchor.stamp
            self._accept_stamp(seen)
            return ""
        if -BACK_S <= passed_s < 0:
            return BACKWARD
        candidate, self._candidate = self._candidate, seen
        # a device's 32-bit counter of microseconds wraps round
        wraps = abs(passed_s + 2**32 * 1e-6 - (seen.arrival_s - anchor.arrival_s)) <= BACK_S
        # after fewer than ten stamps in line, the clock was wrong and has been set
        another = passed_s < 0 and self._in_line >= 10 and not wraps and not self._was_followed(seen)
        follows = (
            candidate is not None
            and candidate.number == seen.number - 1
            and candidate.stamp < seen.stamp
            and seen.offset_s <= candidate.offset_s + FORWARD_S
        )
        if follows:
            self._run += 1
        else:
            self._run, self._needed = 1, RUN if self._trust == TRUST else 2 * RUN
        if self._run < self._needed and not (another and waited_s > 1.0):  # a pause, as between two recordings
            return JUMP
        if another:
            self._begin_recording()
        else:
            self._earlier.append(self._offsets[-1])
        self._offsets.clear()
        self._in_line = self._run - 1
        self._shift = None
        self._accept_stamp(seen)
        return ""

    def _was_followed(self, seen: _StampedFrame) -> bool:
        """Return whether a stamp continues a clock that stamps followed earlier."""
        before = (*list(self._offsets)[-4:], *self._earlier)
        return any(abs(seen.offset_s - offset_s) <= BACK_S for offset_s in before)

    def _accept_stamp(self, seen: _StampedFrame) -> None:
        self._anchor, self._candidate = seen, None
        self._offsets.append(seen.offset_s)
        self._in_line += 1

    def _begin_recording(self) -> None:
        """Start another recording, and clear the faults of its first stamps."""
        self._recording += 1
        self._earlier.clear()
        self._trust = TRUST
        for back in range(1, self._run):
            self._faults[-back] = ""
