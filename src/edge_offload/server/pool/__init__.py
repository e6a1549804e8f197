"""Networks in stages on a pool of unlike GPUs: what to put where (IPIPE, chapter 4).

``profile``: what blocks of a network take on each class of GPU. ``columns``: every way to cut a network into stages
that answers in time. ``plan``: how many GPUs each gets, exactly. ``baselines``: plans without partitions.
``stages``: blocks of a real network, and stages that run them, bit-equal to the whole.
``reserve``: which GPU and which link a batch gets, and when (Algorithms 3 and 4). ``simulate``: that scheduler in
virtual time. All but ``stages`` is pure: no clock, no thread, no socket.
"""
