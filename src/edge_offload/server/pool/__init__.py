"""Placement of networks, in stages, on a pool of unlike GPUs (IPIPE, chapter 4).

``profile``: seconds of a network's blocks on each class of GPU. ``columns``: every way to cut a network into stages
that answers in time. ``plan``: how many GPUs each gets, exactly. ``baselines``: plans without partitions.
``stages``: blocks of a real network, and stages that run them, bit-equal to the whole.
``dispatch``: queues before the stages, in the order of deadlines, and recovery of batches when members fail.
``simulate``: that in virtual time. All but ``stages`` is pure: no clock, no thread, no socket.
"""
