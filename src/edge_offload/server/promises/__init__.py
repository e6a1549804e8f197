"""Robots admitted under a bound on what sharing the server may cost them in accuracy (ARISE, chapter 3).

``latencies``: what a batch takes. ``packing``: requests that will come, packed into batches and moved to where they fit
(Algorithm 2). ``settings``: interval and batch of a robot by itself (Step 1). ``staleness``: what a schedule costs a
robot. ``planner``: whom a schedule can hold (Step 2). ``board``: promises and turns of one device over time. All of it
is pure: no clock, no thread, no socket.
"""
