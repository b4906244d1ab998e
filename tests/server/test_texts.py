"""The server's texts are those of `gen.generate`, in every protocol, alone or beside other requests."""

import asyncio
import math
from dataclasses import replace
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field

import gen
from gen.completions import TopLogprobs
from gen.samplers import multinomial
from gen.server.likelihoods import in_text_form
from gen.server.protocols.completions import fill_in
from gen.server.texts import Ended, Texts
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import ScriptedModel, byte_tokenizer, spaced_tokenizer, tiny_model
from tests.helpers.tokenizers import BOS
from tests.server.client import Client, Reply

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Once upon a time"}]
COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}

# What a client sends, and the equivalent arguments of gen.generate.
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"best_of": 0, "max_tokens": 12}, {"max_new_tokens": 12}),
    ({"temperature": 0, "max_tokens": 9}, {"sampler": multinomial(temperature=0), "max_new_tokens": 9}),
    (
        {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "max_tokens": 12},
        {"sampler": multinomial(temperature=0.7, top_k=40, top_p=0.9, min_p=0.02), "max_new_tokens": 12},
    ),
    ({"top_k": -1, "max_tokens": 6}, {"sampler": multinomial(), "max_new_tokens": 6}),
    (
        {"presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "max_tokens": 12},
        {
            "sampler": multinomial(presence_penalty=1, frequency_penalty=0.5, repetition_penalty=1.2),
            "max_new_tokens": 12,
        },
    ),
    (
        {"logit_bias": {"50": 5, "60": -100, "foo": 0}, "max_tokens": 8},
        {"sampler": multinomial(logit_bias={50: 5, 60: -100}), "max_new_tokens": 8},
    ),
    (
        {"bad_words": [" a"], "no_repeat_ngram_size": 2, "max_tokens": 12},
        {"sampler": multinomial(bad_words=[" a"], no_repeat_ngram_size=2), "max_new_tokens": 12},
    ),
    ({"stop": [" a", "."], "max_tokens": 20}, {"stop": [" a", "."], "max_new_tokens": 20}),
    (
        {"stop": " a", "include_stop_str_in_output": True, "max_tokens": 20},
        {"stop": " a", "include_stop": True, "max_new_tokens": 20},
    ),
    ({"ignore_eos": True, "max_tokens": 30}, {"eos_token_id": [], "max_new_tokens": 30}),
    ({"min_tokens": 5, "max_tokens": 12}, {"sampler": multinomial(min_new_tokens=5), "max_new_tokens": 12}),
    ({"skip_special_tokens": False, "max_tokens": 8}, {"skip_special_tokens": False, "max_new_tokens": 8}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR}}},
        {"output_type": gen.json_schema(COLOUR)},
    ),
    ({"structured_outputs": {"regex": "[a-z]{3,5}"}}, {"output_type": gen.regex("[a-z]{3,5}")}),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {"output_type": gen.choice(["yes", "no"])}),
]


def text_of(reply: Reply) -> str:
    """The text of an answer, whole or streamed."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        [choice] = reply.json["choices"]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    assert reply.whole and reply.events[-1] == "[DONE]"
    choices = [choice for event in reply.events[:-1] for choice in event["choices"]]
    return "".join(one["delta"].get("content", "") if "delta" in one else one["text"] for one in choices)


def test_texts_are_those_of_generate_and_streams_add_up_to_them(demo: Any, client: Client) -> None:
    sent, wanted = [], []
    for number, (fields, arguments) in enumerate(CASES):
        chat = bool(number % 2)
        prompt: Any = HELLO if chat else "One morning"
        fields = {"model": "demo", "seed": number, "messages" if chat else "prompt": prompt, **fields}
        sent += [(CHAT if chat else TEXT, {**fields, "stream": stream}) for stream in (False, True)]
        wanted += [gen.generate(demo, prompt, seed=number, details=True, **arguments).text] * 2
    replies = client.posts(sent)
    assert [reply.status for reply in replies] == [200] * len(sent)
    assert [text_of(reply) for reply in replies] == wanted


def test_several_texts_are_the_samples_of_a_seed_and_each_prompt_has_its_own(demo: Any, client: Client) -> None:
    prompts: list[Any] = ["Once upon a time", [5, 60, 70]]
    sampler = multinomial(samples=3)
    wanted = [
        text for prompt in prompts for text in gen.generate(demo, prompt, seed=4, sampler=sampler, max_new_tokens=9)
    ]
    fields = {"prompt": prompts, "n": 3, "seed": 4, "max_tokens": 9}
    streams = {"stream": True, "stream_options": {"include_usage": True}}
    whole, streamed = client.posts([(TEXT, fields), (TEXT, {**fields, **streams})])
    *others, last = [event["usage"] for event in streamed.events[:-1]]
    assert last["completion_tokens"] == whole.json["usage"]["completion_tokens"] and not any(others)
    assert [choice["text"] for choice in whole.json["choices"]] == wanted
    assert [choice["index"] for choice in whole.json["choices"]] == [*range(6)]
    texts = [""] * 6
    for event in streamed.events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == wanted
    tokens = len(demo.tokenizer.encode("Once upon a time")) + 3
    assert whole.json["usage"]["prompt_tokens"] == tokens
    assert whole.json["usage"]["total_tokens"] == tokens + whole.json["usage"]["completion_tokens"]


def test_what_was_read_before_of_a_prompt_of_several_texts_counts_once(demo: Any) -> None:
    known, new = "Once upon a time, in a land far away, " * 3, "Nobody knew what the two friends had seen"
    with gen.Engine(demo, rows=6) as engine:
        client = Client(gen.server.app(engine))
        client.post(TEXT, {"prompt": known, "max_tokens": 1})
        alone = client.post(TEXT, {"prompt": known, "max_tokens": 1}).json["usage"]["prompt_tokens_details"]
        asked = {"prompt": [known, new], "n": 3, "max_tokens": 1}
        whole = client.post(TEXT, asked).json["usage"]["prompt_tokens_details"]
        assert whole == alone == {"cached_tokens": len(demo.tokenizer.encode(known)) - 1}


def test_a_list_that_is_longer_than_rows_and_queue_is_fed_as_it_fits(demo: Any) -> None:
    with gen.Engine(demo, rows=2, max_waiting=1) as engine:
        client = Client(gen.server.app(engine, max_prompts=12))
        fields = {"prompt": ["One"] * 12, "seed": 1, "max_tokens": 3}
        reply = client.post(TEXT, fields)
        wanted = gen.generate(demo, "One", seed=1, max_new_tokens=3)
        assert [choice["text"] for choice in reply.json["choices"]] == [wanted] * 12
        refused = client.post(TEXT, {**fields, "n": 2})
    assert refused.status == 400 and "12 texts" in refused.json["error"]["message"]


def test_negative_seeds_are_seeds_too(demo: Any, client: Client) -> None:
    reply = client.post(TEXT, {"prompt": "One", "seed": -5, "max_tokens": 6})
    assert text_of(reply) == gen.generate(demo, "One", seed=2**63 - 5, max_new_tokens=6)


def test_logprobs_are_those_of_the_model_itself(demo: Any, client: Client) -> None:
    fields = {"messages": HELLO, "temperature": 0.3, "logprobs": True, "top_logprobs": 2, "max_tokens": 4}
    both: dict[str, Any] = {"seed": 2, "skip_special_tokens": False}
    wanted: Any = gen.generate(
        demo, HELLO, max_new_tokens=4, sampler=multinomial(temperature=0.3), details=True, top_logprobs=2, **both
    )
    content = client.post(CHAT, fields | both).json["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in content] == pytest.approx(
        [one.logprob for one in wanted.top_logprobs or []],
        abs=1e-4,  # as `speculate` promises
    )
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == wanted.text
    assert [len(one["top_logprobs"]) for one in content] == [2] * 4

    told = client.post(TEXT, {"prompt": "One", "seed": 2, "max_tokens": 4, "logprobs": 1, "echo": False}).json
    logprobs = told["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == told["choices"][0]["text"]
    assert logprobs["text_offset"] == [len("".join(logprobs["tokens"][:place])) for place in range(4)]
    assert all(math.exp(one) <= 1 for one in logprobs["token_logprobs"])


@pytest.mark.parametrize("tokens", [0, 3])
def test_what_a_prompt_is_worth_is_told_as_openai_and_as_vllm_tell_it(tokens: int, demo: Any, client: Client) -> None:
    token_ids = demo.tokenizer.encode("One morning")
    arguments: Any = {"seed": 1, "details": True, "top_logprobs": 1, "prompt_logprobs": 2}
    made: Any = gen.generate(demo, token_ids, max_new_tokens=max(1, tokens), **arguments)
    likely, new = made.prompt_logprobs, made.token_ids[:tokens]
    fields = {"prompt": token_ids, "seed": 1, "max_tokens": tokens, "logprobs": 1}
    asked: list[Any] = [{"echo": True}, {"echo": True, "stream": True}, {"prompt_logprobs": 2}]
    whole, streamed, plain = client.posts([(TEXT, fields | more) for more in asked])
    [told] = whole.json["choices"]
    assert told["text"] == demo.tokenizer.decode(token_ids) + (made.text if tokens else "")
    logprobs, pieces = told["logprobs"], [event["choices"][0]["logprobs"] for event in streamed.events[:-1]]
    added = {name: [one for piece in pieces if piece for one in piece[name]] for name in logprobs}
    assert (added["tokens"], added["text_offset"]) == (logprobs["tokens"], logprobs["text_offset"])
    assert added["token_logprobs"][1:] == pytest.approx(logprobs["token_logprobs"][1:], abs=1e-4)
    assert text_of(streamed) == told["text"] and whole.json["usage"]["completion_tokens"] == tokens
    assert len(logprobs["tokens"]) == len(token_ids) + len(new)
    first, *own = logprobs["token_logprobs"]
    known = [one.logprob for one in [*likely, *(made.top_logprobs or [])[:tokens]]]
    assert (first, logprobs["top_logprobs"][0]) == (None, None) and own == pytest.approx(known, abs=1e-4)
    offsets = logprobs["text_offset"]
    assert (offsets == sorted(offsets)) and offsets[-1] + len(logprobs["tokens"][-1]) == len(told["text"])
    assert told["finish_reason"] == made.finish_reason

    [spelt] = client.post(TEXT, {**fields, "prompt": "One morning", "echo": True}).json["choices"]
    assert "".join(spelt["logprobs"]["tokens"]) == spelt["text"] == "One morning" + (made.text if tokens else "")
    assert spelt["logprobs"]["token_logprobs"] == pytest.approx(own, abs=1e-4)  # and none of the token that begins it
    assert spelt["logprobs"]["text_offset"][0] == 0

    nothing, *others = plain.json["choices"][0]["prompt_logprobs"]
    assert nothing is None and len(others) == len(likely)
    for one, wanted, token_id in zip(others, likely, token_ids[1:], strict=True):
        assert one[str(token_id)]["logprob"] == pytest.approx(wanted.logprob, abs=1e-4)
        assert {*one} == {str(other) for other in (token_id, *wanted.token_ids)}
        assert one[str(wanted.token_ids[0])]["rank"] == 1
    chat = client.post(CHAT, {"messages": HELLO, "max_tokens": tokens, "prompt_logprobs": 0}).json
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"] and len(chat["choices"]) == 1
    refused = client.post(CHAT, {"messages": HELLO, "prompt_logprobs": 0, "stream": True})
    assert refused.json["error"]["param"] == "prompt_logprobs"


def test_a_token_begins_where_its_character_does_and_a_special_one_takes_no_place() -> None:
    asked = {"prompt": "\u00e9 x", "echo": True, "logprobs": 1}
    model = ScriptedModel(lambda prompt: [*"\u00e0".encode(), BOS, *"\U0001f642!".encode()])
    with gen.Engine(model) as engine:
        client = Client(gen.server.app(engine))
        whole, streamed = client.posts([(TEXT, asked), (TEXT, {**asked, "stream": True})])
        shown = client.post(TEXT, {**asked, "skip_special_tokens": False}).json["choices"][0]
    pieces = [event["choices"][0]["logprobs"] for event in streamed.events[:-1]]
    places = [0, 0, 1, 2, 3, 3, 4, 4, 4, 4, 4, 5]
    assert whole.json["choices"][0]["text"] == "\u00e9 x\u00e0\U0001f642!" == text_of(streamed)
    assert whole.json["choices"][0]["logprobs"]["text_offset"] == places
    assert [place for piece in pieces if piece for place in piece["text_offset"]] == places
    after = 4 + len(model.tokenizer.special_tokens[BOS])
    assert shown["logprobs"]["text_offset"] == [*places[:7], *[after] * 4, after + 1]
    assert shown["text"][after] == "\U0001f642"


def test_further_ends_leave_out_those_of_the_model_that_are_no_tokens() -> None:
    model = ScriptedModel("abc")
    model.eos_token_ids = (999, *model.eos_token_ids)
    with gen.Engine(model) as engine:
        client = Client(gen.server.app(engine))
        for fields, text in (({}, "abc"), ({"stop_token_ids": [ord("z")]}, "abc"), ({"stop_token_ids": [98]}, "a")):
            [told] = client.post(TEXT, {"prompt": "x", **fields}).json["choices"]
            assert (told["text"], told["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize(("prompt", "places"), [("", [0, 3, 7]), ([1], [0, 3, 7]), ("the", [0, 4, 8])])
def test_a_space_that_decoders_leave_out_at_the_start_takes_no_place(prompt: Any, places: list[int]) -> None:
    model = ScriptedModel(lambda _: words, vocab_size=265)
    model.tokenizer = Tokenizer(spaced_tokenizer())
    words = model.tokenizer.encode_plain("the cat sat")
    with gen.Engine(model) as engine:
        [told] = Client(gen.server.app(engine)).post(TEXT, {"prompt": prompt, "logprobs": 0}).json["choices"]
    assert told["logprobs"]["text_offset"] == places
    assert told["text"][places[2] :] == told["logprobs"]["tokens"][2] == " sat"


def test_a_chosen_token_keeps_its_own_number_beside_others_with_the_same_text() -> None:
    told = TopLogprobs(logprob=-0.5, token_ids=[0xE2, 0xF0, 0xF1], logprobs=[-0.5, -3, -7])
    for chosen, wanted in ((told, -0.5), (replace(told, logprob=-3), -3)):
        assert in_text_form(Tokenizer(byte_tokenizer()), [(0xF0, chosen)], [0])["top_logprobs"] == [{"\ufffd": wanted}]
    others = in_text_form(Tokenizer(byte_tokenizer()), [(97, replace(told, logprob=-9))], [0])
    assert others["top_logprobs"] == [{"a": -9, "\ufffd": -0.5}]


def test_what_is_between_two_texts_is_asked_for_with_the_models_own_tokens(client: Client) -> None:
    marks = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    model = gen.from_transformers(tiny_model(), byte_tokenizer(specials=marks))
    asked = fill_in(model.tokenizer, "def f(", "return x")
    assert asked == "<fim_prefix>def f(<fim_suffix>return x<fim_middle>"
    ids = {text: token_id for token_id, text in model.tokenizer.special_tokens.items()}
    wanted = [ids[marks[0]], *b"def f(", ids[marks[1]], *b"return x", ids[marks[2]]]
    assert model.tokenizer.encode_plain(asked) == wanted

    made: Any = gen.generate(model, asked, max_new_tokens=3, seed=1, details=True, prompt_logprobs=0)
    told = [None, *(one.logprob for one in made.prompt_logprobs)]
    begin = len(told) - len(wanted) + 1
    fields = {"prompt": "def f(", "suffix": "return x", "max_tokens": 3, "seed": 1, "echo": True}
    with gen.Engine(model) as engine:
        posts = [(TEXT, fields), (TEXT, {**fields, "logprobs": 0}), (TEXT, {**fields, "logprobs": 0, "stream": True})]
        plain, whole, streamed = Client(gen.server.app(engine)).posts(posts)
    assert {one.json["choices"][0]["text"] for one in (plain, whole)} == {"def f(" + made.text} == {text_of(streamed)}
    logprobs = whole.json["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == pytest.approx([*told[begin : begin + 6], *made.logprobs], abs=1e-4)
    assert logprobs["text_offset"][:7] == [*range(7)] and logprobs["tokens"][:6] == [*"def f("]

    refused = client.post(TEXT, {"prompt": "a", "suffix": "b"})
    assert (refused.status, refused.json["error"]["param"]) == (400, "suffix")
    assert client.post(TEXT, {"prompt": "a", "suffix": "", "max_tokens": 1}).status == 200


def test_what_ended_a_text_is_told(client: Client) -> None:
    fields = {"prompt": "One morning", "seed": 2, "max_tokens": 40}
    stopped = client.post(TEXT, {**fields, "stop": [" a", " the"]}).json["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", " a")
    cut = client.post(TEXT, {**fields, "max_tokens": 2}).json["choices"][0]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("length", None)
    context = client.post(TEXT, {**fields, "max_tokens": None, "ignore_eos": True}).json["choices"][0]
    assert (context["finish_reason"], context["stop_reason"]) == ("length", "context")
    squeezed = client.post(TEXT, {**fields, "structured_outputs": {"regex": "[a-z ]{30,}"}, "max_tokens": 30}).json
    assert squeezed["choices"][0]["finish_reason"] == "length"


def test_a_text_whose_type_refuses_the_value_is_answered_nevertheless(engine: gen.Engine) -> None:
    def refuse(value: int) -> int:
        raise ValueError("no")

    number = Annotated[int, Field(ge=0, le=9), AfterValidator(refuse)]

    async def read() -> tuple[list[Ended], list[Any]]:
        texts = [Texts(lambda _: [engine.submit("One", number, seed=1)], 1, 1, 1) for _ in range(2)]
        whole, streamed = texts
        for one in texts:
            one.begin()
        return await whole.all(), [said async for _, said in streamed.events()]

    [ended], [*events, last] = asyncio.run(read())
    assert ended.completion == last
    assert ended.completion.text == "".join(event.text for event in events) != ""


def test_echo_begins_with_the_prompt(demo: Any, client: Client) -> None:
    fields = {"prompt": [5, 60], "seed": 1, "max_tokens": 3, "echo": True}
    whole, streamed = client.posts([(TEXT, fields), (TEXT, {**fields, "stream": True})])
    wanted = demo.tokenizer.decode([5, 60]) + gen.generate(demo, [5, 60], seed=1, max_new_tokens=3)
    assert [text_of(whole), text_of(streamed)] == [wanted] * 2


def test_without_a_cap_a_text_has_what_context_server_and_batch_leave(demo: Any) -> None:
    asked = {"prompt": "One", "seed": 1, "ignore_eos": True}
    cases: list[tuple[dict[str, Any], dict[str, Any], int]] = [
        ({"max_new_tokens": 7}, {}, 7),
        ({}, {"max_batch_tokens": 20}, 20 - len(demo.tokenizer.encode("One"))),
        ({}, {}, demo.context_length - len(demo.tokenizer.encode("One"))),
    ]
    for settings, limits, wanted in cases:
        with gen.Engine(demo, rows=1, **limits) as engine:
            reply = Client(gen.server.app(engine, **settings)).post(TEXT, asked)
        assert reply.json["usage"]["completion_tokens"] == wanted


def test_an_assistants_last_message_is_gone_on_with_if_the_client_says_so(demo: Any, client: Client) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "There was a"}]
    fields = {"messages": messages, "seed": 1, "max_tokens": 8}
    new = client.post(CHAT, fields)
    on = client.post(CHAT, {**fields, "continue_final_message": True, "add_generation_prompt": False})
    by_message = client.post(CHAT, {**fields, "messages": [*HELLO, {**messages[-1], "prefix": True}]})
    assert (text_of(by_message), "x-ignored-fields" in by_message.headers) == (text_of(on), False)
    turn = {"add_generation_prompt": True, "continue_final_message": False}
    arguments: dict[str, Any] = {"seed": 1, "max_new_tokens": 8}
    assert text_of(new) == gen.generate(demo, messages, chat_template_kwargs=turn, **arguments)
    assert text_of(on) == gen.generate(demo, messages, **arguments)
    [item] = client.post("/v1/responses", {"input": messages, "seed": 1, "max_output_tokens": 8}).json["output"]
    assert item["content"][0]["text"] == text_of(new)


def test_a_greedy_recommendation_becomes_a_draw_where_a_temperature_is_given(demo: Any) -> None:
    from gen.server.sampling import SamplingFields

    class Greedy:
        recommended_sampler = gen.samplers.greedy(repetition_penalty=1.1)

    model: Any = Greedy()
    assert SamplingFields().sampler(model) == model.recommended_sampler
    assert SamplingFields(temperature=0.5).sampler(model) == multinomial(temperature=0.5, repetition_penalty=1.1)
    changed = SamplingFields(frequency_penalty=1.0).sampler(model)
    assert changed == replace(model.recommended_sampler, frequency_penalty=1.0)


def test_the_end_of_a_stream_is_one_message(client: Client) -> None:
    fields = {"prompt": "One", "max_tokens": 1, "ignore_eos": True, "stream": True}
    left = asyncio.Event()
    reply = asyncio.run(client.send("POST", TEXT, fields, leave_after=3, leave=left))
    assert reply.whole and len(reply.events) == 3 and not left.is_set()
