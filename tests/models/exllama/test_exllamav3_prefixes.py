"""exllamav3's pages that rows share, and copies that are kept: its Python code with a stub of its kernels."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import gen
from gen.models.exllama.exllamav3_model import PAGE, Exllamav3Model, Exllamav3Rows
from tests.helpers.waits import waits
from tests.models.exllama.checkpoints import save
from tests.models.exllama.oracle import NEAR, Plain, generated, tokens_of

GREEDY, BEAMS = gen.samplers.greedy(), gen.samplers.beam_search(3)
pytestmark = pytest.mark.usefixtures("gpus")
LONG = [(number * 37) % 250 for number in range(700)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exllamav3")
    save(folder, max_position_embeddings=1024)
    return folder


def load(folder: Path, **options: Any) -> Exllamav3Model:
    return gen.from_exllamav3(folder, device="cuda:1", **options)


def next_of(rows: Exllamav3Rows, token: int) -> torch.Tensor:
    return rows.step(torch.full((rows.count, 1), token, device="cuda:1"), rows.length)


@pytest.mark.parametrize("options", [{}, {"cache_bits": 6}])
@torch.inference_mode()
def test_rows_that_share_pages_go_on_as_rows_that_have_copies(options: dict[str, Any], folder: Path) -> None:
    model = load(folder, **options)
    shared, copied = model.new_rows(4, 800), model.new_rows(4, 800)
    for rows in (shared, copied):
        rows.prefill(slice(0, 1), [LONG])
    shared.share(0, slice(1, 4), 600)
    copied.copy(0, slice(1, 4), 600)
    for row in (1, 2, 3):
        assert shared._table[row, :2].tolist() == shared._table[0, :2].tolist()
    assert len(set(shared._table.flatten().tolist())) == 4 * 4 - 3 * 2
    pieces = [LONG[600:650], [5], LONG[100:120]]
    for rows in (shared, copied):
        rows.prefill(slice(1, 4), pieces, [600] * 3, [0])
    assert torch.equal(next_of(shared, 7), next_of(copied, 7))
    for rows in (shared, copied):  # the first row gets another text, the last one the beginning of a third text
        rows.prefill(slice(0, 1), [LONG[300:]])
        rows.prefill(slice(3, 4), [LONG[50:90]], [300])
    assert torch.equal(next_of(shared, 9), next_of(copied, 9))
    for rows in (shared, copied):
        (rows.share if rows is shared else rows.copy)(2, slice(3, 4), 600)
        rows.reorder(torch.tensor([0, 1, 3, 3], device="cuda:1"), 700)
    assert torch.equal(next_of(shared, 3), next_of(copied, 3))


@pytest.mark.parametrize("options", [{}, {"cache_bits": 6}])
@torch.inference_mode()
def test_what_is_kept_of_a_row_is_gone_on_from_and_places_are_read(options: dict[str, Any], folder: Path) -> None:
    model = load(folder, **options)
    rows, other = model.new_rows(2, 800), model.new_rows(3, 800)
    whole = rows.prefill(slice(0, 1), [LONG], [0], [299, 650, 699, 700])
    columns = rows.save(0, 0, 600)
    assert {tensor.shape[0] for tensor in columns.values()} == {600}
    rows.prefill(slice(0, 1), [[1, 2, 3]])
    other.load(2, 0, {name: tensor[:290] for name, tensor in columns.items()})
    other.load(2, 290, {name: tensor[290:] for name, tensor in columns.items()})
    found = other.prefill(slice(2, 3), [LONG[600:]], [600], [50, 99])
    assert (found[0] - whole[0, 1:3]).abs().max() < NEAR and torch.equal(whole[0, 2], whole[0, 3])
    short = model.new_rows(1, 400).prefill(slice(0, 1), [LONG[:300]])[0]
    assert (whole[0, 0] - short).abs().max() < NEAR


def test_calls_engines_and_prefixes_read_once_what_is_alike(folder: Path) -> None:
    model, plain = load(folder), Plain(folder)
    prompts = [[*LONG[:600], number, 7] for number in (3, 4, 5)]

    def check(made: Any, cached: list[int]) -> None:
        assert [one.cached_tokens for one in made] == cached
        for prompt, one in zip(prompts, made, strict=True):
            plain.check_greedy(prompt, one.token_ids)

    check(generated(model, prompts, GREEDY), [0, 600, 600])
    beams = generated(model, prompts, BEAMS, 4)
    assert tokens_of(beams) == [tokens_of(generated(model, prompt, BEAMS, 4)) for prompt in prompts]
    pages = model.free_pages
    with gen.prefix(model, LONG[:500]) as kept:
        assert kept.bytes > 0 and model.free_pages == pages  # a prefix has memory of its own
        check(generated(model, prompts, GREEDY), [500] * 3)
        (few, many), _ = waits(partial(generated, model, prompts, GREEDY), 4, 8)
        assert few == many <= 2
    with gen.Engine(model, rows=2) as engine:
        streams = [engine.submit(prompts[0], sampler=GREEDY, max_new_tokens=12, eos_token_id=[]) for _ in range(3)]
        first, second, third = (stream.completion() for stream in streams)
        assert first.token_ids == second.token_ids == third.token_ids and third.cached_tokens >= 601
        norm = model.exl3_model.find_module("model.norm")
        norm.weight = torch.nn.Parameter(norm.weight.data.clone(), requires_grad=False)
        assert engine.submit(prompts[0], max_new_tokens=2).completion().cached_tokens == 0
    assert model.free_pages == pages == 8192 // PAGE


def test_texts_are_scored_from_one_context(folder: Path) -> None:
    model, plain = load(folder), Plain(folder)
    found = gen.score(model, LONG[:400], [[1, 2, 3], [9], LONG[400:420]])
    for score, tokens in zip(found, ([1, 2, 3], [9], LONG[400:420]), strict=True):
        logprobs = plain.logits(LONG[:400], tokens)[:-1, :259].log_softmax(-1)
        wanted = logprobs.gather(1, torch.tensor([tokens]).T).squeeze(1)
        assert (torch.tensor(score.logprobs) - wanted).abs().max() < NEAR
    made = generated(model, LONG[:300], GREEDY, 2, prompt_logprobs=1)
    assert len(made.prompt_logprobs) == 299
