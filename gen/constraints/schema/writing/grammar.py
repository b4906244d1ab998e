"""Values as a grammar for llguidance: a value is a rule, so that a schema may refer to itself, and no text is too long.

Example: {"properties": {"next": {"$ref": "#"}}} is `s0: "{" s1` and `s1: "}" | "'next'" ": " s0 "}"`, with double
quotes for single ones. llguidance always takes the longest terminal, so no terminal may begin with another one: each
string, number, comma and bracket is one terminal.
"""

import json as json_text
from collections.abc import Sequence
from typing import Any

from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import Budget, TooLarge, Unsupported
from gen.constraints.automata.rust_syntax import (
    Conditions,
    characters,
    conditions,
    lengths,
    literal,
    terminal,
    terminal_of,
)
from gen.constraints.schema.parts import Part
from gen.constraints.schema.writing.formats import FORMATS, LONGEST
from gen.constraints.schema.writing.network import Network
from gen.constraints.schema.writing.numbers import ANY_NUMBER, ANY_WHOLE, number_texts, part_numbers
from gen.constraints.schema.writing.writer import LEVELS, ROOM, WORK, Layout, Place, Writer

_MOST_RULES = 20_000


class GrammarWriter(Writer):
    nfa: Network

    def __init__(self, root: Any, closed: bool, layout: Layout, budget: Budget, ecma: bool = False) -> None:
        super().__init__(root, closed, layout, budget, ecma)
        self.nfa = Network(budget)
        self._rules: dict[tuple[tuple[int, ...], int, int], int] = {}
        self._todo: list[tuple[Sequence[Any], int, Place]] = []
        self._kept: list[Sequence[Any]] = []  # schemas of rules, kept so that no other schema gets their ids
        self._digits: list[str] = []  # terminals that others are made of
        self._numbers: dict[int, tuple[Dfa, str]] = {}  # terminals of numbers; the automata are kept for their ids

    def grammar(self, schema: Any, place: Place) -> str:
        """A grammar of the values of a schema, in Lark. Raises Unsupported, TooLarge, Empty."""
        start = self._rule((schema,), place)
        while self._todo:
            schemas, first, place = self._todo.pop()
            self.budget.spend(WORK, f"writing the values at {place.path[:80]}")
            try:
                end = self.any_of(self.parts_of(schemas, place.path), first, place)
            except Unsupported as error:  # raised later, if the grammar needs this rule
                self.nfa.refused[first] = error
                end = first
            if end is not None:
                self.nfa.ends.add(end)
        return "\n".join([self.nfa.lark(start), *self._digits])

    def value(self, schemas: Sequence[Any], state: int, place: Place) -> int | None:
        """See `Writer`; only the finished grammar shows whether there is such a value."""
        return self.nfa.reads(state, self._rule(schemas, place))

    def _rule(self, schemas: Sequence[Any], place: Place) -> int:
        """The first state of the rule of all values that meet some schemas."""
        if self.layout.indent is None:  # values are written alike at all levels, and nest to any depth
            place = place._replace(level=self.layout.kind(place.level), room=ROOM["array"])
        elif place.level > LEVELS:
            raise TooLarge(f"whitespace='indent' has no end at {place.path[:80]}")
        key = (tuple(map(id, schemas)), place.level, place.room)
        if key not in self._rules:
            if len(self._rules) > _MOST_RULES:
                raise TooLarge(f"more than {_MOST_RULES} rules of a grammar")
            self._kept.append(schemas)
            self._rules[key] = self.nfa.state()
            self._todo.append((schemas, self._rules[key], place))
        return self._rules[key]

    def text(self, state: int, text: str) -> int:
        return self.nfa.reads(state, terminal_of(literal(text))) if text else state

    def string(self, part: Part, state: int, path: str, around: tuple[str, str] = ('"', '"')) -> int | None:
        try:
            if self.texts(part, path) is None:
                return None
        except TooLarge:  # then there are some
            pass
        before, behind = (terminal_of(literal(one)) for one in around)
        content = _strings(part, json=around[0] == '"')
        written = (f"{before} " if around[0] else "") + content + (f" {behind}" if around[1] else "")
        return self.nfa.reads(state, written)

    def listed(self, values: Sequence[Any], state: int, place: Place) -> int:
        """See `Writer`. Arrays and objects are written terminal by terminal, like any others."""
        end = self.nfa.state()
        behind, _ = self.layout.of_value(place.level)
        plain = []
        for value in values:
            if isinstance(value, dict | list) and value:
                self.nfa.join(self.text(self._nested(value, self.nfa.after(state), place.level), behind), end)
            else:
                plain.append(literal(self.layout.dumps(value, place.level).decode() + behind))
        if plain:
            self.nfa.join(self.nfa.reads(state, terminal_of("|".join(plain))), end)
        return end

    def _nested(self, value: Any, state: int, level: int) -> int:
        """One array or object that is not empty."""
        opened, between, closing = self.layout.around(level)
        brackets = "{}" if isinstance(value, dict) else "[]"
        state = self.text(state, brackets[0])
        for number, one in enumerate(value):
            state = self.text(state, between if number else opened)
            if isinstance(value, dict):
                state = self.text(self.text(state, self.layout.dumps(one, 0).decode()), self.layout.name)
                one = value[one]
            state = self.listed([one], state, Place("", 0, level + 1))
        return self.text(state, closing + brackets[1])

    def number(self, part: Part, whole: bool, state: int, end: str = "") -> int | None:
        numbers = part_numbers(part, whole)
        if numbers is None:
            return None
        any_one = numbers is number_texts(None, None, (), whole)
        written = terminal_of(ANY_WHOLE if whole else ANY_NUMBER) if any_one else self._acyclic(numbers)
        return self.nfa.reads(state, f"{written} {terminal_of(literal(end))}" if end else written)

    def _acyclic(self, texts: Dfa) -> str:
        """The texts of an automaton without cycles, with a terminal for each state."""
        if id(texts) in self._numbers:
            return self._numbers[id(texts)][1]
        name = f"D{len(self._digits)}"
        self._numbers[id(texts)] = texts, f"{name}_0"
        for state, edges in enumerate(texts.lines):
            ways = [
                f"{terminal_of(characters(((low, high),), json=False))} {name}_{target}" for low, high, target in edges
            ]
            if texts.final[state]:
                ways.append('""')
            self._digits.append(f"{name}_{state}: {' | '.join(ways)}")
        return f"{name}_0"


def string_terminal(parts: Sequence[Part]) -> str:
    """A Lark terminal for the strings of the parts as they are, without quotes and escapes. Raises Unsupported."""
    return f"({' | '.join(_strings(part, json=False) for part in parts)})"


def _strings(part: Part, *, json: bool) -> str:
    """A terminal of the strings of a part, without quotes. Raises Unsupported."""
    every = [conditions(FORMATS[name], search=False, json=json) for name in part.formats if name in FORMATS]
    every += [conditions(pattern, search=True, json=json) for pattern in part.patterns]
    none = [conditions(pattern, search=True, json=json, certain=False) for pattern in part.unmatched]
    if part.excluded:
        none.append(Conditions(("|".join(_written(one, json) for one in sorted(part.excluded)),), ()))
    if part.values is not None:
        texts = (_written(one, json) for one in part.values if isinstance(one, str))
        every.append(Conditions(("|".join(texts),), ()))
    limits: list[tuple[int, int | None]] = [(0, LONGEST[name]) for name in part.formats if name in LONGEST]
    if part.min_length or part.max_length is not None:
        limits.append((part.min_length, part.max_length))
    if not every:
        limits = limits or [(0, None)]
    every += [Conditions((lengths(low, high, json=json),), ()) for low, high in limits]
    return f"({' & '.join([*map(terminal, every), *(f'~{terminal(one)}' for one in none)])})"


def _written(text: str, json: bool) -> str:
    """The pattern of one text, as it is or as the content of a JSON string."""
    return literal(json_text.dumps(text, ensure_ascii=False)[1:-1] if json else text) or "(?:)"
