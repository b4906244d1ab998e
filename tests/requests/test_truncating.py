"""Overlong prompts are cut on the left if that is asked for, so that prompt and new tokens fit into the context."""

from itertools import chain
from random import Random
from typing import Any

import pytest

import gen
from tests.helpers import BOS, ScriptedModel, byte_tokenizer, tiny_model

PLAIN = {"chat_template_kwargs": {"chat_template": "{{ messages[0].content }}"}}


@pytest.mark.parametrize("length", [1, 12, 19, 20, 21, 40, 300])
def test_a_prompt_keeps_its_bos_token_and_its_last_tokens(length: int) -> None:
    """The context has 32 tokens, 12 of them for the new ones."""
    model = ScriptedModel("abcdefghijklmnop", context_length=32)
    text = "".join(chr(ord("a") + place % 26) for place in range(length))
    settings: dict[str, Any] = {"truncate": "left", "max_new_tokens": 12}
    assert gen.generate(model, text, **settings) == "abcdefghijkl"
    assert model.read == [text[-20:]]
    given = [BOS, *text.encode()]
    assert gen.generate(model, [given, "x"], **settings)[0] == "abcdefghijkl"
    assert model.read[-2] == text[-19:]
    assert "".join(gen.stream(model, text, **settings)) == "abcdefghijkl"


def test_the_text_is_that_of_the_prompt_cut_by_hand() -> None:
    model = gen.from_transformers(tiny_model(max_position_embeddings=64), byte_tokenizer())
    generate: Any = gen.generate
    settings = {"max_new_tokens": 24, "seed": 3}
    long = "to be or not to be, " * 9
    wanted = generate(model, [long[-40:], "x"], **settings)
    assert generate(model, [long, "x"], truncate="left", **settings) == wanted


def test_a_types_own_limit_leaves_a_quarter_of_the_context() -> None:
    model = ScriptedModel("true", context_length=32)
    assert gen.generate(model, "y" * 40, bool, truncate="left") is True
    assert model.read == ["y" * 24]


@pytest.mark.parametrize("bos", [False, True])
def test_a_type_that_needs_more_is_left_as_much_as_its_shortest_text(bos: bool) -> None:
    kind = gen.regex("a{20}")
    model = ScriptedModel("a" * 20, context_length=32)
    begin = [BOS] if bos else []
    made = gen.generate(model, [[*begin, *b"y" * 40], [*b"z" * 5]], kind, truncate="left", details=True)
    assert [(one.text, one.finish_reason) for one in made] == [("a" * 20, "eos")] * 2
    assert sorted(model.read) == ["y" * (12 - len(begin)), "z" * 5]
    with pytest.raises(gen.ConstraintError, match="the shortest text of its output type has 40 tokens"):
        gen.generate(model, "y" * 40, gen.regex("a{40}"), truncate="left")
    with pytest.raises(gen.ConstraintError, match=r"has 20 tokens, max_batch_tokens leaves room for 13"):
        gen.generate(model, "y" * 40, kind, truncate="left", max_batch_tokens=25)


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        (
            "x" * 40,
            {"chat": True} | PLAIN,
            "prompt 0 is a chat, which is not cut: its 40 tokens and 12 new",
        ),
        ([{"role": "user", "content": "x" * 40}], PLAIN, "prompt 0 is a chat, which is not cut"),
        (
            "xyz",
            {"max_new_tokens": 32},
            "max_new_tokens is 32, and the model's context of 32 leaves no room",
        ),
        ("x", {"truncate": "right"}, 'truncate must be "left", "turns" or None, got \'right\''),
        ("x" * 40, {"truncate": "turns"}, 'truncate="turns" is for chats'),
        (
            [{"role": "user", "content": "x" * 5}, {"role": "user", "content": "x" * 40}],
            {"truncate": "turns", "chat_template_kwargs": {"chat_template": "{{ messages[-1].content }}"}},
            "prompt 0 has its last turn alone left, which is not cut: its 40 tokens and 12 new",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(prompt: Any, settings: dict[str, Any], message: str) -> None:
    generate: Any = gen.generate
    model = ScriptedModel("abc", context_length=32)
    with pytest.raises(gen.ArgumentError, match=message):
        generate(model, prompt, **{"truncate": "left", "max_new_tokens": 12} | settings)
    assert model.steps == 0


def test_without_it_an_overlong_prompt_says_what_to_give() -> None:
    generate: Any = gen.generate
    model = ScriptedModel("abc", context_length=32)
    with pytest.raises(gen.ArgumentError, match=r'Shorten the prompt; gen.generate\(truncate="left"\) keeps its end.$'):
        generate(model, "x" * 40)
    with pytest.raises(gen.ArgumentError, match=r"Shorten the prompt.$"):
        generate(model, "x" * 40, chat=True, **PLAIN)
    chat = [{"role": "user", "content": "x" * 20}] * 2
    model.tokenizer.use_chat_template("{% for one in messages %}{{ one.content }}{% endfor %}")
    with pytest.raises(gen.ArgumentError, match=r'gen.generate\(truncate="turns"\) leaves out old turns.$'):
        generate(model, chat)
    assert generate(model, chat, truncate="turns", max_new_tokens=3) == "abc"


def test_a_chat_loses_its_oldest_turns_and_no_more_than_it_must() -> None:
    """The oracle tries each number of turns to leave out, and takes the first chat that leaves room."""
    template = "{% for one in messages %}{{ one.role[0] }}{{ one.content }}{% endfor %}"
    model, random = ScriptedModel("yes", context_length=64), Random(0)
    chats, wanted = list[list[dict[str, str]]](), list[str]()
    for _ in range(60):
        head = [{"role": "system", "content": "s" * random.randint(0, 9)}] * random.randint(0, 1)
        turns = [
            [{"role": "user", "content": f"{number}é" * random.randint(1, 3)}]
            + [{"role": "assistant", "content": "a" * random.randint(0, 12)}] * random.randint(0, 2)
            for number in range(random.randint(1, 9))
        ]
        turns[-1] = turns[-1][:1]
        greeting = [{"role": "assistant", "content": "hello"}] * random.randint(0, 1)
        rests = [list(chain.from_iterable(turns[place:])) for place in range(len(turns))]
        cuts = [greeting + rests[0], *rests]
        texts = ["".join(one["role"][0] + one["content"] for one in head + cut) for cut in cuts]
        if len(texts[-1].encode()) <= 52:
            chats.append(head + cuts[0])
            wanted.append(next(text for text in texts if len(text.encode()) <= 52))
    settings: Any = {"max_new_tokens": 12, "chat_template_kwargs": {"chat_template": template}, "truncate": "turns"}
    for chat in chats:
        assert gen.generate(model, chat, **settings) == "yes"
    assert model.read == wanted
    assert gen.generate(model, chats, **settings) == ["yes"] * len(chats)
    assert sorted(model.read[len(chats) :]) == sorted(wanted)
    assert len({len(text) for text in wanted}) > 20


def test_the_mark_that_closes_a_thought_is_counted_when_turns_go() -> None:
    """Whatever the turns' length, the chat is the longest one that leaves room, with its closing mark."""
    begun = "{% for one in messages %}{{ one.content }}{% endfor %}{{ '<think>' }}{# '</think>' #}"
    settings: Any = {"truncate": "turns", "max_new_tokens": 12, "chat_template_kwargs": {"chat_template": begun}}
    model = ScriptedModel("yes", context_length=64)
    for length in range(1, 30):
        chat = [{"role": "user", "content": "u" * length}] * 40
        assert gen.generate(model, chat, thinking=False, **settings) == "yes"
        assert model.read[-1] == "u" * ((52 - len("<think></think>")) // length * length) + "<think></think>"
