"""Rows with memory of their own, compared with rows that all have as much room as the longest."""

from typing import Any

import pytest
import torch

import gen
from gen.models.transformers.rows import TransformersRows
from tests.helpers import byte_tokenizer, tiny_model
from virtual_gpus import no_host_sync, virtual_gpus

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9], [2, 7, 1, 8]]
LONG = [1 + number % 97 for number in range(150)]


def both(shape: str, **changes: Any) -> tuple[TransformersRows, TransformersRows]:
    """Rows that all have room for 256 tokens, and rows with room for 32 tokens, one of which gets more."""
    model: Any = gen.from_transformers(tiny_model(shape, max_position_embeddings=512, **changes), byte_tokenizer())
    assert model.parts_rows
    return model.new_rows(4, 256), model.new_rows(4, 32)


@pytest.mark.parametrize("shape", ["llama", "gpt2", "gemma3", "mistral"])
@torch.inference_mode()
def test_rows_with_memory_of_their_own_give_what_rows_of_one_length_give(shape: str) -> None:
    for rows in (pair := both(shape)):
        rows.prefill(slice(0, 4), PROMPTS)

    def same(call: Any) -> None:
        expected, found = (call(rows) for rows in pair)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)

    def steps(count: int, view: int) -> None:
        for token in range(3):
            ids = torch.arange(count).unsqueeze(1) + token
            for rows in pair:
                rows.look_at([])
            same(lambda rows: rows.step(ids, view))  # noqa: B023

    parted = pair[1]
    steps(4, 32)
    parted.lay_out(32, {2: 200})
    assert parted.length == 200
    same(lambda rows: rows.prefill(slice(2, 3), [LONG[:90]]))
    same(lambda rows: rows.prefill(slice(2, 3), [LONG[90:]], [90]))  # and the second part of the prompt
    steps(4, 192)
    for rows in pair:
        rows.look_at([12, 12, 157, 12])
    same(lambda rows: rows.step(torch.full((4, 1), 7), 192))
    parted.lay_out(64, {2: 200, 0: 224})
    for rows in pair:
        rows.copy(2, slice(0, 2), 40)  # into a row of each kind
    same(lambda rows: rows.prefill(slice(0, 2), [[4, 4, 9], [5]], [40, 40]))
    same(lambda rows: rows.prefill(slice(0, 3), [[8], [7, 7], [6]], [40, 41, 155], [0]))
    steps(3, 192)
    parted.grow(256)
    assert parted.length == 256
    steps(4, 192)


@torch.inference_mode()
def test_the_others_have_no_more_memory_and_go_on_past_their_end() -> None:
    _, rows = both("llama")
    rows.prefill(slice(0, 4), PROMPTS)
    before = sum(tensor.nbytes for _, tensor, _ in rows.parts())
    rows.lay_out(32, {1: 256})
    rows.prefill(slice(1, 2), [LONG])
    own = 8 * before / 4  # a row of 256 columns, where each has 32
    assert sum(tensor.nbytes for _, tensor, _ in rows.parts()) <= before + own
    for _ in range(40):  # farther than rows of finished texts go before they are freed
        assert rows.step(torch.zeros((4, 1), dtype=torch.int64), 224).isfinite().all()
    rows.lay_out(32, {})
    assert sum(tensor.nbytes for _, tensor, _ in rows.parts()) == before


def test_rows_that_transformers_attention_looks_at_lie_side_by_side() -> None:
    for hf_model in (tiny_model("llama", attn_implementation="eager"), tiny_model("bloom")):
        model: Any = gen.from_transformers(hf_model, byte_tokenizer())
        assert not model.parts_rows and not model.new_rows(1, 32).parts_rows


def test_a_step_on_cuda_waits_for_nothing_where_rows_have_memory_of_their_own() -> None:
    with virtual_gpus(1), torch.inference_mode():
        model: Any = gen.from_transformers(tiny_model().to("cuda:0"), byte_tokenizer())
        rows = model.new_rows(4, 32)
        rows.lay_out(32, {0: 128})
        rows.prefill(slice(0, 4), [LONG[:70], *PROMPTS[1:]])
        alone = model.new_rows(1, 128)
        alone.prefill(slice(0, 1), [LONG[:70]])
        token_ids = torch.full((4, 1), 5, device="cuda:0")
        with no_host_sync():
            found = rows.step(token_ids, 128)
        torch.testing.assert_close(found[:1], alone.step(token_ids[:1], 128))
