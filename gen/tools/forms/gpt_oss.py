"""gpt-oss: messages in channels: an answer; or perhaps a text about a call, and the call."""

from typing import Any

from gen.constraints.output_types import Made, either, repeat, sequence, text
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool, ToolCall
from gen.tools.forms import form

_NEXT = "<|end|><|start|>assistant"
_HEAD = r"<\|channel\|>commentary to=functions\.(?P<name>.+?) <\|constrain\|>json<\|message\|>"


class Form(form.Form):
    """See `gen.tools.forms.form.Form`."""

    specials = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")

    def call(self, tool: Tool) -> Any:
        begin = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
        return Made(sequence(begin, tool.arguments), lambda parts: ToolCall(name=tool.name, arguments=parts[1]))

    def heads(self) -> Heads:
        return Heads(first=_HEAD, next=_HEAD)

    def write(self) -> Any:
        said = text(without=[*self.specials])
        final = sequence("<|channel|>final<|message|>", said)
        plain = Made(final, lambda parts: form.value_of(parts[1], []))
        if not self.asked.tools:
            return plain
        about = sequence("<|channel|>commentary<|message|>", said, _NEXT)
        call = Made(
            sequence(repeat(about, most=1) if self.asked.optional else "", self.calls()),
            lambda parts: form.value_of(parts[0][0][1] if parts[0] else "", [parts[1]]),
        )
        if self.asked.answer is not None:
            answer = sequence("<|channel|>final<|message|>", form.answer_of(self.asked.answer))
            plain = Made(answer, lambda parts: parts[1])
        return either(plain, call) if self.asked.optional or self.asked.answer is not None else call

    def read(self) -> Any:
        if self.asked.choice not in ("auto", "none"):
            return self.write()
        answer = self.asked.answer
        plain = Made(text(), lambda said: form.value_of(said, [])) if answer is None else form.answer_of(answer)
        return either(self.write(), plain)
