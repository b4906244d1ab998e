"""How the families of models write calls of tools: each form as an output type whose value is a `ToolCalls`.

Example, Hermes and Qwen: a text, then <tool_call>, a line with {"name": "f", "arguments": {"x": 1}}, </tool_call>.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gen.constraints.composing.trees import Calls, Tree, read_tree
from gen.constraints.output_types import Made, either, regex, repeat, sequence, text
from gen.constraints.plans import read_plan
from gen.errors import ConstraintError
from gen.tokens.thoughts import marks_of
from gen.tokens.tokenizers import Tokenizer
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool, ToolCall, ToolCalls, ToolCallsType


@dataclass(frozen=True)
class _Asked:
    """What the output type of a form must allow.

    Attributes:
        type: the calls.
        template: the chat template, "" if there is none.
        specials: the texts of the tokenizer's special tokens.
        left_out: strings that a text must not contain, besides those that begin a call.
    """

    type: ToolCallsType
    template: str
    specials: Collection[str]
    left_out: tuple[str, ...]

    def calls(self, written: Callable[[Tool], Any]) -> Any:
        """One call of any tool; `written` makes the output type of a tool's call."""
        return either(*(written(tool) for tool in self.type.tools))


def tree_of(asked: ToolCallsType, tokenizer: Tokenizer) -> Calls:
    """The tree of tool calls for a tokenizer.

    Raises:
        ConstraintError: gen cannot tell how the template writes calls, or the vocabulary lacks special tokens of the
            form.
    """
    template = tokenizer.template_for_tools
    specials = frozenset(tokenizer.special_tokens.values())
    name = asked.format or form_of(template)
    form = _FORMS[name]
    if lacking := [one for one in form.specials if one not in specials]:
        raise ConstraintError(
            f"the format {name!r} needs the special tokens {', '.join(lacking)}, which this tokenizer lacks; give "
            "another format to gen.tool_calls."
        )
    marks = marks_of(template)
    left_out = (marks.opens, marks.closes) if marks is not None and marks.kind == "tags" else ()
    main = form.write(_Asked(asked, template, specials, left_out))
    read = main
    if name == "gpt-oss":
        plain = Made(text(), lambda said: _value(said, [])) if asked.answer is None else _answer(asked.answer)
        read = either(main, plain) if asked.choice in ("auto", "none") else main
    elif asked.answer is not None:
        read = main = either(main, _answer(asked.answer))
    heads = form.heads if asked.answer is None else replace(form.heads, after_text=False)
    return Calls(_tree(main), _tree(read), heads if asked.tools else None)


def form_of(template: str) -> str:
    """The name of the form in which a chat template writes calls.

    Raises:
        ConstraintError: the template's form is none that gen knows.
    """
    if all(name in template for name in ("<|channel|>", "<|message|>")):
        return "gpt-oss"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return "hermes"
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters": ' in template):
        return "llama3"
    if not re.search(r"\btools\b", template):
        return "hermes"
    raise ConstraintError(
        f"gen cannot tell how this model's chat template writes calls of tools; give gen.tool_calls a format, one of "
        f"{', '.join(_FORMS)}."
    )


def _tree(output_type: Any) -> Tree:
    return read_tree(output_type, read_plan)


def _value(said: str, calls: list[ToolCall]) -> ToolCalls:
    return ToolCalls(text=said.strip(), calls=calls)


def _answer(output_type: Any) -> Any:
    """A text of the answer's type, instead of calls."""
    return Made(output_type, lambda value: ToolCalls(text="", calls=[], answer=value))


def _json_call(arguments: str, tool: Tool, after: Any = "}") -> Any:
    """A call as a JSON object with a name and arguments; `after` is the rest of the object, which may have the id."""
    begin = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments}": '

    def make(parts: tuple[Any, ...]) -> ToolCall:
        found = parts[2][1] if isinstance(parts[2], tuple) else None
        return ToolCall(name=tool.name, arguments=parts[1], id=found)

    return Made(sequence(begin, tool.arguments, after), make)


def _hermes(asked: _Asked) -> Any:
    said = text(without=["<tool_call>", *asked.left_out])
    if not asked.type.tools:
        return Made(said, lambda value: _value(value, []))
    call = sequence("<tool_call>\n", asked.calls(partial(_json_call, "arguments")), "\n</tool_call>")
    calls = repeat(Made(call, lambda parts: parts[1]), "\n", 0 if asked.type.optional else 1, asked.type.most)
    if not asked.type.optional:
        return Made(calls, lambda found: _value("", found))
    return Made(sequence(said, calls), lambda parts: _value(*parts))


def _llama3(asked: _Asked) -> Any:
    if not asked.type.tools:
        return Made(text(without=asked.left_out), lambda value: _value(value, []))
    said = either("", sequence(regex(r"[^{\s]"), text(without=asked.left_out)))  # a brace begins a call
    plain = Made(said, lambda value: _value("".join(value), []))
    call = asked.calls(partial(_json_call, "parameters"))
    tag = "<|python_tag|>"
    if tag in asked.specials:
        call = Made(sequence(either("", tag), call), lambda parts: parts[1])
    one = Made(call, lambda found: _value("", [found]))
    return either(one, plain) if asked.type.optional else one


def _mistral(asked: _Asked) -> Any:
    begin = "[TOOL_CALLS]"
    said = text(without=[begin, *asked.left_out])
    if not asked.type.tools:
        return Made(said, lambda value: _value(value, []))
    calls: Any
    if "[ARGS]" in asked.template:
        calls = repeat(asked.calls(partial(_named_call, asked.template)), "", 1, asked.type.most)
    else:
        gap = " " if f"{begin} [" in asked.template else ""
        after = sequence(', "id": "', regex("[a-zA-Z0-9]{9}"), '"}')
        listed = repeat(asked.calls(partial(_json_call, "arguments", after=after)), ", ", 1, asked.type.most)
        calls = Made(sequence(f"{begin}{gap}[", listed, "]"), lambda parts: parts[1])
    if not asked.type.optional:
        return Made(calls, lambda found: _value("", found))
    return Made(sequence(said, either(calls, "")), lambda parts: _value(parts[0], parts[1] or []))


def _named_call(template: str, tool: Tool) -> Any:
    """A call of Mistral's newer models: the name, an id if the template has one, and the arguments."""
    if "[CALL_ID]" in template:
        parts = sequence(f"[TOOL_CALLS]{tool.name}[CALL_ID]", regex("[a-zA-Z0-9]{9}"), "[ARGS]", tool.arguments)
        return Made(parts, lambda found: ToolCall(name=tool.name, arguments=found[3], id=found[1]))
    plain = sequence(f"[TOOL_CALLS]{tool.name}[ARGS]", tool.arguments)
    return Made(plain, lambda found: ToolCall(name=tool.name, arguments=found[1]))


_NEXT = "<|end|><|start|>assistant"


def _gpt_oss(asked: _Asked) -> Any:
    """Messages in channels: an answer; or perhaps a text about a call, and the call."""
    said = text(without=[*_FORMS["gpt-oss"].specials])
    final = sequence("<|channel|>final<|message|>", said)
    plain = Made(final, lambda parts: _value(parts[1], []))
    if not asked.type.tools:
        return plain
    about = sequence("<|channel|>commentary<|message|>", said, _NEXT)
    call = Made(
        sequence(repeat(about, most=1) if asked.type.optional else "", asked.calls(_channel_call)),
        lambda parts: _value(parts[0][0][1] if parts[0] else "", [parts[1]]),
    )
    if asked.type.answer is not None:
        answer = sequence("<|channel|>final<|message|>", _answer(asked.type.answer))
        plain = Made(answer, lambda parts: parts[1])
    return either(plain, call) if asked.type.optional or asked.type.answer is not None else call


def _channel_call(tool: Tool) -> Any:
    begin = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
    return Made(sequence(begin, tool.arguments), lambda parts: ToolCall(name=tool.name, arguments=parts[1]))


@dataclass(frozen=True)
class _Form:
    """A form: the function that makes its output type, the heads of its calls, and the special tokens that it needs."""

    write: Callable[[_Asked], Any]
    heads: Heads
    specials: tuple[str, ...] = ()


_JSON_NAME = r'\{"name": (?P<json>"(?:[^"\\]|\\.)*"), '
_LISTED = rf'{_JSON_NAME}"arguments": '
_NAMED = r"\[TOOL_CALLS\](?P<name>.+?)(?:\[CALL_ID\]\w{9})?\[ARGS\]"
_LLAMA3 = rf'(?:<\|python_tag\|>)?{_JSON_NAME}"parameters": '
_CHANNEL = r"<\|channel\|>commentary to=functions\.(?P<name>.+?) <\|constrain\|>json<\|message\|>"
_FORMS = {
    "hermes": _Form(_hermes, Heads(first=f"<tool_call>\n{_LISTED}", next=_LISTED)),
    "llama3": _Form(_llama3, Heads(first=_LLAMA3, next=_LLAMA3, after_text=False)),
    "mistral": _Form(
        _mistral,
        Heads(first=rf"\[TOOL_CALLS\] ?\[{_LISTED}|{_NAMED}", next=f"{_LISTED}|{_NAMED}"),
        ("[TOOL_CALLS]",),
    ),
    "gpt-oss": _Form(
        _gpt_oss,
        Heads(first=_CHANNEL, next=_CHANNEL),
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"),
    ),
}
