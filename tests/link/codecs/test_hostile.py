"""Payloads from a broken or hostile peer: a ProtocolError, never a crash and never a large allocation."""

import copy
import random
import tracemalloc

import lz4.block
import numpy as np
import pytest
import zstandard

from edge_offload.errors import ProtocolError
from edge_offload.link import codecs
from tests.link.codecs.codec_pictures import picture

MAX_BYTES = 1 << 16


def samples():
    """One small valid payload per codec and kind of content."""
    frame = picture(12, 16)
    rng = np.random.default_rng(0)
    spots = np.zeros((16, 16, 8), np.uint8)
    spots.reshape(-1)[rng.integers(0, spots.size, 40)] = rng.integers(1, 9, 40)
    level = frame.astype(np.float32) / 255
    arrays = [
        frame,
        frame.transpose(2, 0, 1),
        spots,
        spots > 0,
        level,
        rng.normal(size=(5, 7)),
        np.arange(9),
        np.array(2.5),
    ]
    made = []
    for array in arrays:
        for name in codecs.codec_names() + codecs.codec_names(lossless=False):
            try:
                encoded = codecs.encode(array, name)
            except codecs.NotApplicable:
                continue
            made.append((encoded.descriptor, [bytes(part) for part in encoded.buffers]))
    return made


JUNK = [
    *(None, True, -1, 0, 1, 2, 3, 255, 256, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 70, 0.5, float("nan")),
    *("", "x", b"", b"\xff", [], [1], [0, 0], [1 << 40, 1 << 40], {}, {"a": 1}),
    *("raw", "jpeg", "float32", "temporal+zstd"),
]


def mutated(descriptor, buffers, rng):
    """A payload with one to three things wrong."""
    descriptor, buffers = copy.deepcopy(descriptor), list(buffers)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(8)
        if kind <= 2 and buffers:  # flip bytes
            index = rng.randrange(len(buffers))
            data = bytearray(buffers[index])
            for _ in range(rng.randint(1, 4)):
                if data:
                    data[rng.randrange(min(len(data), 24) if kind else len(data))] = rng.randrange(256)
            buffers[index] = bytes(data)
        elif kind == 3 and buffers:  # cut or lengthen
            index = rng.randrange(len(buffers))
            cut = rng.randint(0, len(buffers[index]))
            buffers[index] = buffers[index][:cut] if rng.random() < 0.7 else buffers[index] + bytes(rng.randint(1, 9))
        elif kind == 4:  # parts missing, doubled, not bytes
            action = rng.randrange(3)
            if action == 0 and buffers:
                buffers.pop(rng.randrange(len(buffers)))
            elif action == 1:
                buffers.insert(rng.randint(0, len(buffers)), rng.choice([b"", b"abc", *buffers]))
            else:
                buffers.append(7)
                break
        elif kind == 5:
            descriptor[rng.choice([*descriptor, "params", "stream", "extra"])] = rng.choice(JUNK)
        elif kind == 6 and isinstance(descriptor.get("params"), dict) and descriptor["params"]:
            params = descriptor["params"]
            key = rng.choice(list(params))
            if isinstance(params[key], list) and params[key] and rng.random() < 0.7:
                params[key][rng.randrange(len(params[key]))] = rng.choice(JUNK)
            else:
                params[key] = rng.choice(JUNK)
        elif isinstance(descriptor.get("shape"), list):
            shape = descriptor["shape"]
            if shape and rng.random() < 0.7:
                shape[rng.randrange(len(shape))] = rng.choice(JUNK) if rng.random() < 0.5 else rng.randint(0, 40)
            else:
                shape.append(rng.choice(JUNK))
    return descriptor, buffers


def test_fuzz_of_every_codec():
    rng = random.Random(7)
    originals = samples()
    assert {descriptor["codec"] for descriptor, _ in originals} == set(codecs.CODECS)
    refused = accepted = 0
    tracemalloc.start()
    try:
        for turn in range(16_000):
            descriptor, buffers = mutated(*originals[turn % len(originals)], rng)
            try:
                array = codecs.decode(descriptor, buffers, MAX_BYTES)
            except ProtocolError:
                refused += 1
            else:
                accepted += 1
                assert array.nbytes <= MAX_BYTES
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > 5_000
    assert accepted > 500, "the mutations leave too little to decode"
    assert peak < 4 << 20, f"{peak} bytes allocated on the way"


def peak_of(action):
    """(exception or None, peak of traced memory) of ``action()``."""
    tracemalloc.start()
    try:
        action()
        caught = None
    except ProtocolError as error:
        caught = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return caught, peak


def header(shape, codec, dtype="uint8", **params):
    return {"codec": codec, "dtype": dtype, "shape": shape, **({"params": params} if params else {})}


class TestBombs:
    def test_zstd_frame_that_lies_about_its_size(self):
        lie = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"
        caught, peak = peak_of(lambda: codecs.decode(header([1000], "shuffle+zstd"), [lie]))
        assert "claims" in str(caught)
        assert peak < 1 << 20

    def test_zstd_frame_that_is_too_short_for_what_it_claims(self):
        size = 200_000_000
        lie = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"
        caught, peak = peak_of(lambda: codecs.decode(header([size], "shuffle+zstd"), [lie]))
        assert "cannot hold" in str(caught)
        assert peak < 1 << 20

    def test_zstd_bomb_behind_a_small_shape(self):
        bomb = zstandard.ZstdCompressor().compress(bytes(64_000_000))
        caught, peak = peak_of(lambda: codecs.decode(header([1000], "shuffle+zstd"), [bomb]))
        assert caught is not None
        assert peak < 1 << 20

    def test_zstd_frame_without_a_size(self):
        coded = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000))
        with pytest.raises(ProtocolError):
            codecs.decode(header([1000], "shuffle+zstd"), [coded])

    def test_bytes_after_the_frame(self):
        coded = zstandard.ZstdCompressor().compress(bytes(1000))
        with pytest.raises(ProtocolError):
            codecs.decode(header([1000], "shuffle+zstd"), [coded + b"more"])

    def test_lz4_shape_that_the_bytes_cannot_hold(self):
        coded = lz4.block.compress(bytes(1000), store_size=False)
        caught, peak = peak_of(lambda: codecs.decode(header([200_000_000], "shuffle+lz4"), [coded]))
        assert "cannot hold" in str(caught)
        assert peak < 1 << 20

    def test_lz4_bomb_behind_a_small_shape(self):
        bomb = lz4.block.compress(bytes(64_000_000), store_size=False)
        caught, peak = peak_of(lambda: codecs.decode(header([1000], "shuffle+lz4"), [bomb]))
        assert caught is not None
        assert peak < 1 << 20

    @pytest.mark.parametrize(
        "shape", [[1 << 40], [1 << 20, 1 << 20], [0, 1 << 41], [1 << 62, 0, 4], [-1], [True], [2.0], ["4"]]
    )
    def test_shapes_beyond_the_limit(self, shape):
        caught, peak = peak_of(lambda: codecs.decode(header(shape, "raw", "float64"), [b""]))
        assert caught is not None
        assert peak < 1 << 20

    def test_constant_array_of_no_bytes_is_bounded_by_max_bytes(self):
        descriptor = header([1 << 30], "bits", values=[7])
        caught, peak = peak_of(lambda: codecs.decode(descriptor, [b""], MAX_BYTES))
        assert caught is not None
        assert peak < 1 << 20

    def test_jpeg_that_is_larger_than_its_header(self):
        encoded = codecs.encode(picture(32, 48), "jpeg")
        data = bytearray(bytes(encoded.buffers[0]))
        start = data.index(b"\xff\xc0")
        data[start + 5 : start + 9] = b"\xff\xdc\xff\xdc"
        caught, peak = peak_of(lambda: codecs.decode(encoded.descriptor, [bytes(data)]))
        assert "claims" in str(caught)
        assert peak < 1 << 20

    def test_index_past_the_palette(self):
        descriptor = header([8], "bits", values=[1, 2, 3])
        with pytest.raises(ProtocolError, match="past"):
            codecs.decode(descriptor, [b"\xff\xff"])

    def test_sparse_position_past_the_end(self):
        array = np.zeros(8 * 64 + 1, np.uint8)
        array[[5, 512]] = 3
        encoded = codecs.encode(array, "sparse+zstd")
        assert encoded.descriptor["params"]["levels"] >= 1
        pack = zstandard.ZstdCompressor().compress
        buffers = list(encoded.buffers)
        buffers[1] = pack(bytes([1 << 5, 1 << 3]))  # the last mask byte names element 515
        with pytest.raises(ProtocolError, match="outside"):
            codecs.decode(encoded.descriptor, buffers)

    def test_lossy_payload_that_hides_it(self):
        encoded = codecs.encode(np.ones((3, 3), np.float32), "fp16")
        descriptor = {key: value for key, value in encoded.descriptor.items() if key != "lossy"}
        with pytest.raises(ProtocolError, match="lossy"):
            codecs.decode(descriptor, encoded.buffers)
