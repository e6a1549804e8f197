"""Sensors and models of power; energy per inference.

Start at :mod:`edge_offload.power.meter` (energy over an exact interval) and :mod:`edge_offload.power.detect` (which
source this machine has). ``source`` is what a source of power is; ``ina3221``, ``rapl``, ``nvml`` and ``tegrastats``
read sensors; ``states`` models power from what the robot is doing.
"""
