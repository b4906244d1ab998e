"""Forms of calls with marks of their own around names and arguments: each is read back by plain string handling.

The templates are written here, modelled on those of the families. A template must render calls as the form writes them.
"""

import ast
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

import gen
from gen.samplers import multinomial
from gen.server import app
from gen.tools.forms import form_of
from tests.helpers import EOS, byte_tokenizer, tiny_model
from tests.server.client import Client
from tests.tools.test_forms import NOW, all_of, in_pieces

Read = tuple[str, list[tuple[str, Any]]]
_BAR, _LINE = "\uff5c", "\u2581"


def deep(name: str) -> str:
    return f"<{_BAR}{name.replace(' ', _LINE)}{_BAR}>"


def kimi(name: str) -> str:
    return f"<|tool_{name}|>"


TURNS = (
    "{{ 'T' if tools }}{% for m in messages %}[{{ m.role }}]{% if m.content %}{{ m.content }}{% endif %}"
    "{% if m.tool_calls %}CALLS{% endif %}[end]{% endfor %}[assistant]"
)
EACH = "{% for c in m.tool_calls %}{% set f = c.function %}"
PLAIN = "{{ v if v is string else v | tojson }}"
ARGS = "{{ f.arguments if f.arguments is string else f.arguments | tojson }}"
ITEMS = "{% for k, v in f.arguments.items() %}"
PYTHON = (
    "{% macro py(v) %}{% if v is none %}None{% elif v is boolean %}{{ 'True' if v else 'False' }}"
    "{% elif v is mapping %}{ {%- for k, o in v.items() %}{{ k | tojson }}: {{ py(o) }}{{ ', ' if not loop.last }}"
    "{% endfor -%} }{% elif v is iterable and v is not string %}[{% for o in v %}{{ py(o) }}{{ ', ' if not loop.last }}"
    "{% endfor %}]{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
PYTHON_CALLS = (
    "["
    + EACH
    + "{{ f.name }}("
    + ITEMS
    + "{{ k }}={{ py(v) }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]"
)
SPECIALS = {
    "deepseek": [deep(f"tool {name}") for name in ("calls begin", "calls end", "call begin", "sep", "call end")],
    "kimi": [kimi(name) for name in ("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin")]
    + [kimi("call_end")],
    "lfm2": ["<|tool_call_start|>", "<|tool_call_end|>"],
}
SPECIALS["deepseek v3"] = SPECIALS["deepseek"]
_D, _K = SPECIALS["deepseek"], SPECIALS["kimi"]
CALLS = {
    "qwen3-coder": EACH
    + "{{ '\\n' if not loop.first }}<tool_call>\n<function={{ f.name }}>\n"
    + ITEMS
    + "<parameter={{ k }}>\n"
    + PLAIN
    + "{{ '\\n' }}</parameter>\n{% endfor %}</function>{{ '\\n' }}</tool_call>{% endfor %}",
    "glm": EACH
    + "{{ '\\n' if not loop.first }}<tool_call>{{ f.name + '\\n' }}"
    + ITEMS
    + "<arg_key>{{ k }}</arg_key>\n<arg_value>"
    + PLAIN
    + "</arg_value>\n{% endfor %}</tool_call>{% endfor %}",
    "glm 4.7": EACH
    + "<tool_call>{{ f.name }}"
    + ITEMS
    + "<arg_key>{{ k }}</arg_key><arg_value>"
    + PLAIN
    + "</arg_value>{% endfor %}</tool_call>{% endfor %}",
    "minimax": "<minimax:tool_call>\n"
    + EACH
    + '<invoke name="{{ f.name }}">\n'
    + ITEMS
    + '<parameter name="{{ k }}">'
    + PLAIN
    + "</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>",
    "deepseek": _D[0] + EACH + f"{_D[2]}{{{{ f.name }}}}{_D[3]}{ARGS}{_D[4]}{{% endfor %}}{_D[1]}",
    "deepseek v3": _D[0]
    + EACH
    + f"{{{{ '\\n' if not loop.first }}}}{_D[2]}function{_D[3]}{{{{ f.name }}}}{{{{ '\\n' }}}}```json\n{ARGS}"
    + f"{{{{ '\\n' }}}}```{_D[4]}{{% endfor %}}{_D[1]}",
    "kimi": _K[0] + EACH + f"{_K[2]}{{{{ c.id }}}}{_K[3]}{ARGS}{_K[4]}{{% endfor %}}{_K[1]}",
    "pythonic": PYTHON_CALLS,
    "lfm2": f"<|tool_call_start|>{PYTHON_CALLS}<|tool_call_end|>",
}
FORMATS = {"lfm2": "pythonic", "glm 4.7": "glm", "deepseek v3": "deepseek"}


def weather(city: str, days: int = 1) -> str:
    """Tell the weather."""
    return f"{city} {days}"


FIELDS = {
    "city": {"type": "string", "maxLength": 9},
    "maybe": {"type": ["string", "null", "integer"], "maxLength": 5},
    "place": {
        "type": "object",
        "properties": {"x": {"enum": [1, 2.5]}, "on": {"type": "boolean"}, "of": {"type": "string", "maxLength": 4}},
    },
    "tags": {
        "type": "array",
        "items": {"enum": ["\u00e9", "</parameter>", "</arg_value>", None, "a b"]},
        "maxItems": 2,
    },
    "kind": {"enum": ["one", "<b>", 7, True, None]},
}
MOVE = {
    "type": "function",
    "function": {
        "name": "move",
        "strict": True,
        "parameters": {"type": "object", "properties": FIELDS, "required": ["city"]},
    },
}
TREE = {
    "type": "function",
    "function": {
        "name": "tree",
        "parameters": {
            "type": "object",
            "properties": {"of": {"$ref": "#"}, "say": {"type": "string", "maxLength": 6}, "maybe": FIELDS["maybe"]},
        },
    },
}
TOOLS: list[Any] = [weather, NOW, MOVE]
_STRINGS = {"city", "say"}


def template_of(form: str) -> str:
    calls = CALLS[form]
    return (
        (PYTHON if "py(" in calls else "") + TURNS.replace("CALLS", calls) + "{# func_name1( #}" * (form == "pythonic")
    )


def tokenizer_of(form: str) -> Any:
    tokenizer = byte_tokenizer(specials=SPECIALS.get(form, []))
    tokenizer.chat_template = template_of(form)
    return tokenizer


def random_model(form: str) -> Any:
    size = 259 + len(SPECIALS.get(form, []))
    return gen.from_transformers(
        tiny_model("llama", vocab_size=size, eos_token_id=EOS, max_position_embeddings=1024), tokenizer_of(form)
    )


@pytest.fixture(scope="module", params=CALLS)
def form(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, random_model(request.param)


def read_value(name: str, written: str) -> Any:
    """A value that stands between marks: a string as it is, others as JSON."""
    if name in _STRINGS:
        return written
    try:
        return json.loads(written)
    except ValueError:
        return written


def parts(written: str, begin: str, end: str) -> Iterator[str]:
    """What stands between each two marks."""
    for piece in written.split(begin)[1:]:
        inner, found, _ = piece.partition(end)
        assert found, written
        yield inner


def read_plainly(form: str, written: str) -> Read:
    """Read a text by hand."""
    if form == "qwen3-coder":
        said, _, rest = written.partition("<tool_call>")
        calls = []
        for block in parts(
            "<tool_call>" + rest if rest else "", "<tool_call>\n<function=", "</function>\n</tool_call>"
        ):
            name, _, body = block.partition(">\n")
            pairs = (one.partition(">\n") for one in parts(body, "<parameter=", "\n</parameter>\n"))
            calls.append((name, {key: read_value(key, value) for key, _, value in pairs}))
        return said.strip(), calls
    if form.startswith("glm"):
        line = "" if form == "glm 4.7" else "\n"
        said, _, rest = written.partition("<tool_call>")
        calls = []
        for block in parts("<tool_call>" + rest if rest else "", "<tool_call>", "</tool_call>"):
            name = block.partition("<arg_key>")[0].removesuffix(line)
            keys, values = parts(block, "<arg_key>", "</arg_key>"), parts(block, "<arg_value>", "</arg_value>")
            calls.append((name, {key: read_value(key, value) for key, value in zip(keys, values, strict=True)}))
        return said.strip(), calls
    if form == "minimax":
        said, found, rest = written.partition("<minimax:tool_call>\n")
        assert rest.endswith("</minimax:tool_call>") or not found
        calls = []
        for block in parts(rest, '<invoke name="', "</invoke>"):
            name, _, body = block.partition('">\n')
            pairs = (one.partition('">') for one in parts(body, '<parameter name="', "</parameter>"))
            calls.append((name, {key: read_value(key, value) for key, _, value in pairs}))
        return said.strip(), calls
    if form in ("pythonic", "lfm2"):
        said, found, rest = written.partition("<|tool_call_start|>") if form == "lfm2" else ("", "[", written)
        if not found or not rest.startswith("["):
            return (said if form == "lfm2" else written).strip(), []
        listed: Any = ast.parse(rest.removesuffix("<|tool_call_end|>"), mode="eval").body
        calls = [(one.func.id, {key.arg: ast.literal_eval(key.value) for key in one.keywords}) for one in listed.elts]
        return said.strip(), calls
    marks = SPECIALS[form]
    said, _, rest = written.partition(marks[0])
    calls = []
    for block in parts(rest, marks[2], marks[4]):
        name, _, body = block.partition(marks[3])
        if form == "kimi":
            name = name.removeprefix("functions.").partition(":")[0]
        if form == "deepseek v3":
            name, _, body = body.partition("\n```json\n")
            body = body.removesuffix("\n```")
        calls.append((name, json.loads(body)))
    return said.strip(), calls


def as_json(value: gen.ToolCalls) -> Read:
    return value.text, [(one.name, one.arguments) for one in value.calls]


def answers(model: Any, kind: Any, limit: int, seed: int) -> list[gen.Completion]:
    """Texts of a random model that likes marks."""
    likely = {ord(letter): 4.0 for letter in "<[5n"} | dict.fromkeys(range(128, 259), -9.0)
    likely |= dict.fromkeys(range(259, model.vocab_size), 9.0)
    made: Any = gen.generate(
        model,
        ["x", "y", "zz"],
        kind,
        chat=True,
        details=True,
        max_new_tokens=limit,
        shorten=True,
        seed=seed,
        errors="return",
        sampler=multinomial(logit_bias=likely, temperature=2),
    )
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("choice", ["required", "move"])
def test_calls_are_read_back_plainly(form: tuple[str, Any], choice: str) -> None:
    name, model = form
    kind = gen.compile(model, gen.tool_calls(TOOLS, choice=choice))
    assert kind.engine == "device" and kind.least_tokens is not None
    found = set()
    for seed, made in enumerate(answers(model, kind, max(kind.least_tokens, 130), 2)):
        written = all_of(model, made)
        assert as_json(made.value) == read_plainly(name, written) == as_json(kind.read(written)), written
        assert in_pieces(kind, made.text, random.Random(seed)) == as_json(made.value)
        found |= {one.name for one in made.value.calls} or {""}
        ids = [one.id for one in made.value.calls if one.id is not None]
        assert len(ids) == (len(made.value.calls) if name == "kimi" else 0)
        assert all(re.fullmatch(r"functions\.\w+:\d+", one) for one in ids)
    assert found == {"move"} if choice == "move" else "" not in found


def random_calls(rng: random.Random) -> list[tuple[str, Any]]:
    texts = ["Oslo", "", "5", "null", "a\nb", " x ", '"q"', "\u00e9\u00fc\U0001f600", "{}", "a=b, c)", "<p>", "\\n"]
    calls: list[tuple[str, Any]] = []
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice(["weather", "now", "move"])
        given: dict[str, Any] = {}
        if kind == "weather":
            given = {"city": rng.choice(texts), "days": rng.choice([0, -3, 12345])}
        if kind == "move":
            every = {
                "maybe": rng.choice(["ab", None, 7, "a b"]),
                "place": rng.choice([{}, {"x": 2.5, "of": "\u00e9\n"}, {"on": False}]),
                "tags": rng.choice([[], ["\u00e9", None], ["a b"]]),
                "kind": rng.choice(["one", "<b>", 7, True, None]),
            }
            given = {"city": rng.choice(texts)} | {key: one for key, one in every.items() if rng.random() < 0.6}
        calls.append((kind, given))
    return calls


def test_a_template_renders_calls_as_the_form_writes_them(form: tuple[str, Any]) -> None:
    name, model = form
    assert form_of(model.tokenizer.template_for_tools) == FORMATS.get(name, name)
    kind = gen.compile(model, gen.tool_calls(TOOLS))
    for seed in range(12):
        calls = random_calls(random.Random(seed))
        given = [
            gen.ToolCall(name=one, arguments=more, id=f"functions.{one}:{n}") for n, (one, more) in enumerate(calls)
        ]
        messages: Any = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "Hm.", "tool_calls": given},
            *({"role": "tool", "tool_call_id": one.id, "content": "sunny"} for one in given),
        ]
        stream = gen.stream(model, messages, chat_template_kwargs={"tools": TOOLS}, max_new_tokens=1)
        shown = frozenset(model.tokenizer.special_tokens)
        prompt = model.tokenizer.decode(stream.prompt_token_ids, shown=shown)
        written = prompt.partition("[assistant]Hm.")[2].partition("[end]")[0]
        assert kind.accepts(written), written
        assert as_json(kind.read(written)) == ("", calls) == read_plainly(name, written)
        assert in_pieces(kind, written, random.Random(seed)) == ("", calls)
        if name != "pythonic":
            assert as_json(kind.read("Hm.\n" + written)) == ("Hm.", calls)


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("qwen3-coder", ["</parameter>", "<tool_call>", "</function>"]),
        ("glm", ["</arg_value>", "</tool_call>"]),
        ("minimax", ["</parameter>", "</invoke>"]),
        ("deepseek", [_D[4]]),
        ("kimi", [_K[4]]),
        ("lfm2", ["<|tool_call_end|>"]),
    ],
)
def test_strings_do_not_have_the_marks_of_the_form(name: str, marks: list[str]) -> None:
    model = random_model(name)
    kinds = [gen.compile(model, gen.tool_calls([*TOOLS, *more])) for more in ([], [TREE])]
    assert [kind.engine for kind in kinds] == ["device", "host"]

    def written(city: str) -> str:
        given = [
            {
                "type": "function",
                "id": "functions.weather:0",
                "function": {"name": "weather", "arguments": {"city": city}},
            }
        ]
        text: str = model.tokenizer._tokenizer.apply_chat_template(
            [{"role": "assistant", "content": "", "tool_calls": given}], tools=[], tokenize=False
        )
        return text.partition("[assistant]")[2].partition("[end]")[0]

    for kind in kinds:
        assert kind.accepts(written("</b> Oslo"))
        for mark in marks:
            assert kind.accepts(written(mark[:-1]))
            assert not kind.accepts(written(mark))


def test_the_host_engine_writes_the_same_forms() -> None:
    for name in CALLS:
        model = random_model(name)
        kind = gen.compile(model, gen.tool_calls([TREE, NOW], choice="tree"))
        assert kind.engine == "host"
        count = 0
        for made in answers(model, kind, 300, 3):
            if isinstance(made, gen.IncompleteError):  # this engine keeps no room for the end
                continue
            count += 1
            written = all_of(model, made)
            walker = kind.walker()
            assert all(walker.push(one) for one in made.token_ids)
            assert as_json(made.value) == read_plainly(name, written)
            assert in_pieces(kind, made.text, random.Random(1)) == as_json(made.value)
        assert count
    two = "\n".join(
        ['<tool_call>\n<function=tree>\n<parameter=of>\n{"say": "x"}\n</parameter>\n</function>\n</tool_call>'] * 2
    )
    kind = gen.compile(random_model("qwen3-coder"), gen.tool_calls([TREE]))
    walker = kind.walker()
    assert all(map(walker.push, two.encode()))


def test_what_a_form_cannot_write_is_left_out_or_refused() -> None:
    model = random_model("qwen3-coder")

    def tool(required: list[str]) -> dict[str, Any]:
        properties = {"a>b": {"type": "integer"}, "c": {"type": "integer"}}
        return {"name": "f", "parameters": {"type": "object", "properties": properties, "required": required}}

    kind = gen.compile(model, gen.tool_calls([tool([])]))
    call = "<tool_call>\n<function=f>\n<parameter=c>\n1\n</parameter>\n</function>\n</tool_call>"
    assert kind.accepts(call) and not kind.accepts(call.replace("=c", "=a>b"))
    with pytest.raises(gen.ConstraintError, match="the property 'a>b' at #, whose name cannot be written"):
        gen.compile(model, gen.tool_calls([tool(["a>b"])]))
    with pytest.raises(gen.ConstraintError, match="cannot write the name of the tool 'a b'"):
        gen.compile(model, gen.tool_calls([{"name": "a b"}]))
    with pytest.raises(gen.ConstraintError, match="cannot write the name of the tool 'a-b'"):
        gen.compile(random_model("pythonic"), gen.tool_calls([{"name": "a-b"}]))
    anything = {
        "name": "f",
        "parameters": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}},
    }
    free = gen.compile(model, gen.tool_calls([anything]))
    assert free.read(call.replace("\n1\n", "\n1\n2\n")).calls[0].arguments == {"c": "1\n2"}


def test_how_many_calls_there_may_be() -> None:
    model, call = random_model("minimax"), '<invoke name="now">\n</invoke>\n'

    def written(count: int) -> str:
        return f"<minimax:tool_call>\n{call * count}</minimax:tool_call>" if count else "Hi."

    for choice, parallel, allowed in (
        ("auto", True, [0, 1, 2]),
        ("auto", False, [0, 1]),
        ("required", True, [1, 2]),
        ("required", False, [1]),
        ("now", True, [1]),
        ("none", True, [0]),
    ):
        kind = gen.compile(model, gen.tool_calls([NOW], choice=choice, parallel=parallel))
        assert [count for count in range(3) if kind.accepts(written(count))] == allowed


@pytest.mark.parametrize("name", ["qwen3-coder", "kimi"])
def test_a_server_streams_the_name_and_then_the_arguments(name: str) -> None:
    model, asked = random_model(name), {"messages": [{"role": "user", "content": "x"}], "seed": 1, "max_tokens": 120}
    asked |= {"tools": [MOVE], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.5}
    with gen.Engine(model) as engine:
        client = Client(app(engine, names=["tiny"]))
        whole_one = client.post("/v1/chat/completions", {"model": "tiny", **asked}).json
        events = client.post("/v1/chat/completions", {"model": "tiny", **asked, "stream": True}).events[:-1]
    [call] = whole_one["choices"][0]["message"]["tool_calls"]
    deltas = [one for event in events for one in event["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == call["function"]["name"] == "move"
    assert "".join(one["function"]["arguments"] for one in deltas) == call["function"]["arguments"]
    assert "city" in json.loads(call["function"]["arguments"])
    assert bool(re.fullmatch(r"functions\.move:\d+", call["id"])) == (name == "kimi") == (deltas[0]["id"] == call["id"])
