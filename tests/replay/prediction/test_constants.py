"""Which uploads after a read are constants: steps are noted by hand."""

from __future__ import annotations

from typing import List

from edge_offload.replay.prediction.constants import ConstantUploads

PROMPT, TOKEN = 1, 2
INDEX = (b"\xff" * 8,)


def generated(constants: ConstantUploads, prompt: bytes, tokens: int) -> List[bool]:
    """Whether the prompt and each token's upload were taken for constants."""
    return [constants.note_step(PROMPT, (prompt,)), *(constants.note_step(TOKEN, INDEX) for _ in range(tokens))]


def test_what_is_the_same_for_each_token_is_a_constant_and_the_prompt_starts_an_inference() -> None:
    constants = ConstantUploads()
    for turn in range(3):
        generated(constants, bytes([turn]), 8)
    assert generated(constants, b"other", 8) == [False] + 8 * [True]


def test_a_prompt_that_never_varies_starts_an_inference_all_the_same() -> None:
    constants = ConstantUploads()
    for _ in range(12):
        generated(constants, b"ever the same", 8)
    assert generated(constants, b"ever the same", 8) == [False] + 8 * [True]


def test_a_program_with_one_upload_has_no_constants() -> None:
    constants = ConstantUploads()
    assert not any(constants.note_step(PROMPT, INDEX) for _ in range(600))


def test_of_two_uploads_that_never_vary_neither_is_a_constant() -> None:
    constants = ConstantUploads()
    assert not any(constants.note_step(signature, INDEX) for _ in range(300) for signature in (PROMPT, TOKEN))


def test_what_varies_or_is_long_is_no_constant() -> None:
    constants = ConstantUploads()
    for turn in range(20):
        constants.note_step(PROMPT, (bytes([turn]),))
        assert not any(constants.note_step(TOKEN, (bytes([place % 3]),)) for place in range(8))
    for turn in range(20):
        constants.note_step(PROMPT, (bytes([turn]),))
        assert not any(constants.note_step(TOKEN, (None,)) for _ in range(8))


def test_other_bytes_than_ever_begin_an_inference() -> None:
    constants = ConstantUploads()
    for turn in range(5):
        generated(constants, bytes([turn]), 8)
    assert not constants.note_step(TOKEN, (b"another",))


def test_a_constant_without_end_is_the_input_of_another_program() -> None:
    constants = ConstantUploads()
    for turn in range(5):
        generated(constants, bytes([turn]), 8)
    last = generated(constants, b"x", 200)
    assert last[16]
    assert not any(last[40:])
