"""Every lossless codec gives back every bit of every array that it accepts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.link import codecs
from edge_offload.link.codecs.payload import DTYPES
from tests.link.codecs.codec_pictures import picture


def same(decoded, array):
    """Equal dtype, shape and bits."""
    return decoded.dtype == array.dtype and decoded.shape == array.shape and decoded.tobytes() == array.tobytes()


@st.composite
def arrays(draw):
    """Arrays of any dtype, shape, content and strides that can travel."""
    dtype = np.dtype(draw(st.sampled_from(sorted(DTYPES))))
    shape = draw(st.lists(st.integers(0, 9), max_size=4).map(tuple))
    if draw(st.booleans()):
        shape = draw(st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(4, 24), st.integers(4, 24)))
        if draw(st.booleans()):
            shape = (shape[0], shape[2], shape[3], shape[1])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = int(np.prod(shape))
    content = draw(st.sampled_from(["bytes", "few", "sparse", "constant", "levels", "values"]))
    if content == "bytes":  # NaN payloads, -0.0, denormals, bools that are neither 0 nor 1
        flat = rng.integers(0, 256, size * dtype.itemsize, dtype=np.uint8).view(dtype)
    elif content == "values":
        flat = rng.normal(0, 100, size).astype(dtype)
    else:
        count = {"few": int(rng.integers(1, 18)), "sparse": 5, "constant": 1, "levels": int(rng.integers(200, 300))}
        values = rng.integers(0, 256, count[content] * dtype.itemsize, dtype=np.uint8).view(dtype)
        flat = values[rng.integers(0, len(values), size)]
        if content == "sparse":
            flat = np.where(rng.random(size) < 0.1, flat, np.zeros((), dtype))
    array = flat.reshape(shape)
    if array.ndim and draw(st.booleans()):
        array = array[draw(st.sampled_from([slice(None, None, 2), slice(None, None, -1), slice(1, None)]))]
    if array.ndim > 1 and draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    return array


@settings(max_examples=250, deadline=None)
@given(array=arrays())
def test_every_codec_gives_every_bit_back(array):
    for name in ["auto", *codecs.codec_names()]:
        try:
            encoded = codecs.encode(array, name)
        except codecs.NotApplicable:
            assert name not in ("auto", "raw", "shuffle+zstd", "shuffle+lz4"), f"{name} has to take anything"
            continue
        buffers = [bytes(part) for part in encoded.buffers]
        assert same(codecs.decode(encoded.descriptor, buffers), array), name


@settings(max_examples=60, deadline=None)
@given(array=arrays())
def test_descriptors_are_plain_enough_for_msgpack(array):
    import msgpack

    for name in ["auto", *codecs.codec_names()]:
        try:
            encoded = codecs.encode(array, name)
        except codecs.NotApplicable:
            continue
        descriptor = msgpack.unpackb(msgpack.packb(encoded.descriptor))
        assert same(codecs.decode(descriptor, encoded.buffers), array)


@pytest.mark.parametrize(
    "array",
    [
        np.array(-0.0),
        np.array([0.0, -0.0, np.inf, -np.inf], np.float32),
        np.array([0x7FC00001, 0x7F800001, 0xFFC12345], np.uint32).view(np.float32),  # NaNs that are told apart
        np.array([0x7E01, 0xFE02], np.uint16).view(np.float16),
        np.array([2**63 - 1, -(2**63)], np.int64),
        np.frombuffer(b"\x00\x01\x02\xff", np.bool_),
        np.empty((0, 3), np.float32),
        np.empty((4, 0, 5), np.int64),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.broadcast_to(np.float32(3), (7, 5)),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_corner_cases(array):
    for name in ["auto", *codecs.codec_names()]:
        try:
            encoded = codecs.encode(array, name)
        except codecs.NotApplicable:
            continue
        assert same(codecs.decode(encoded.descriptor, encoded.buffers), array), name


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, ">f4"),
        np.zeros(3, object),
        np.array(["a"]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "f4")]),
        np.zeros(2, np.longdouble),
        [1.0, 2.0],
    ],
    ids=lambda array: str(getattr(array, "dtype", type(array).__name__)),
)
def test_what_cannot_travel_is_refused_with_a_remedy(array):
    with pytest.raises(BadInput) as refused:
        codecs.encode(array)
    assert refused.value.remedy


def test_unknown_codec_is_refused_with_the_available_ones():
    with pytest.raises(BadInput, match=r"no codec 'zip'.*gradient\+zstd"):
        codecs.encode(np.zeros(3), "zip")


def test_unsuitable_codec_reports_why():
    with pytest.raises(BadInput, match="more than 256 distinct values"):
        codecs.encode(np.arange(1000, dtype=np.float32), "palette+zstd")
    with pytest.raises(BadInput, match="not a stack of 8-bit images"):
        codecs.encode(np.zeros((8, 8), np.float32), "gradient+zstd")


def test_pictures_shrink_in_either_layout():
    frame = picture(96, 128)
    for array in (frame, frame.transpose(2, 0, 1), frame[None], frame.transpose(2, 0, 1)[None]):
        plain = codecs.encode(array, "shuffle+zstd").nbytes
        assert codecs.encode(array, "gradient+zstd").nbytes < 0.8 * plain
    flat = codecs.encode(np.ascontiguousarray(frame[..., 1]), "gradient+zstd")
    assert flat.nbytes < 0.8 * codecs.encode(np.ascontiguousarray(frame[..., 1]), "shuffle+zstd").nbytes


def test_normalised_picture_costs_no_more_than_the_picture_and_its_palette():
    from edge_offload_benchmarks import payloads

    array = payloads.normalise_frame(picture(224, 224))
    encoded = codecs.encode(array, "palette+zstd")
    assert array.nbytes / encoded.nbytes > 5.5


def test_raw_is_not_copied():
    array = np.arange(10.0)
    encoded = codecs.encode(array, "raw")
    assert np.shares_memory(np.frombuffer(encoded.buffers[0], np.uint8), array)
    assert np.shares_memory(codecs.decode(encoded.descriptor, encoded.buffers), array)


class TestLossy:
    @pytest.mark.process
    def test_fp16_is_marked_as_lossy_and_is_the_nearest_half(self):
        array = np.linspace(-3, 3, 1000, dtype=np.float32).reshape(10, 100)
        for name in ("fp16", "fp16+zstd"):
            encoded = codecs.encode(array, name)
            assert encoded.descriptor["lossy"] is True
            decoded = codecs.decode(encoded.descriptor, encoded.buffers)
            np.testing.assert_array_equal(decoded, array.astype(np.float16).astype(np.float32))
        assert codecs.encode(array, "fp16").nbytes * 2 == array.nbytes

    @pytest.mark.parametrize("layout", ["HWC", "CHW", "NCHW", "HW"])
    def test_jpeg_is_marked_as_lossy_and_stays_close(self, layout):
        frame = picture(64, 80)
        array = {"HWC": frame, "CHW": frame.transpose(2, 0, 1), "NCHW": frame.transpose(2, 0, 1)[None]}.get(
            layout, frame[..., 1]
        )
        encoded = codecs.encode(array, "jpeg", quality=95)
        assert encoded.descriptor["lossy"] is True
        decoded = codecs.decode(encoded.descriptor, encoded.buffers)
        assert decoded.shape == array.shape
        assert np.abs(decoded.astype(int) - array).mean() < 4
        assert codecs.encode(array, "jpeg", quality=20).nbytes < encoded.nbytes

    def test_lossless_payloads_do_not_claim_to_be_lossy(self):
        for name in codecs.codec_names():
            assert (
                "lossy"
                not in codecs.encode(
                    np.zeros((8, 8), np.uint8 if "palette" not in name else np.float32), name
                ).descriptor
            )
        assert not set(codecs.codec_names()) & set(codecs.codec_names(lossless=False))
