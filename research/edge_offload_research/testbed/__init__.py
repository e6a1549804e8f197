"""The LOPInfer authors' testbed, simulated from what they measured: a Jetson Xavier NX, an RTX 3080, Wi-Fi indoors.

============  ==========================================================================
module        its one reason
============  ==========================================================================
``profiles``  read the measured data: operator times on both sides, latencies, powers
``windows``   kernel, stride, padding of the networks' sliding operators (not in the data)
``graph``     a profile as an operator sequence with locality, and its cost model
``replay``    one inference of a plan on a bandwidth trace
``packets``   a link at the level of IP packets
``loop``      closed-loop run of a table of plans; the planner sees past transfers alone
============  ==========================================================================
"""
