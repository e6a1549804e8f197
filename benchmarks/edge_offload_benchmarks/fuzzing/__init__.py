"""Hostile peers and messages for :mod:`edge_offload_benchmarks.experiments.fuzz`."""
