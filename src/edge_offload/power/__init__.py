"""Sensors and models of power; energy per inference.

Start at :mod:`edge_offload.power.meter` (energy over an exact interval) and :mod:`edge_offload.power.detect` (the
sources of this machine). ``source`` defines the interface; ``ina3221``, ``rapl``, ``nvml`` and ``tegrastats`` read
sensors; ``states`` models power from the robot's states.
"""
