"""Recurrent states that are copied out of a row: another row goes on from them just as the first one does."""

import pytest
import torch

import gen
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.rows import TransformersRows
from tests.helpers import HYBRIDS, byte_tokenizer, tiny_model

TOKENS = [(number * 37) % 250 for number in range(40)]


@pytest.mark.parametrize("shape", HYBRIDS)
def test_another_row_goes_on_from_what_one_has_read(shape: str) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    assert isinstance(model, TransformersModel)
    one, other = model.new_rows(2, 60), model.new_rows(3, 60)
    assert isinstance(one, TransformersRows) and isinstance(other, TransformersRows) and one.recurrent
    whole = one.prefill(slice(0, 1), [TOKENS])
    one.prefill(slice(1, 2), [TOKENS[:25]])
    other.load(2, 0, one.save(1, 0, 25))
    other.load_states(2, one.save_states(1))
    one.prefill(slice(1, 2), [TOKENS[:2]])  # this does not change the copy
    logits = other.prefill(slice(2, 3), [TOKENS[25:]], [25])
    torch.testing.assert_close(logits, whole, atol=2e-4, rtol=1e-4)
    for token in (7, 3, 9):
        wanted = one.step(torch.tensor([[token]]), 60)
        found = other.step(torch.tensor([[token]] * 3), 60)[2:]
        torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)
    assert (one.going_on_costs() == 1) == (shape not in ("jamba", "zamba"))
