"""Thoughts before answers of every type: a model thinks what it writes without a type, and the answer is its type's."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import gen
from benchmarks.cases.thoughts import FORMS, HARMONY, SPECIALS, TYPES, City, check, nudge, tiny
from gen.samplers import beam_search, greedy, multinomial
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import EOS, ScriptedModel, byte_tokenizer
from tests.helpers.noting import noted
from tests.helpers.waits import waits
from virtual_gpus import virtual_gpus

WRITTEN = {
    "Qwen3": "<think>\nHm.\n</think>\n\n",
    "DeepSeek-R1": "Hm.\n</think>\n\n",
    "Mistral": "[THINK]Hm.[/THINK]",
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>",
    "SmolLM3": "<think>\nHm.</think>\n",
}
ENDINGS = {"Qwen3": "\n</think>\n\n", "DeepSeek-R1": "\n</think>\n\n", "Mistral": "[/THINK]", "SmolLM3": "\n</think>\n"}
KINDS = [None, int, City, gen.grammar('start: "(" start ")" start | /[a-z]{1,4}/')]


def with_template(model: Any, form: str) -> Any:
    tokenizer = byte_tokenizer(specials=SPECIALS.get(form, []))
    tokenizer.chat_template = FORMS[form]
    model.tokenizer = Tokenizer(tokenizer)
    return model


def scripted(form: str, answer: str) -> Any:
    """A model that thinks "Hm." and writes an answer."""
    model = with_template(ScriptedModel("", vocab_size=270), form)
    model.prompts = []

    def script(prompt: str) -> list[int]:
        model.prompts.append(prompt)
        token_ids: list[int] = model.tokenizer.encode_plain(answer if model.closed else WRITTEN[form] + answer)
        return token_ids

    model.closed, model._script = False, script
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "answer"), TYPES)
def test_an_answer_of_any_type_may_come_after_a_thought(form: str, kind: Any, answer: str) -> None:
    model = scripted(form, answer)
    made = gen.generate(model, "x", kind, chat=True, sampler=greedy(), details=True)
    assert (made.text, made.reasoning, made.finish_reason) == (answer, "Hm.", "eos")
    assert made.value == gen.compile(model, kind).read(answer)
    header = 2 + len("final") if form == "gpt-oss" else 0
    assert len(made.token_ids) == len(made.logprobs) == made.reasoning_tokens + header + len(answer)
    stream = gen.stream(model, "x", kind, chat=True)
    assert "".join(stream) == answer
    assert stream.completion().reasoning == "Hm."


@pytest.mark.parametrize("kind", [int, KINDS[-1]])
def test_a_mark_of_several_tokens_takes_none_of_the_answers_room(kind: Any) -> None:
    answer = "17" if kind is int else "abc"
    made = gen.generate(scripted("Qwen3", answer), "x", kind, chat=True, max_new_tokens=4, details=True)
    assert (made.text, made.reasoning, made.finish_reason) == (answer, "Hm.", "eos")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Literal["a", "b"], "b"),
        (gen.choice(["Rome", "Oslo", "Oslo and Rome"]), "Oslo"),
        (gen.regex("<b>[a-z]<i>"), "<b>x<i>"),  # which begins as some marks do
        (gen.repeat(gen.regex("[0-9]"), ",", 1, 3), "7"),
        (gen.grammar('start: "(" start ")" | "x"'), "x"),
    ],
)
def test_a_thought_may_come_before_the_shortest_answer(form: str, kind: Any, answer: str) -> None:
    """Neither the marks of a thought nor the line breaks after it take the room of the answer."""
    for limit in range(len(answer), len(answer) + 3):
        given: dict[str, Any] = {"chat": True, "max_new_tokens": limit, "sampler": greedy(), "shorten": True}
        model = scripted(form, answer)
        both = gen.generate(model, ["x", "yy"], kind, details=True, **given)
        with gen.Engine(model) as engine:
            streams = [gen.stream(model, "x", kind, **given), engine.submit("x", kind, **given)]
            assert ["".join(stream) for stream in streams] == [answer] * 2
            made = [*both, *(stream.completion() for stream in streams)]
        assert [(one.text, one.reasoning) for one in made] == [(answer, "Hm.")] * 4


@pytest.mark.parametrize("form", FORMS)
def test_an_error_names_the_limit_of_the_answer_alone(form: str) -> None:
    model = scripted(form, "123")
    with pytest.raises(gen.IncompleteError, match="the limit of 2 new tokens has shaped the value"):
        gen.generate(model, "x", int, chat=True, max_new_tokens=2)


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize("form", ["Qwen3", "gpt-oss"])
def test_a_model_on_a_gpu_may_think_before_the_shortest_answer(form: str) -> None:
    def written(model: Any) -> list[Any]:
        given: dict[str, Any] = {"chat": True, "max_new_tokens": 1, "thinking": 12, "details": True}
        given["logits_processors"] = [nudge(form, model, ends=True, opens=True)]
        return [gen.generate(model, letter, Literal["a", "b"], seed=ord(letter), **given) for letter in "pqrstuvw"]

    wanted = written(tiny(form))
    assert {one.reasoning is None for one in wanted} == {True, False}
    assert {one.value for one in wanted} == {"a", "b"}
    with virtual_gpus(1):
        made = written(tiny(form, device="cuda:0"))
        assert [one.token_ids for one in made] == [one.token_ids for one in wanted]


@pytest.mark.parametrize("form", ["Qwen3", "DeepSeek-R1", "Mistral"])
@pytest.mark.parametrize(
    ("kind", "answer"), [(Literal["a", "b"], "a"), (gen.grammar('start: "(" start ")" | "x"'), "x"), (None, "")]
)
@pytest.mark.parametrize("both", [False, True])
def test_line_breaks_after_a_thought_leave_room_for_the_answer(form: str, kind: Any, answer: str, both: bool) -> None:
    begun: list[int] = []

    def breaks(token_ids: Any, lengths: Any, logits: Any) -> Any:
        """Logits of a thought and then of nothing but line breaks, as far as they may come."""
        begun[:] = begun or lengths.tolist()
        made = int(lengths) - begun[0]
        logits = torch.zeros_like(logits)
        logits[:, ord("x")] = 5
        logits[:, (written + [10] * 200)[made]] = 9
        return logits

    model = tiny(form, context=200)
    written = model.tokenizer.encode_plain(WRITTEN[form])
    given: Any = {"chat": True, "sampler": greedy(), "logits_processors": [breaks], "limits_thoughts": both}
    with gen.Engine(model) as engine:
        limit = 60 if both else 3 if kind else 10  # without a type "<think>" may be the text itself
        made = engine.submit("x", kind, **given, max_new_tokens=limit).completion()
    assert (made.text.strip("\n"), made.reasoning) == (answer, "Hm.")


class Resampler:
    """Lets each of three rows go on from any of them, with a token that it draws."""

    samples, penalties = 3, None

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(3)

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ancestors = torch.randint(0, len(logits), (len(logits),), generator=self._generator)
        token_ids = torch.multinomial(logits[ancestors].softmax(1), 1, generator=self._generator)
        return token_ids, ancestors, weights[ancestors]


def test_rows_that_go_on_from_others_have_the_room_of_their_answers() -> None:
    """Rows whose thoughts have ended at different tokens go on from one another."""
    model, kind = tiny("DeepSeek-R1"), gen.regex("[a-z]{1,30}END")
    given: dict[str, Any] = {"chat": True, "thinking": 20, "max_new_tokens": 5, "shorten": True, "details": True}
    given["logits_processors"] = [nudge("DeepSeek-R1", model, ends=True)]
    found: Any = gen.generate(model, "x", kind, sampler=Resampler(), seed=1, **given)
    assert all(gen.compile(model, kind).accepts(one.text) for one in found)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [None, City])
def test_without_thinking_the_prompt_closes_the_thought(form: str, kind: Any) -> None:
    answer = TYPES[0][1]
    model = scripted(form, answer)
    model.closed = True
    made = gen.generate(model, "x", kind, chat=True, thinking=False, details=True)
    assert (made.text, made.reasoning, made.reasoning_tokens) == (answer, None, 0)
    ends = {"Mistral": "[THINK][/THINK]", "gpt-oss": HARMONY[1] + "final" + HARMONY[2], "SmolLM3": "</think>\n\n"}
    shown = frozenset(model.tokenizer.special_tokens)
    ids = gen.stream(model, "x", kind, chat=True, thinking=False).prompt_token_ids
    assert model.tokenizer.decode(ids, shown=shown).endswith(ends.get(form, "<think>\n\n</think>\n\n"))


@pytest.mark.parametrize("form", FORMS)
def test_a_model_may_leave_out_its_thought_unless_it_must_think(form: str) -> None:
    if form == "DeepSeek-R1":  # whose prompts have begun the thought
        return
    model = scripted(form, "7")
    head = "<|channel|>final<|message|>" if form == "gpt-oss" else ""
    model._script = lambda prompt: model.tokenizer.encode_plain(f"{head}7")
    made = gen.generate(model, "x", int, chat=True, details=True)
    assert (made.value, made.reasoning, made.reasoning_tokens) == (7, None, 0)
    random_model = tiny(form)
    for seed in range(4):
        made = gen.generate(random_model, "x", int, chat=True, thinking=True, details=True, seed=seed, shorten=True)
        assert made.reasoning is not None
        assert made.reasoning_tokens > 2


@pytest.mark.parametrize(
    ("form", "kind"), [(form, kind) for at, form in enumerate(FORMS) for kind in (KINDS * 2)[at : at + 2]]
)
def test_recorded_texts_with_thoughts_are_verified(form: str, kind: Any) -> None:
    """The bound of a thought is a setting: with another one, a text is verified as far as making it anew shows."""
    model = tiny(form)
    settings: dict[str, Any] = {
        "max_new_tokens": 30,
        "shorten": True,
        "details": True,
        "chat": True,
        "eos_token_id": [],
    }
    thinking: list[Any] = [True, 5, 9, True, None]
    made: Any = gen.generate(model, ["x"] * 5, kind, thinking=thinking, seed=[1, 2, 3, 4, 5], **settings)
    begun = form == "DeepSeek-R1"  # else the model thinks where it must
    assert sum(one.reasoning_tokens > 2 for one in made) >= (5 if begun else 2)
    assert any(one.reasoning_cut for one in made) or not begun
    receipts = [one.receipt for one in made]
    assert [one.kind for one in gen.verify(model, receipts)] == ["equal"] * 5
    for bound, receipt, old in list(zip(thinking, receipts, made, strict=True))[1:3]:
        anew: Any = gen.generate(model, "x", kind, thinking=bound + 3, seed=receipt.seed, **settings)
        found = gen.verify(model, replace(receipt, settings=anew.receipt.settings))
        pairs = zip([*anew.token_ids, None], [*old.token_ids, None], strict=False)
        parts = next((at for at, (new, recorded) in enumerate(pairs) if new != recorded), None)
        assert (found.kind, found.at) == ("equal" if parts is None else "different", parts)


@pytest.mark.parametrize("form", FORMS)
def test_random_calls(form: str) -> None:
    for number in range([*FORMS].index(form), 35, len(FORMS)):
        check(form, number, tiny(form))


@pytest.mark.usefixtures("soon_worth_it")
@pytest.mark.parametrize("form", ["Qwen3", "Mistral"])
def test_a_gpu_writes_the_same_and_the_host_waits_for_no_token(form: str) -> None:
    asked: dict[str, Any] = {"chat": True, "sampler": multinomial(), "seed": 5, "shorten": True, "thinking": 9}
    kind = gen.regex("[a-z]{9,}")
    wanted = gen.generate(tiny(form), ["x", "yy"], kind, **asked, max_new_tokens=16, details=True)
    with virtual_gpus(1):
        own = tiny(form, device="cuda:0")
        counts, made = waits(
            lambda most: gen.generate(own, ["x", "yy"], kind, **asked, max_new_tokens=most, details=True), 12, 12, 16
        )
        assert [one.token_ids for one in made] == [one.token_ids for one in wanted]
        assert counts[1] == counts[2] <= 2


@pytest.mark.parametrize(("place", "form"), [("cpu", "Qwen3"), ("cpu", "gpt-oss"), ("cuda:0", "gpt-oss")])
def test_drafts_change_no_text(place: str, form: str) -> None:
    with virtual_gpus(1):
        model = tiny(form, device=place)
        for number, thinking in enumerate((6, 25)):
            given: dict[str, Any] = {"chat": True, "seed": number, "shorten": True, "details": True}
            given |= {"sampler": greedy() if number else multinomial(), "max_new_tokens": 28, "thinking": thinking}
            wanted = gen.generate(model, "x", City, **given, speculate=False)
            for typed in (False, True):
                drafts = gen.Speculation(prompt=True, output_type=typed)
                made = gen.generate(model, "x", City, **given, speculate=drafts)
                assert (made.token_ids, made.reasoning) == (wanted.token_ids, wanted.reasoning)


def test_a_protocols_limit_is_that_of_the_thought_and_the_answer() -> None:
    for form in FORMS:
        model = tiny(form)
        least = gen.compile(model, City).least_tokens or 0
        for seed, limit in enumerate((least, least + 1, least + 9, least + 30, 100)):
            with gen.Engine(model) as engine:
                settings: dict[str, Any] = {"max_new_tokens": limit, "limits_thoughts": True, "shorten": True}
                made = engine.submit("x", City, chat=True, seed=seed, **settings).completion()
            assert len(made.token_ids) <= limit
            assert made.value == gen.compile(model, City).read(made.text)


@pytest.mark.parametrize("form", FORMS)
def test_a_thought_without_a_type_has_a_bound_too(form: str) -> None:
    model = tiny(form)
    made = gen.generate(model, "x", chat=True, thinking=20, max_new_tokens=7, details=True, seed=1, eos_token_id=[])
    assert made.reasoning_tokens <= 20 + 30
    assert len(made.token_ids) == made.reasoning_tokens + 7


def test_where_any_token_may_come_a_step_masks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = noted(monkeypatch, "gen.stages.device_constraints", "allow", lambda logits, *_: len(logits))
    given: Any = {"thinking": 30, "seed": [1, 2], "eos_token_id": [], "details": True, "chat": True, "replay": False}
    made = gen.generate(tiny("DeepSeek-R1"), ["x", "y"], max_new_tokens=40, **given)
    assert min(len(one.token_ids) for one in made) >= 70
    assert all(one.reasoning_cut for one in made)
    assert len(masked) <= 2 * len(ENDINGS["DeepSeek-R1"])  # where the mark at the bound must come


def test_stops_are_looked_for_in_the_answer_alone() -> None:
    for kind in (None, gen.regex("[a-zA-Z.]+")):
        model = scripted("Qwen3", "Yes.Hm.No")
        made = gen.generate(model, "x", kind, chat=True, stop="Hm", details=True)
        assert (made.text, made.reasoning, made.stop_reason) == ("Yes.", "Hm.", "Hm")


@pytest.mark.parametrize(
    ("thinking", "chat", "message"),
    [
        ("yes", True, "thinking must be None, True, False or the most tokens"),
        (-1, True, "thinking must be"),
        (1.5, True, "thinking must be"),
        (True, False, "thinking is for chats"),
        (5, False, "thinking is for chats"),
        ([True], True, "one for each prompt of a list"),
    ],
)
def test_what_cannot_be_asked_of_a_thought(thinking: Any, chat: bool, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=re.escape(message)):
        gen.generate(tiny("Qwen3"), "x", int, chat=chat, thinking=thinking)


def test_who_cannot_think() -> None:
    plain = tiny("Qwen3")
    with pytest.raises(gen.ArgumentError, match="marks no thought"):
        gen.generate(plain, "x", chat=True, thinking=True, chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(gen.ArgumentError, match="leave thinking out, or take"):
        gen.generate(plain, "x", int, chat=True, thinking=5, sampler=beam_search(2))
    value = gen.generate(plain, "x", int, chat=True, sampler=beam_search(2), details=True, shorten=True)
    assert (value.reasoning, value.reasoning_tokens) == (None, 0)


def test_each_prompt_of_a_list_may_think_as_long_as_it_likes() -> None:
    model = tiny("Qwen3")
    given: dict[str, Any] = {"chat": True, "seed": 3, "details": True, "shorten": True}
    bounds: Sequence[Any] = [None, True, False, 20]
    made = gen.generate(model, ["x"] * 4, City, thinking=bounds, **given)
    one_by_one = dict(gen.generate_iter(model, ["x"] * 4, City, thinking=bounds, rows=2, **given))
    for number, bound in enumerate(bounds):
        alone = gen.generate(model, "x", City, thinking=bound, **given).token_ids
        assert made[number].token_ids == one_by_one[number].token_ids == alone


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_on_the_host_engine_may_come_after_a_thought(form: str) -> None:
    nested = gen.grammar('start: "(" start ")" | "x"')
    model = scripted(form, "((x))")
    made = gen.generate(model, "x", nested, chat=True, details=True)
    assert (made.text, made.reasoning, made.engine, made.finish_reason) == ("((x))", "Hm.", "host", "eos")
    with gen.Engine(model) as engine:
        stream = engine.submit("x", nested, chat=True)
        assert "".join(stream) == "((x))"
        assert stream.completion().reasoning == "Hm."
    drawing = tiny(form, context=512)
    for seed, thinking in enumerate((None, 5, 17)):
        given: dict[str, Any] = {"chat": True, "thinking": thinking, "seed": seed, "details": True}
        nudged = [nudge(form, drawing, ends=True)]
        made = gen.generate(drawing, "x", nested, **given, logits_processors=nudged, max_new_tokens=200)
        assert gen.compile(drawing, nested).accepts(made.text)
        free = gen.generate(drawing, "x", **given, logits_processors=[nudge(form, drawing, ends=False)])
        count = min(made.reasoning_tokens, free.reasoning_tokens) if form != "gpt-oss" else 0  # see `check`
        assert made.token_ids[:count] == free.token_ids[:count]
        both = gen.generate(drawing, ["yy", "x"], nested, **given, logits_processors=nudged, max_new_tokens=200)
        assert both[1].token_ids == made.token_ids


@pytest.mark.parametrize("form", FORMS)
def test_scores_and_options_come_after_a_thought_that_is_closed(form: str) -> None:
    model, chat = tiny(form), [{"role": "user", "content": "x"}]
    ids = gen.stream(model, chat, thinking=False).prompt_token_ids
    options = ["Rome", "Oslo"]
    assert gen.classify(model, chat, options) == gen.classify(model, "x", options, chat=True)
    assert gen.classify(model, chat, options) == pytest.approx(gen.classify(model, [*ids], options), abs=1e-6)
    scored, plain = gen.score(model, chat, "Rome"), gen.score(model, [*ids], "Rome")
    assert scored.logprobs == pytest.approx(plain.logprobs, abs=1e-4)


def test_options_may_be_compared_after_a_thought_that_is_written() -> None:
    model, options = tiny("Qwen3"), ["Rome", "Oslo"]
    prompts = ["x", "What is it?"]
    thought: dict[str, Any] = {"chat": True, "thinking": 12, "sampler": multinomial(), "seed": 4}
    found = gen.classify(model, prompts, options, **thought)
    for prompt, one in zip(prompts, found, strict=True):
        stream = gen.stream(model, prompt, gen.regex(r"[\s\S]{4}"), **thought)
        "".join(stream)
        made = stream.completion()
        before = [*stream.prompt_token_ids, *made.token_ids[: made.reasoning_tokens]]
        assert one == pytest.approx(gen.classify(model, before, options), abs=1e-6)
        assert one != pytest.approx(gen.classify(model, prompt, options, chat=True), abs=1e-3)
    assert gen.classify(model, prompts, options, max_batch_tokens=torch.tensor(900), **thought) == found  # type: ignore[call-overload]
    with pytest.raises(gen.ArgumentError, match="thinking is for chats"):
        gen.classify(model, "x", options, thinking=True)
    with pytest.raises(gen.ArgumentError, match="max_batch_tokens must be a whole number at least 1, got '9'"):
        gen.classify(model, prompts, options, max_batch_tokens="9", **thought)  # type: ignore[call-overload]


def test_a_prompt_that_writes_no_thought_is_measured_as_alone() -> None:
    model, options = tiny("Qwen3"), ["Rome", "Oslo"]
    chats: list[Any] = [[{"role": "user", "content": "x"}], "x", [{"role": "user", "content": "What is it?"}]]
    alone = [gen.classify(model, chat, options) for chat in chats[:2]]
    for others in ([None, None], [False, 0]):  # what one prompt writes changes nothing of the others
        mixed = gen.classify(model, chats, options, thinking=[*others, 12], sampler=multinomial(), seed=[1, 2, 4])
        assert mixed[2] != pytest.approx(gen.classify(model, chats[2], options), abs=1e-3)
        for one, other in zip(mixed[:2], alone, strict=True):
            assert one == pytest.approx(other, abs=1e-6)


def test_what_chooses_a_thought_is_checked_and_is_refused_where_there_is_none() -> None:
    model, options = tiny("Qwen3"), ["Rome", "Oslo"]
    wrong: dict[str, Any] = {"sampler": 3, "seed": -1}
    for name, value in wrong.items():
        for thinking in (None, False):
            with pytest.raises(gen.ArgumentError, match=f"^{name} must be"):
                gen.classify(model, "x", options, thinking=thinking, **{name: value})
    unused: list[Any] = [{"sampler": multinomial(temperature=0.1)}, {"seed": 4}]
    for given in unused:
        with pytest.raises(gen.ArgumentError, match="sampler and seed are those of a thought, and none is asked for"):
            gen.classify(model, "x", options, **given)
        assert gen.classify(model, "x", options, thinking=False, **given) == gen.classify(model, "x", options)


def test_a_prompt_without_room_for_an_option_fails_alone() -> None:
    model, options, chats = tiny("Qwen3"), ["Rome", "Oslo"], [[{"role": "user", "content": "x"}]]
    alone = gen.classify(model, chats, options)
    long: Any = [[{"role": "user", "content": "x" * 200}], chats[0]]
    for asked in ([None, None], [None, 5], [5, None]):
        found = gen.classify(model, long, options, thinking=asked, max_batch_tokens=150, errors="return")
        assert "max_batch_tokens=150 is too little for option 0 of prompt 0" in str(found[0])
        assert (found[1] == pytest.approx(alone[0], abs=1e-6)) is (asked[1] is None)


def test_no_thought_is_the_same_however_it_is_said() -> None:
    """0 is False, also for a prompt whose last character is in one token with an option's first one."""
    model = gen.load("demo")
    prompts: list[Any] = ["Once upon a ti", [{"role": "user", "content": "Once upon a ti"}]]
    wanted = gen.classify(model, prompts, ["me", "ger"])
    same: list[Any] = [False, 0, np.int64(0), [None, 0], [None, 5]]  # its template marks no thought
    for thinking in same:
        assert gen.classify(model, prompts, ["me", "ger"], thinking=thinking) == wanted


def test_the_part_of_a_text_counts_the_tokens_of_its_thought() -> None:
    stream = gen.stream(scripted("Qwen3", "12"), "x", chat=True, thinking=30, sampler=greedy())
    parts = []
    for _ in stream.events():
        parts.append(stream.so_far())
    made = stream.completion()
    for part in parts[:-1]:
        assert part.reasoning_tokens == min(len(part.token_ids), made.reasoning_tokens)
    assert 0 < parts[0].reasoning_tokens < parts[-2].reasoning_tokens == made.reasoning_tokens


@pytest.mark.parametrize("form", FORMS)
def test_options_come_where_the_answer_comes(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scripted(form, "Rome")
    with pytest.raises(gen.SamplingError, match="each of the options has probability 0"):  # it can only say its script
        gen.classify(model, "x", ["Rome", "Oslo"], chat=True, thinking=True, sampler=greedy())
    names = SPECIALS.get(form, [])
    written = re.sub("|".join(map(re.escape, names)) or "$^", "", WRITTEN[form])
    assert model.prompts[-1] == model.prompts[0] + written
    random_model = tiny(form)
    shown = frozenset(random_model.tokenizer.special_tokens)
    decoded = lambda model, number, context, *_, **__: model.tokenizer.decode(context, shown=shown)  # noqa: E731
    contexts = noted(monkeypatch, "gen.scoring.scores", "read_pairs", decoded)
    for seed in range(9):  # its first token may be one that ends a text
        gen.classify(random_model, "x", ["Rome", "Oslo"], chat=True, thinking=True if seed < 3 else 3, seed=seed)
    end = "<|channel|>final<|message|>" if form == "gpt-oss" else ENDINGS[form].rstrip()
    opened = [one for one in contexts if one.count("THINK]" if form == "Mistral" else "think>") or form == "gpt-oss"]
    assert len(opened) >= 3
    assert all(one.rstrip().endswith(end) for one in opened)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_prompt_that_closes_its_thought_and_has_no_room_then_is_refused(compiled: bool) -> None:
    model = scripted("DeepSeek-R1", "7")
    room = gen.stream(model, "x", chat=True, max_new_tokens=1).prompt_tokens + 1
    if compiled:
        gen.compile(model, int)
    with (
        gen.Engine(model, max_batch_tokens=room) as engine,
        pytest.raises(gen.ArgumentError, match=f"max_batch_tokens={room} is too little for prompt 0"),
    ):
        engine.submit("x", int, chat=True, max_new_tokens=1).completion()


def test_a_thought_is_closed_though_the_template_is_told_to_think() -> None:
    model, chat = tiny("Qwen3"), [{"role": "user", "content": "x"}]
    given: Any = {"chat_template_kwargs": {"enable_thinking": True}}
    ids = gen.stream(model, chat, thinking=False, **given).prompt_token_ids
    assert model.tokenizer.decode(ids) == "[user]x[assistant]<think>\n\n</think>\n\n"
    closed = gen.score(model, chat, "Rome", chat_template_kwargs={"enable_thinking": False})
    assert gen.score(model, chat, "Rome", **given).logprobs == pytest.approx(closed.logprobs, abs=1e-5)
    assert gen.classify(model, chat, ["a", "b"], **given) == pytest.approx(gen.classify(model, chat, ["a", "b"]))


def test_texts_with_and_without_thoughts_run_side_by_side() -> None:
    model, nested = tiny("Qwen3"), gen.grammar('start: "(" start ")" | "x"')
    draws, calls = random.Random(7), list[tuple[Any, dict[str, Any]]]()
    for number in range(10):
        kind = draws.choice([City, None, int, gen.regex("[a-z]{2,9}"), nested])
        given = {"thinking": draws.choice([False, 3, 20]), "seed": number, "max_new_tokens": draws.choice([30, 40])}
        calls.append((kind, given | {"chat": number % 3 > 0, "shorten": True, "eos_token_id": [EOS] * (number % 2)}))
        calls[-1][1]["thinking"] = calls[-1][1]["thinking"] if number % 3 else None

    def tokens(completion: Any) -> list[int]:
        try:
            found: list[int] = completion().token_ids
        except gen.IncompleteError as error:
            found = error.completion.token_ids
        return found

    alone = [tokens(lambda: gen.generate(model, "x", kind, details=True, **given)) for kind, given in calls]  # noqa: B023
    with gen.Engine(model, rows=4) as engine:
        streams = [engine.submit("x", kind, **given) for kind, given in calls]
        assert [tokens(stream.completion) for stream in streams] == alone
