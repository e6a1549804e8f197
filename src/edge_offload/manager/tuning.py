"""Every number that decides which mode runs, what explores, when a remote result is late, and whose turn it is.

Each comment names the bench or the test that checks it. ``bench adaptive`` stands for ``edge-offload bench adaptive
--outages`` on ``wifi_indoors``; its record is ``docs/results/adaptive.json``. What follows from them is derived.
"""

from __future__ import annotations

import statistics

_NORMAL = statistics.NormalDist()

#: Share of frames that are exceptions: may explore, may have a rival in vain, are left out of errors
#: (``bench adaptive``: regret, hedges; tests/manager/test_explore.py, test_lateness.py).
RARE = 0.02
#: Latest frames of which a rare one is left out.
FRAMES = round(1 / RARE)
#: Standard deviations beyond which a frame is one of the rare ones.
SURPRISE = _NORMAL.inv_cdf(1 - RARE / 2)
#: Relative difference that counts: of costs where one mode only stands in for another, and of frame rates; and the
#: risk of a wrong claim (``bench adaptive --launch``; tests/manager/test_policy.py, test_close_choices.py).
NOTABLE = 0.05
#: Standard deviations of a difference beyond which it is no chance, one-sided.
SURE = _NORMAL.inv_cdf(1 - NOTABLE)
#: Frames that make a mean: of a mode, of its errors, of the first look at a mode that has not run for long
#: (``bench adaptive``: regret; tests/manager/test_explore.py).
ENOUGH = 10
#: Standard deviation of the logarithm of what has changed unseen, or may have: a mode, a link, a machine
#: (``bench adaptive``; tests/manager/test_close_choices.py, test_explore.py).
CHANGE = 0.5
#: Mean seconds until a mode that does not run changes unseen (tests/manager/test_explore.py).
CHANGE_S = 600.0
#: Seconds after which a mode is prepared although the one before it is not ready.
PREPARATION_WAIT_S = CHANGE_S / ENOUGH
#: Standard deviation by which the level that all remote modes share drifts in one second
#: (``bench adaptive``; tests/manager/test_close_choices.py).
SHARED_DRIFT = 0.03
#: The same of one mode's offset from it: ten times steadier.
OFFSET_DRIFT = SHARED_DRIFT / 10
#: Surprising frames in a row on the same side that are a step (tests/manager/test_levels.py).
STEP = 3
#: Standard deviation of the logarithm of one frame until the frames have shown it: so many of them are a change.
FIRST_NOISE = CHANGE / STEP
#: Seconds for which what was heard of a link, a server or a node holds; a queue or a lateness counts half after them
#: (``bench adaptive``; tests/manager/test_bandwidth.py, test_turn_giver.py).
RECENT_S = 3.0
#: Seconds between repetitions of what nodes and servers tell each other of turns
#: (tests/manager/test_turn_giver.py, test_promise.py).
REPEAT_S = 0.5
#: Seconds for which a link that is well may be silent, however seldom it is (``chaos stalls``, ``bench adaptive``).
SILENCE_S = 0.04
#: Seconds between two looks at a frame that waits; less than that is no lateness.
POLL_S = SILENCE_S / 4
#: Seconds after which a transfer or an attempt is given up at the earliest (``chaos``).
GIVE_UP_S = 10.0
#: Frames under way at once at most: the server lets so many requests of a robot wait
#: (``server/worker.py``; tests/manager/test_in_flight.py).
MOST_IN_FLIGHT = 4
#: Share of the frame interval that a frame waits for the network's own result, where that is usually there by then
#: (``bench every-frame``; tests/runtime/test_carrying.py).
WAIT_SHARE = 0.75
#: Seconds between frames, until there are two: those of a camera of 10 Hz (tests/ros/test_poses.py).
FIRST_INTERVAL_S = 0.1
#: Frames that may wait for the thread that carries; when more come the oldest are superseded: late is worse
#: (tests/runtime/test_carrying.py).
WAITING = 2
