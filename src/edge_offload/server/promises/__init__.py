"""Robots admitted under a bound on what sharing the server may cost them in accuracy (ARISE, chapter 3).

``latencies``: seconds per batch size. ``packing``: future requests, packed into batches and moved to where they fit
(Algorithm 2). ``settings``: interval and batch of a robot by itself (Step 1). ``staleness``: the cost of a schedule to
a robot. ``planner``: robots that a schedule can serve (Step 2). ``board``: promises and slots of one device over time.
All of it is pure: no clock, no thread, no socket.
"""
