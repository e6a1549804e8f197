"""A payload codec for an input that repeats: the difference to an earlier array that the peer has for sure.

``bench codecs`` and ``bench papers`` measure it; no mode of edge_offload uses it.
"""

from edge_offload_research.temporal.difference import TEMPORAL
from edge_offload_research.temporal.stream import ReceiveStream, ReferenceMissing, SendStream

__all__ = ["TEMPORAL", "ReceiveStream", "ReferenceMissing", "SendStream"]
