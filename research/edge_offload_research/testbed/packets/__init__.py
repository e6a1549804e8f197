"""A link at the level of IP packets: robot and server have a TCP connection of their own kernel from end to end.

==============  =======================================================================
module          its one reason
==============  =======================================================================
``impairments`` what happens to packets besides bandwidth and delay; those of named links
``forwarder``   ``packets.c``: queue, bandwidth, delay and losses of both directions
``network``     the two TUN devices, their addresses, and namespaces around them
``emulator``    a running link that is steered as :class:`edge_offload_research.emulate.emulator.Emulator` is
==============  =======================================================================
"""
