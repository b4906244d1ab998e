"""Contents that are lists of parts: each template gets them in its own form, and writes the same texts."""

import json
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy
import pytest
from pydantic import BaseModel, Field

import gen
from gen.requests.chats import chat_text
from gen.tokens.tokenizers import Tokenizer
from gen.tools.calls import tools_for_template
from tests.helpers import ScriptedModel, byte_tokenizer


def template(content: str) -> str:
    return f"{{% for m in messages %}}[{{{{ m.role }}}}] {content}{{{{ '\\n' }}}}{{% endfor %}}[assistant] "


PARTS = (
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% elif part.type == 'text' %}{{ part.text }}"
    "{% endif %}{% endfor %}"
)
TEXTS = {  # each writes contents that are texts; some fail at a list, some print it
    "added": template("{{ '' + m.content }}"),
    "printed": template("{{ m.content }}"),
    "trimmed": template("{{ m.content | trim }}"),
    "as JSON": template("{{ m.content if m.content is string else m.content | tojson }}"),
}
LISTS = {
    "parts": template(PARTS),
    "both": template("{% if m.content is string %}{{ m.content }}{% else %}" + PARTS + "{% endif %}"),
    "by role": template("{% if m.role == 'system' %}{{ m.content | trim }}{% else %}" + PARTS + "{% endif %}"),
}
ALL = TEXTS | LISTS


def tokenizer_of(written: str) -> Tokenizer:
    wrapped = byte_tokenizer()
    wrapped.chat_template = written
    return Tokenizer(wrapped)


def texts(*given: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in given]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


SYSTEM, BEGUN = {"role": "system", "content": texts("Be brief.")}, {"role": "assistant", "content": texts("It is")}
PLACE = {"type": "image"}


@pytest.mark.parametrize("written", ALL.values(), ids=ALL)
@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([user("Hi")], "[user] Hi\n[assistant] "),
        ([user(texts("Hi ", "you"))], "[user] Hi you\n[assistant] "),
        ([user(tuple(texts("Hi")))], "[user] Hi\n[assistant] "),
        ([user([{"text": "Hi"}])], "[user] Hi\n[assistant] "),
        ([user([])], "[user] \n[assistant] "),
        ([user("Hi"), BEGUN], "[user] Hi\n[assistant] It is"),
        ([SYSTEM, user("Hi"), BEGUN, user(texts("So"))], None),
        ([user(texts("[{'type': 'text', 'text': 'a'}]"))], "[user] [{'type': 'text', 'text': 'a'}]\n[assistant] "),
    ],
)
def test_lists_of_texts_are_their_texts_under_every_template(written: str, messages: Any, expected: str | None) -> None:
    before = str(messages)
    expected = expected or "[system] Be brief.\n[user] Hi\n[assistant] It is\n[user] So\n[assistant] "
    assert chat_text(tokenizer_of(written), messages) == expected
    assert str(messages) == before


@pytest.mark.parametrize("written", LISTS.values(), ids=LISTS)
def test_templates_that_take_lists_get_them_as_they_are(written: str) -> None:
    tokenizer = tokenizer_of(written)
    messages = [user([*texts("What is "), PLACE, *texts("?")]), {"role": "tool", "content": [*texts("4")]}]
    expected = "[user] What is <image>?\n[tool] 4\n[assistant] "
    assert chat_text(tokenizer, messages) == tokenizer.chat_text(messages) == expected
    assert chat_text(tokenizer, [SYSTEM, *messages]) == "[system] Be brief.\n" + expected


def test_what_a_tool_returns_is_the_templates_to_write() -> None:
    for content, expected in [([1, {"a": 2}], '[1, {"a": 2}]'), ({"a": 2}, '{"a": 2}')]:
        written = chat_text(tokenizer_of(TEXTS["as JSON"]), [user("Hi"), {"role": "tool", "content": content}])
        assert written == f"[user] Hi\n[tool] {expected}\n[assistant] "


@pytest.mark.parametrize("written", ALL.values(), ids=ALL)
@pytest.mark.parametrize("kind", ["audio", "image_url"])
def test_a_part_that_a_template_does_not_take_is_named(written: str, kind: str) -> None:
    messages = [SYSTEM, user([*texts("Hi"), {"type": kind, kind: "x"}])]
    reason = "takes texts alone" if written in TEXTS.values() else f"knows no type '{kind}'"
    with pytest.raises(gen.ArgumentError, match=f"message 1, part 1 is {{.*'{kind}'.* chat template {reason}"):
        chat_text(tokenizer_of(written), messages)


def test_a_templates_own_refusal_stays_the_reason() -> None:
    refusing = "{% if messages | length == 2 %}{{ raise_exception('roles must alternate') }}{% endif %}"
    for written in ALL.values():
        for content in (texts("Hi"), [PLACE, *texts("Hi")]):
            with pytest.raises(gen.ArgumentError, match="refuses these messages: roles must alternate"):
                chat_text(tokenizer_of(refusing + written), [user(content), user(content)])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (user(["Hi"]), """message 0, part 0 must be as {"type": "text", "text": "Hi"}, got 'Hi'"""),
        (user([*texts("Hi"), {"type": "text"}]), "message 0, part 1 must be as "),
        (user([{"type": "text", "text": None}]), "message 0, part 0 must be as "),
        (user([{"type": 3}]), "message 0, part 0 must be as "),
        (user([{}]), "message 0, part 0 must be as "),
        (user(b"Hi"), "message 0 must have a role and a content, .*got {'content': b'Hi', "),
        (user(None), "message 0 must have a role and a content, "),
        (user(texts("Hi")[0]), "message 0 must have a role and a content, "),
        ({"role": "assistant", "content": 3}, "message 0 must have a role and a content, "),
        ({"content": "Hi"}, "message 0 must have a role and a content, "),
        ({"role": ["user"], "content": texts("Hi")}, "message 0 must have a role and a content, "),
        ({"role": 3, "content": "Hi"}, "message 0 must have a role and a content, "),
    ],
    ids=str,
)
def test_messages_without_role_or_content_and_parts_without_type_are_refused(message: Any, reason: str) -> None:
    model = ScriptedModel("hello")
    for written in ALL.values():
        model.tokenizer = tokenizer_of(written)
        with pytest.raises(gen.ArgumentError, match=reason):
            gen.generate(model, [message])
    assert model.steps == 0


@pytest.mark.parametrize(
    "image", [{"type": "image", "image": 3}, {"type": "image_url", "image_url": {"url": "http:x"}}]
)
def test_an_image_for_a_model_that_reads_none_is_named(image: Any) -> None:
    model = ScriptedModel("hello")
    model.tokenizer = tokenizer_of(LISTS["both"])
    with pytest.raises(gen.ArgumentError, match="message 1, part 1 is an image, and this model reads no images"):
        gen.generate(model, [SYSTEM, user([*texts("Hi"), image])])
    assert gen.generate(model, [SYSTEM, user(texts("Hi"))]) == "hello"


def test_a_template_that_writes_nothing_is_refused() -> None:
    model = ScriptedModel("hello")
    model.tokenizer = tokenizer_of("{# nothing #}")
    prompts: list[Any] = [[user("Hi")], [user([])], ["x", [user(texts("Hi"))]]]
    for prompt in prompts:
        with pytest.raises(gen.ArgumentError, match="the chat template writes no text for these messages"):
            gen.generate(model, prompt)
    assert model.steps == 0


CALLS = "{% for c in m.tool_calls or [] %}<{{ c.function.name }} "
TOOLS = {  # in the forms of families of models
    "where there is one": "{% if m.content %}{{ m.content }}{% endif %}"
    + CALLS
    + "{{ c.function.arguments | tojson }}>{% endfor %}",
    "text or value": "{{ m.content or '' }}"
    + CALLS
    + "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
    + "{{ c.function.arguments | tojson }}{% endif %}>{% endfor %}",
    "texts": "{{ m.content }}" + CALLS + "{{ '' + c.function.arguments }}>{% endfor %}",
    "added": "{{ '' + m.content }}" + CALLS + "{{ c.function.arguments | tojson }}>{% endfor %}",
}
ASKED = [user("Sum?")]


def calling(**more: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": '{"x": 1}'}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}], **more}


@pytest.mark.parametrize("written", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize("call", [calling(content=None), calling(content=""), calling()])
def test_calls_and_results_are_given_as_the_template_takes_them(written: str, call: dict[str, Any]) -> None:
    """The messages are OpenAI's client's: without content, with arguments as a JSON text."""
    tokenizer = tokenizer_of(template(written))
    messages = [*ASKED, call, {"role": "tool", "tool_call_id": "1", "content": "3"}]
    expected = '[user] Sum?\n[assistant] <add {"x": 1}>\n[tool] 3\n[assistant] '
    assert chat_text(tokenizer, messages) == expected
    call["tool_calls"][0]["function"]["arguments"] = {"x": 1}
    assert chat_text(tokenizer, messages) == expected


TOLD = """[user] Sum?
[assistant] <tool_call>
{"name": "add", "arguments": {"x": 1}}
</tool_call>
[user] <tool_response>
3
</tool_response>
<tool_response>
[4]
</tool_response>
[user] And?
[assistant] """


@pytest.mark.parametrize("written", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("content", [None, "", [], texts("")])
def test_a_template_without_tools_gets_plain_messages(written: str, content: Any) -> None:
    """A call becomes the assistant's text in the form of `gen.tool_calls`; a tool's result becomes the user's text."""
    results: list[dict[str, Any]] = [{"role": "tool", "content": "3"}, {"role": "tool", "content": texts("[4]")}]
    messages = [*ASKED, calling(content=content), *results, user("And?")]
    tokenizer = tokenizer_of(written)
    assert chat_text(tokenizer, messages) == TOLD
    said = chat_text(tokenizer, [*ASKED, calling(content="Wait."), *results, user("And?")])
    assert said == TOLD.replace("[assistant] <tool_call>", "[assistant] Wait.\n<tool_call>")


def add(x: int) -> int:
    """Add one."""
    return x + 1


@pytest.mark.parametrize("written", TEXTS.values(), ids=TEXTS)
def test_a_template_without_tools_is_told_of_them_in_the_system_message(written: str) -> None:
    tokenizer = tokenizer_of(written)
    told = chat_text(tokenizer, ASKED, {"tools": [add]})
    begin, _, tools = told.partition("<tools>\n")
    assert begin.startswith("[system] You may call tools") and tools.endswith("</tool_call>\n[user] Sum?\n[assistant] ")
    assert json.loads(tools.partition("\n")[0]) == tools_for_template([add])[0]
    assert chat_text(tokenizer, [SYSTEM, *ASKED], {"tools": [add]}) == told.replace(
        "[system] ", "[system] Be brief.\n\n"
    )


def test_a_template_with_tools_gets_them_as_openai_has_them() -> None:
    tokenizer = tokenizer_of("{{ tools | tojson }}" + template(TOOLS["added"]))
    told, _, rest = chat_text(tokenizer, ASKED, {"tools": [add]}).partition("[user]")
    assert json.loads(told) == tools_for_template([add])
    assert rest == " Sum?\n[assistant] "
    with pytest.raises(gen.ConstraintError, match="a tool is a function with type hints"):
        chat_text(tokenizer, ASKED, {"tools": ["add"]})


@pytest.mark.parametrize("ending", ["", "{{ raise_exception('roles must alternate') }}"])
def test_a_template_that_leaves_results_out_or_refuses_them_is_named(ending: str) -> None:
    written = (
        "{% for m in messages %}{% if m.role in ('user', 'assistant') %}{{ m.content }}{% else %}"
        + ending
        + "{% endif %}{% endfor %}"
    )
    messages = [*ASKED, {"role": "assistant", "content": "?"}, {"role": "tool", "content": "3"}]
    with pytest.raises(gen.ArgumentError, match=r"message 2 has the role tool, which .* chat template does not"):
        chat_text(tokenizer_of(written), messages)


@pytest.mark.parametrize("calls", ["add", [{"name": 3}], [{"function": "add"}], [None]])
def test_what_is_no_call_is_refused(calls: Any) -> None:
    with pytest.raises(gen.ArgumentError, match="message 1 has a tool call that names no function; write it as"):
        chat_text(tokenizer_of(template(TOOLS["added"])), [*ASKED, calling() | {"tool_calls": calls}])


class Colour(Enum):
    RED = "red"


class Order(BaseModel):
    """Order something."""

    day: date = Field(alias="on")
    price: Decimal
    note: str = ""


@dataclass
class Place:
    city: str


ORDER = Order(on=date(2024, 2, 29), price=Decimal("1.50"))
TYPED: list[tuple[Any, dict[str, Any]]] = [
    ({"when": date(2024, 2, 29), "at": time(9, 30)}, {"when": "2024-02-29", "at": "09:30:00"}),
    ({"colour": Colour.RED, "price": Decimal("1.50")}, {"colour": "red", "price": "1.50"}),
    ({"id": UUID(int=7), "tags": {"a"}, "pair": (1, None)}, {"id": str(UUID(int=7)), "tags": ["a"], "pair": [1, None]}),
    (
        {"place": Place("Oslo"), "orders": [ORDER]},
        {"place": {"city": "Oslo"}, "orders": [{"on": "2024-02-29", "price": "1.50", "note": ""}]},
    ),
    (
        MappingProxyType({"n": numpy.int64(3), "xs": numpy.ones(2), "name": "ü"}),
        {"n": 3, "xs": [1.0, 1.0], "name": "ü"},
    ),
    (ORDER, {"on": "2024-02-29", "price": "1.50"}),
]


@pytest.mark.parametrize("written", [*TOOLS.values(), *TEXTS.values()], ids=[*TOOLS, *TEXTS])
def test_arguments_of_any_type_are_written_as_json(written: str) -> None:
    tokenizer = tokenizer_of(template(written) if written in TOOLS.values() else written)
    for arguments, plain in TYPED:

        def told(call: Any) -> str:
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            return chat_text(tokenizer, [*ASKED, message, {"role": "tool", "content": "3"}])

        expected = told({"type": "function", "function": {"name": "add", "arguments": plain}})
        assert json.dumps(plain, ensure_ascii=False) in expected.replace("\\u00fc", "ü")
        assert told({"type": "function", "function": {"name": "add", "arguments": arguments}}) == expected
        if written in TEXTS.values():
            assert told({"name": "add", "arguments": arguments}) == expected
        assert told(gen.ToolCall(name="add", arguments=arguments)) == expected


def test_a_tools_result_may_have_any_type_too() -> None:
    result = {"when": date(2024, 2, 29), "colour": Colour.RED}
    for tokenizer in (tokenizer_of(TEXTS["as JSON"]), tokenizer_of(template(TOOLS["where there is one"]))):
        written = chat_text(tokenizer, [*ASKED, calling(), {"role": "tool", "content": result}])
        assert "2024-02-29" in written and "date(" not in written


def test_calls_keep_their_ids_and_one_call_needs_no_list() -> None:
    calls = "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}"
    tokenizer = tokenizer_of(template(calls))
    call = gen.ToolCall(name="add", arguments={"x": 1}, id="a1")
    plain = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}, "id": "a1"}
    for given in (call, [call], (call,), plain):
        messages = [*ASKED, {"role": "assistant", "tool_calls": given}, {"role": "tool", "content": "3"}]
        expected = f"[user] Sum?\n[assistant] {json.dumps(plain)}\n[tool] 3\n[assistant] "
        assert chat_text(tokenizer, messages) == expected


def test_what_json_cannot_say_is_refused() -> None:
    call = gen.ToolCall(name="add", arguments={"x": object()})
    with pytest.raises(gen.ArgumentError, match=r"message 1 has a call of 'add' whose arguments are no JSON: .*object"):
        chat_text(tokenizer_of(template(TOOLS["added"])), [*ASKED, {"role": "assistant", "tool_calls": [call]}])


def test_a_models_own_calls_go_back_into_the_chat() -> None:
    def tell(day: date, colour: Colour) -> str:
        """Tell."""
        return "done"

    model = gen.load("demo", device="cpu")
    for tool in (tell, Order):
        told = {"tools": [tool]}
        kind = gen.tool_calls([tool], choice="required", parallel=False)
        found = gen.generate(model, ASKED, kind, chat_template_kwargs=told, seed=1)
        result = {"role": "tool", "name": found.calls[0].name, "content": "done"}
        messages = [*ASKED, {"role": "assistant", "content": found.text, "tool_calls": found.calls}, result]
        assert isinstance(gen.generate(model, messages, chat_template_kwargs=told, max_new_tokens=2), str)
