"""The parts of :mod:`edge_offload_benchmarks.experiments.transparent`: its robot process, networks, tables, memory."""
