"""Attention of steps and prompts, compared with softmax in float64, and bit by bit with itself in other batches."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gen.attention.plan import Plan, whole
from gen.attention.prompts import BLOCK, attend_blocks, attend_groups, whole_blocks
from gen.attention.steps import attend_rows
from gen.models.transformers.exactness import attention_agrees

HIDDEN = torch.finfo(torch.float32).min


@dataclass
class Case:
    """Keys and values of rows that have `lengths` columns, and the queries of their last `tokens` tokens."""

    query: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor
    lengths: list[int]

    def rows(self, rows: list[int]) -> "Case":
        query, keys, values, mask = (tensor[rows] for tensor in (self.query, self.keys, self.values, self.mask))
        return Case(query, keys, values, mask, [self.lengths[row] for row in rows])


def case(seed: int, tokens: int = 1, dtype: torch.dtype = torch.float32) -> Case:
    drawn = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=drawn))

    key_heads, groups, width = number(1, 4), number(1, 4), (16, 64, 80)[number(0, 3)]
    lengths = [number(tokens, (40, 400, 2400)[number(0, 3)]) for _ in range(number(1, 9))]
    view = -(-max(lengths) // 128) * 128
    window = number(1, view) if number(0, 2) else view
    query = torch.randn((len(lengths), key_heads * groups, tokens, width), generator=drawn)
    keys, values = (torch.randn((len(lengths), key_heads, view, width), generator=drawn) for _ in range(2))
    own = torch.tensor(lengths)[:, None] - tokens + torch.arange(tokens)
    columns = torch.arange(view)
    seen = (columns <= own[..., None]) & (columns > own[..., None] - window)
    mask = torch.where(seen, 0.0, HIDDEN).unsqueeze(1)
    return Case(query.to(dtype), keys.to(dtype), values.to(dtype), mask.to(dtype), lengths)


def expected(given: Case) -> Tensor:
    """The result in float64, with a copy of the keys for every query head."""
    groups = given.query.shape[1] // given.keys.shape[1]
    keys, values = (each.double().repeat_interleave(groups, 1) for each in (given.keys, given.values))
    weights = (given.query.double() @ keys.mT * given.query.shape[-1] ** -0.5 + given.mask.double()).softmax(-1)
    made: Tensor = (weights @ values).transpose(1, 2)
    return made


def found(given: Case, call: int = 0) -> Tensor:
    plan = Plan()
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("gen.attention.plan._CALL", call)
        plan.look(given.lengths, given.keys[:, :1, :, :1])
    return attend_rows(given.query, given.keys, given.values, given.mask, plan, None)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("tokens", "cached"), [(1, 0), (2, 2**30), (5, 2**30), (5, 0)])
def test_a_step_finds_what_softmax_finds(seed: int, tokens: int, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen.attention.steps._CACHED", cached)
    given = case(seed, tokens)
    torch.testing.assert_close(found(given).double(), expected(given), atol=2e-6, rtol=2e-5)
    whole_view = attend_rows(given.query, given.keys, given.values, given.mask, Plan(), None)
    torch.testing.assert_close(whole_view.double(), expected(given), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_of_several_tokens_gets_the_bits_of_a_step_of_one(
    seed: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen.attention.steps._CACHED", 2**30)
    given = case(seed, 5, dtype)
    _, heads, _, width = given.query.shape
    needs_kernels_that_agree(heads, given.keys.shape[1], width, dtype)
    together = attend_rows(given.query, given.keys, given.values, given.mask, Plan(), None)
    for token in range(5):
        query, mask = given.query[:, :, token : token + 1], given.mask[:, :, token : token + 1]
        alone = attend_rows(query, given.keys, given.values, mask, Plan(), None)
        assert torch.equal(together[:, token], alone[:, 0])


def test_a_row_does_not_read_columns_beyond_its_own_pieces() -> None:
    given = case(3)
    for row, length in enumerate(given.lengths):
        given.keys[row, :, whole(length) :] = torch.nan
        given.values[row, :, whole(length) :] = torch.nan
    assert min(given.lengths) < 200 < max(given.lengths)
    assert found(given).isfinite().all()
    assert not found(given, call=2**30).isfinite().all()  # in one call all rows read as many columns as the longest


def test_a_row_with_memory_of_its_own_that_looks_at_nothing_changes_nothing_beside_it() -> None:
    given, plan = case(3), Plan()
    nothing = torch.full_like(given.keys[:1], torch.nan)
    plan.look([0, *given.lengths[1:]], given.keys[:, :1, :, :1])
    assert plan.runs[0][:2] == (0, len(given.lengths))
    made = attend_rows(given.query, given.keys, given.values, given.mask, plan, None, ((0, nothing, nothing),))
    torch.testing.assert_close(made[1:].double(), expected(given)[1:], atol=2e-6, rtol=2e-5)


def needs_kernels_that_agree(heads: int, key_heads: int, width: int, dtype: torch.dtype) -> None:
    if not attention_agrees(heads, key_heads, width, dtype):
        pytest.skip("on this machine torch's attention gives a row other bits beside others")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(15))
def test_a_row_finds_the_same_bits_alone_and_in_any_batch(seed: int, dtype: torch.dtype) -> None:
    given = case(seed, dtype=dtype)
    needs_kernels_that_agree(given.query.shape[1], given.keys.shape[1], given.query.shape[3], dtype)
    together, all_of_one_view = found(given), found(given, call=2**30)
    for row in range(len(given.lengths)):
        alone = found(given.rows([row]))
        assert torch.equal(together[[row]], alone)
        assert torch.equal(all_of_one_view[[row]], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(15))
def test_a_prompt_finds_what_softmax_finds_and_the_same_bits_at_any_cut(seed: int, dtype: torch.dtype) -> None:
    needs_kernels_that_agree(6, 2, 32, dtype)
    drawn = torch.Generator().manual_seed(seed)
    tokens = int(torch.randint(2, 300, (), generator=drawn))
    view = whole_blocks(tokens)
    query, keys, values = (torch.randn((2, heads, view, 32), generator=drawn).to(dtype) for heads in (6, 2, 2))
    own = torch.arange(view)
    seen = (own <= own[:, None]) & (own > own[:, None] - (40 if seed % 2 else view))
    mask = torch.where(seen, 0.0, HIDDEN).expand(2, 1, -1, -1).to(dtype)
    at_once = attend_blocks(query[:, :, :tokens], keys, values, mask[:, :, :tokens], 0, None)
    if dtype == torch.float32:
        wanted = expected(Case(query, keys, values, mask, []))[:, :tokens]
        torch.testing.assert_close(at_once.double(), wanted, atol=2e-6, rtol=2e-5)
        in_one = attend_groups(query, keys, values, mask, None)[:, :tokens]
        torch.testing.assert_close(in_one.double(), wanted, atol=2e-6, rtol=2e-5)
    cut = int(torch.randint(1, tokens, (), generator=drawn))
    for start, end in ((0, cut), (cut, tokens)):
        there = whole(end)  # later columns and other rows do not matter
        part = attend_blocks(
            query[1:, :, start:end],
            keys[1:, :, :there],
            values[1:, :, :there],
            mask[1:, :, start:end, :there],
            start,
            None,
        )
        assert torch.equal(part, at_once[1:, start:end])


def test_padding_for_which_there_is_no_column_finds_nothing() -> None:
    query, keys = torch.randn((1, 2, 32, 16)), torch.randn((1, 2, BLOCK, 16))
    padded = attend_blocks(query, keys, keys, torch.zeros((1, 1, 32, BLOCK)), BLOCK - 16, None)
    assert padded[:, :16].abs().min() > 0 and not padded[:, 16:].any()
