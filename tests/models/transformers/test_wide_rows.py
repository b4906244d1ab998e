"""Steps that read several tokens of each row, compared with steps of one token each, in separate rows."""

import math

import pytest
import torch

import gen
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.rows import TransformersRows
from tests.helpers import byte_tokenizer, tiny_model

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21, 22]]


def rows_of(shape: str) -> TransformersRows:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    assert isinstance(model, TransformersModel)
    rows = model.new_rows(2, 64)
    assert isinstance(rows, TransformersRows) and rows.widest == 64
    rows.prefill(slice(0, 2), PROMPTS)
    return rows


@torch.inference_mode()
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("shape", ["llama", "gemma3", "mixtral", "opt", "deepseek_v3"])
def test_rows_go_on_by_what_counts_and_forget_the_rest(shape: str, apart: bool) -> None:
    wide, plain = rows_of(shape), rows_of(shape)
    if apart and wide.parts_rows:
        wide.lay_out(64, {1: 96})
    tokens = torch.tensor([[1, 2, 3, 4], [9, 8, 7, 6]])
    wrong = torch.randint(30, 90, (2, 4), generator=torch.Generator().manual_seed(0))
    counts = torch.tensor([1, 3])
    feed = torch.where(torch.arange(4) < counts.unsqueeze(1), tokens, wrong)
    logits = wide.verify(feed, 64)
    for row, count in enumerate(counts.tolist()):
        alone = rows_of(shape)
        for place in range(count):
            expected = alone.step(tokens[:, place : place + 1], 64)
            torch.testing.assert_close(logits[row, place], expected[row], rtol=1e-4, atol=1e-4)
    wide.commit(counts)
    plain.step(tokens[:, :1], 64)
    after = wide.step(torch.tensor([[2], [6]]), 64)
    expected = plain.step(torch.tensor([[2], [8]]), 64)
    torch.testing.assert_close(after[0], expected[0], rtol=1e-4, atol=1e-4)
    plain.step(torch.tensor([[3], [7]]), 64)
    expected = plain.step(torch.tensor([[4], [6]]), 64)
    torch.testing.assert_close(after[1], expected[1], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_what_is_forgotten_is_gone_though_it_was_no_number() -> None:
    rows = rows_of("llama")
    rows.verify(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), 64)
    for state in rows._states:
        for columns in state.columns.values():
            columns[0, :, 8:11], columns[1, :, 5:7] = math.nan, math.nan  # the rejected tokens' columns
    rows.commit(torch.tensor([1, 2]))
    assert rows.step(torch.tensor([[1], [1]]), 64).isfinite().all()
    assert rows.counter.squeeze(1).tolist() == [2, 3]
