"""Robot and server of different releases: each names both versions, and an upgrade of either side ends it by itself."""

import msgpack
import pytest
import zmq

from edge_offload.errors import LinkLost, Refused
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import MAGIC, PROTOCOL_VERSION
from edge_offload_benchmarks.ports import lasting_port

pytestmark = pytest.mark.process

PATIENCE_S = 60.0


@pytest.fixture
def newer_server(keys):
    """A server of version 99: (address, step); each step answers one hello the way that version would."""
    pair = keys.ensure_pair("server")
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = pair.public.encode(), pair.secret.encode()
    port = lasting_port()
    router.bind(f"tcp://127.0.0.1:{port}")

    def step():
        assert router.poll(PATIENCE_S * 1e3), "the robot says hello"
        robot, hello = router.recv_multipart()
        assert msgpack.unpackb(hello)[:3] == [MAGIC, PROTOCOL_VERSION, "hello"], "it names its version in every release"
        router.send_multipart([robot, msgpack.packb([MAGIC, 99, "refused", {"something": "only version 99 knows"}])])

    yield f"tcp://127.0.0.1:{port}", step, lambda: context.destroy(linger=0)
    context.destroy(linger=0)


def test_a_robot_that_is_older_than_the_server_names_both_and_is_served_after_the_downgrade(
    newer_server, connect, serve, until_state, states
):
    address, step, stop = newer_server
    client = connect(address)
    step()
    with pytest.raises(Refused, match=rf"version 99\D.*version {PROTOCOL_VERSION}\b") as refusal:
        client.wait_ready(PATIENCE_S)
    assert "same release" in refusal.value.remedy
    with pytest.raises(LinkLost, match="version 99"):
        client.request("echo", timeout_s=3600).result(0)
    stop()
    serve(bind=address)
    until_state(client, states.READY)
    assert client.request("echo", {"a": 1}).result(PATIENCE_S).body == {"a": 1}


def test_a_robot_of_another_release_gets_both_versions_and_others_continue(serve, connect, raw_dealer):
    listener = serve()
    client = connect(listener.address)
    client.wait_ready(PATIENCE_S)
    socket = raw_dealer(listener.address)
    socket.send(msgpack.packb([MAGIC, 99, "hello", "in", "another", "shape"]))
    answer = messages.unpack_header(socket.recv_multipart()[0])
    assert answer.type == "refused"
    assert "version 99" in answer.body["cause"]
    assert f"version {PROTOCOL_VERSION}" in answer.body["cause"]
    assert listener.counters["refused: version"] == 1
    assert client.request("echo", {"a": 1}).result(PATIENCE_S).body == {"a": 1}
