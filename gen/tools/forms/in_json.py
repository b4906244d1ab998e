"""Forms of calls whose arguments are JSON."""

import re
from dataclasses import replace
from typing import Any

from gen.constraints.output_types import Made, either, repeat, sequence, text
from gen.tools.call_pieces import Heads
from gen.tools.forms.form import Form, answer_of, value_of


class Hermes(Form):
    """Hermes and Qwen: a text, then a block of three lines for each call, <tool_call>, {"name": ..., "arguments": ...}
    and </tool_call>.
    """

    mark, separator = "<tool_call>", "\n"
    head = '<tool_call>\n{"name": {json}, "arguments": '
    behind = "}\n</tool_call>"


class Llama3(Form):
    """Llama 3: {"name": "f", "parameters": {"x": 1}}, perhaps after <|python_tag|>; or a text that begins with no
    brace.
    """

    first = r"[^{\s]"
    head = '{"name": {json}, "parameters": '
    behind = "}"
    _tag = "<|python_tag|>"

    def heads(self) -> Heads:
        heads = super().heads()
        return replace(heads, first=f"(?:{re.escape(self._tag)})?{heads.first}")

    def whole(self) -> Any:
        call = self.calls()
        if self._tag in self.has:
            call = Made(sequence(either("", self._tag), call), lambda parts: parts[1])
        return Made(call, lambda found: value_of("", [found]))


class Mistral(Form):
    """Mistral: a text, then [TOOL_CALLS] and a list of {"name": "f", "arguments": {"x": 1}, "id": "9 letters"}.

    Newer models write [TOOL_CALLS]f[CALL_ID]9 letters[ARGS]{"x": 1} for each call, perhaps without the id.
    """

    specials = ("[TOOL_CALLS]",)
    mark = "[TOOL_CALLS]"
    id = "[a-zA-Z0-9]{9}"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if "[ARGS]" in self.template:
            self.head = f"[TOOL_CALLS]{{name}}{'[CALL_ID]{id}' if '[CALL_ID]' in self.template else ''}[ARGS]"
        else:
            gap = " " if "[TOOL_CALLS] [" in self.template else ""
            self.begin, self.separator, self.end = f"[TOOL_CALLS]{gap}[", ", ", "]"
            self.head, self.behind = '{"name": {json}, "arguments": ', ', "id": "{id}"}'


_OF_DEEPSEEK = tuple(
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "sep", "call\u2581end")
)


class DeepSeek(Form):
    """DeepSeek: a text, then between <|tool_calls_begin|> and <|tool_calls_end|> for each call, as V3.1 writes it,
    <|tool_call_begin|>f<|tool_sep|>{"x": 1}<|tool_call_end|>.

    V3 and R1 write function<|tool_sep|>f, then the arguments in a block of three backticks. In these special tokens
    U+FF5C stands for a bar, and U+2581 for an underscore.
    """

    mark = begin = _OF_DEEPSEEK[0]
    end = _OF_DEEPSEEK[1]
    without = _OF_DEEPSEEK

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        _, _, begin, sep, end = _OF_DEEPSEEK
        old = "```json" in self.template
        self.separator = "\n" if old else ""
        self.head = f"{begin}function{sep}{{name}}\n```json\n" if old else f"{begin}{{name}}{sep}"
        self.behind = f"\n```{end}" if old else end


class Kimi(Form):
    """Kimi K2: a text, then between <|tool_calls_section_begin|> and <|tool_calls_section_end|> for each call
    <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>, with an id that counts the
    calls.
    """

    mark = begin = "<|tool_calls_section_begin|>"
    end = "<|tool_calls_section_end|>"
    head = "<|tool_call_begin|>{id}<|tool_call_argument_begin|>"
    id = r"functions\.{name}:(?:0|[1-9][0-9]{0,3})"
    behind = "<|tool_call_end|>"
    without = (begin, end, "<|tool_call_begin|>", "<|tool_call_argument_begin|>", behind)


class GptOss(Form):
    """gpt-oss: messages in channels: an answer; or perhaps a text about a call, and the call."""

    specials = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
    head = "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"

    def write(self) -> Any:
        said = text(without=[*self.specials])
        final = sequence("<|channel|>final<|message|>", said)
        plain = Made(final, lambda parts: value_of(parts[1], []))
        if not self.asked.tools:
            return plain
        about = sequence("<|channel|>commentary<|message|>", said, "<|end|><|start|>assistant")
        call = Made(
            sequence(repeat(about, most=1) if self.asked.optional else "", self.calls()),
            lambda parts: value_of(parts[0][0][1] if parts[0] else "", [parts[1]]),
        )
        if self.asked.answer is not None:
            answer = sequence("<|channel|>final<|message|>", answer_of(self.asked.answer))
            plain = Made(answer, lambda parts: parts[1])
        return either(plain, call) if self.asked.optional or self.asked.answer is not None else call

    def read(self) -> Any:
        if self.asked.choice not in ("auto", "none"):
            return self.write()
        answer = self.asked.answer
        plain = Made(text(), lambda said: value_of(said, [])) if answer is None else answer_of(answer)
        return either(self.write(), plain)
