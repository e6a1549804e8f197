"""The wire format: what goes in comes out; what is malformed is refused, whatever it is."""

import math

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload import errors
from edge_offload.errors import BadInput, ProtocolError, Refused, RemoteError
from edge_offload.link.transport import messages
from edge_offload.link.transport.messages import (
    MAGIC,
    PROTOCOL_VERSION,
    Limits,
    Message,
    VersionMismatch,
    pack_header,
    unpack_header,
)

numbers = st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
plain = st.none() | numbers | st.text() | st.binary()
bodies = st.dictionaries(
    st.text(max_size=8),
    st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner)),
    max_size=5,
)


def header(**changes):
    fields = {"magic": MAGIC, "version": PROTOCOL_VERSION, "type": "request", "epoch": 7, "id": 3, "name": "infer"}
    fields.update({"body": {}, "times": [], **changes})
    return msgpack.packb(list(fields.values()))


@given(body=bodies, epoch=st.integers(0, 2**63 - 1), times=st.lists(st.floats(-1e9, 1e9), max_size=4))
@settings(max_examples=100, deadline=None)
def test_a_message_survives_the_wire(body, epoch, times):
    sent = Message("request", epoch, 3, "infer.frame", body, tuple(times))
    received = unpack_header(pack_header(sent), Limits(max_depth=64))
    assert received == sent


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": "other"},
        {"type": "shutdown"},
        {"type": ["request"]},
        {"type": {}},
        {"epoch": -1},
        {"epoch": 2**63},
        {"epoch": True},
        {"epoch": 1.0},
        {"id": "3"},
        {"id": None},
        {"name": "Infer"},
        {"name": ""},
        {"name": "a" * 65},
        {"name": "../x"},
        {"name": b"infer"},
        {"body": []},
        {"body": None},
        {"body": {1: 2}},
        {"body": {"a": {b"b": 1}}},
        {"body": {"a": msgpack.ExtType(4, b"x")}},
        {"body": {"a": msgpack.Timestamp(1)}},
        {"times": [1]},
        {"times": [math.nan]},
        {"times": [math.inf]},
        {"times": [1.0] * 5},
        {"times": "now"},
        {"extra": 1},
    ],
    ids=str,
)
def test_malformed_headers_are_refused(changes):
    unpack_header(header())
    with pytest.raises(ProtocolError):
        unpack_header(header(**changes))


def test_other_version_is_refused_with_both_named():
    with pytest.raises(VersionMismatch, match=rf"version 99\D.*version {PROTOCOL_VERSION}\b"):
        unpack_header(msgpack.packb([MAGIC, 99, "something", "that", "only", "version 99", "knows"]))


@pytest.mark.parametrize("depth", [17, 400, 100_000])
def test_deep_nesting_is_refused(depth):
    bomb = header()[:-2] + b"\x81\xa1a" + b"\x91" * depth + b"\x90" + b"\x90"
    with pytest.raises(ProtocolError):
        unpack_header(bomb)


def test_claimed_sizes_allocate_nothing():
    # a header of five bytes that claims four billion elements
    for claim in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        with pytest.raises(ProtocolError):
            unpack_header(claim)


def test_header_larger_than_the_limit_is_refused_before_decoding():
    with pytest.raises(ProtocolError, match="limit"):
        unpack_header(header(body={"a": b"x" * 2000}), Limits(max_header_bytes=1000))


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_random_bytes_never_do_anything_else_than_being_refused(noise):
    with pytest.raises((ProtocolError, VersionMismatch)):
        unpack_header(noise)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_garbled_headers_are_decoded_or_refused(data):
    raw = bytearray(header(body={"shape": [1, 2, 3], "name": "x", "deep": {"a": [{"b": None}]}}))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = unpack_header(bytes(raw))
    except (ProtocolError, VersionMismatch):
        return
    assert decoded.type in messages.TYPES
    assert isinstance(decoded.body, dict)


def test_what_cannot_travel_is_named():
    with pytest.raises(BadInput, match="buffers"):
        pack_header(Message("request", name="infer", body={"a": np.zeros(3)}))
    with pytest.raises(BadInput, match="buffer"):
        pack_header(Message("request", name="infer", body={"a": b"x" * (2 << 20)}))
    with pytest.raises(BadInput, match="ascontiguousarray"):
        messages.byte_views([np.zeros((4, 4))[:, ::2]])


def test_buffers_are_viewed_not_copied():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    (view,) = messages.byte_views([array])
    array[0, 0] = 99
    assert np.frombuffer(view, np.float32)[0] == 99
    assert messages.byte_views([np.zeros((0, 3))])[0].nbytes == 0


@pytest.mark.parametrize("error", [Refused("full", remedy="wait"), BadInput("no model"), errors.Unsupported("x")])
def test_errors_preserve_kind_cause_and_remedy(error):
    back = messages.error_from(messages.error_body(error))
    assert type(back) is type(error)
    assert (back.cause, back.remedy) == (error.cause, error.remedy)


def test_foreign_errors_become_remote_errors_and_no_class_is_taken_from_the_wire():
    assert isinstance(messages.error_from(messages.error_body(KeyError("x"))), RemoteError)
    for name in ("annotations", "SystemExit", "__builtins__", None, 3):
        assert type(messages.error_from({"type": name, "cause": "c"})) is RemoteError
    assert type(messages.error_from(messages.error_body(VersionMismatch("old")))) is Refused
