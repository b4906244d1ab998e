"""Layers with recurrent states: another row goes on from what one has read, steps look at each row's own columns."""

from typing import Any

import pytest
import torch

import gen
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.rows import TransformersRows
from tests.helpers import HYBRIDS, byte_tokenizer, tiny_model
from tests.helpers.noting import noted

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


@pytest.mark.parametrize("shape", HYBRIDS)
@torch.inference_mode()
def test_a_step_looks_at_each_rows_own_columns_whichever_layer_has_keys_first(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer(), probe=False)
    seen = noted(monkeypatch, "gen.models.transformers.attention", "attend_rows", lambda *given: given[4].runs)
    monkeypatch.setattr("gen.attention.plan._CALL", 0)
    logits = []
    for lengths in ([], [91, 4]):
        rows: Any = model.new_rows(2, 128)
        rows.prefill(slice(0, 1), [[1 + number % 97 for number in range(90)]])
        rows.prefill(slice(1, 2), [[5, 6, 7]])
        rows.look_at(lengths)
        logits.append(rows.step(torch.tensor([[8], [9]]), 128))
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)
    if model.attention is None:  # the model computes attention itself
        assert not seen
    else:
        half = len(seen) // 2
        assert seen[:half] == [()] * half and seen[half:] == [((0, 1, 96), (1, 2, 32))] * half and half
