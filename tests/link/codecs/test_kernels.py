"""The compiled inner loops and the numpy ones give the same bits, and the choice between them is automatic."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.link import codecs
from edge_offload.link.codecs import kernels
from edge_offload.link.codecs.kernels import portable
from edge_offload.link.codecs.kernels.portable import Frame
from edge_offload.native.libraries import CODECS
from edge_offload.native.loader import Library, load_extension
from edge_offload.native.recipe import cache_folder
from tests.link.codecs.codec_pictures import picture

SOURCE = pathlib.Path(codecs.__file__).parents[3]
PRINT_PAYLOADS = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from tests.link.codecs.codec_pictures import picture
from edge_offload.link import codecs
print(codecs.prepare())
frame = picture(40, 56)
for array in (frame, frame.transpose(2, 0, 1), frame.astype(np.float32) / 255, frame > 100):
    for name in codecs.codec_names():
        try:
            encoded = codecs.encode(array, name)
        except codecs.NotApplicable:
            continue
        decoded = codecs.decode(encoded.descriptor, encoded.buffers)
        assert decoded.tobytes() == array.tobytes()
        print(encoded.descriptor, [bytes(part).hex() for part in encoded.buffers])
"""


@pytest.fixture(scope="module")
def compiled():
    status = codecs.prepare()
    if status != "compiled kernels":
        pytest.skip(status)


def run(cache, **environment):
    """Lines printed by a fresh process that encodes a few payloads with every codec."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_PAYLOADS, str(pathlib.Path(__file__).parent)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "EDGE_OFFLOAD_CACHE": str(cache), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


frames = st.builds(
    lambda images, channels, height, width, interleaved, predictor, colour: Frame(
        images, channels, height, width, interleaved, predictor, colour and channels == 3
    ),
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 40), st.booleans(), st.integers(0, 3),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(frame=frames, seed=st.integers(0, 1000))
def test_numpy_predictors_invert_themselves(frame, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, frame.size, dtype=np.uint8)
    np.testing.assert_array_equal(portable.pixels(portable.residual(pixels, frame), frame), pixels)


@settings(max_examples=200, deadline=None)
@given(frame=frames, seed=st.integers(0, 1000))
def test_compiled_predictors_equal_numpy(compiled, frame, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, frame.size, dtype=np.uint8)
    planes = kernels.residual(pixels, frame)
    np.testing.assert_array_equal(planes, portable.residual(pixels, frame))
    np.testing.assert_array_equal(kernels.pixels(planes, frame), pixels)


@settings(max_examples=150, deadline=None)
@given(
    extents=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 60)),
    dtype=st.sampled_from(["uint8", "int8", "int16", "uint16", "float16", "float32", "int32", "float64", "int64"]),
    values=st.integers(1, 300),
    limit=st.sampled_from([4, 16, 256]),
    seed=st.integers(0, 1000),
)
def test_compiled_palettes_equal_numpy(compiled, extents, dtype, values, limit, seed):
    rng = np.random.default_rng(seed)
    item = np.dtype(dtype).itemsize
    table = rng.integers(0, 256, values * item, dtype=np.uint8).view(f"u{item}")
    bits = table[rng.integers(0, values, int(np.prod(extents)))].reshape(extents)
    kind = np.dtype(dtype).kind
    expected, result = portable.palette(bits, kind, limit), kernels.palette(bits, kind, limit)
    assert (expected is None) == (result is None)
    if result is None:
        return
    np.testing.assert_array_equal(result[0], expected[0])
    for one, other in zip(result[1], expected[1]):
        np.testing.assert_array_equal(one, other)
    full = np.zeros((extents[1], 256), bits.dtype)
    for channel, colours in enumerate(result[1]):
        full[channel, : len(colours)] = colours
    np.testing.assert_array_equal(kernels.gather(result[0], full, extents[0], extents[2]), bits.reshape(-1))
    np.testing.assert_array_equal(portable.gather(result[0], full, extents[0], extents[2]), bits.reshape(-1))


def test_palette_ascends_with_the_values(compiled):
    values = np.array([0.5, -1.0, -0.0, 0.0, 3.0, -np.inf], np.float32)
    for palette in (kernels.palette, portable.palette):
        _, (ordered,) = palette(values.view(np.uint32).reshape(1, 1, -1), "f", 256)
        np.testing.assert_array_equal(ordered.view(np.float32), sorted(values))
        assert np.signbit(ordered.view(np.float32)[2]), "-0.0 comes before 0.0"


@pytest.mark.parametrize("item", [2, 4, 8, 16])
def test_compiled_shuffle_equals_numpy(compiled, item):
    data = np.random.default_rng(item).integers(0, 256, item * 133, dtype=np.uint8)
    np.testing.assert_array_equal(kernels.shuffle(data, item), portable.shuffle(data, item))
    np.testing.assert_array_equal(kernels.unshuffle(kernels.shuffle(data, item), item), data)


def test_compiled_kernels_refuse_sizes_that_do_not_fit(compiled):
    module = load_extension(CODECS.name, CODECS.build())
    data, out = np.zeros(12, np.uint8), np.zeros(12, np.uint8)
    for extents in ((1, 3, 2, 3), (0, 3, 2, 2), (1, 3, -2, -2), (1 << 40, 1 << 40, 1 << 40, 1)):
        with pytest.raises(ValueError, match="do not fit"):
            module.residual(data, out, *extents, True, 2, False)
    with pytest.raises(ValueError, match="do not fit"):
        module.residual(data, out, 1, 2, 2, 3, True, 2, True)  # colour needs three channels
    with pytest.raises(ValueError, match="do not fit"):
        module.gather(data, np.zeros((1, 256), np.uint32), out, 1, 1, 12, 4)
    with pytest.raises(ValueError, match="do not fit"):
        module.palette(data, out, np.zeros(5, np.uint64), 1, 1, 12, 1, 0, 256)
    with pytest.raises(ValueError, match="do not fit"):
        module.shuffle(data, out[:6], 2)


@pytest.mark.process
def test_without_a_compiler_numpy_sends_the_same_bytes(compiled, tmp_path):
    with_compiler = run(cache_folder().parent)
    without = run(tmp_path, CC="/nonexistent/cc")
    switched_off = run(cache_folder().parent, EDGE_OFFLOAD_NATIVE="0")
    assert with_compiler[0] == "compiled kernels"
    assert without[0].startswith("numpy kernels")
    assert "C compiler" in without[0]
    assert "EDGE_OFFLOAD_NATIVE=0" in switched_off[0]
    assert len(with_compiler) > 20
    assert with_compiler[1:] == without[1:] == switched_off[1:]


def test_a_damaged_library_is_not_fatal(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path))
    path = CODECS.path()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a library")
    library = Library(CODECS)
    assert library.look() is None
    assert "does not load" in library.why_not
    path.write_bytes(CODECS.source.read_bytes())
    assert library.look() is None, "what was useless once is not looked at again"


@pytest.mark.process
def test_a_compiler_that_fails_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path))
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'disk on fire' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    library = Library(CODECS)
    library.start()
    library.wait()
    assert library.look() is None
    assert "disk on fire" in library.why_not


@pytest.fixture
def quick_compiler(compiled, tmp_path, monkeypatch):
    """A compiler that waits for the file ``gate``, notes that it ran, and gives the library that is already there."""
    script = tmp_path / "cc"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && exit 0\n'
        f"while [ ! -e {tmp_path}/gate ]; do sleep 0.02; done\n"
        f"echo ran >> {tmp_path}/log\n"
        'while [ "$1" != -o ]; do shift; done\n'
        f'cp {CODECS.build()} "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("EDGE_OFFLOAD_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.process
def test_two_processes_build_one_library(quick_compiler):
    command = [sys.executable, "-c", PRINT_PAYLOADS, str(pathlib.Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    pair = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (quick_compiler / "gate").touch()
    outputs = [process.communicate(timeout=600)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert outputs[0].startswith("compiled kernels")
    assert outputs[0] == outputs[1]
    assert (quick_compiler / "log").read_text() == "ran\n"


@pytest.mark.process
def test_first_use_does_not_wait_for_the_compiler(quick_compiler, monkeypatch):
    monkeypatch.setattr(kernels, "_library", Library(CODECS))
    frame = picture(16, 24)
    try:
        encoded = codecs.encode(frame, "gradient+zstd")  # returns although the compiler is held up
        assert codecs.status().endswith("are being built")
    finally:
        (quick_compiler / "gate").touch()
    assert codecs.prepare() == "compiled kernels"
    np.testing.assert_array_equal(codecs.decode(encoded.descriptor, encoded.buffers), frame)
