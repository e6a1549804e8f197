"""Engines: what may compute the dense part of a module in place of torch, how exact that is, and when it takes over.

:mod:`~edge_offload.execute.engines.table` lists them, :mod:`~edge_offload.execute.engines.seat` puts one beside torch.
"""
