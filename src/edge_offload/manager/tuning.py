"""Every number that decides which mode runs, what explores, and when a remote result is late; each names what set it.

``bench adaptive`` stands for ``edge-offload bench adaptive --outages`` on ``wifi_indoors``; its record is
``docs/results/adaptive.json``.
"""

from __future__ import annotations

import statistics

#: Standard deviations of a difference beyond which it is no chance: 95 %, one-sided
#: (tests/manager/test_close_choices.py).
SURE = 1.645
#: A mode that only stands in for others must be better than a remote one by this share, besides the margin
#: (``bench adaptive --launch``; tests/manager/test_policy.py).
STAND_IN = 0.05
#: Share of frames that are exceptions: may explore, may have a rival in vain, are left out of errors
#: (``bench adaptive``: regret, hedges; tests/manager/test_explore.py, test_lateness.py).
RARE = 0.02
#: Frames that make a mean: of a mode, of its errors, of the first look at a mode that has not run for long
#: (``bench adaptive``: regret; tests/manager/test_explore.py).
ENOUGH = 10
#: Standard deviation of the logarithm of what has changed unseen, or may have: a mode, a link, a machine
#: (``bench adaptive``; tests/manager/test_close_choices.py, test_explore.py).
CHANGE = 0.5
#: Mean seconds until a mode that does not run changes unseen (tests/manager/test_explore.py).
CHANGE_S = 600.0
#: Standard deviation by which the level that all remote modes share drifts in one second
#: (``bench adaptive``; tests/manager/test_close_choices.py).
SHARED_DRIFT = 0.03
#: The same of one mode's offset from it (``bench adaptive``; tests/manager/test_close_choices.py).
OWN_DRIFT = 0.003
#: Standard deviation of the logarithm of one frame until the frames have shown it (tests/manager/test_levels.py).
FIRST_NOISE = 0.15
#: Surprising frames in a row on the same side that are a step (tests/manager/test_levels.py).
STEP = 3
#: Seconds for which what was heard of link or server holds; a queue or a lateness counts half after them
#: (``bench adaptive --outages``; tests/manager/test_bandwidth.py).
RECENT_S = 3.0
#: Seconds for which a link that is well may be silent, however seldom it is (``chaos stalls``, ``bench adaptive``).
SILENCE_S = 0.04
#: Seconds after which a transfer or an attempt is given up at the earliest (``chaos``).
GIVE_UP_S = 10.0
#: Seconds after which a mode is prepared although the one before it is not ready
#: (``bench adaptive --launch``; tests/runtime/test_preparation.py).
IN_TURN_S = 60.0
#: Share of the frame interval that a frame waits for the network's own result, where that is usually there by then
#: (``bench every-frame``; tests/runtime/test_carrying.py).
WAIT_SHARE = 0.75

#: Latest frames of which a rare one is left out.
FRAMES = round(1 / RARE)
#: Standard deviations beyond which a frame is one of the rare ones.
SURPRISE = statistics.NormalDist().inv_cdf(1 - RARE / 2)
