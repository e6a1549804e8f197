"""What is not measured goes stale: when a mode that has not run for long is asked again, beside the local computation.

A server that was slow while it started, or busy a minute ago, would be avoided for ever by a policy that goes by what
the last frames there cost. A frame that is computed here anyway costs no time if the server is asked, too: the first
result is used, and what the other mode takes is known again. It costs energy, so it is done seldom.
"""

from __future__ import annotations

import math
from typing import Mapping, Optional, Tuple

from edge_offload.manager.forecast import Forecast
from edge_offload.mode import Mode

#: What is left of a local computation must be longer than a remote one by this share for the server to be asked, too.
JOIN_MARGIN = 0.1


def worth_joining(before: Mapping[Mode, Forecast], now: Mapping[Mode, Forecast], elapsed_s: float) -> Optional[Mode]:
    """A mode that would end a frame sooner than the robot, which has been computing it for ``elapsed_s`` seconds.

    A frame of a slow robot that began in an outage need not go on to its end by itself when the link is back. Only what
    has changed since the frame began counts: a policy that chose the robot although another mode was faster meant it.

    Args:
        before: the forecasts with which the frame began.
        now: those of now.
        elapsed_s: seconds since the frame began.
    """
    local = before.get(Mode.LOCAL)
    if local is None or not local.known:
        return None
    best: Optional[Mode] = None
    best_s = (1 - JOIN_MARGIN) * (local.latency_s - elapsed_s)
    for mode, forecast in now.items():
        then = before.get(mode)
        chosen_against = then is not None and not then.unavailable_reason and then.latency_s <= local.latency_s
        if mode is Mode.LOCAL or forecast.unavailable_reason or not forecast.known or chosen_against:
            continue
        if forecast.latency_s + forecast.error_s < best_s:
            best, best_s = mode, forecast.latency_s + forecast.error_s
    return best


class Refresher:
    """Says which mode a frame that is computed locally should ask, too. One thread at a time."""

    #: Seconds without a frame in a mode after which what is known of it is stale, ...
    STALE_S = 1.5
    #: ... and frames between two that ask again (3 % of them).
    FRAMES = 34
    #: A forecast that moved by this share is looked at again after so many seconds, so many times.
    SURPRISE, AGAIN_S, MOST = 0.1, 1.0, 4
    #: A frame that ran in another mode and only confirmed that it is not better makes the next such frame wait twice
    #: as long, up to so many times as long.
    RAREST = 8
    #: So many frames in a row have run remotely first: a link that has just come back tells nothing of modes.
    SETTLED = 12
    #: The mode in use has become slower by this share: whether the others have, too, is asked at once.
    SLOWER = 0.15

    def __init__(self) -> None:
        self._mode: Optional[Mode] = None
        self._before_s = math.nan
        self._since_s = -math.inf
        self._frames = self.FRAMES
        self._in_a_row = 0
        self._surprises = self._promises = 0
        self._tried: Optional[Mode] = None
        self._tried_s = math.nan
        self._asked: Optional[Mode] = None
        self._asked_s = math.nan
        self._rarer = 1

    def choose(
        self, mode: Mode, now: float, forecasts: Mapping[Mode, Forecast], local: bool
    ) -> Tuple[Mode, Optional[Mode]]:
        """The mode in which a frame runs that was meant for ``mode``, and one to ask beside it, if anything.

        ``local``: whether it is known what the robot takes.
        """
        if mode is not Mode.LOCAL:
            return self.instead(mode, forecasts) or mode, None
        return mode, self.due(now, forecasts) if local else None

    def may_ask(self) -> None:
        """The next frame that is computed locally may ask another mode, however many there were since the last one.

        Where networks take turns at the server, one that computes here is given a turn now and then to see how it is.
        """
        self._frames = max(self._frames, self.FRAMES)

    def due(self, now: float, forecasts: Mapping[Mode, Forecast]) -> Optional[Mode]:
        """For a frame that is about to be computed locally: what to ask beside it, if anything."""
        self._frames += 1
        self._in_a_row = 0
        local = forecasts.get(Mode.LOCAL)
        if local is None or not local.known:
            return None
        again = self._surprised(forecasts)
        if not again and self._frames < self.FRAMES:
            return None
        wait_s = self.AGAIN_S if again else self.STALE_S
        for mode, forecast in forecasts.items():
            hopeless = mode is Mode.LOCAL or forecast.unavailable_reason or forecast.floor_s >= local.latency_s
            if hopeless or (again and mode is not self._mode):
                continue
            if forecast.age_s >= wait_s and now - self._since_s >= wait_s:
                self._surprises = self._surprises + 1 if again else 0
                self._mode, self._before_s, self._since_s, self._frames = mode, forecast.latency_s, now, 0
                return mode
        return None

    def instead(self, mode: Mode, forecasts: Mapping[Mode, Forecast]) -> Optional[Mode]:
        """For a frame that is about to run remotely in ``mode``: another one, to be run this once.

        It may well be better, and has not run for long. The longer it has not, the less its forecast is believed; what
        is surely worse is left alone, for every frame that it is asked for costs what it is worse. For the same reason
        a mode that is found to be as it was thought to be is tried more and more rarely.
        """
        self._frames += 1
        self._in_a_row += 1
        asked = forecasts.get(mode)
        if asked is None or not asked.known:
            return None
        promising = self._judge(asked, forecasts)
        self._watch(asked)
        if promising is not None and self._promises < self.MOST:
            # one frame of it was better: a few more tell whether it was luck, before all frames go there
            self._promises += 1
            self._frames, self._tried, self._tried_s = 0, promising, forecasts[promising].latency_s
            return promising
        if self._frames < self.FRAMES * self._rarer or self._in_a_row < self.SETTLED:
            return None
        for other, forecast in forecasts.items():
            if other is mode or forecast.unavailable_reason or forecast.age_s < self.STALE_S:
                continue
            # what a robot takes by itself does not change by itself
            hoped_s = forecast.latency_s - (forecast.doubt_s if other is not Mode.LOCAL else 0.0)
            if hoped_s < asked.latency_s:
                self._frames = self._promises = 0
                self._asked_s = asked.latency_s
                self._tried, self._tried_s = other, forecast.latency_s
                return other
        return None

    def _judge(self, asked: Forecast, forecasts: Mapping[Mode, Forecast]) -> Optional[Mode]:
        """What the last frame in another mode was good for, once its report is in; the mode, if it may be better."""
        tried = forecasts.get(self._tried) if self._tried is not None else None
        if tried is None or tried.age_s >= self.STALE_S:
            return None
        mode, self._tried = self._tried, None
        surprising = not abs(tried.latency_s - self._tried_s) <= self.SURPRISE * self._tried_s
        confirmed = tried.known and not surprising and tried.latency_s >= asked.latency_s
        self._rarer = min(2 * self._rarer, self.RAREST) if confirmed else 1
        better = tried.latency_s < asked.latency_s or tried.unsure
        return mode if better and not tried.unavailable_reason else None

    def _watch(self, asked: Forecast) -> None:
        """See :attr:`SLOWER`."""
        if asked.mode is not self._asked or asked.latency_s < self._asked_s:
            self._asked, self._asked_s = asked.mode, asked.latency_s
        elif asked.latency_s > (1 + self.SLOWER) * self._asked_s and self._frames > self.SETTLED:
            self._asked_s, self._rarer, self._frames = asked.latency_s, 1, max(self._frames, self.FRAMES)

    def _surprised(self, forecasts: Mapping[Mode, Forecast]) -> bool:
        """Whether the last answer was far from what was forecast, so that one is not enough to know."""
        forecast = forecasts.get(self._mode) if self._mode is not None else None
        if forecast is None or not forecast.known or self._surprises >= self.MOST:
            return False
        if forecast.unsure or math.isnan(self._before_s):
            return True
        return abs(forecast.latency_s - self._before_s) > self.SURPRISE * self._before_s
