"""Calls of tools in the form of each family: read back by transformers, and as values.

The templates, tokenizers and response templates are written here, modelled on those of the families.
"""

import json
import random
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from transformers.utils.chat_parsing import parse_response

import gen
from benchmarks.constraints.generation import SMALL, tools
from gen.constraints.composing.trees import Calls
from gen.samplers import multinomial
from gen.tokens.tokenizers import Tokenizer
from gen.tools.call_pieces import CallPieces
from tests.helpers import EOS, ScriptedModel, byte_tokenizer, tiny_model

START = "[assistant] "
BEFORE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ tools }}"
CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
CHANNELS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"]
CHANNEL_CALL = r"<\|channel\|>commentary to=functions\.(?P<name>\w+) <\|constrain\|>json<\|message\|>"
FAMILIES: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "hermes": (
        [],
        BEFORE + "{# <tool_call> #}" + START,
        {"content": {}, "tool_calls": {"open": "<tool_call>\n", "close": "\n</tool_call>", "repeats": True}},
    ),
    "llama3": (
        ["<|python_tag|>"],
        BEFORE + "{# <|python_tag|> #}" + START,
        {
            "content": {},
            "tool_calls": {
                "open_pattern": r'(?:<\|python_tag\|>)?\{"name": "(?P<name>\w+)", "parameters": ',
                "close_pattern": r"\}\Z",
                "transform": NAMED,
                "repeats": True,
            },
        },
    ),
    "mistral": (
        ["[TOOL_CALLS]"],
        BEFORE + "{# [TOOL_CALLS][ #}" + START,
        {"content": {}, "tool_calls": {"open": "[TOOL_CALLS]", "transform_each": True}},
    ),
    "mistral, named": (
        ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        BEFORE + "{# [TOOL_CALLS][CALL_ID][ARGS] #}" + START,
        {
            "content": {},
            "tool_calls": {
                "open_pattern": r"\[TOOL_CALLS\](?P<name>\w+)\[CALL_ID\]\w{9}\[ARGS\]",
                "close_pattern": r"(?=\[TOOL_CALLS\])|\Z",
                "transform": NAMED,
                "repeats": True,
            },
        },
    ),
    "gpt-oss": (
        CHANNELS,
        BEFORE + "{# <|start|><|channel|><|message|> #}<|start|>assistant",
        {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>", "repeats": True, "join": ""},
            "content": {
                "open": ["<|channel|>final<|message|>", "<|channel|>commentary<|message|>"],
                "close": "<|end|>",
            },
            "tool_calls": {"open_pattern": CHANNEL_CALL, "transform": NAMED, "repeats": True},
        },
    ),
}


class Book(BaseModel):
    """Book a table."""

    people: Annotated[int, Field(ge=1, le=12)]
    where: Literal["in", "out"]


def weather(city: Annotated[str, Field(max_length=5)], days: Literal[1, 2] = 1) -> str:
    """Tell the weather.

    Args:
        city: where it is.
    """
    return f"{city} {days}"


NOW = {"type": "function", "function": {"name": "now"}}
MOVE = {
    "type": "function",
    "function": {
        "name": "move",
        "parameters": {
            "type": "object",
            "properties": {"to": {"$ref": "#/$defs/place"}},
            "required": ["to"],
            "$defs": {"place": {"type": "object", "properties": {"x": {"enum": [1, 2.5]}}, "required": ["x"]}},
        },
    },
}
TOOLS: list[Any] = [weather, Book, NOW, MOVE]


def model_of(family: str) -> Any:
    specials, template, _ = FAMILIES[family]
    tokenizer = byte_tokenizer(specials=specials)
    tokenizer.chat_template = template
    size = 259 + len(specials)
    return gen.from_transformers(
        tiny_model("llama", vocab_size=size, eos_token_id=EOS, max_position_embeddings=512), tokenizer
    )


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, model_of(request.param)


def all_of(model: Any, made: gen.Completion) -> str:
    """The whole output after the thought, with the names of special tokens."""
    texts = gen.compile(model, str).vocabulary.texts
    return b"".join(texts[token_id] for token_id in made.token_ids[made.reasoning_tokens :]).decode()


def answers(model: Any, kind: Any, limit: int, seeds: list[int], **given: Any) -> list[gen.Completion]:
    """Texts of a chat, also those that the limit has changed."""
    given |= {"chat": True, "details": True, "errors": "return"}
    made: Any = gen.generate(model, ["x"] * len(seeds), kind, max_new_tokens=limit, seed=seeds, **given)
    return [one.completion if isinstance(one, gen.IncompleteError) else one for one in made]


def as_json(calls: list[gen.ToolCall]) -> list[tuple[str, Any]]:
    return [
        (one.name, one.arguments.model_dump() if isinstance(one.arguments, Book) else one.arguments) for one in calls
    ]


def read_by_transformers(family: str, written: str) -> tuple[str, list[tuple[str, Any]]]:
    fields = {name: dict(field) for name, field in FAMILIES[family][2].items()}
    fields["tool_calls"] = {"content": "json", "transform": CALL} | fields["tool_calls"]
    if family == "hermes":
        fields["tool_calls"]["transform"] = {"type": "function", "function": "{content}"}
    template = {"start_anchor": "<|start|>assistant" if family == "gpt-oss" else START, "fields": fields}
    found = parse_response(written, template, prefix=template["start_anchor"])
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in found.get("tool_calls", [])]
    return found.get("content", "").strip(), calls


def in_pieces(kind: gen.Constraint, written: str, rng: random.Random) -> tuple[str, list[tuple[str, Any]]]:
    """The joined deltas of a text that comes in pieces of any length; a call's name comes first."""
    assert isinstance(kind.tree, Calls)
    reader, said, left = CallPieces(kind.tree.heads), "", written
    calls: list[tuple[str, str]] = []
    while True:
        length = rng.choice([1, 2, 5, 30])
        text, deltas = reader.push(left[:length], last=length >= len(left))
        assert not (text and calls), "text behind a call"
        said, left = said + text, left[length:]
        for delta in deltas:
            assert (delta.name is not None) == (delta.number == len(calls))
            name, before = (delta.name, "") if delta.name is not None else calls.pop(delta.number)
            calls.append((name, before + delta.arguments))
        if not left:
            return said, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("choice", ["auto", "required", "none", "move"])
def test_calls_are_read_back_by_others(family: tuple[str, Any], choice: str) -> None:
    name, model = family
    kind = gen.compile(model, gen.tool_calls(TOOLS, choice=choice))
    assert kind.engine == "device" and kind.least_tokens is not None
    found = set()
    bias = {ord("<"): 4.0, ord("["): 4.0, ord("{"): 6.0} | dict.fromkeys(range(128, 259), -9.0)
    sampler = multinomial(logit_bias=bias, temperature=2)
    limit = max(kind.least_tokens, 90)
    for seed, one in enumerate(answers(model, kind, limit, [*range(8)], sampler=sampler)):
        written = all_of(model, one)
        value: gen.ToolCalls = one.value
        calls = as_json([*value.calls])
        assert (value.text, calls) == read_by_transformers(name, written), written
        assert kind.read(written) == value
        assert in_pieces(kind, one.text, random.Random(seed)) == (value.text, calls)
        found |= {called for called, _ in calls} or {""}
        assert len(calls) <= 1 or name not in ("llama3", "gpt-oss")
        assert all(isinstance(one.arguments, Book) == (one.name == "Book") for one in value.calls)
        assert all((one.id is not None) == name.startswith("mistral") for one in value.calls)
        if choice in ("required", "move"):
            assert calls and (choice != "move" or [one for one, _ in calls] == ["move"])
        if choice == "none":
            assert not calls
    if choice == "auto":
        assert "" in found or len(found) > 1
    if choice == "required" and name != "gpt-oss":  # its thought uses up the limit
        assert len(found) > 1


def test_an_answer_may_have_a_type(family: tuple[str, Any]) -> None:
    name, model = family
    schema = {"type": "object", "properties": {"name": {"enum": ["Ada", "<tool_call>"]}}, "required": ["name"]}
    kind = gen.compile(model, gen.tool_calls([NOW, MOVE], answer=gen.json_schema(schema)))
    assert kind.engine == "device" and kind.least_tokens is not None
    likely: Any = {ord("{"): 3.0, ord("<"): 3.0, ord("["): 3.0} | dict.fromkeys(range(259, model.vocab_size), 5.0)
    found = set()
    sampler = multinomial(logit_bias=likely | dict.fromkeys(range(128, 259), -9.0), temperature=3)
    limit = max(kind.least_tokens, 90)
    for seed, made in enumerate(answers(model, kind, limit, [*range(16)], sampler=sampler)):
        value: gen.ToolCalls = made.value
        said, calls = in_pieces(kind, made.text, random.Random(seed))
        assert value.text == "" and bool(value.calls) == (value.answer is None)
        if value.calls:
            assert (said, calls) == ("", as_json([*value.calls])) == read_by_transformers(name, all_of(model, made))
        else:
            assert (json.loads(said), calls) == (value.answer, [])
        found.add(bool(calls))
    assert found == {False, True}
    with pytest.raises(gen.ConstraintError, match='an answer is for choice="auto"'):
        gen.tool_calls([NOW], choice="required", answer=int)


def test_a_thought_may_come_first_and_one_that_the_prompt_has_begun() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    template = BEFORE + "{# <tool_call> #}{{ '</think>'[:0] }}" + START
    for begun, written in ((False, "<think>\nHm.\n</think>\n\n"), (True, "\nHm.\n</think>\n\n")):
        said = written + call
        model: Any = ScriptedModel(said)
        tokenizer = byte_tokenizer()
        tokenizer.chat_template = template + ("<think>" if begun else "")
        model.tokenizer = Tokenizer(tokenizer)
        for choice in ("auto", "required"):
            kind = gen.tool_calls([NOW], choice=choice)
            made = gen.generate(model, "x", kind, chat=True, details=True, max_new_tokens=300)
            assert made.value == gen.ToolCalls(text="", calls=[gen.ToolCall(name="now", arguments={})])
            assert (made.text, made.reasoning) == (call, "Hm.")
            assert len(made.token_ids) == len(said)
            assert "".join(gen.stream(model, "x", kind, chat=True, max_new_tokens=300)) == call
    model = ScriptedModel("Hm. </think>Two. Three.")
    model.tokenizer = Tokenizer(tokenizer)
    cut = gen.generate(model, "x", gen.tool_calls([NOW]), chat=True, details=True, stop=" Th", max_new_tokens=300)
    assert (cut.value.text, cut.reasoning, cut.finish_reason) == ("Two.", "Hm. ", "stop")


def test_thoughts_before_calls_are_bounded_and_may_be_forced(family: tuple[str, Any]) -> None:
    name, model = family
    template = FAMILIES[name][1] if name == "gpt-oss" else "{# <think>\\n</think> #}" + FAMILIES[name][1]
    tokenizer = byte_tokenizer(specials=FAMILIES[name][0])
    tokenizer.chat_template = template
    thinking = gen.from_transformers(model.hf_model, tokenizer)
    parameters = {"type": "object", "properties": {"of": {"$ref": "#"}}}
    tree = {"type": "function", "function": {"name": "tree", "parameters": parameters}}
    for tool, engine in (("now", "device"), ("tree", "host")):
        kind = gen.tool_calls([NOW, tree], choice=tool)
        for most in (True, 5, 20, False):
            [made] = answers(thinking, kind, 400, [3], thinking=most)
            assert ([one.name for one in made.value.calls], made.engine) == ([tool], engine)
            assert (made.reasoning is not None) >= (most is True)
            assert most is True or made.reasoning_tokens <= (most + 45 if most else 0)


def test_a_tool_that_is_not_regular_goes_to_the_host_engine() -> None:
    tree = {"type": "object", "properties": {"of": {"$ref": "#"}}}
    tool = {"type": "function", "function": {"name": "tree", "parameters": tree}}
    for name in FAMILIES:
        model = model_of(name)
        kind = gen.compile(model, gen.tool_calls([tool, NOW], choice="tree"))
        assert kind.engine == "host"
        [made] = answers(model, kind, 400, [1])
        assert [one.name for one in made.value.calls] == ["tree"]
        written = all_of(model, made)
        assert read_by_transformers(name, written)[1] == as_json([*made.value.calls])
        free = gen.compile(model, gen.tool_calls([tool, NOW]))
        assert free.engine == "host"
        walker = free.walker()
        assert all(walker.push(one) for one in made.token_ids[made.reasoning_tokens :]) and free.accepts(written)
        assert all(free.walker().push(ord(letter)) for letter in "Hi" if name != "gpt-oss")


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("", "hermes"),
        ("{{ messages }}", "hermes"),
        ("{{ tools }}<tool_call>{{ arguments }}", "hermes"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ('{{ tools }}<|start_header_id|>"parameters": ', "llama3"),
        ("{{ tools }}<|channel|><|message|>", "gpt-oss"),
        ("{{ tools }}<function=", None),
        ("{{ tools }}<tool_call><function=", "qwen3-coder"),
    ],
)
def test_the_form_is_found_from_the_template(template: str, form: str | None) -> None:
    from gen.tools.forms import form_of

    if form is not None:
        assert form_of(template) == form
        return
    model = model_of("hermes")
    model.tokenizer._tokenizer.chat_template = template
    with pytest.raises(gen.ConstraintError, match="gen cannot tell how this model's chat template writes calls"):
        gen.compile(model, gen.tool_calls([NOW]))
    assert gen.compile(model, gen.tool_calls([NOW], format="hermes")).engine == "device"


@pytest.mark.parametrize("form", ["mistral", "gpt-oss"])
def test_a_form_whose_special_tokens_the_vocabulary_lacks_is_refused(form: str) -> None:
    with pytest.raises(gen.ConstraintError, match=f"the format '{form}' needs the special tokens .*, which"):
        gen.compile(model_of("hermes"), gen.tool_calls([NOW], format=form))


def test_a_stream_tells_an_id_that_stands_before_the_arguments() -> None:
    kind = gen.compile(model_of("mistral, named"), gen.tool_calls([NOW]))
    assert isinstance(kind.tree, Calls)
    _, [call] = CallPieces(kind.tree.heads).push("[TOOL_CALLS]now[CALL_ID]abc123XYZ[ARGS]{}", last=True)
    assert (call.name, call.id, call.arguments) == ("now", "abc123XYZ", "{}")


def test_tool_calls_are_no_part_of_a_text() -> None:
    with pytest.raises(gen.ConstraintError, match=r"gen.tool_calls is a whole text, and no part of one"):
        gen.compile(model_of("hermes"), gen.sequence("x", gen.tool_calls([NOW])))


def test_thirty_tools_are_one_automaton() -> None:
    """A tool takes a string, a whole number, options and an object; benchmarks/constraints/generation.py has times."""
    kind = gen.compile(model_of("hermes"), gen.tool_calls(tools(SMALL, 30)))
    assert kind.engine == "device" and kind.states is not None and kind.states < 10_000


def test_an_error_names_the_tool_and_the_parameter_that_no_value_meets() -> None:
    good = {"name": "good", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    wrong = {"type": "array", "items": {"type": "string", "enum": [1]}, "minItems": 1}
    bad = {
        "name": "bad",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "string"},
                "b": {"type": "object", "properties": {"c": wrong}, "required": ["c"]},
            },
            "required": ["a", "b"],
        },
    }
    with pytest.raises(
        gen.ConstraintError,
        match=r"no text meets the arguments of the tool 'bad': no value meets .* #/properties/b/properties/c/items$",
    ):
        gen.compile(ScriptedModel("x"), gen.tool_calls([good, bad]))
    unsaid = {"name": "unsaid", "parameters": {"type": "object", "properties": {"x": {"disallow": "string"}}}}
    with pytest.raises(gen.ConstraintError, match=r"the arguments of the tool 'unsaid': disallow at #/properties/x"):
        gen.compile(ScriptedModel("x"), gen.tool_calls([good, unsaid]))
