"""How gpt-oss writes calls."""

from typing import Any

from gen.constraints.output_types import Made, either, repeat, sequence, text
from gen.tools.forms.form import Form, answer_of, value_of


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
