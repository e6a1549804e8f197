"""Model replicas, sessions, quotas and admission on the machine with the GPU.

A front (:class:`~edge_offload.link.transport.listener.Listener`) checks and queues, a fair queue takes robots in turn,
and one worker thread owns the device. :class:`~edge_offload.server.server.OffloadServer` puts them together; each kind
of request is answered by a service (:mod:`edge_offload.server.services`).
"""
