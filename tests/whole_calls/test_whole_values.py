"""Texts under a constraint are always whole, end where nothing can follow, and are the same everywhere."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import pytest
import torch
from torch import Tensor

import gen
from gen.errors import IncompleteError, SamplingError
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.samplers import Sampler, beam_search, greedy, multinomial
from gen.samplers.base import Sampled
from tests.constraints.samples import PATTERNS, SCHEMAS
from tests.constraints.vocabularies import spelled, wordy_tokenizer
from tests.helpers import EOS as OF_BYTES
from tests.helpers import ScriptedModel, byte_tokenizer, spaced_tokenizer, tiny_model
from tests.helpers.waits import waits
from tests.loop.calls import check_resumed, new_jobs
from tests.virtual_gpus.whole_programs.test_transformers import split
from virtual_gpus import virtual_gpus

TOKENS = spelled()
EOS, PAD = len(TOKENS) - 4, len(TOKENS) - 3
PROMPTS = ["Ada", "x", "hello there, how are you", "12"]
SAMPLERS: dict[str, Sampler] = {
    "greedy": greedy(),
    "multinomial": multinomial(),
    "filtered": multinomial(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
    "penalised": multinomial(repetition_penalty=1.3, presence_penalty=0.2, no_repeat_ngram_size=9),
    "several": multinomial(samples=3),
    "beams": beam_search(3),
}
TYPES = [
    gen.regex(r"[a-z]{2,40}"),
    gen.json_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}),
    gen.regex(r"\d{3}-\d{4}"),
    None,
    gen.json_schema({"type": "array", "items": {"type": "boolean"}, "maxItems": 9}),
    gen.regex("(é|日本|😀){2,30}"),
]


def new_model(device: str = "cpu", *, vocab_size: int = len(TOKENS), eos: int | None = EOS, seed: int = 0) -> Any:
    return gen.from_transformers(
        tiny_model(vocab_size=vocab_size, bos_token_id=None, eos_token_id=eos, seed=seed).to(device), wordy_tokenizer()
    )


@pytest.fixture(scope="module")
def model() -> Any:
    return new_model()


@pytest.fixture(scope="module")
def endless() -> Any:
    """A model without eos."""
    return new_model(eos=None)


def valid(kind: Any, text: str) -> bool:
    """Whether Python's re, or jsonschema, accepts a text."""
    if isinstance(kind, str):
        return re.fullmatch(kind, text) is not None
    validator(json.dumps(kind)).validate(json.loads(text))
    return True


@cache
def validator(schema: str) -> Any:
    """jsonschema's own judge of a schema."""
    kind = json.loads(schema)
    judge: Any = jsonschema.validators.validator_for(kind)
    judge.check_schema(kind)
    return judge(kind, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("eos", [EOS, None])
def test_with_random_weights_every_text_is_valid_from_the_least_limit_upwards(eos: int | None) -> None:
    own = new_model(eos=eos)
    kinds = [*PATTERNS, *SCHEMAS][:: 1 if eos else 2]
    types = [gen.regex(kind) if isinstance(kind, str) else gen.json_schema(kind) for kind in kinds]
    least = [gen.compile(own, one).least_tokens or 0 for one in types]
    for more in (0, 4):
        limits = [one + more for one in least]
        made: Any = gen.generate(
            own,
            ["Ada"] * len(kinds),
            types,
            sampler=multinomial(),
            seed=more,
            max_new_tokens=limits,
            shorten=True,
            details=True,
        )
        for kind, limit, one in zip(kinds, limits, made, strict=True):
            assert valid(kind, one.text), (kind, one)
            assert len(one.token_ids) <= limit
            assert b"".join(TOKENS[token_id] for token_id in one.token_ids).decode() == one.text
            assert one.finish_reason in ("eos", "length")


def test_with_as_much_room_as_the_context_has_a_text_is_whole() -> None:
    scripted = ScriptedModel("123456789abc", context_length=7)
    assert gen.generate(scripted, "x", gen.regex(r"\d{3,9}"), shorten=True) == "123456"
    with pytest.raises(SamplingError):  # the script goes on with "a", where only "b" may follow
        gen.generate(scripted, "x", gen.regex(r"\d{3}b"))


def new_texts(own: Any, sampler: Sampler, order: list[int], **arguments: Any) -> Any:
    prompts = [PROMPTS[number % len(PROMPTS)] for number in order]
    types = [TYPES[number % len(TYPES)] for number in order]
    arguments |= {"seed": [number + 3 for number in order], "max_new_tokens": 10, "shorten": True, "details": True}
    return gen.generate(own, prompts, types, sampler=sampler, **arguments)


def shown(made: Any) -> Any:
    if isinstance(made, list):
        return [shown(one) for one in made]
    return made.text, made.value, made.token_ids, made.finish_reason, made.engine


@pytest.mark.parametrize("name", SAMPLERS)
def test_texts_are_the_same_alone_batched_reversed_refilled_streamed_and_on_a_gpu(model: Any, name: str) -> None:
    sampler, order = SAMPLERS[name], [*range(len(TYPES))]
    alone = [shown(new_texts(model, sampler, [number])[0]) for number in order]
    assert shown(new_texts(model, sampler, order)) == alone
    assert shown(new_texts(model, sampler, order[::-1])) == alone[::-1]
    assert shown(new_texts(model, sampler, order, max_batch_tokens=150)) == alone  # few rows, used again
    assert shown(new_texts(model, sampler, order, replay=False)) == alone
    with virtual_gpus(2):
        assert shown(new_texts(new_model("cuda:1"), sampler, order)) == alone
    if name in ("greedy", "multinomial"):
        for number in order:
            stream = gen.stream(
                model,
                PROMPTS[number % len(PROMPTS)],
                TYPES[number % len(TYPES)],
                sampler=sampler,
                seed=number + 3,
                max_new_tokens=10,
                shorten=True,
            )
            pieces = [*stream]
            assert "".join(pieces) == alone[number][0]
            assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in alone[number][0]
            assert shown(stream.completion()) == alone[number]


def test_steps_are_recorded_while_rows_come_and_go() -> None:
    own = new_model()
    prompts = [f"{prompt} {number}" for number in range(5) for prompt in PROMPTS]
    types = [gen.regex(f"[a-{letter}]{{25,30}}") for letter in "ceghjkmnoqrstuvwxyzz"]
    jobs = new_jobs(own, prompts, types, seed=4, max_new_tokens=30, sampler=multinomial())
    run_all(own, jobs, Options(rows=4))
    leased: Any = own.idle.take()
    assert leased.recordings
    assert all(
        re.fullmatch(f"[a-{letter}]{{25,30}}", job.completions()[0].text)
        for letter, job in zip("ceghjkmnoqrstuvwxyzz", jobs, strict=True)
    )


def test_a_text_that_begins_anew_in_other_rows_goes_on_where_it_was(model: Any) -> None:
    kind = gen.json_schema(SCHEMAS[25])
    check_resumed(model, kind, 3, sampler=multinomial(), seed=7, max_new_tokens=30, shorten=True)


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize("name", SAMPLERS)
def test_on_a_gpu_the_host_does_not_wait_for_a_token(name: str) -> None:
    kind = gen.regex("[a-z ]*")
    arguments: dict[str, Any] = {"sampler": SAMPLERS[name], "seed": 1, "stop": "zz", "shorten": True}
    with virtual_gpus(2):
        own = new_model("cuda:1", eos=None)
        gen.compile(own, kind)
        counts, _ = waits(lambda most: gen.generate(own, PROMPTS, kind, max_new_tokens=most, **arguments), 2, 2, 6)
    assert counts[1] == counts[2] <= 2
    assert counts[0] <= counts[1] + 1  # the constraint is placed at the first call


def test_a_text_ends_where_nothing_can_follow(model: Any, endless: Any) -> None:
    for own in (model, endless):
        made = gen.generate(own, PROMPTS, gen.regex("[ab]{3}"), seed=1, details=True)
        assert [one.finish_reason for one in made] == ["eos"] * 4
        assert all(re.fullmatch("[ab]{3}", one.text) and one.value == one.text for one in made)
    scripted = ScriptedModel("ab!")
    assert gen.generate(scripted, "x", gen.regex("ab")) == "ab"
    assert scripted.steps <= 3


def test_without_eos_a_text_that_may_always_go_on_ends_with_its_tokens(endless: Any) -> None:
    made = gen.generate(endless, PROMPTS, gen.regex("[a-z]+"), seed=1, max_new_tokens=9, shorten=True, details=True)
    assert [(len(one.token_ids), one.finish_reason) for one in made] == [(9, "length")] * 4


def test_without_eos_a_text_ends_where_what_may_follow_would_not_fit(endless: Any) -> None:
    arguments: dict[str, Any] = {"seed": 1, "max_new_tokens": 9, "shorten": True, "details": True}
    made = gen.generate(endless, PROMPTS, gen.regex("x(y{50})?"), **arguments)
    assert [(one.text, one.finish_reason) for one in made] == [("x", "length")] * 4


def test_a_text_that_can_only_be_empty_takes_no_step() -> None:
    scripted = ScriptedModel("a")
    made = gen.generate(scripted, ["x", "y"], gen.regex(""), details=True)
    assert [(one.text, one.token_ids, one.finish_reason) for one in made] == [("", [], "eos")] * 2
    beams = gen.generate(scripted, "x", gen.regex(""), sampler=beam_search(3), num_return_sequences=3)
    assert beams == [""]
    assert gen.generate(scripted, "x", gen.regex("a*"), max_new_tokens=0, shorten=True) == ""
    assert scripted.steps == 0


def test_each_rows_own_eos_ends_it_where_its_text_is_whole(model: Any) -> None:
    def favour(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        return logits.index_fill(1, torch.tensor([EOS, PAD], device=logits.device), 50.0)

    arguments: dict[str, Any] = {"logits_processors": [favour], "details": True, "max_new_tokens": 12, "seed": 0}
    for eos in ([EOS], [PAD], [EOS, PAD]):
        made = gen.generate(model, PROMPTS, gen.regex("[ab]{4,}"), eos_token_id=eos, **arguments)
        assert [one.finish_reason for one in made] == ["eos"] * 4
        assert all(re.fullmatch("[ab]{4,}", one.text) and len(one.text) < 12 for one in made)
    made = gen.generate(model, PROMPTS, gen.regex("[ab]{4,}"), eos_token_id=[], shorten=True, **arguments)
    assert [one.finish_reason for one in made] == ["length"] * 4


def test_logits_wider_than_the_tokenizer_are_no_tokens() -> None:
    wide = new_model(vocab_size=len(TOKENS) + 61)
    arguments: dict[str, Any] = {"max_new_tokens": 20, "shorten": True, "details": True}
    made = gen.generate(wide, PROMPTS, gen.regex("[^a]{5,20}"), seed=3, **arguments)
    assert all(re.fullmatch("[^a]{5,20}", one.text) for one in made)
    assert all(max(one.token_ids) < len(TOKENS) for one in made)


def test_what_a_constraint_forbids_no_processor_allows_again(model: Any) -> None:
    def allow_x(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        return logits.index_fill(1, torch.tensor([ord("x")], device=logits.device), 1e30)

    sampler = multinomial(logit_bias={ord("y"): 1e30})
    for text in gen.generate(model, PROMPTS, gen.regex("[a-c]{8}"), sampler=sampler, logits_processors=[allow_x]):
        assert re.fullmatch("[a-c]{8}", text)


@pytest.mark.parametrize("sampler", [greedy, multinomial, lambda **bans: beam_search(2, **bans)])
def test_bans_that_leave_nothing_are_an_error_of_their_row(model: Any, sampler: Callable[..., Sampler]) -> None:
    banning = sampler(bad_words=[[ord("b")], [TOKENS.index(b"ab")], [TOKENS.index(b"abc")]])
    with pytest.raises(gen.BatchError) as raised:
        gen.generate(model, ["x", "y"], [gen.regex("ab"), gen.regex("a")], sampler=banning)
    [error, text] = raised.value.results
    assert isinstance(error, SamplingError) and "no token was left" in str(error)
    assert text == "a"


class Stubborn:
    """A sampler that chooses one token, whatever its logit is."""

    penalties = None

    def __init__(self, token_id: int, samples: int = 1) -> None:
        self.token_id, self.samples = token_id, samples

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        token_ids = torch.full((len(logits), 1), self.token_id, device=logits.device)
        return token_ids, torch.arange(len(logits), device=logits.device), weights

    def __call__(self, next_token_logits: Tensor, sequence_weights: Tensor, rng: torch.Generator) -> Sampled:
        return self.step(next_token_logits, sequence_weights, sequence_weights)


@pytest.mark.parametrize("samples", [1, 2])
def test_a_sampler_that_chooses_what_is_not_allowed_is_told(model: Any, samples: int) -> None:
    made: Any = gen.generate(model, "x", gen.regex("a{4}"), sampler=Stubborn(ord("a"), samples))
    assert made == ("aaaa" if samples == 1 else ["aaaa"] * 2)
    for token_id in (ord("b"), PAD, len(TOKENS) + 5):
        with pytest.raises(SamplingError, match=f"token {token_id}"):
            gen.generate(model, "x", gen.regex("a{4}"), sampler=Stubborn(token_id, samples))


def test_a_stop_string_may_cut_a_value_and_is_an_error_then(model: Any) -> None:
    with pytest.raises(IncompleteError, match=r"prompt 0: the text ended \(stop\) before it was a whole") as raised:
        gen.generate(model, "x", gen.regex("aXb"), stop="X")
    made = raised.value.completion
    assert (made.text, made.value, made.finish_reason, made.engine) == ("a", None, "stop", "device")
    assert gen.generate(model, "x", gen.regex("a(Xb)?"), stop="X") == "a"


def test_a_text_says_what_its_tokens_spell_also_where_a_tokenizer_drops_a_space() -> None:
    own = gen.from_transformers(tiny_model(vocab_size=265, bos_token_id=1, eos_token_id=2), spaced_tokenizer())
    for prompt in ("", "the", [5], "the cat"):
        assert gen.generate(own, prompt, gen.regex(" the cat")) == " the cat"
        assert gen.generate(own, prompt, gen.regex("  the")) == "  the"
        assert "".join(gen.stream(own, prompt, gen.regex(" é the"))) == " é the"


def test_a_prompt_that_ends_within_a_character_leaves_the_value_alone() -> None:
    own = gen.from_transformers(tiny_model(vocab_size=259, eos_token_id=257), byte_tokenizer())
    assert gen.generate(own, [*"日".encode()][:2], gen.regex("é+x")).endswith("éx")


@pytest.mark.parametrize("eos", [EOS, None])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_beams_find_the_likeliest_spelling_of_all(eos: int | None, penalty: float) -> None:
    """The oracle is all ways to spell one of the texts, each by plain forwards: what a text has to do with its type
    changes no probability."""
    model = tiny_model(vocab_size=len(TOKENS), bos_token_id=None, eos_token_id=eos, seed=5)
    texts = ["ab", "aba", "b", "bc"]
    prefixes = {text[:end].encode() for text in texts for end in range(len(text) + 1)}
    scores: dict[str, list[float]] = {text: [] for text in texts}

    def search(token_ids: list[int], weight: float) -> None:
        text = b"".join(TOKENS[token_id] for token_id in token_ids[1:])
        following = [one for one, spelt in enumerate(TOKENS) if spelt and text + spelt in prefixes]
        ends = [eos] if eos is not None and text.decode() in texts else []
        if not following:
            scores[text.decode()].append(weight / len(token_ids) ** penalty)
            return
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1]
        logprobs = logits.double().log_softmax(0).tolist()
        for token_id in following:
            search([*token_ids, token_id], weight + logprobs[token_id])
        for token_id in ends:
            scores[text.decode()].append((weight + logprobs[token_id]) / len(token_ids) ** penalty)

    search([65], 0.0)
    best = sorted(((max(found), text) for text, found in scores.items() if found), reverse=True)
    made: Any = gen.generate(
        gen.from_transformers(model, wordy_tokenizer()),
        [65],
        gen.regex("|".join(texts)),
        sampler=beam_search(16, length_penalty=penalty),
        num_return_sequences=16,
        max_new_tokens=12,
        details=True,
    )
    assert [one.text for one in made] == [text for _, text in best]
    assert [one.score for one in made] == pytest.approx([score for score, _ in best], abs=1e-4)


def test_ids_that_are_no_tokens_end_nothing_and_break_nothing() -> None:
    scripted = ScriptedModel("abc")
    scripted.eos_token_ids = (OF_BYTES, 999)
    assert gen.generate(scripted, "x", gen.regex("[a-z]+")) == "abc"
    assert gen.generate(scripted, "x", sampler=greedy(min_new_tokens=2)) == "abc"
    scripted.eos_token_ids = (999,)
    assert gen.generate(scripted, "x", gen.regex("[a-c]{3}")) == "abc"


def test_a_model_on_two_gpus_holds_texts_as_on_one() -> None:
    whole = tiny_model("llama")
    kind = gen.json_schema(SCHEMAS[25])
    arguments: dict[str, Any] = {"sampler": multinomial(), "seed": 4, "max_new_tokens": 40, "shorten": True}
    expected = gen.generate(gen.from_transformers(whole, byte_tokenizer()), PROMPTS, kind, **arguments)
    with virtual_gpus(2):
        spread = gen.from_transformers(split(whole, "llama"), byte_tokenizer())
        assert gen.generate(spread, PROMPTS, kind, **arguments) == expected
