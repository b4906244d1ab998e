"""Chats whose system message describes the type, and chats that go on where a value is refused.

The model is scripted: it sees the conversation as a text, and its answer depends on how often it was refused.
"""

import asyncio
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

import gen
from tests.helpers import ScriptedModel

TEMPLATE = "{% for one in messages %}<{{ one.role }}>{{ one.content }}{% endfor %}<assistant>"
CHAT: Any = {"chat_template_kwargs": {"chat_template": TEMPLATE}}


def even(number: int) -> int:
    if number % 2:
        raise ValueError("an odd nümber")
    return number


class Guess(BaseModel):
    number: Annotated[int, AfterValidator(even)]


REFUSED = "<user>This is refused: number: Value error, an odd nümber. Answer again."


def new_model() -> tuple[ScriptedModel, list[str]]:
    """A model whose answer is right after as many refusals as the first message says, and what it has seen."""

    def script(prompt: str) -> list[int]:
        asked = int(prompt.removeprefix("<user>")[0])
        number = 1 if prompt.count(REFUSED) < asked else 8
        return [*f'{{"number": {number}}}'.encode()]

    model = ScriptedModel(script)
    return model, model.read


def ask(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{number} times"}]


def test_a_refusal_is_the_next_turn_and_rows_that_are_right_are_not_asked_again() -> None:
    model, seen = new_model()
    made = gen.generate(model, [ask(0), ask(2), ask(1)], Guess, retries=2, details=True, **CHAT)
    assert [(one.value, one.attempts) for one in made] == [(Guess(number=8), count) for count in (1, 3, 2)]
    turn = '<assistant>{"number": 1}' + REFUSED
    assert sorted(seen) == sorted(
        [
            *(f"<user>{count} times<assistant>" for count in range(3)),
            *(f"<user>{count} times{turn}<assistant>" for count in (1, 2)),
            f"<user>2 times{turn}{turn}<assistant>",
        ]
    )


def test_all_ways_to_ask_one_prompt_retry_alike() -> None:
    model, _ = new_model()

    async def ask_all() -> list[Any]:
        with gen.Engine(model, rows=2) as engine:
            return [
                await gen.agenerate(model, ask(2), Guess, retries=2, details=True, **CHAT),
                await gen.agenerate(model, ask(2), Guess, retries=2, details=True, speculate=False, **CHAT),
                await engine.agenerate(ask(2), Guess, retries=2, details=True, **CHAT),
                await asyncio.to_thread(lambda: engine.generate(ask(2), Guess, retries=2, details=True, **CHAT)),
                gen.generate(model, "2 times", Guess, chat=True, retries=2, details=True, **CHAT),
            ]

    for made in asyncio.run(ask_all()):
        assert (made.value, made.attempts) == (Guess(number=8), 3)


def test_further_turns_are_made_without_receipts_if_the_first_is() -> None:
    model, _ = new_model()
    with gen.Engine(model, rows=2) as engine:
        made = engine.generate(ask(1), Guess, retries=1, details=True, receipts=False, **CHAT)
    assert made.attempts == 2
    with pytest.raises(gen.ArgumentError, match="no receipt"):
        _ = made.receipt


def test_prompts_that_come_one_by_one_are_asked_again_beside_others() -> None:
    model, seen = new_model()
    asked: Any = {"retries": 2, "details": True, "seed": [5, 6, 7, 8, 9]}
    counts = [2, 0, 3, 1, 0]
    made = dict(gen.generate_iter(model, map(ask, counts), Guess, rows=2, **asked, **CHAT))
    assert {number: (one.value, one.attempts, one.seed) for number, one in made.items() if number != 2} == {
        number: (Guess(number=8), counts[number] + 1, 5 + number) for number in (0, 1, 3, 4)
    }
    assert isinstance(made[2], gen.ValueRefusedError)
    assert made[2].completion.attempts == 3
    assert len(seen) == sum(min(count, 2) + 1 for count in counts)


def test_streams_say_who_asks_again() -> None:
    model, _ = new_model()
    with gen.Engine(model, rows=1) as engine:
        for function, given in ((gen.stream, [model]), (gen.astream, [model]), (engine.submit, [])):
            ask_again: Any = function
            with pytest.raises(
                gen.ArgumentError, match=r"takes no retries; write gen\.generate or an engine's generate"
            ):
                ask_again(*given, ask(1), Guess, retries=1, **CHAT)


def test_a_turn_for_which_there_is_no_room_is_not_asked() -> None:
    model, seen = new_model()
    room = len("<user>2 times<assistant>") + 20
    settings: Any = {"retries": 2, "max_batch_tokens": room, "max_new_tokens": 20, **CHAT}
    with pytest.raises(gen.ValueRefusedError) as caught:
        gen.generate(model, ask(2), Guess, **settings)
    assert caught.value.completion.attempts == 1
    [(_, error)] = gen.generate_iter(model, [ask(2)], Guess, **settings)
    assert isinstance(error, gen.ValueRefusedError)
    assert len(seen) == 2


def test_the_last_error_is_raised_or_returned() -> None:
    model, seen = new_model()
    with pytest.raises(gen.ValueRefusedError) as caught:
        gen.generate(model, ask(3), Guess, retries=2, **CHAT)
    assert caught.value.completion.attempts == 3
    with gen.Engine(model, rows=2) as engine, pytest.raises(gen.ValueRefusedError) as caught:
        engine.generate(ask(3), Guess, retries=1, **CHAT)
    assert caught.value.completion.attempts == 2
    found = gen.generate(model, [ask(3), ask(1)], Guess, retries=1, errors="return", **CHAT)
    assert isinstance(found[0], gen.ValueRefusedError)
    assert found[1] == Guess(number=8)
    del seen[:]
    with pytest.raises(gen.ValueRefusedError):
        gen.generate(model, ask(1), Guess, **CHAT)
    assert len(seen) == 1


def test_a_begun_answer_is_joined_and_lists_of_settings_go_along() -> None:
    model, _ = new_model()
    settings: Any = {"retries": 1, "seed": [1, 2], "max_new_tokens": [40, 30], "stop": [["x"], None], **CHAT}
    assert gen.generate(model, [ask(1), ask(0)], [Guess, Guess], **settings) == [Guess(number=8)] * 2
    model = ScriptedModel("1")
    template = "{% for one in messages %}<{{ one.role }}>{{ one.content }}{% endfor %}"
    begun = [*ask(0), {"role": "assistant", "content": "So: "}]
    with pytest.raises(gen.ValueRefusedError):
        gen.generate(
            model,
            begun,
            Annotated[int, AfterValidator(even)],
            retries=1,
            chat_template_kwargs={"chat_template": template},
        )
    assert model.read[1].startswith("<user>0 times<assistant>So: 1<user>This is refused: Value error, an odd nümber.")


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ("x", {"retries": 1}, "retries are further turns of a chat, and prompt 0 is none"),
        (ask(1), {"retries": -1}, "retries"),
        (ask(1), {"retries": 1, "sampler": gen.samplers.multinomial(samples=2)}, "retries are for one text a prompt"),
        (ask(1), {"retries": 1, "sampler": gen.samplers.beam_search(2)}, "retries are for one text a prompt"),
        (ask(1), {"retries": 1, "details": "tensors"}, "tells one text of a prompt"),
        ("x", {"describe": True}, "describe=True is for chats, and prompt 0 is none"),
        (ask(1), {"describe": 1}, "describe"),
    ],
)
def test_what_cannot_be_asked_again_or_described_is_refused_before_work(
    prompt: Any, settings: dict[str, Any], message: str
) -> None:
    model, seen = new_model()
    generate: Any = gen.generate
    with pytest.raises(gen.ArgumentError, match=message):
        generate(model, prompt, Guess, **(CHAT if prompt != "x" else {}), **settings)
    with pytest.raises(gen.ArgumentError, match="prompt 0 has none"):
        generate(model, ask(1), None, describe=True, **CHAT)
    for kinds in (None, [None]):
        with pytest.raises(
            gen.ArgumentError, match=r"retries ask again for values .* there is no output type; give one"
        ):
            generate(model, [ask(1)], kinds, retries=1, **CHAT)
    assert not seen


@pytest.mark.parametrize("system", ["", "Be kürz."])
def test_the_system_message_describes_the_type(system: str) -> None:
    model = ScriptedModel('{"number": 8}')
    messages = [{"role": "system", "content": system}] * bool(system) + ask(0)
    lead = f"{system}\n\n" if system else ""
    assert gen.generate(model, messages, Guess, describe=True, **CHAT) == Guess(number=8)
    assert gen.generate(model, [messages], [Guess], describe=True, **CHAT) == [Guess(number=8)]
    assert "".join(gen.stream(model, messages, Guess, describe=True, **CHAT)) == '{"number": 8}'
    assert [*gen.generate_iter(model, [messages], Guess, describe=True, **CHAT)] == [(0, Guess(number=8))]
    with gen.Engine(model, rows=1) as engine:
        assert engine.generate(messages, Guess, describe=True, **CHAT) == Guess(number=8)
    if not system:
        assert gen.generate(model, "0 times", Guess, chat=True, describe=True, **CHAT) == Guess(number=8)
    assert set(model.read) == {f"<system>{lead}{gen.describe(Guess)}<user>0 times<assistant>"}


CLOSING = (
    "{% for one in messages %}<{{ one.role }}>{{ one.content }}"
    "{% if not loop.last or one.role != 'assistant' %};{% endif %}{% endfor %}"
    "{% if messages[-1].role != 'assistant' %}<assistant>{% endif %}{# <think></think> #}"
)
AGAIN = "<user>This is refused: Value error, an odd nümber. Answer again.;<assistant>"
EVEN: Any = Annotated[int, AfterValidator(even)]


def answering(answers: list[str], **settings: Any) -> tuple[ScriptedModel, list[str]]:
    """A model that gives its answers one after the other, and what it has seen."""
    left = iter(answers)
    model = ScriptedModel(lambda prompt: next(left).encode(), **settings)
    return model, model.read


@pytest.mark.parametrize(
    ("begun", "thinking", "answer", "told"),
    [
        ("", None, "1", "1"),
        ("So: ", None, "1", "So: 1"),
        ("<think>\nWell", None, "!</think>1", "1"),
        ("<think>\nWell", False, "1", "1"),
        ("<think>Well</think>", None, "1", "<think>Well</think>1"),
    ],
)
def test_the_refused_answer_is_one_message_without_the_thought_that_it_had_begun(
    begun: str, thinking: bool | None, answer: str, told: str
) -> None:
    model, seen = answering([answer, "8"])
    chat = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": begun}]
    settings: Any = {"chat_template_kwargs": {"chat_template": CLOSING}, "thinking": thinking, "retries": 1}
    assert gen.generate(model, chat, EVEN, **settings) == 8
    assert seen[0].startswith(f"<user>Q;<assistant>{begun}")
    assert seen[1].startswith(f"<user>Q;<assistant>{told};{AGAIN}")


def test_the_question_stays_where_old_turns_go_for_a_further_one() -> None:
    asked = f"<user>{'Q' * 20};<assistant>"
    again = f"{asked}1;{AGAIN}"
    model, seen = answering(["1"] * 3, context_length=len(again.encode()) + 10)
    chat = [
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "Q" * 20},
    ]
    with pytest.raises(gen.ValueRefusedError) as caught:
        gen.generate(
            model,
            chat,
            EVEN,
            retries=2,
            truncate="turns",
            max_new_tokens=10,
            chat_template_kwargs={"chat_template": CLOSING},
        )
    assert seen == [f"<user>old;<assistant>A;{asked}", again]
    assert caught.value.completion.attempts == 2  # there is no room for the third
