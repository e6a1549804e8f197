"""What the link carries, measured: from every transfer, from the kernel's count of bytes, from probes when idle.

:class:`~edge_offload.link.estimate.estimator.LinkEstimator` is pure (time comes in as an argument); the client feeds
it, :class:`~edge_offload.link.transport.prober.Prober` measures when nothing travels.
"""
