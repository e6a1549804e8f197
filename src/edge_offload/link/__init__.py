"""Wire protocol, transport, keys, payload codecs, clock offset and link emulation."""
