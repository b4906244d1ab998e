"""The base of all forms of calls: marks around calls, and perhaps a text before them.

Example: with the mark and the beginning <calls>, the separator "\\n" and the end </calls>, two calls after a text are
written as "Hi <calls>f(1)\\ng(2)</calls>".
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from gen.constraints.output_types import JsonSchema, Made, either, regex, repeat, sequence, text
from gen.constraints.plans import laid_out, read_plan
from gen.constraints.schema import property_types
from gen.constraints.schema.writing.writer import LAYOUTS, Fields
from gen.errors import ConstraintError, show
from gen.tools.argument_readers import ArgumentsReader, FieldsReader, JsonReader
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool, ToolCall, ToolCalls, ToolCallsType

NAMES = r'[^<>"\n]+'
"""A pattern of the names that can stand between marks."""


class Form:
    """How a family writes calls. Each form overrides `call` and `heads`, and what else is its own.

    Args:
        name: the form's.
        template: the chat template, "" if there is none.
        has: the texts of the tokenizer's special tokens.
        left_out: strings that a text must not have, besides `mark`.

    Attributes:
        specials: special tokens that the form needs.
        mark: what no text before a call has.
        begin, separator, end: what stands before the first call, between two of them, and behind the last one.
        first: the pattern of the characters with which a text may begin, where calls begin with others and no mark.
        without: what no string of the arguments has.
        fields: how the arguments are written, if not as JSON.
        behind: what stands behind the arguments.
        begun: what the head of a call has of the first mark of its arguments.
    """

    specials: tuple[str, ...] = ()
    begin = separator = end = mark = first = behind = begun = ""
    without: tuple[str, ...] = ()
    fields: Fields | None = None

    def __init__(
        self, name: str, asked: ToolCallsType, template: str, has: Collection[str], left_out: tuple[str, ...]
    ) -> None:
        self.name = name
        self.asked = asked
        self.template = template
        self.has = has
        self.left_out = left_out

    def call(self, tool: Tool) -> Any:
        """The output type of a call of a tool; its value is a `ToolCall`."""
        raise NotImplementedError

    def heads(self) -> Heads:
        """What calls begin with."""
        raise NotImplementedError

    def write(self) -> Any:
        """The output type of the calls that are asked for, perhaps after a text; its value is a `ToolCalls`."""
        marks = [self.mark, *self.left_out] if self.mark else self.left_out
        said = text(without=marks)
        if not self.asked.tools:
            return Made(said, lambda value: value_of(value, []))
        if not self.asked.optional:
            return self.whole()
        if self.first:
            begun = either("", sequence(regex(self.first), said))
            return either(self.whole(), Made(begun, lambda value: value_of("".join(value), [])))
        parts = sequence(said, either(self.whole(), ""))
        return Made(parts, lambda found: value_of(found[0], found[1].calls if found[1] else []))

    def whole(self) -> Any:
        """The output type of the calls alone; its value is a `ToolCalls`."""
        calls = repeat(self.calls(), self.separator, 1, self.asked.most)
        return Made(sequence(self.begin, calls, self.end), lambda parts: value_of("", parts[1]))

    def read(self) -> Any:
        """The output type that reads such texts, also where a stop has ended one; None if it is that of `write`, or of
        an answer."""
        return None

    def calls(self) -> Any:
        """One call of any tool."""
        return either(*(self.call(tool) for tool in self.asked.tools))

    def json_call(self, arguments: str, tool: Tool, after: Any = "}") -> Any:
        """A call as a JSON object with a name and arguments; `after` is the rest of the object, which may have the
        id."""
        begin = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments}": '

        def make(parts: tuple[Any, ...]) -> ToolCall:
            found = parts[2][1] if isinstance(parts[2], tuple) else None
            return ToolCall(name=tool.name, arguments=parts[1], id=found)

        return Made(sequence(begin, tool.arguments, after), make)

    def plain_call(self, tool: Tool, before: str) -> Any:
        """A call as arguments behind a string.

        Raises:
            ConstraintError: the form cannot write the tool's name.
        """
        if not re.fullmatch(r"[\w.-]+", tool.name):
            raise ConstraintError(
                f"the format {self.name!r} cannot write the name of the tool {show(tool.name)}, which needs letters, "
                "digits, underscores, dots and dashes alone."
            )
        python = self.fields is not None and not self.fields.raw
        layout = LAYOUTS["line"]._replace(without=self.without, fields=self.fields, python=python)
        in_json = partial(_in_json, self.reader_of(tool), self.behind)
        arguments = replace(tool.arguments, part=laid_out(tool.arguments.part, layout, in_json))
        whole = sequence(before, arguments, self.behind)
        return Made(whole, lambda parts: ToolCall(name=tool.name, arguments=parts[1]))

    def reader_of(self, tool: Tool, begun: str = "") -> Callable[[], ArgumentsReader]:
        """Makes what reads a tool's arguments as JSON."""
        if self.fields is None:
            return JsonReader
        part = tool.arguments.part
        types = partial(property_types, read_plan(part).schema, True, isinstance(part, JsonSchema))
        return partial(FieldsReader, self.fields, self.behind, types, begun)

    def readers(self) -> Callable[[str], ArgumentsReader]:
        """Gives what reads the arguments of the tool of a name."""
        known = {tool.name: self.reader_of(tool, self.begun) for tool in self.asked.tools}
        return lambda name: known.get(name, JsonReader)()


def _in_json(reader: Callable[[], ArgumentsReader], behind: str, written: str) -> str:
    return reader().take(written + behind)[0]


def value_of(said: str, calls: list[ToolCall]) -> ToolCalls:
    """The value of a text and the calls after it."""
    return ToolCalls(text=said.strip(), calls=calls)


def answer_of(output_type: Any) -> Any:
    """A text of the answer's type, instead of calls."""
    return Made(output_type, lambda value: ToolCalls(text="", calls=[], answer=value))
