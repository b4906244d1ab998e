"""The decode loop with scripted models: stopping, streaming, batches, samples, seeds, details and bad input."""

import math
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, assert_type

import pytest
import torch

import gen
from gen.models.transformers import TransformersModel
from gen.samplers import beam_search, greedy, multinomial
from gen.texts import Completion
from gen.tokenizers import Tokenizer
from tests.helpers import BOS, EOS, OTHER_EOS, ScriptedModel, byte_tokenizer, tiny_model

STORY = "Ünï😀 wörld — 中文 の 物語。 END of it"


def say(prompt: str) -> list[int]:
    """A script that depends on the prompt, so that mixed-up rows show."""
    return [*f"<{prompt}> said {len(prompt)}".encode()]


def test_eos_ends_a_text_and_is_not_part_of_it() -> None:
    completion = gen.generate(ScriptedModel("hello"), "x", details=True)
    assert completion == gen.Completion(
        text="hello",
        value="hello",
        token_ids=[*b"hello"],
        logprobs=[0.0] * 5,
        score=0.0,
        finish_reason="eos",
        seed=completion.seed,
    )


def test_the_loop_ends_with_the_last_text() -> None:
    model = ScriptedModel(lambda prompt: [*prompt.encode()] * 2)
    texts = gen.generate(model, ["a", "bcdef", "gh"], max_new_tokens=100)
    assert texts == ["aa", "bcdefbcdef", "ghgh"]
    assert model.steps == 11  # the longest text and its eos token, not max_new_tokens


def test_any_of_several_eos_ids_ends_a_text() -> None:
    model = ScriptedModel(lambda prompt: [ord("a"), OTHER_EOS, ord("b")])
    assert gen.generate(model, "x") == "ab"  # the other one is a special token, without text
    assert gen.generate(model, "x", eos_token_id=[EOS, OTHER_EOS]) == "a"
    assert gen.generate(model, "x", eos_token_id=ord("a")) == ""
    assert gen.generate(model, "x", eos_token_id=[], max_new_tokens=7, details=True).finish_reason == "length"


def test_max_new_tokens_and_the_context_bound_a_text() -> None:
    completion = gen.generate(ScriptedModel("hello"), "x", max_new_tokens=3, details=True)
    assert (completion.text, completion.finish_reason) == ("hel", "length")
    completions = gen.generate(ScriptedModel("hello", context_length=6), ["abcd", "ab"], details=True)
    assert [(c.text, c.finish_reason) for c in completions] == [("he", "length"), ("hell", "length")]
    model = ScriptedModel("hello")
    assert gen.generate(model, "x", max_new_tokens=0, details=True).finish_reason == "length"
    assert model.steps == 0


def test_a_text_that_ends_within_a_character_shows_it_as_replacement() -> None:
    assert gen.generate(ScriptedModel("a中"), "x", max_new_tokens=3) == "a\ufffd"
    assert list(gen.stream(ScriptedModel("a中"), "x", max_new_tokens=3)) == ["a", "\ufffd"]


@pytest.mark.parametrize("stop", ["😀", "文 の", "END", ["zzz", "。 E"], "it", ["E", "END"]])
def test_stop_strings_end_texts_and_streams_alike(stop: str | list[str]) -> None:
    stops = [stop] if isinstance(stop, str) else stop
    expected = STORY[: min(STORY.index(text) for text in stops if text in STORY)]
    completion = gen.generate(ScriptedModel(STORY), "x", stop=stop, details=True)
    assert (completion.text, completion.finish_reason) == (expected, "stop")
    assert Tokenizer(byte_tokenizer()).decode(completion.token_ids).startswith(expected)
    assert "".join(gen.stream(ScriptedModel(STORY), "x", stop=stop)) == expected


@pytest.mark.parametrize(
    ("script", "stop", "text", "finish_reason"),
    [
        ([*b"one", OTHER_EOS, *b"two"], "<end>", "one", "stop"),
        ([*b"one", OTHER_EOS, *b"two"], ["x", "<end>"], "one", "stop"),
        ([*b"one", OTHER_EOS, *b"two"], "ne<end>t", "o", "stop"),  # text on both sides of it
        ([*b"one", OTHER_EOS, OTHER_EOS, *b"two"], "<end><end>", "one", "stop"),
        ([*b"one", OTHER_EOS, *b"two"], "<end>!", "onetwo", "eos"),  # not what comes after it
        ([*b"one", OTHER_EOS, *b"two"], "et", "on", "stop"),  # no stop string names it, so it has no text
        ([*b"one", OTHER_EOS, *b"two"], "<en", "onetwo", "eos"),  # nor is a part of its name its text
        ([*b"one <end> two"], "<end>", "one ", "stop"),  # written in plain letters
        ([*b"one", EOS, *b"two"], "</s>", "one", "eos"),  # an eos is one first
        ([*b"one", OTHER_EOS], "<end>!", "one", "eos"),
        (["中".encode()[0], OTHER_EOS, *b"two"], "<end>", "\ufffd", "stop"),
    ],
)
def test_a_stop_string_may_have_special_tokens_in_it(
    script: list[int], stop: str | list[str], text: str, finish_reason: str
) -> None:
    model = ScriptedModel(lambda prompt: script)
    completion = gen.generate(model, "x", stop=stop, details=True)
    assert (completion.text, completion.finish_reason) == (text, finish_reason)
    assert "".join(gen.stream(model, "x", stop=stop)) == text
    beams: Any = gen.generate(model, "x", stop=stop, sampler=beam_search(2), details=True)
    assert (beams.text, beams.finish_reason) == (text, finish_reason)
    if finish_reason == "stop":  # the special token that ended it is among the tokens, as those of other stop strings
        assert completion.token_ids == script[: len(completion.token_ids)]


def test_a_stop_string_that_never_comes_loses_no_text() -> None:
    completion = gen.generate(ScriptedModel("the EN"), "x", stop="END", details=True)
    assert (completion.text, completion.finish_reason) == ("the EN", "eos")
    assert "".join(gen.stream(ScriptedModel("the EN"), "x", stop="END")) == "the EN"


def test_streams_of_random_texts_equal_generate_with_random_stops() -> None:
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choice("aß中🙂 \n") for _ in range(rng.randint(0, 20)))
        stops = ["".join(rng.choice("aß中🙂 \n") for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(0, 2))]
        pieces = list(gen.stream(ScriptedModel(text), "x", stop=stops, max_new_tokens=40))
        assert "".join(pieces) == gen.generate(ScriptedModel(text), "x", stop=stops, max_new_tokens=40)
        if "".join(pieces) == text:
            assert all(piece and "\ufffd" not in piece for piece in pieces)


def test_batches_keep_their_order_and_rows_their_prompts() -> None:
    prompts = ["a", "bb", "中", "", "dddd"]
    model = ScriptedModel(say)
    assert gen.generate(model, prompts) == [bytes(say(prompt)).decode() for prompt in prompts]
    assert gen.generate(model, "bb") == "<bb> said 2"
    assert gen.generate(model, ["bb"]) == ["<bb> said 2"]
    assert gen.generate(model, ("a", "bb")) == ["<a> said 1", "<bb> said 2"]


def test_samples_come_as_a_list_for_each_prompt() -> None:
    model = ScriptedModel(say)
    assert gen.generate(model, "a", sampler=multinomial(samples=3)) == ["<a> said 1"] * 3
    assert gen.generate(model, ["a", "bb"], sampler=multinomial(2)) == [["<a> said 1"] * 2, ["<bb> said 2"] * 2]


def test_a_prompt_may_be_token_ids_or_messages() -> None:
    model = ScriptedModel(say)
    assert gen.generate(model, [BOS, *b"bb"]) == "<bb> said 2"
    assert gen.generate(model, [[*b"a"], [*b"bb"]]) == ["<a> said 1", "<bb> said 2"]
    model.tokenizer = Tokenizer(byte_tokenizer(chat=True))
    rendered = "[user] hi\n[assistant] "
    messages = [{"role": "user", "content": "hi"}]
    for answer in (gen.generate(model, "hi", chat=True), gen.generate(model, messages)):
        assert answer == f"<{rendered}> said {len(rendered)}"
    assert gen.generate(model, [messages, messages]) == [gen.generate(model, messages)] * 2


def test_a_chat_takes_arguments_for_its_template_and_goes_on_with_the_assistants_message() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% if tools %}{{ tools[0].function.name }}:{% endif %}{% if enable_thinking is false %}fast:{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    model = ScriptedModel(lambda prompt: [*prompt.encode()])
    model.tokenizer = Tokenizer(tokenizer)
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
    given = {"tools": [tool], "enable_thinking": False}
    assert gen.generate(model, "hi", chat=True) == "[user]hi;[assistant]"
    assert gen.generate(model, "hi", chat=True, chat_template_kwargs=given) == "look:fast:[user]hi;[assistant]"
    messages = [{"role": "user", "content": "hi"}]
    both = gen.generate(model, [messages, messages], chat_template_kwargs={"enable_thinking": False})
    assert both == ["fast:[user]hi;[assistant]"] * 2
    begun = [*messages, {"role": "assistant", "content": "It is"}]
    assert gen.generate(model, begun) == "[user]hi;[assistant]It is"
    assert gen.generate(model, begun, chat=True, chat_template_kwargs=given) == "look:fast:[user]hi;[assistant]It is"
    assert "".join(gen.stream(model, begun, chat_template_kwargs=given)) == "look:fast:[user]hi;[assistant]It is"
    ended = {"continue_final_message": False, "add_generation_prompt": True}
    assert gen.generate(model, begun, chat_template_kwargs=ended) == "[user]hi;[assistant]It is;[assistant]"


def test_the_types_of_results_follow_the_prompt_the_sampler_and_details() -> None:
    model, messages = ScriptedModel("hi"), [{"role": "user", "content": "hi"}]
    model.tokenizer = Tokenizer(byte_tokenizer(chat=True))
    assert_type(gen.generate(model, "x"), str)
    assert_type(gen.generate(model, [65, 66]), str)
    assert_type(gen.generate(model, messages, chat=True), str)
    assert_type(gen.generate(model, "x", sampler=greedy(), stop="z"), str)
    assert_type(gen.generate(model, "x", details=True), Completion)
    assert_type(gen.generate(model, ["x", "y"]), list[str])
    assert_type(gen.generate(model, ("x", [65], messages), details=False), list[str])
    assert_type(gen.generate(model, [[65], [66]]), list[str])
    assert_type(gen.generate(model, [messages], details=True), list[Completion])
    assert_type(gen.generate(model, "x", sampler=multinomial(2)), str | list[str])
    assert_type(gen.generate(model, "x", sampler=beam_search(2), details=True), Completion | list[Completion])
    assert_type(gen.generate(model, ["x"], sampler=multinomial()), list[str | list[str]])
    assert_type(gen.generate(model, ["x"], sampler=multinomial(), details=True), list[Completion | list[Completion]])
    assert_type(gen.stream(model, "x"), gen.Stream)
    assert_type(gen.stream(model, "x").completion, Callable[[], Completion])

    def unknown(prompt: str | list[str], sampler: gen.samplers.Sampler | None, details: bool) -> None:
        assert_type(gen.generate(model, prompt), str | list[str])
        assert_type(gen.generate(model, "x", sampler=sampler), str | list[str])
        result = gen.generate(model, prompt, sampler=sampler, details=details)
        assert isinstance(result, Completion if details else str)

    unknown("x", None, True)
    unknown("x", greedy(), False)


def test_unknown_arguments_are_pythons_own_error() -> None:
    generate: Any = gen.generate
    stream: Any = gen.stream
    for call in (generate, stream):
        for name in ("max_tokens", "temperature"):
            with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{name}'"):
                call(ScriptedModel("hello"), "x", **{name: 3})


@pytest.fixture(scope="module")
def llama() -> TransformersModel:
    return gen.from_transformers(tiny_model(), byte_tokenizer())


def test_equal_seeds_give_equal_texts_and_drawn_seeds_are_reported(llama: Any) -> None:
    first, second = gen.generate(llama, ["same", "same"], seed=3, max_new_tokens=12)
    assert first == second == gen.generate(llama, "same", seed=3, max_new_tokens=12)
    drawn = gen.generate(llama, ["same"] * 4, max_new_tokens=12, details=True)
    assert len({completion.seed for completion in drawn}) == 4
    assert len({completion.text for completion in drawn}) == 4
    for completion in drawn:
        assert gen.generate(llama, "same", seed=completion.seed, max_new_tokens=12) == completion.text


def test_threads_share_a_model(llama: Any) -> None:
    prompts = [f"thread {number}" for number in range(8)]
    expected = [gen.generate(llama, prompt, seed=5, max_new_tokens=12) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda prompt: gen.generate(llama, prompt, seed=5, max_new_tokens=12), prompts))
    assert texts == expected


def test_logprobs_are_those_of_the_distribution_that_was_drawn_from(llama: Any) -> None:
    prompt_ids = [*b"once"]
    for sampler in (multinomial(temperature=0.7, top_k=5), greedy(), multinomial()):
        completion = gen.generate(llama, prompt_ids, sampler=sampler, seed=1, max_new_tokens=8, details=True)
        token_ids = torch.tensor([prompt_ids + completion.token_ids])
        with torch.no_grad():
            logits = llama.hf_model(token_ids).logits[0, len(prompt_ids) - 1 : -1, :259].double()
        if isinstance(sampler, multinomial):
            logits = sampler.warp(logits).double()
        expected = logits.log_softmax(-1).gather(1, token_ids[0, len(prompt_ids) :, None]).flatten()
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
        assert completion.score == pytest.approx(sum(completion.logprobs))


def test_a_stream_can_be_left_early_and_torch_stays_as_it_was(llama: Any) -> None:
    pieces = gen.stream(llama, "go", seed=1)
    next(pieces)
    assert not torch.is_inference_mode_enabled()
    pieces.close()
    assert torch.is_grad_enabled()


def test_a_default_device_or_dtype_of_the_user_changes_nothing(llama: Any) -> None:
    expected = gen.generate(llama, ["a", "bcd"], seed=1, max_new_tokens=8)
    torch.set_default_dtype(torch.float64)
    try:
        assert gen.generate(llama, ["a", "bcd"], seed=1, max_new_tokens=8) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_row_with_nothing_left_raises_and_names_the_place() -> None:
    class Dead(ScriptedModel):
        def prefill(self, *arguments: Any) -> Any:
            logits, state = super().prefill(*arguments)
            state.logits = lambda: torch.full_like(logits, math.nan)  # type: ignore[method-assign]
            return logits, state

    with pytest.raises(gen.SamplingError, match="no token was left to choose after 1 new ones"):
        gen.generate(Dead("hello"), "x")


def unusable() -> list[tuple[Callable[[ScriptedModel], Any], str]]:
    generate: Any = gen.generate
    stream: Any = gen.stream
    return [
        (lambda m: generate("demo", "x"), r"model must be a loaded model, as from gen.load\('demo'\)"),
        (lambda m: generate(m, []), "the list of prompts is empty"),
        (lambda m: generate(m, 3), "a prompt is a text, a list of messages or of token ids, or a list of those; got 3"),
        (lambda m: generate(m, ["a", 3]), "a prompt is a text"),
        (lambda m: generate(m, [1, "a"]), "a prompt is a text"),
        (lambda m: generate(m, [[]]), "a prompt is a text"),
        (lambda m: generate(m, [65, 259]), "the prompt has the token id 259; the vocabulary is 0 to 258"),
        (lambda m: generate(m, [-1]), "the token id -1"),
        (lambda m: generate(m, "x", eos_token_id=900), "eos_token_id has the token id 900"),
        (lambda m: generate(m, "x" * 1000), "prompt 0 has 1000 tokens; the model's context of 1000 leaves no room"),
        (lambda m: generate(m, ["x", "y" * 2000]), "prompt 1 has 2000 tokens"),
        (lambda m: generate(m, "x" * 1001, max_new_tokens=0), "prompt 0 has 1001 tokens"),
        (lambda m: generate(m, "x", max_new_tokens=-1), "max_new_tokens must be a whole number at least 0, got -1"),
        (lambda m: generate(m, "x", max_new_tokens=2.5), "max_new_tokens must be a whole number"),
        (lambda m: generate(m, "x", seed="7"), "seed must be a whole number"),
        (lambda m: generate(m, "x", seed=-1), "seed must be a whole number at least 0"),
        (lambda m: generate(m, "x", seed=2**63), "seed must be a whole number .* got 9223372036854775808"),
        (lambda m: generate(m, "x", seed=True), "seed must be a whole number"),
        (
            lambda m: generate(m, ["x", "y"], seed=[1]),
            "seed must be .* one for each of 2 prompts, got 1",
        ),
        (lambda m: generate(m, "x", stop=""), "stop takes strings of at least one character, got ''"),
        (lambda m: generate(m, "x", sampler=greedy), r"sampler must be a sampler such as gen.samplers.greedy\(\)"),
        (lambda m: generate(m, "x", sampler="greedy"), "sampler must be a sampler"),
        (lambda m: generate(m, "x", chat=True), "this tokenizer has no chat template"),
        (
            lambda m: generate(m, ["x"], chat_template_kwargs={"tools": []}),
            "prompt 0 is no chat, which chat_template_kwargs are for; give chat=True",
        ),
        (
            lambda m: generate(m, [65], chat=True, chat_template_kwargs={"tools": []}),
            "prompt 0 is no chat, which chat_template_kwargs are for",
        ),
        (
            lambda m: generate(m, "x", chat=True, chat_template_kwargs=["tools"]),
            r"chat_template_kwargs must be a mapping of names, .* got \['tools'\]",
        ),
        (lambda m: stream(m, ["x"]), "stream takes one prompt; use generate for a list"),
        (lambda m: stream(m, "x", sampler=multinomial(2)), "stream makes one text, the sampler makes 2 a prompt"),
        (lambda m: stream(m, "x", max_new_tokens=-1), "max_new_tokens must be a whole number at least 0"),
    ]


@pytest.mark.parametrize(("call", "message"), unusable())
def test_bad_input_is_refused_before_the_model_runs(call: Callable[[ScriptedModel], Any], message: str) -> None:
    model = ScriptedModel("hello")
    with pytest.raises(gen.ArgumentError, match=message):
        call(model)
    assert model.steps == 0
