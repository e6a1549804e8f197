"""Experiments and scripted faults on the real system: what every number of the documentation comes out of."""
