"""Thoughts and special tokens: which part of the output is the text, whole and in pieces."""

from typing import Any

import pytest

import gen
from gen.loop.results.thoughts import thoughts_of
from gen.samplers import beam_search, greedy
from gen.tokens.thoughts import Marks, marks_of
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import ScriptedModel, byte_tokenizer

NAMES = ["<think>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "[X]"]
TAGS = Marks(kind="tags", opens="<think>", closes="</think>")
BEGUN = Marks(kind="tags", opens="<think>", closes="</think>", begun=True)
CHANNELS = Marks(kind="channels")
THOUGHT = "<|channel|>analysis<|message|>A<b.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ '<think></think>'[:0] }}[assistant]"


@pytest.mark.parametrize(
    ("marks", "written", "reasoning", "text"),
    [
        (TAGS, "<think>\nTwo.\n\n</think>\n\n2\n", "Two.", "2\n"),
        (TAGS, " \n<think>a</think>b</think><think>", "a", "b</think><think>"),
        (TAGS, "<thin", None, "<thin"),
        (TAGS, "\n no <think>a</think>", None, "\n no <think>a</think>"),
        (TAGS, "<think>cut </thi", "cut </thi", ""),
        (TAGS, "", None, ""),
        (BEGUN, "\nTwo.\n</think>2", "Two.", "2"),
        (BEGUN, "cut", "cut", ""),
        (
            CHANNELS,
            "<|channel|>analysis<|message|>A<b.<|end|><|start|>assistant<|channel|>final<|message|>Hi",
            "A<b.",
            "Hi",
        ),
        (CHANNELS, "<|channel|>analysis<|message|>A<|end|><|start|>assistant" + CALL, "A", CALL),
        (CHANNELS, "<|channel|>final<|message|>Hi <|", None, "Hi <|"),
        (CHANNELS, "plain", None, "plain"),
        (CHANNELS, "<|channel|>anal", None, ""),
    ],
)
def test_a_thought_is_told_apart_however_the_text_is_cut(
    marks: Marks, written: str, reasoning: str | None, text: str
) -> None:
    for size in range(1, 9):
        found = thoughts_of(marks)
        pieces = [found.push(written[at : at + size]) for at in range(0, len(written), size)]
        assert ("".join(pieces) + found.flush(), found.reasoning) == (text, reasoning)


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("{{ '</think>' }}", TAGS),
        ("[THINK][/THINK]", Marks(kind="tags", opens="[THINK]", closes="[/THINK]")),
        ("<|start|><|channel|>analysis<|message|>", CHANNELS),
        ("{{ messages }}", None),
    ],
)
def test_how_a_template_marks_thoughts(template: str, marks: Marks | None) -> None:
    assert marks_of(template) == marks


def scripted(written: str, template: str = TEMPLATE) -> Any:
    """A model that writes a text; names of special tokens in it become these tokens."""
    tokenizer = byte_tokenizer(specials=NAMES)
    tokenizer.chat_template = template
    token_ids = tokenizer(written)["input_ids"]
    model = ScriptedModel(lambda prompt: token_ids, vocab_size=259 + len(NAMES))
    model.tokenizer = Tokenizer(tokenizer)
    return model


@pytest.mark.parametrize("sampler", [greedy(), beam_search(2)], ids=["greedy", "beams"])
def test_a_chats_thought_is_no_part_of_its_text(sampler: Any) -> None:
    model = scripted("<think>Two é.</think>\n2é!")
    made = gen.generate(model, "x", chat=True, sampler=sampler, details=True)
    assert (made.text, made.value, made.reasoning) == ("2é!", "2é!", "Two é.")
    assert len(made.token_ids) == len(made.logprobs) == len("<think>Two é.</think>\n2é!".encode()) - len("<think>") + 1
    stream = gen.stream(model, "x", chat=True)
    assert "".join(stream) == "2é!"
    assert stream.completion().reasoning == "Two é."
    cut = gen.generate(model, "x", chat=True, sampler=sampler, details=True, max_new_tokens=4)
    whole = ("2é!", "Two é.", "length")
    assert (cut.text, cut.reasoning, cut.finish_reason) == (whole if sampler == greedy() else ("", "Two", "length"))


def test_other_texts_have_no_reasoning() -> None:
    model = scripted("<think>Two.</think>2")
    raw = gen.generate(model, "x", details=True)
    assert (raw.text, raw.reasoning) == ("Two.</think>2", None)  # the first mark is a special token
    typed = gen.generate(model, "x", gen.sequence("<think>", gen.text()), chat=True, details=True)
    assert (typed.text, typed.reasoning) == ("<think>Two.</think>2", None)
    assert gen.generate(scripted("2", "{{ messages }}"), "x", chat=True, details=True).reasoning is None


@pytest.mark.parametrize(
    ("skipped", "text"),
    [
        (True, "a(é)b<"),
        (False, "[X]a([X]é)b<end>[X]<"),
        (["[X]"], "a(é)b<end><"),
        (["<end>"], "[X]a([X]é)b[X]<"),
        ([], "[X]a([X]é)b<end>[X]<"),
    ],
)
def test_special_tokens_stay_in_the_text_where_they_are_asked_for(skipped: Any, text: str) -> None:
    model = scripted("[X]a([X]é)b<end>[X]<")
    for stop, wanted in ((None, text), ("b<end>", text.partition("b")[0]), ("([X]", text.partition("(")[0])):
        made = gen.generate(model, "x", skip_special_tokens=skipped, stop=stop, details=True)
        assert made.text == wanted
        assert made.finish_reason == ("eos" if stop is None else "stop")
        assert "".join(gen.stream(model, "x", skip_special_tokens=skipped, stop=stop)) == wanted
    with gen.Engine(model) as engine:
        assert "".join(engine.submit("x", skip_special_tokens=skipped)) == text


def test_a_stop_string_is_found_once_where_its_token_stays() -> None:
    model = scripted("a[X]b[X][X]c")
    for kept, text in ((True, "abc"), (False, "a[X]b[X][X]c")):
        assert gen.generate(model, "x", skip_special_tokens=kept, stop="[X][X][X]") == text
