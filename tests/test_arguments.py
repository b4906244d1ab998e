"""Numbers, ids and texts as users have them, also in arrays: what is read, and what is refused before work is lost."""

import json
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import torch
from pydantic import BaseModel
from transformers import RepetitionPenaltyLogitsProcessor

import gen
from gen.arguments import as_lists, check_flag, check_text, read_token_ids, read_whole
from gen.errors import ArgumentError, show
from gen.samplers import beam_search, greedy, multinomial
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import EOS, ScriptedModel, byte_tokenizer
from tests.test_api import say


@pytest.mark.parametrize(
    "value", [3, numpy.int64(3), numpy.uint8(3), numpy.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.int8)]
)
def test_whole_numbers_of_any_library_are_read(value: object) -> None:
    number = read_whole("x", value)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize(
    "value",
    [
        *(True, numpy.True_, torch.tensor(True), 3.0, numpy.float32(3), torch.tensor(3.0), "3", b"3", None, [3], 1j),
        *(numpy.array([3]), torch.tensor([3]), torch.empty((), dtype=torch.int64, device="meta"), int, torch.Tensor),
        *(-1, 2**63, 10**400),
    ],
    ids=show,
)
def test_what_is_no_whole_number_in_range_is_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="x must be a whole number at least 0"):
        read_whole("x", value)


def test_arrays_and_tensors_become_lists_and_all_else_stays() -> None:
    assert as_lists(numpy.array([[1, 2], [3, 4]])) == as_lists(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    for value in ("text", [1, 2], None, numpy.array([1.5]), torch.tensor([True]), {"a": 1}, numpy.str_("text")):
        assert as_lists(value) is value


@pytest.mark.parametrize("value", ["a", b"a", 1.5, {1: 2}, torch.tensor([1.0]), None, True])
def test_what_is_no_token_id_is_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="eos must be a token id or a list of token ids, got "):
        read_token_ids("eos", value, 9)
    for inner in (value, 9, -1):
        with pytest.raises(ArgumentError, match=r"eos has the token id .*; the vocabulary is 0 to 8"):
            read_token_ids("eos", [inner], 9)


def test_a_lone_surrogate_is_named_with_its_place_and_can_be_repaired_as_the_error_says() -> None:
    text = "a\ud83d\ude00b\ud800"
    with pytest.raises(
        ArgumentError, match=r"it has a lone surrogate \\ud83d at character 1; .*'surrogatepass'"
    ) as caught:
        check_text("it", text)
    str(caught.value).encode()
    repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    check_text("it", repaired)
    assert repaired == "a😀b\ufffd"
    check_text("it", "a 😀 \ufffd 中 \0")


@pytest.mark.parametrize("value", ["no", 0, 1, None, [], numpy.array([1, 2])])
def test_a_flag_is_true_or_false(value: object) -> None:
    check_flag("chat", True)
    with pytest.raises(ArgumentError, match="chat must be True or False, got "):
        check_flag("chat", value)


MESSAGE = {"role": "user", "content": "hi"}
ONE: list[Any] = [
    [*b"ab"],
    (97, 98),
    numpy.array([97, 98]),
    numpy.array([97, 98], dtype=numpy.uint8),
    torch.tensor([97, 98]),
    torch.tensor([97, 98], dtype=torch.int32),
    [numpy.int64(97), 98],
    [torch.tensor(97), torch.tensor(98)],
    range(97, 99),
]
BATCH: list[Any] = [
    [[*b"ab"], [*b"cd"]],
    numpy.array([[97, 98], [99, 100]]),
    torch.tensor([[97, 98], [99, 100]]),
    [torch.tensor([97, 98]), numpy.array([99, 100])],
    ["ab", torch.tensor([99, 100])],
    (numpy.str_("ab"), range(99, 101)),
]


@pytest.mark.parametrize("prompt", ONE, ids=show)
def test_arrays_and_tensors_of_one_dimension_are_a_prompt(prompt: Any) -> None:
    model = ScriptedModel(say)
    assert gen.generate(model, prompt) == "<ab> said 2"
    assert "".join(gen.stream(model, prompt)) == "<ab> said 2"


@pytest.mark.parametrize("prompts", BATCH, ids=show)
def test_arrays_and_tensors_of_two_dimensions_and_lists_of_them_are_prompts(prompts: Any) -> None:
    assert gen.generate(ScriptedModel(say), prompts) == ["<ab> said 2", "<cd> said 2"]


def test_numbers_of_any_library_are_seeds_limits_and_ids() -> None:
    model: Any = ScriptedModel("hello")
    generate: Any = gen.generate
    for three in (numpy.int64(3), torch.tensor(3)):
        completion = generate(model, "x", max_new_tokens=three, seed=three, details=True)
        assert (completion.text, completion.seed) == ("hel", 3)
    for seeds in (numpy.array([1, 2]), torch.tensor([1, 2]), [numpy.int64(1), torch.tensor(2)]):
        assert [one.seed for one in generate(model, ["x", "y"], seed=seeds, details=True)] == [1, 2]
    for limits in (range(2, 4), (2, 3), numpy.array([2, 3]), torch.tensor([2, 3]), [numpy.int64(2), torch.tensor(3)]):
        assert generate(model, ["x", "y"], max_new_tokens=limits) == ["he", "hel"]
        assert [one.seed for one in generate(model, ["x", "y"], seed=limits, details=True)] == [2, 3]
        for name in ("seed", "max_new_tokens"):
            with pytest.raises(ArgumentError, match=f"{name} is a list, one for each prompt"):
                generate(model, "x", **{name: limits})
    ell, o = ord("l"), ord("o")
    for ids in (
        numpy.int64(ell),
        torch.tensor(ell),
        [numpy.int64(ell), EOS],
        numpy.array([ell, EOS]),
        torch.tensor([EOS, ell]),
    ):
        assert generate(model, "x", eos_token_id=ids) == "he"
    bias: Any = {numpy.int64(EOS): numpy.float32(2), 97: 1}
    words: Any
    for words in (None, [], ()):
        assert generate(model, "x", sampler=greedy(bad_words=words, logit_bias=bias)) == "hello"
    for words in ([numpy.array([ell, o])], [torch.tensor([ell, o])], ((numpy.int64(ell), o),)):
        with pytest.raises(gen.SamplingError, match="no token was left to choose after 4 new ones"):  # "hell"
            generate(model, "x", sampler=greedy(bad_words=words))
    sampler: Any = multinomial(samples=numpy.int64(2), top_k=numpy.int64(3), temperature=numpy.float32(0.5))  # type: ignore[arg-type]
    assert generate(model, "x", sampler=sampler) == ["hello", "hello"]
    given: Any = {"top_k": 3, "temperature": 0.5, "min_p": 0, "presence_penalty": 1}
    tensors: Any = {name: torch.tensor(value) for name, value in given.items()}
    assert multinomial(**tensors) == multinomial(**given)


class TypedMessage(BaseModel):
    role: str = "user"


NO_PROMPTS: list[tuple[Any, str]] = [
    (None, 'got None; give "" to start from the bos token'),
    (b"text", r"got b'text'; decode bytes first, as prompt.decode\(\)"),
    (bytearray(b"text"), "decode bytes first"),
    (memoryview(b"text"), "decode bytes first"),
    ({"role": "user", "content": "x"}, r"put a single message into a list: \[message\]"),
    ({"input_ids": [1], "attention_mask": [1]}, 'give its "input_ids"'),
    (Path("story.txt"), r"read a file first, as path.read_text\(\)"),
    ((prompt for prompt in "ab"), r"make a list of it, as list\(prompts\)"),
    ({"a", "b"}, r"make a list of it, as list\(prompts\)"),
    (map(str, "ab"), "make a list of it"),
    *((one, r"as dicts, as message.model_dump\(\)") for one in ([TypedMessage()], [{"role": "user"}, TypedMessage()])),
    (numpy.array(["a", "b"]), r"got ndarray \(2,\) <U1; an array .* give texts as \.tolist\(\)"),
    (torch.tensor([1.0, 2.0]), r"got Tensor \(2,\) float32; an array or tensor has whole numbers"),
    (torch.tensor([True]), r"got Tensor \(1,\) bool; an array or tensor has whole numbers"),
    (torch.tensor([[[1]]]), "a prompt is a text"),
    (torch.empty(3, dtype=torch.int64, device="meta"), r"got Tensor \(3,\) int64; an array"),
    (torch.tensor(3), "got 3"),
    (3.5, "got 3.5"),
    (True, "got True"),
    (object(), "got <object object"),
]


@pytest.mark.parametrize(("given", "message"), NO_PROMPTS, ids=show)
def test_what_is_no_prompt_is_refused_with_what_to_do(given: Any, message: str) -> None:
    model = ScriptedModel("hello")
    both: Any = ["x", given]
    for prompt in (given, both):
        with pytest.raises(ArgumentError, match=message) as caught:
            gen.generate(model, prompt)
        assert len(str(caught.value)) < 300
        with pytest.raises(ArgumentError):
            gen.stream(model, prompt)
    assert model.steps == 0


@pytest.mark.parametrize("mixed", [[1, "a"], [1, None], [1, True], [1, 2.0], [{"role": "user"}, "a"], [[]], [[], "a"]])
def test_lists_of_several_kinds_are_refused(mixed: Any) -> None:
    model = ScriptedModel("hello")
    with pytest.raises(ArgumentError, match=r"a prompt is a text, a list of messages or of token ids, or"):
        gen.generate(model, mixed)
    assert model.steps == 0


BROKEN = "ab\ud800c"
PARTS: Any = {"role": "user", "content": [{"type": "text", "text": BROKEN}]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: gen.generate(m, BROKEN), r"^the text has a lone surrogate \\ud800 at character 2"),
        (lambda m: gen.generate(m, ["x", "y", BROKEN]), r"prompt 2: the text has a lone surrogate \\ud800 at char"),
        (lambda m: gen.generate(m, BROKEN, chat=True), r"^message 0 has a lone surrogate"),
        (lambda m: gen.generate(m, [{"role": "user", "content": BROKEN}]), "^message 0 has a lone surrogate"),
        (
            lambda m: gen.generate(m, [[MESSAGE], [MESSAGE, PARTS]]),
            "prompt 1: message 1 has a lone surrogate .* at character 2",
        ),
        (lambda m: gen.generate(m, "x", stop=BROKEN), "stop string 0 has a lone surrogate"),
        (lambda m: gen.generate(m, "x", stop=["a", BROKEN]), "stop string 1 has a lone surrogate"),
        (lambda m: gen.generate(m, "x", sampler=greedy(bad_words=["a", BROKEN])), "bad word 1 has a lone surrogate"),
        (lambda m: gen.generate(m, "x", gen.json_schema({"const": BROKEN})), "the schema has a lone surrogate"),
        (lambda m: gen.generate(m, "x", gen.json_schema(json.dumps({"const": BROKEN}))), "the schema has a lone surro"),
        (lambda m: gen.stream(m, BROKEN), "^the text has a lone surrogate"),
    ],
)
def test_lone_surrogates_are_refused_with_their_place(call: Any, message: str) -> None:
    model = ScriptedModel("hello")
    model.tokenizer = Tokenizer(byte_tokenizer(chat=True))
    with pytest.raises(ArgumentError, match=message):
        call(model)
    assert model.steps == 0


def test_a_chat_template_cannot_bring_a_lone_surrogate_to_the_tokenizer() -> None:
    hf_tokenizer = byte_tokenizer(chat=True)
    hf_tokenizer.chat_template = "{{ '\ud800' }}"
    model = ScriptedModel("hello")
    model.tokenizer = Tokenizer(hf_tokenizer)
    with pytest.raises(ArgumentError, match="the text has a lone surrogate"):
        gen.generate(model, [MESSAGE])


MAKERS: list[Any] = [greedy, multinomial, beam_search]
NO_PROCESSORS = ["text", 3, [3], lambda *given: given[2], [lambda one: one], [RepetitionPenaltyLogitsProcessor]]
# of gen.generate(model, "x") with these arguments
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "demo"}, r"model must be a loaded model, as from gen.load\('demo'\), got 'demo'$"),
    ({"prompt": [65, 259]}, "the prompt has the token id 259; the vocabulary is 0 to 258"),
    ({"prompt": [-1]}, "the token id -1"),
    ({"prompt": "x" * 1000}, "prompt 0 has 1000 tokens; the model's context of 1000 leaves no room"),
    ({"prompt": "x" * 1001, "max_new_tokens": 0}, "prompt 0 has 1001 tokens"),
    ({"prompt": ["x", "y" * 2000]}, "prompt 1 has 2000 tokens"),
    ({"stop": 0}, "stop must be a string, a compiled regex or a list of those, got 0"),
    ({"stop": ""}, "stop takes strings of at least one character and .* got ''"),
    ({"eos_token_id": "a"}, "eos_token_id must be a token id or a list of token ids, got 'a'"),
    ({"eos_token_id": ["a"]}, "eos_token_id has the token id 'a'"),
    ({"eos_token_id": torch.tensor([259])}, "eos_token_id has the token id 259; the vocabulary is 0 to 258"),
    ({"max_new_tokens": "3"}, "max_new_tokens must be a whole number at least 0, got '3'"),
    ({"max_new_tokens": 10**400}, "max_new_tokens must be a whole number at least 0 and below 2"),
    ({"max_new_tokens": [None]}, "max_new_tokens is a list"),
    ({"prompt": ["x", "y"], "max_new_tokens": [1, 2, 3]}, "max_new_tokens must be .* of 2 prompts, got 3"),
    ({"prompt": ["x", "y"], "max_new_tokens": [1, -2]}, "max_new_tokens must be a whole number .* got -2"),
    ({"max_batch_tokens": 0}, "max_batch_tokens must be a whole number at least 1, got 0"),
    ({"shorten": 1}, "shorten must be True or False, got 1"),
    ({"limits_thoughts": "no"}, "limits_thoughts must be True or False, got 'no'"),
    ({"progress": "yes"}, "progress must be True or False, got 'yes'"),
    ({"replay": None}, "replay must be True or False, got None"),
    ({"cuda_graph": "no"}, "cuda_graph must be True or False, got 'no'"),
    ({"seed": [1, 2]}, "seed is a list, one for each prompt of a list, and the prompt is a single one"),
    ({"seed": 1.5}, "seed must be a whole number at least 0, got 1.5"),
    ({"prompt": ["x", "y"], "seed": [1]}, "seed must be .* one for each of 2 prompts, got 1"),
    ({"chat": "no"}, "chat must be True or False, got 'no'"),
    ({"chat": True}, "this tokenizer has no chat template"),
    ({"prompt": ["x"], "chat_template_kwargs": {"x": 1}}, "are for chats, and prompt 0 is none; give chat=True"),
    ({"prompt": [65], "chat": True}, "chat=True puts texts into the chat template, and prompt 0 is token ids; give"),
    ({"chat": True, "chat_template_kwargs": ["x"]}, r"chat_template_kwargs must be a mapping of names, .* got \['x'\]"),
    ({"details": "tensor"}, 'details must be True, False or "tensors", got'),
    ({"num_return_sequences": 1.5}, "num_return_sequences must be a whole number at least 1"),
    ({"sampler": multinomial(10**12)}, "the sampler makes 1000000000000 texts of a prompt, and a call at most 1000000"),
    ({"sampler": [greedy()]}, "sampler is a list, one for each prompt"),
    ({"prompt": ["x", "y"], "sampler": [greedy()]}, "sampler must be .* one for each of 2 prompts, got 1"),
    ({"prompt": ["x"], "sampler": []}, "sampler must be one sampler or one for each of 1 prompts, got 0"),
    ({"prompt": ["x"], "sampler": ["greedy"]}, "sampler must be a sampler"),
    *(
        ({"sampler": make(logit_bias={900: 1.0})}, "logit_bias has the token id 900; the vocabulary is 0 to 258")
        for make in MAKERS
    ),
    *(({"sampler": make(bad_words=[[900]])}, "bad_words has the token id 900") for make in MAKERS),
    *(({"logits_processors": one}, "logits_processors must be a list of functions") for one in NO_PROCESSORS),
    *(({"skip_special_tokens": one}, "skip_special_tokens") for one in ("[X]", None, 1, ["x"], [3])),
    *(({"speculate": one}, 'speculate must be "auto", False or a gen\\.Speculation') for one in (True, "on", 3, None)),
    *(({"max_time": one}, "max_time must be a number above 0") for one in (0, -1.0, "1", float("nan"))),
    ({"max_time": 1, "sampler": beam_search(2)}, "max_time is for texts that grow token by token"),
    *(({"draft": one}, "draft must be a Completion, a receipt, a text or a list of token ids") for one in (3.5, 5)),
    ({"draft": [1, 10**6]}, "draft has the token id 1000000"),
    ({"draft": ["a", "b"]}, "draft has the token id 'a'"),
    *(({"prompt": ["x"] * 2, "draft": one}, "one draft or None for each of 2 prompts") for one in ("x", ["x"], [5, 6])),
    ({"top_logprobs": 2}, "top_logprobs are told with details=True"),
    ({"top_logprobs": -1, "details": True}, "top_logprobs must be a whole number at least 0 and at most 259, got -1"),
    ({"top_logprobs": 260, "details": True}, "at most 259, got 260"),
    ({"top_logprobs": True, "details": True}, "got True"),
    (
        {"top_logprobs": 2, "details": True, "sampler": beam_search(2)},
        "a beam search chooses among whole texts; leave them out, or take gen.samplers.greedy or multi",
    ),
    ({"prompt_logprobs": 1}, "details=True"),
    *(({"prompt_logprobs": one, "details": True}, "prompt_logprobs must be") for one in (-1, 10**6)),
    ({"prompt_logprobs": 1, "details": True, "max_new_tokens": 0}, r"gen.score\(model, prompt\)"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=show)
def test_what_a_call_cannot_use_is_refused_before_the_model_runs(arguments: dict[str, Any], message: str) -> None:
    model, generate = ScriptedModel("hello"), cast(Any, gen.generate)
    with pytest.raises(ArgumentError, match=message) as caught:
        generate(**{"model": model, "prompt": "x"} | arguments)
    assert len(str(caught.value)) < 300
    assert model.steps == 0


def test_a_minimum_beyond_every_text_bans_eos_to_the_end() -> None:
    sampler = greedy(min_new_tokens=2**63 - 1)
    with pytest.raises(gen.SamplingError, match="no token was left to choose after 2 new ones"):
        gen.generate(ScriptedModel("ab"), "x", sampler=sampler)
