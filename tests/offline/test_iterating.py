"""`generate_iter` gives the results of `gen.generate` as texts end, and reads no further ahead than it says."""

from collections.abc import Iterator
from functools import reduce
from typing import Any, cast

import pytest
import torch

import gen
from gen.samplers import beam_search, greedy, multinomial
from tests.helpers import ScriptedModel


def _tokens(result: Any) -> list[tuple[list[int], str, int]]:
    completions = result if isinstance(result, list) else [result]
    return [(one.token_ids, one.finish_reason, one.seed) for one in completions]


@pytest.mark.parametrize(
    ("sampler", "returned"),
    [(None, 1), (greedy(), 1), (multinomial(3, temperature=0.8), 1), (beam_search(2), 2), (beam_search(5), 1)],
)
def test_every_prompt_has_once_what_generate_gives(llama: Any, sampler: Any, returned: int) -> None:
    prompts: list[Any] = ["ab" * (number % 7) + "c" for number in range(23)] + [[97, 98]]
    arguments: Any = {
        "sampler": sampler,
        "seed": [*range(100, 124)],
        "max_new_tokens": [number % 9 for number in range(24)],
        "num_return_sequences": returned,
        "details": True,
    }
    found = list(gen.generate_iter(llama, iter(prompts), rows=4, **arguments))
    assert sorted(number for number, _ in found) == [*range(24)]
    expected = gen.generate(llama, prompts, **arguments)
    assert [_tokens(dict(found)[number]) for number in range(24)] == [_tokens(result) for result in expected]


def test_texts_come_as_they_end_and_prompts_are_read_no_more_than_twice_the_rows_ahead() -> None:
    read = 0

    def prompts() -> Iterator[str]:
        nonlocal read
        while True:  # without end
            read += 1
            yield "x"

    limits = [9, 1, *[2] * 98]
    texts = gen.generate_iter(ScriptedModel("abcdefghi"), prompts(), rows=2, max_new_tokens=limits)
    assert read == 0
    given = []
    for taken, (number, text) in zip(range(40), texts, strict=False):
        assert read <= taken + 2 * 2
        given.append(number)
        assert text == "abcdefghi"[: limits[number]]
    assert given.index(0) >= 3  # its text takes longer than others, which do not wait for it


def test_a_prompt_that_fails_is_an_error_and_costs_no_other_its_text(llama: Any) -> None:
    deep: Any = reduce(lambda inner, _: [inner], range(2000), cast(Any, []))
    prompts: Any = [
        "a",
        7,
        "b" * 500,
        "c",
        ["two", "prompts"],
        {"role": "user", "content": "x"},
        [{"role": "user", "content": deep}],
        "d",
    ]
    found = dict(gen.generate_iter(llama, prompts, rows=1, max_new_tokens=3, seed=1))
    assert [found[0], found[3], found[7]] == gen.generate(llama, ["a", "c", "d"], max_new_tokens=3, seed=1)
    assert all(isinstance(found[number], gen.ArgumentError) for number in (1, 2, 4, 5))
    assert isinstance(found[6], RecursionError)
    assert str(found[2]).startswith("prompt 2 has") and "leaves no room" in str(found[2])
    for number, error in gen.generate_iter(llama, ["a", "a"], gen.regex("b+c"), stop="b", seed=3):
        assert isinstance(error, gen.IncompleteError) and str(error).startswith(f"prompt {number}: ")
    texts = dict(gen.generate_iter(llama, ["a", "b"], thinking=[None, True], max_new_tokens=2))
    assert isinstance(texts[0], str) and "prompt 1 is none" in str(texts[1])
    texts = dict(gen.generate_iter(llama, ["a", "b"], seed=[1], max_new_tokens=2))
    assert isinstance(texts[0], str)
    assert "seed is a list of 1, one for each prompt, and there is a prompt 1" in str(texts[1])


@pytest.mark.parametrize("read", [0, 1, 5])
def test_the_prompts_before_an_error_of_the_iterable_have_their_texts_first(llama: Any, read: int) -> None:
    def prompts() -> Iterator[Any]:
        yield from ["a", 7, "b", "c", "d"][:read]
        raise ZeroDivisionError("no more lines")

    texts = gen.generate_iter(llama, prompts(), rows=2, max_new_tokens=3, seed=1)
    found: dict[int, Any] = {}
    with pytest.raises(ZeroDivisionError, match="no more lines"):
        for number, text in texts:
            found[number] = text
    assert sorted(found) == [*range(read)]
    assert all(isinstance(text, gen.ArgumentError if number == 1 else str) for number, text in found.items())


@pytest.mark.parametrize(
    ("prompts", "arguments", "message"),
    [
        ("one text", {}, "prompts must be something that gives prompts, such as a list, got 'one text'"),
        (7, {}, "something that gives prompts"),
        (["a"], {"rows": 0}, "rows must be a whole number at least 1, got 0"),
        (["a"], {"stop": [1]}, "stop"),
        (
            ["a"],
            {"stop": [["b"], None]},
            r"takes one stop for all prompts, got the list \[\['b'\], None\]",
        ),
        (
            ["a"],
            {"sampler": [gen.samplers.greedy()]},
            "generate_iter takes one sampler for all prompts, got",
        ),
        (["a"], {"output_type": [int, None]}, "takes one output_type for all prompts, got the list"),
        (["a"], {"chat": True}, "chat template"),
        (["a"], {"images": ["no.png"]}, "image 0: cannot read 'no.png'"),
        (["a"], {"temperature": 1}, "sampler=gen.samplers.multinomial"),
        (["a"], {"sampler": gen.samplers.multinomial(top_p=torch.ones(1))}, "parameters are tensors"),
        (["a"], {"output_type": gen.regex("a{9}"), "max_new_tokens": 8}, "has 9 tokens, max_new_tokens is 8"),
    ],
)
def test_what_all_prompts_share_is_refused_at_the_call(llama: Any, prompts: Any, arguments: Any, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        gen.generate_iter(llama, prompts, **arguments)


def test_without_prompts_there_are_no_texts_and_an_early_end_leaves_the_model_whole(llama: Any) -> None:
    assert list(gen.generate_iter(llama, [])) == []
    texts = gen.generate_iter(llama, ["a", "b", "c"], rows=2, seed=1)
    next(texts)
    texts.close()  # type: ignore[attr-defined]  # it is a generator
    assert list(gen.generate_iter(llama, ["a"], seed=1)) == [(0, gen.generate(llama, "a", seed=1))]
