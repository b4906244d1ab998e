"""Users' logits processors: what they get, whose logits they change, and what they may return."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    EtaLogitsWarper,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TypicalLogitsWarper,
)
from transformers.generation.logits_process import TopHLogitsWarper, WatermarkLogitsProcessor

import gen
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.samplers import MultinomialSampler, Sampler, beam_search, greedy, multinomial
from gen.stages.user_processors import UserProcessors
from tests.helpers import ScriptedModel, by_transformers, byte_tokenizer, tiny_model
from tests.helpers.demo import short_demo
from tests.loop.calls import new_jobs, run_in_rows
from virtual_gpus import no_host_sync, virtual_gpus

PROMPTS = ["a rose is a rose", "x", "to be or not to be", "ab", "once upon a time, in a land far away"]


@pytest.fixture(scope="module")
def model() -> Any:
    hf_model = tiny_model(vocab_size=259, tie_word_embeddings=True)
    with torch.no_grad():
        hf_model.get_input_embeddings().weight *= 0.5
    return gen.from_transformers(hf_model, byte_tokenizer())


class Strict:
    """Transformers' repetition penalty, for one row at a time without padding; refuses anything else."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self._penalty = RepetitionPenaltyLogitsProcessor(1.7)

    def __call__(self, token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        assert token_ids.dtype == lengths.dtype == torch.int64
        assert len(token_ids) == len(lengths) == len(logits)
        rows = []
        for tokens, length, row in zip(token_ids, lengths.tolist(), logits, strict=True):
            assert 1 <= length <= len(tokens)
            assert (tokens[:length] >= 0).all()
            assert (tokens[length:] == -1).all()
            self.seen.append(tokens[:length].tolist())
            rows.append(self._penalty(tokens[None, :length], row[None])[0])
        return torch.stack(rows)


def test_texts_equal_transformers_processor_in_any_number_of_rows(model: Any) -> None:
    wanted = [by_transformers(model.hf_model, one.encode(), 24, [258], repetition_penalty=1.7) for one in PROMPTS]
    for rows in (1, 3, 8):
        own = Strict()
        groups = run_in_rows(model, PROMPTS, rows, logits_processors=[own], eos_token_id=[258], max_new_tokens=24)
        assert [completion.token_ids for [completion] in groups] == wanted
        for prompt, text in zip(PROMPTS, wanted, strict=True):  # each text was shown as it grew
            assert all([*prompt.encode(), *text[:end]] in own.seen for end in range(24))


class OfAnyCount(LogitsProcessor):  # type: ignore[misc]
    """A processor that is recognised by its class, since its signature does not tell."""

    def __call__(self, *given: Tensor, **more: Any) -> Tensor:
        input_ids, scores = given
        assert len(input_ids) == len(scores) == 1
        return scores.index_fill(1, input_ids[0, -2:], -9.0)


def ban_last(input_ids: Tensor, scores: Tensor, strength: float = 3.0) -> Tensor:
    """A user's function that changes its arguments in place."""
    assert input_ids.shape[0] == 1
    assert scores.dtype == torch.float32
    scores[0, input_ids[0, -1]] -= strength
    return scores


OF_ONE_ROW = {
    "repetition": lambda: RepetitionPenaltyLogitsProcessor(1.7),
    "n-grams": lambda: NoRepeatNGramLogitsProcessor(2),
    "bad words": lambda: NoBadWordsLogitsProcessor([[97], [32, 98]], eos_token_id=[258]),
    "bias": lambda: SequenceBiasLogitsProcessor([[[101], 4.0], [[101, 101], -30.0]]),
    "last": lambda: ForcedEOSTokenLogitsProcessor(25, 258),
    "typical": lambda: TypicalLogitsWarper(0.3),
    "prefix": lambda: PrefixConstrainedLogitsProcessor(lambda row, ids: [int(ids[-1]) ^ 1, int(ids[0]), 7], 1),
    "NaN": InfNanRemoveLogitsProcessor,
    "by class": OfAnyCount,
    "by signature": lambda: ban_last,
}


@pytest.mark.parametrize("make", OF_ONE_ROW.values(), ids=OF_ONE_ROW)
def test_processors_of_transformers_see_a_row_at_a_time_and_give_its_texts(model: Any, make: Any) -> None:
    """The oracle is transformers' generate for each prompt alone."""
    wanted = [
        by_transformers(model.hf_model, one.encode(), 14, [258], logits_processor=LogitsProcessorList([make()]))
        for one in PROMPTS
    ]
    for rows in (2, 8):
        groups = run_in_rows(model, PROMPTS, rows, logits_processors=[make()], eos_token_id=[258], max_new_tokens=14)
        assert [completion.token_ids for [completion] in groups] == wanted


WAITING = {
    "TopH": lambda: TopHLogitsWarper(0.5),
    "Eta": lambda: EtaLogitsWarper(0.001, device="cuda:1"),
    "PrefixConstrained": lambda: PrefixConstrainedLogitsProcessor(lambda row, ids: [7], 1),
    "Watermark": lambda: WatermarkLogitsProcessor(2000, "cuda:1"),
}


def test_the_guide_names_the_processors_that_read_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each processor makes one text of 12 tokens; EncoderNoRepeatNGram needs an encoder's tokens, and reads them.

    TopH reads because distributions check their arguments, which torch.compile turns off for the whole process.
    """
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    guide = (Path(__file__).parents[2] / "docs/guides/sampler.md").read_text(encoding="utf-8")
    free = {name: OF_ONE_ROW[name] for name in ("repetition", "n-grams", "bad words", "bias", "typical", "NaN")}
    with virtual_gpus(2):
        model = short_demo(1, device="cuda:1")
        for name, make in (free | WAITING).items():
            with no_host_sync(count=True) as report:
                gen.generate(model, "Once", seed=1, max_new_tokens=12, eos_token_id=[], logits_processors=[make()])
            assert (report.count > 10) == (name in WAITING), name
            assert (f"`{name}Logits" in guide) == (name in WAITING)


@pytest.mark.parametrize("rows", [1, 3])
def test_both_kinds_stand_in_one_list(model: Any, rows: int) -> None:
    mixed = [ban_last, Strict(), RepetitionPenaltyLogitsProcessor(1.3)]
    alone = [gen.generate(model, one, seed=3, max_new_tokens=20, logits_processors=mixed) for one in PROMPTS]
    groups = run_in_rows(
        model, PROMPTS, rows, sampler=multinomial(), logits_processors=mixed, seed=3, max_new_tokens=20
    )
    assert [completion.text for [completion] in groups] == alone


def test_a_free_row_that_was_longer_is_shown_as_long_as_the_others(model: Any) -> None:
    own, prompts = Strict(), ["x" * 60, "ab", "cd", "ef"]
    run_in_rows(model, prompts, 4, logits_processors=[own], eos_token_id=[258], max_new_tokens=[2, 9, 9, 9])
    assert {len(tokens) for tokens in own.seen if tokens[0] == ord("x")} == {60, 61, 32}


def test_processors_of_one_row_are_called_for_no_free_row_after_a_move_or_a_call_that_broke_off(model: Any) -> None:
    seen = []

    def note(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen.append(input_ids[0].tolist())
        return scores

    [job] = new_jobs(model, ["x"], logits_processors=[note])
    tokens = torch.arange(4).unsqueeze(1)
    stage = UserProcessors(4, torch.device("cpu"))

    def called() -> list[list[int]]:
        stage.prepare(slice(0, 4))
        stage(torch.zeros(4, 259), slice(0, 4), tokens, torch.ones(4, 1), torch.ones(4, 1))
        return [seen.pop(0)[:1] for _ in range(len(seen))]

    stage.admit(slice(0, 4), [job.request] * 4, tokens.tolist())
    stage.retain_only({0, 3}, [job.request])
    assert called() == [[0], [3]]
    tokens[1] = 3
    stage.move(3, 1)
    assert called() == [[0], [3]]
    stage.begin()
    stage.admit(slice(2, 3), [job.request], [[2]])
    assert called() == [[2]]


class Own(MultinomialSampler):
    """A sampler of the user's."""


@pytest.mark.parametrize("sampler", [multinomial(3), beam_search(3), greedy(repetition_penalty=1.2), Own()])
def test_every_search_shows_each_row_its_own_tokens(model: Any, sampler: Sampler) -> None:
    own = Strict()
    groups = run_in_rows(
        model, PROMPTS, 4, sampler=sampler, seed=3, logits_processors=[own], eos_token_id=[258], max_new_tokens=30
    )
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            assert [*prompt.encode(), *completion.token_ids[:29]] in own.seen


def push(token_id: int) -> Any:
    """A processor that leaves only one token."""

    def pushed(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf).index_fill(1, torch.tensor([token_id]), 0.0)

    return pushed


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_processor_changes_the_rows_of_its_own_request_alone(rows: int) -> None:
    model = ScriptedModel(lambda prompt: [*prompt.encode()])
    pushes = {letter: push(ord(letter)) for letter in "xyz"}
    asked = ["", "x", "", "y", "yx", "xy", "z", ""]
    jobs = [
        job
        for number, names in enumerate(asked)
        for job in new_jobs(
            model, [f"plain{number}"], logits_processors=[pushes[name] for name in names], max_new_tokens=6
        )
    ]
    run_all(model, jobs, Options(rows=rows))
    expected = [f"plain{number}" if not names else names[-1] * 6 for number, names in enumerate(asked)]
    assert [job.completions()[0].text for job in jobs] == expected


def spoil(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    """Changes all its arguments in place, and leaves only "z"."""
    token_ids.fill_(7)
    lengths.fill_(1)
    logits.fill_(-torch.inf)
    logits[:, ord("z")] = 0.0
    return logits


@pytest.mark.parametrize("replay", [True, False])
def test_what_a_processor_changes_in_place_no_other_row_sees(model: Any, replay: bool) -> None:
    """Other rows' texts are those of calls without it, with or without processors and penalties of their own."""
    settings: list[dict[str, Any]] = [
        {"sampler": multinomial(), "seed": 1},
        {"sampler": greedy(repetition_penalty=1.7)},
        {"sampler": multinomial(frequency_penalty=1.5), "seed": 2, "logits_processors": [Strict()]},
    ]
    common = {"eos_token_id": [258], "max_new_tokens": 30}
    generate: Any = gen.generate
    alone = [generate(model, prompt, **own, **common) for own, prompt in zip(settings, PROMPTS, strict=False)]
    jobs = [
        job
        for own, prompt in zip(settings, PROMPTS, strict=False)
        for job in (
            *new_jobs(model, [prompt], **own, **common),
            *new_jobs(model, [prompt], logits_processors=[spoil], **common),
        )
    ]
    run_all(model, jobs, Options(rows=8, replay=replay))
    texts = [job.completions()[0].text for job in jobs]
    assert texts == [text for one in alone for text in (one, "z" * 30)]


def test_what_a_processor_changes_in_place_stays_as_it_was_for_the_next_step(model: Any) -> None:
    lengths_seen: list[list[int]] = []
    tokens_seen: list[list[int]] = []

    def note(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        lengths_seen.append(lengths.tolist())
        tokens_seen.append(token_ids[0, : int(lengths[0])].tolist())
        return logits

    gen.generate(model, "abc", sampler=greedy(), logits_processors=[note, spoil], max_new_tokens=3)
    assert lengths_seen == [[3], [4], [5]]
    assert tokens_seen == [[*b"abc"], [*b"abcz"], [*b"abczz"]]


def test_processors_run_in_their_order_after_penalties_and_before_the_sampler(model: Any) -> None:
    calls: list[str] = []

    def first(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        calls.append("first")
        assert logits[0, ord("q")] == -torch.inf
        return logits.index_fill(1, torch.tensor([ord("p")]), 1e9)

    def second(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        calls.append("second")
        assert logits[0, ord("p")] == 1e9
        return logits

    banned = greedy(logit_bias={ord("q"): float("-inf")})
    text = gen.generate(model, "x", sampler=banned, logits_processors=[first, second, second], max_new_tokens=3)
    assert text == "ppp"
    assert calls == ["first", "second", "second"] * 3


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda logits: None, r"must return logits \([12], 259\) on cpu, got a NoneType"),
        (lambda logits: logits[:, :-1], r"got \([12], 258\) on cpu"),
        (lambda logits: logits[0], r"got \(259,\) on cpu"),
        (lambda logits: logits.to("meta"), r"got \([12], 259\) on meta"),
        (lambda logits: logits.numpy(), "got a ndarray"),
        (lambda logits: logits.long(), r"must return floating logits, got \([12], 259\) of torch.int64"),
    ],
)
def test_what_is_no_logits_is_refused_and_says_what_came(made: Any, message: str) -> None:
    for prompts in ("x", ["x", "y"]):
        with pytest.raises(gen.ArgumentError, match=message):
            gen.generate(ScriptedModel("hello"), prompts, logits_processors=[lambda ids, lengths, logits: made(logits)])
