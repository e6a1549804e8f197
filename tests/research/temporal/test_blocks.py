"""The compiled blocks and the numpy ones give the same bits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.link.codecs import kernels
from edge_offload.link.codecs.kernels import portable
from edge_offload_research.temporal import blocks
from tests.link.codecs.test_kernels import frames

pytestmark = pytest.mark.process


@settings(max_examples=200, deadline=None)
@given(
    frame=frames,
    seed=st.integers(0, 1000),
    levels=st.sampled_from([1, 2, 256]),
    scale=st.sampled_from([1, 10, 128]),
)
def test_compiled_blocks_equal_numpy_and_invert(frame, seed, levels, scale):
    if blocks._load_module() is None:
        pytest.skip("no compiler")
    rng = np.random.default_rng(seed)
    pixels, reference = rng.integers(0, levels, frame.size, dtype=np.uint8), rng.integers(0, scale, frame.size)
    reference = pixels + reference.astype(np.uint8)
    temporal = kernels.residual(pixels - reference, replace(frame, predictor=portable.NONE))
    spatial = kernels.residual(pixels, replace(frame, predictor=portable.GRADIENT))
    expected, expected_choice = blocks.blend_plainly(temporal, spatial, frame)
    planes, choice = blocks.blend(temporal.copy(), spatial, frame)
    np.testing.assert_array_equal(choice, expected_choice)
    np.testing.assert_array_equal(planes, expected)
    # any choice has to be invertible, not only the best one
    for decided in (choice, rng.integers(0, 2, choice.size, dtype=np.uint8)):
        wide = blocks._per_pixel(decided, frame)[:, None]
        shape = (frame.images, frame.channels, frame.height, frame.width)
        mixed = np.where(wide, spatial.reshape(shape), temporal.reshape(shape)).reshape(-1)
        np.testing.assert_array_equal(blocks.unblend(mixed, reference, decided, frame), pixels)
        np.testing.assert_array_equal(blocks.unblend_plainly(mixed, reference, decided, frame), pixels)


def test_compiled_blocks_refuse_sizes_that_do_not_fit():
    module = blocks._load_module()
    if module is None:
        pytest.skip("no compiler")
    data, out = np.zeros(12, np.uint8), np.zeros(12, np.uint8)
    with pytest.raises(ValueError, match="do not fit"):
        module.blend(data.copy(), data, out, 1, 3, 2, 2)  # one choice, not twelve
    with pytest.raises(ValueError, match="do not fit"):
        module.unblend(data, data[:6], np.zeros(1, np.uint8), out, 1, 3, 2, 2, True)
