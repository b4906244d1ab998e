"""The base of all forms of calls: what stands around calls, and around a tool's name and its arguments.

Example: with the mark and the beginning <calls>, the head "{name}(", ")" behind the arguments, the separator "\\n" and
the end </calls>, two calls after a text are written as "Hi <calls>f(1)\\ng(2)</calls>".
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from gen.constraints.output_types import JsonSchema, Made, Regex, either, regex, repeat, sequence, text
from gen.constraints.plans import laid_out, read_plan
from gen.constraints.schema import property_types
from gen.constraints.schema.writing.writer import LAYOUTS, Fields
from gen.errors import ConstraintError, show
from gen.tools.argument_readers import ArgumentsReader, FieldsReader, JsonReader
from gen.tools.call_pieces import Heads
from gen.tools.calls import Tool, ToolCall, ToolCalls, ToolCallsType

BETWEEN_MARKS = r'[^<>"\n]+'  # the names that can stand between marks
_STRING = r'"(?:[^"\\]|\\.)*"'


class Form:
    """How a family writes calls. Each form sets `head`, and what else is its own.

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
        head, behind: what stands before and behind a call's arguments; {name} is the tool's name, {json} the name as a
            JSON string, {id} the call's id.
        names, id: the patterns of {name}, where calls are read, and of {id}, in which {name} is the tool's name.
        without: what no string of the arguments has, if there is such a thing; then a tool's name is a plain word.
        fields: how the arguments are written, if not as JSON.
        begun: what the head of a call has of the first mark of its arguments.
    """

    specials: tuple[str, ...] = ()
    begin = separator = end = mark = first = head = behind = begun = id = ""
    names = ".+?"
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
        """The output type of a call of a tool; its value is a `ToolCall`.

        Raises:
            ConstraintError: the form cannot write the tool's name.
        """
        arguments = self._arguments(tool)
        parts = [*self._written(self.head, tool), arguments, *self._written(self.behind, tool)]
        an_id = next((place for place, part in enumerate(parts) if isinstance(part, Regex)), None)

        def make(found: tuple[Any, ...]) -> ToolCall:
            said = None if an_id is None else found[an_id]
            return ToolCall(name=tool.name, arguments=found[parts.index(arguments)], id=said)

        return Made(sequence(*parts), make)

    def heads(self) -> Heads:
        """What calls begin with."""
        head = re.escape(self.head + self.begun).replace(r"\{id\}", f"(?P<id>{self.id})")
        head = re.sub(r"\\?\{name\\?\}", lambda _: f"(?P<name>{self.names})", head)
        head = head.replace(r"\{json\}", f"(?P<json>{_STRING})")
        return Heads(
            first=re.escape(self.begin) + head, next=head, after_text=not self.first, arguments=self._readers()
        )

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

    def reader_of(self, tool: Tool, begun: str = "") -> Callable[[], ArgumentsReader]:
        """Makes what reads a tool's arguments as JSON."""
        if self.fields is None:
            return JsonReader
        part = tool.arguments.part
        types = partial(property_types, read_plan(part).schema, True, isinstance(part, JsonSchema))
        return partial(FieldsReader, self.fields, self.behind, types, begun)

    def _readers(self) -> Callable[[str], ArgumentsReader]:
        """Gives what reads the arguments of the tool of a name."""
        known = {tool.name: self.reader_of(tool, self.begun) for tool in self.asked.tools}
        return lambda name: known.get(name, JsonReader)()

    def _written(self, template: str, tool: Tool) -> list[Any]:
        """What stands before or behind a tool's arguments, with the id as a part of its own."""
        said = {"{name}": tool.name, "{json}": json.dumps(tool.name, ensure_ascii=False)}
        texts = [re.sub(r"\{(name|json)\}", lambda found: said[found[0]], one) for one in template.split("{id}")]
        an_id = regex(self.id.replace("{name}", re.escape(tool.name)))
        parts = [texts[0], *(part for one in texts[1:] for part in (an_id, one))]
        return [part for part in parts if part != ""]

    def _arguments(self, tool: Tool) -> Any:
        """The output type of a tool's arguments."""
        if not self.without:
            return tool.arguments
        if not re.fullmatch(r"[\w.-]+", tool.name):
            raise ConstraintError(
                f"the format {self.name!r} cannot write the name of the tool {show(tool.name)}, which needs letters, "
                "digits, underscores, dots and dashes alone."
            )
        python = self.fields is not None and not self.fields.raw
        layout = LAYOUTS["line"]._replace(without=self.without, fields=self.fields, python=python)
        in_json = partial(_in_json, self.reader_of(tool), self.behind)
        return replace(tool.arguments, part=laid_out(tool.arguments.part, layout, in_json))


def _in_json(reader: Callable[[], ArgumentsReader], behind: str, written: str) -> str:
    return reader().take(written + behind)[0]


def value_of(said: str, calls: list[ToolCall]) -> ToolCalls:
    """The value of a text and the calls after it."""
    return ToolCalls(text=said.strip(), calls=calls)


def answer_of(output_type: Any) -> Any:
    """A text of the answer's type, instead of calls."""
    return Made(output_type, lambda value: ToolCalls(text="", calls=[], answer=value))
