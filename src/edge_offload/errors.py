"""Errors that a user meets: each names the cause and, where there is one, the remedy.

Programs catch :class:`EdgeOffloadError`; the command line prints it as one line and exits non-zero.
"""

from __future__ import annotations


class EdgeOffloadError(Exception):
    """Base of every error raised on purpose.

    Args:
        cause: what is wrong, in words that name the thing (file, peer, operator).
        remedy: what to do about it; empty when there is nothing to advise.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause if not remedy else f"{cause}; {remedy}")
        self.cause = cause
        self.remedy = remedy


class BadInput(EdgeOffloadError, ValueError):
    """A value, file or message from the user or a sensor that cannot be used."""


class LinkLost(EdgeOffloadError):
    """The peer did not answer in time, or the connection broke."""


class Refused(EdgeOffloadError):
    """The peer answered and said no (unknown key, full, wrong version, wrong weights)."""


class ProtocolError(EdgeOffloadError):
    """The peer sent something that the protocol does not allow."""


class RemoteError(EdgeOffloadError):
    """The server accepted the request and failed while computing it."""


class Unsupported(EdgeOffloadError):
    """An operator, option or platform that edge_offload does not handle."""
