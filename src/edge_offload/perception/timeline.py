"""When frames were taken, on a time of their own that goes on whatever their stamps do. Knows nothing of ROS.

A frame's stamp is what a driver wrote: it may be 0, stand, jump, come out of order, or lie in the future. A frame's
:class:`Instant` is made where it arrives: unique, above all before it, and as far from them as the frames are apart.
Stamps say how far as long as they are plausible; else the monotonic clock of the arrivals does.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Deque, Optional, Tuple
from typing import Counter as Counts

ZERO, STANDING, SLOW, BACKWARD, JUMP, FUTURE = "zero", "standing", "slow", "backward", "jump", "future"
PAST = "past"
"""What is wrong with a stamp: it is 0; that of the frame before; hardly newer; a little older; far off; ahead of the
clock; far behind it."""

BACK_S = 0.5
"""Stamps that go back by at most this are of images out of order. By more, they may be of another recording."""

FORWARD_S = 1.5
"""By so much a frame may be later by its stamp than by its arrival, against the frames of before."""

AHEAD_S = 0.5
"""By so much clocks of two machines may differ."""

BEHIND_S, RECORDED_S = 10.0, 86400.0
"""Frames that come later than the first are of another clock; later than the second, of a recording, which is right."""

STARTED_NS = 10**18
"""Stamps below this (the year 2001) count from the start of a device, not from 1970."""

SLOW_S, SLOWER = 0.002, 20.0
"""Stamps nearer than this, of frames that arrive so many times as far apart, are of a clock of another unit."""

WRAP_S = 2**32 * 1e-6
"""Clocks of devices that count microseconds in 32 bits begin again after so long."""

SILENCE_S = 1.0
"""After so long without a frame, stamps that go far back are another recording's at once."""

TRUST = 16
"""Frames in a row with plausible stamps before stamps say again how far frames are apart."""

WINDOW = 100
"""Frames over which faults are counted."""

RUN, RUN_OF_MANY = 2, 4
"""Stamps in a row on another clock that make it the stamps' clock; more where stamps were not to be trusted before."""

RECORDING = 10
"""Fewer frames with stamps in line are no recording that may be played again: a clock was wrong, and is set."""

LEAST_NS = 1_000_000
"""Between two instants."""


class Instant(int):
    """When a frame was taken: nanoseconds on the timeline, equal to its stamp while all stamps were plausible.

    Attributes:
        stamp_ns: its stamp, untouched.
        number: of the frame, counted where it arrived; 0: it did not.
        recording: counted up when stamps went back for good; nothing of an earlier one is of use.
        fault: one of those above; empty: the stamp is plausible.
    """

    stamp_ns: int
    number: int
    recording: int
    fault: str

    def __new__(
        cls, time_ns: int, stamp_ns: Optional[int] = None, number: int = 0, recording: int = 0, fault: str = ""
    ) -> Instant:
        """An instant; without ``stamp_ns`` it is the stamp itself."""
        made = super().__new__(cls, time_ns)
        made.stamp_ns = time_ns if stamp_ns is None else stamp_ns
        made.number, made.recording, made.fault = number, recording, fault
        return made

    def __reduce__(self) -> Tuple[Any, ...]:
        return Instant, (int(self), self.stamp_ns, self.number, self.recording, self.fault)

    @property
    def seconds(self) -> float:
        """On the timeline."""
        return int(self) * 1e-9

    @property
    def placeable(self) -> bool:
        """Whether the stamp is of use to look up where things were then."""
        return self.fault in ("", BACKWARD, PAST)


UNKNOWN = Instant(0)
"""Of a frame that did not arrive at a timeline."""


def stamp_of(instant: int) -> int:
    """The stamp (ns) of the frame that was taken at ``instant``; plain integers are stamps themselves."""
    return instant.stamp_ns if isinstance(instant, Instant) else instant


@dataclass(frozen=True)
class _Seen:
    number: int
    stamp: int
    arrival_s: float

    @property
    def offset_s(self) -> float:
        """Of the stamps' clock against that of the arrivals."""
        return self.stamp * 1e-9 - self.arrival_s


class Timeline:
    """Gives every frame of one source its :class:`Instant`. One thread at a time.

    A stamp is compared with the newest plausible one and with the frames' arrivals. One that is far off is plausible
    as soon as the next one follows it: clocks are set. Are both far before those of earlier frames, it is another
    recording, unless it is the clock of before again.
    """

    def __init__(self) -> None:
        self._newest = 0
        self._arrival_s = math.nan
        self._number = self._recording = 0
        self._before: Optional[_Seen] = None
        #: Newest plausible stamp, how many there were in line with it, and offsets of the newest of them.
        self._anchor: Optional[_Seen] = None
        self._in_line = 0
        self._offsets: Deque[float] = deque(maxlen=64)
        #: Offsets of clocks that stamps followed before.
        self._earlier: Deque[float] = deque(maxlen=8)
        #: Newest stamp that was far off, how many in a row follow one another, and how many have to.
        self._candidate: Optional[_Seen] = None
        self._run, self._needed = 0, RUN
        #: From stamps to instants; None: not known any more.
        self._shift: Optional[int] = 0
        self._step = 0
        self._trust = TRUST
        self._faults: Deque[str] = deque(maxlen=WINDOW)

    def instant(self, stamp_ns: int, arrival_s: float, now_ns: int = 0) -> Instant:
        """The instant of a frame that arrived.

        Args:
            stamp_ns: its stamp.
            arrival_s: monotonic seconds.
            now_ns: the clock that stamps are of, as it is now; 0: not known.
        """
        waited_s = 0.0 if math.isnan(self._arrival_s) else max(0.0, arrival_s - self._arrival_s)
        fault = self._fault(_Seen(self._number, stamp_ns, arrival_s), waited_s)
        waited = round(waited_s * 1e9)
        self._trust = 0 if fault in (ZERO, STANDING, SLOW, JUMP) else min(TRUST, self._trust + (fault == ""))
        if not self._number and fault:
            time_ns = max(LEAST_NS, round(arrival_s * 1e9))
        elif self._trust < TRUST or self._shift is None:
            time_ns = self._newest + max(LEAST_NS, waited)
            # where stamps will go on from
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
            BEHIND_S * 1e9 < now_ns - stamp_ns < RECORDED_S * 1e9 or stamp_ns < STARTED_NS < now_ns - BEHIND_S * 1e9
        ):
            fault = PAST
        self._faults.append(fault)
        return Instant(time_ns, stamp_ns, self._number, self._recording, fault)

    @property
    def faults(self) -> Counts[str]:
        """How many of the newest stamps had each fault."""
        return Counter(fault for fault in self._faults if fault)

    @property
    def counted(self) -> int:
        """Frames that :attr:`faults` is about."""
        return len(self._faults)

    def _fault(self, seen: _Seen, waited_s: float) -> str:
        """What is wrong with a stamp, apart from lying in the future; learns from it."""
        before, self._before = self._before, seen
        if not seen.stamp:
            return ZERO
        anchor = self._anchor
        if anchor is None:
            self._follow(seen)
            return ""
        passed_s = (seen.stamp - anchor.stamp) * 1e-9
        if not passed_s:
            return STANDING
        step_s = 0.0 if before is None else (seen.stamp - before.stamp) * 1e-9
        if 0 < step_s < SLOW_S and waited_s > max(SLOW_S, SLOWER * step_s):
            return SLOW
        if passed_s > 0 and seen.offset_s <= max(self._offsets) + FORWARD_S:
            self._step = seen.stamp - anchor.stamp
            self._follow(seen)
            return ""
        if -BACK_S <= passed_s < 0:
            return BACKWARD
        candidate, self._candidate = self._candidate, seen
        wraps = abs(passed_s + WRAP_S - (seen.arrival_s - anchor.arrival_s)) <= BACK_S
        another = passed_s < 0 and self._in_line >= RECORDING and not wraps and not self._was_followed(seen)
        follows = (
            candidate is not None
            and candidate.number == seen.number - 1
            and candidate.stamp < seen.stamp
            and seen.offset_s <= candidate.offset_s + FORWARD_S
        )
        if follows:
            self._run += 1
        else:
            self._run, self._needed = 1, RUN if self._trust == TRUST else RUN_OF_MANY
        if self._run < self._needed and not (another and waited_s > SILENCE_S):
            return JUMP
        if another:
            self._begin_recording()
        else:
            self._earlier.append(self._offsets[-1])
        self._offsets.clear()
        self._in_line = self._run - 1
        self._shift = None
        self._follow(seen)
        return ""

    def _was_followed(self, seen: _Seen) -> bool:
        """Whether a stamp is in line with a clock that stamps followed before."""
        before = (*list(self._offsets)[-4:], *self._earlier)
        return any(abs(seen.offset_s - offset_s) <= BACK_S for offset_s in before)

    def _follow(self, seen: _Seen) -> None:
        self._anchor, self._candidate = seen, None
        self._offsets.append(seen.offset_s)
        self._in_line += 1

    def _begin_recording(self) -> None:
        """Stamps begin again on purpose: nothing was wrong with the last ones either."""
        self._recording += 1
        self._earlier.clear()
        self._trust = TRUST
        for back in range(1, self._run):
            self._faults[-back] = ""
