"""The operator IR: validation, canonical identity, liveness, and a wire form that trusts nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput, ProtocolError
from edge_offload.ir import (
    Kind,
    Operator,
    OperatorSequence,
    Ref,
    Symbol,
    Value,
    canonical_bytes,
    content_digest,
    sequence_hash,
)
from edge_offload.ir.liveness import free_after, last_use
from edge_offload.ir.wire import SequenceLimits, decode, encode

WEIGHT = content_digest("float32", (2,), b"\0" * 8)


def small(shift: int = 0, scalar: object = 1.0, scope: str = "") -> OperatorSequence:
    """x -> mul(x, w) -> add_(.., scalar) in place -> view; numbers shifted by ``shift``."""
    n = [shift + 3 * k for k in range(5)]
    values = {
        n[0]: Value(n[0], "float32", (4, 2), Kind.INPUT),
        n[1]: Value(n[1], "float32", (2,), Kind.CONSTANT),
        n[2]: Value(n[2], "float32", (4, 2), storage=shift + 7),
        n[3]: Value(n[3], "float32", (4, 2), storage=shift + 7),
        n[4]: Value(n[4], "float32", (8,), storage=shift + 7),
    }
    operators = (
        Operator("aten.mul.Tensor", (Ref(n[0]), Ref(n[1])), (), (n[2],), scope=scope),
        Operator("aten.add_.Tensor", (Ref(n[2]), scalar), (), (n[3],), (n[2],), ((0, n[2]),)),
        Operator("aten.view.default", (Ref(n[3]), (8,)), (), (n[4],), (), ((0, n[3]),)),
    )
    return OperatorSequence(values, (n[0],), {n[1]: WEIGHT}, operators, (n[4],))


def test_numbering_and_scopes_do_not_change_identity() -> None:
    one, other = small().validate(), small(shift=40, scope="layer1.conv").validate()
    assert sequence_hash(one) == sequence_hash(other)
    assert len(bytes.fromhex(sequence_hash(one))) == 16
    assert canonical_bytes(one) == canonical_bytes(other)


@pytest.mark.parametrize("scalar", [1, True, 2.0, -1.0, None, "1.0", (1.0,), complex(1, 0), Symbol("dtype", "float32")])
def test_every_change_of_an_argument_changes_identity(scalar: object) -> None:
    assert sequence_hash(small()) != sequence_hash(small(scalar=scalar))


def test_signed_zero_and_nan_are_distinguished_and_preserved() -> None:
    assert sequence_hash(small(scalar=0.0)) != sequence_hash(small(scalar=-0.0))
    assert sequence_hash(small(scalar=math.nan)) == sequence_hash(small(scalar=math.nan))
    back = decode(encode(small(scalar=-0.0)))
    assert math.copysign(1.0, back.operators[1].args[1]) == -1.0  # type: ignore[arg-type]


def test_weights_and_metadata_take_part_in_identity() -> None:
    base = small()
    reweighted = replace(base, constants={3: content_digest("float32", (2,), b"\1" * 8)})
    assert sequence_hash(base) != sequence_hash(reweighted)
    values = dict(base.values)
    values[0] = replace(values[0], dtype="float64")
    assert sequence_hash(base) != sequence_hash(replace(base, values=values))


def test_explicit_contiguous_strides_are_the_same_as_none() -> None:
    base = small()
    values = dict(base.values)
    values[0] = replace(values[0], strides=(2, 1))
    assert sequence_hash(base) == sequence_hash(replace(base, values=values))
    values[0] = replace(values[0], strides=(1, 4))
    assert sequence_hash(base) != sequence_hash(replace(base, values=values))


def test_use_before_definition_is_refused_by_name() -> None:
    broken = small()
    broken = replace(broken, operators=(broken.operators[1], broken.operators[0], broken.operators[2]))
    with pytest.raises(BadInput, match=r"operator 0 \(aten\.add_\.Tensor\) uses value 6"):
        broken.validate()


def test_second_definition_write_to_constant_and_unknown_output_are_refused() -> None:
    base = small()
    twice = replace(base, operators=(*base.operators, base.operators[0]))
    with pytest.raises(BadInput, match="second time"):
        twice.validate()
    writes = Operator("aten.add_.Tensor", (Ref(3), 1.0), (), (6,), (3,), ((0, 3),))
    with pytest.raises(BadInput, match="writes constant 3"):
        replace(base, operators=(writes, *base.operators[1:])).validate()
    with pytest.raises(BadInput, match="outputs name"):
        replace(base, outputs=(99,)).validate()
    with pytest.raises(BadInput, match="not an input"):
        replace(base, rebinds=((6, 9),)).validate()


def test_a_value_is_freed_after_its_last_use() -> None:
    base = small()
    assert last_use(base) == {0: 0, 3: 0, 6: 1, 9: 2, 12: 3}
    assert free_after(base) == [[], [6], [9]]


def test_pruning_drops_what_nothing_reads_and_its_weights() -> None:
    base = small()
    values = {**base.values, 20: Value(20, "float32", (2,), Kind.CONSTANT), 21: Value(21, "float32", (2,))}
    dead = Operator("aten.relu.default", (Ref(20),), (), (21,))
    digest = content_digest("float32", (2,), b"\2" * 8)
    padded = replace(base, values=values, constants={**base.constants, 20: digest}, operators=(*base.operators, dead))
    assert sequence_hash(padded.validate().without_dead_code()) == sequence_hash(base)


def test_wire_round_trip() -> None:
    base = small(scope="layer1")
    back = decode(encode(base))
    assert back == base


def test_decoder_bounds_sizes_before_it_believes_them() -> None:
    data = encode(small())
    with pytest.raises(ProtocolError, match="the limit is 10"):
        decode(data, SequenceLimits(nbytes=10))
    with pytest.raises(ProtocolError):
        decode(data, SequenceLimits(values=2, operators=2))
    deep: object = 1
    for _ in range(20):
        deep = ["l", [deep]]
    document = msgpack.unpackb(data)
    document["operators"][0][1] = [deep]
    with pytest.raises(ProtocolError, match="deeper"):
        decode(msgpack.packb(document))
    with pytest.raises(ProtocolError):
        decode(data + b"\0")


@pytest.mark.parametrize("key", ["values", "inputs", "constants", "operators", "outputs", "rebinds", "format"])
@pytest.mark.parametrize("junk", [None, 5, "x", [["x"]], [2**63], {"a": 1}])
def test_decoder_refuses_junk_in_every_field(key: str, junk: object) -> None:
    document = msgpack.unpackb(encode(small()))
    document[key] = junk
    with pytest.raises(ProtocolError):
        decode(msgpack.packb(document))


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_flipped_bits_are_refused_or_decode_to_a_valid_sequence(position: int, bit: int) -> None:
    data = bytearray(encode(small()))
    data[position % len(data)] ^= 1 << bit
    try:
        decoded = decode(bytes(data)).validate()
    except ProtocolError:
        return
    encoded = encode(decoded)
    assert encode(decode(encoded)) == encoded, "what decodes is whole: it travels on as any other"


def test_names_outside_the_registry_never_resolve() -> None:
    from edge_offload.errors import Unsupported
    from edge_offload.ir.schemas import find_overload

    assert str(find_overload("aten.relu.default")) == "aten.relu.default"
    for name in ("aten.__class__.__init__", "os.system.default", "aten.relu.nothing", "aten.relu", "__dict__.a.b"):
        with pytest.raises(Unsupported):
            find_overload(name)
    for name in ("aten.relu", "aten..default", "aten.a b.default"):
        with pytest.raises(BadInput):
            Operator(name).check_names()
