"""A channel waits as long as it takes, whatever the process says of new sockets."""

import os
import socket

import pytest

from edge_offload.protocol.channel import Channel


@pytest.fixture
def default_timeout():
    """What rospy gives every socket that is made after its first subscription."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(60.0)
    yield
    socket.setdefaulttimeout(before)


def test_both_ends_wait_in_a_process_whose_sockets_time_out(default_timeout):
    ours, theirs = socket.socketpair()
    inherited = socket.socket(fileno=os.dup(theirs.fileno()))
    theirs.close()
    for end in (ours, inherited):
        channel = Channel(end)
        assert os.get_blocking(end.fileno())
        assert end.gettimeout() is None
        channel.close()
