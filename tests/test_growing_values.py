"""Values while they grow: each is the beginning of the next one, and the last one is the whole text's."""

import asyncio
import datetime
import json
import random
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Required, TypeVar

import pydantic
import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypeAliasType, TypedDict

import gen
from gen.calls.partial_json import PartialJson
from gen.samplers import greedy
from tests.helpers import ScriptedModel


def even(number: int) -> int:
    if number % 2:
        raise ValueError("an odd number")
    return number


class Basket(BaseModel):
    numbers: list[int]

    @pydantic.field_validator("numbers")
    @classmethod
    def are_few(cls, numbers: list[int]) -> list[int]:
        return few(numbers)


T = TypeVar("T")
Even = Annotated[int, AfterValidator(even)]


class Line(BaseModel):
    what: str
    price: float
    kind: Literal["new", "newer"] = "new"


class Invoice(BaseModel):
    title: str
    day: datetime.date
    note: str | None
    lines: list[Line]
    paid: bool


class Named(NamedTuple):
    number: int
    day: datetime.date


INVOICE = (
    '{"title": "A \\"quoted\\" \\n\u00e9", "day": "2024-05-06", "note": "n1", "lines": [{"what": "tea", '
    '"price": 12.5, "kind": "newer"}, {"what": "a \\\\ b", "price": 3.0, "kind": "new"}], "paid": true}'
)


def begins(shown: Any, later: Any) -> bool:
    """Whether a value is the beginning of a later one: only the last string may have become longer."""
    if isinstance(shown, dict) and isinstance(later, dict):
        keys = list(shown)
        same = all(shown[key] == later[key] for key in keys[:-1])
        return list(later)[: len(keys)] == keys and same and (not keys or begins(shown[keys[-1]], later[keys[-1]]))
    if isinstance(shown, list) and isinstance(later, list):
        size = len(shown)
        return shown[:-1] == later[: size - 1 if size else 0] and (not size or begins(shown[-1], later[size - 1]))
    if isinstance(shown, str) and isinstance(later, str):
        return later.startswith(shown)
    return type(shown) is type(later) and bool(shown == later)


def drawn(draws: random.Random, depth: int = 0) -> tuple[Any, dict[str, Any]]:
    """A random value, and a schema that it meets."""
    kind = draws.choice(
        ["string", "enum", "date", "number", "bool", "null", "union", *["object", "array"] * (depth < 3)]
    )
    if depth == 0:
        kind = draws.choice(["object", "array"])
    if kind == "object":
        names = draws.sample(["a", 'b"', "c\\", "d e", "\u00e9"], draws.randrange(4))
        parts = {name: drawn(draws, depth + 1) for name in names}
        schema = {"type": "object", "properties": {name: part for name, (_, part) in parts.items()}}
        return {name: value for name, (value, _) in parts.items()}, schema
    if kind == "array":
        made = [drawn(draws, depth + 1) for _ in range(draws.randrange(4))]
        return [value for value, _ in made], {"type": "array", "prefixItems": [part for _, part in made]}
    text = "".join(draws.choice('ab"\\/\n\u00e9\U0001f600 {}[],:') for _ in range(draws.randrange(9)))
    leaves: dict[str, tuple[Any, dict[str, Any]]] = {
        "string": (text, {"type": "string"}),
        "enum": ("newer", {"enum": ["new", "newer"]}),
        "date": ("2024-05-06", {"type": "string", "format": "date"}),
        "number": (draws.choice([0, -7, 12.5, 1e30, 123456789012345678901234567890]), {"type": "number"}),
        "bool": (draws.random() < 0.5, {"type": "boolean"}),
        "null": (None, {"type": "null"}),
        "union": (text, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    }
    return leaves[kind]


def test_each_value_is_the_beginning_of_the_next_one() -> None:
    for number in range(300):
        draws = random.Random(number)
        value, schema = drawn(draws)
        written = json.dumps(value, ensure_ascii=draws.random() < 0.5, indent=draws.choice([None, 1]))
        for size in (1, draws.randrange(2, 9)):
            text, before = PartialJson(schema), None
            for at in range(0, len(written), size):
                text.push(written[at : at + size])
                now = text.value()
                assert before is None or begins(before, now), (written, before, now)
                assert begins(now, value), (written, now)
                before = now
            assert text.value() == json.loads(written)


def test_a_reader_that_changes_a_value_is_shown_none_twice() -> None:
    def values() -> Any:
        return gen.stream(
            ScriptedModel('{"a": [1, 22], "b": []}'), "x", dict[str, list[int]], sampler=greedy()
        ).values()

    shown = [json.dumps(value) for value in values()]
    assert [(json.dumps(value), value.clear())[0] for value in values()] == shown


def test_options_dates_and_strings_of_unions_appear_whole() -> None:
    stream = gen.stream(ScriptedModel(INVOICE), "x", Invoice, sampler=greedy())
    shown = list(stream.values())
    assert shown[-1] == json.loads(INVOICE)
    assert shown[0] == {}
    titles = [one["title"] for one in shown if "title" in one]
    assert titles[:4] == ["", "A", "A ", 'A "']
    assert {one.get("day") for one in shown} == {None, "2024-05-06"}
    assert {one.get("note") for one in shown} == {None, "n1"}
    kinds = {line.get("kind") for one in shown for line in one.get("lines", [])}
    assert kinds == {None, "newer", "new"}
    prices = {line.get("price") for one in shown for line in one.get("lines", [])}
    assert prices == {None, 12.5, 3.0}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#it", "$defs": {"x": {"$anchor": "it", "properties": {"a": {"enum": ["new", "newer"]}}}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"properties": {"a": {"enum": ["new", "newer"]}}}}},
        {"properties": {"a": {"enum": ["new", "newer"]}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"allOf": [{"properties": {"a": {"type": "string", "format": "date"}}}, {"required": ["a"]}]},
        {"properties": {"a": {"type": "string", "oneOf": [{"const": "new"}, {"const": "newer"}]}}},
    ],
)
def test_options_appear_whole_however_a_schema_names_them(schema: dict[str, Any]) -> None:
    text = PartialJson(schema)
    text.push('{"a": "new')
    assert text.value() == {}
    text.push('"')
    assert text.value() == {"a": "new"}
    old = PartialJson({"items": [{"type": "string"}, {"enum": ["new", "newer"]}]})
    old.push('["ne", "new')
    assert old.value() == ["ne"]


def test_items_come_as_soon_as_they_are_whole() -> None:
    lines = json.loads(INVOICE)["lines"]
    stream = gen.stream(ScriptedModel(INVOICE), "x", Invoice, sampler=greedy())
    found = stream.items(of="lines")
    first = next(found)
    assert first == Line(**lines[0])
    assert stream.so_far().text.endswith('"newer"}')
    assert list(found) == [Line(**lines[1])]
    listed = gen.stream(ScriptedModel(json.dumps([1, 22, 3])), "x", list[int], sampler=greedy())
    assert list(listed.items()) == [1, 22, 3]
    root = RootModel[list[int]]
    for kind in (Annotated[list[int], Field(max_length=4)], list[int] | None, tuple[int, ...], list, root):
        assert list(gen.stream(ScriptedModel("[1, 22, 3]"), "x", kind, sampler=greedy()).items()) == [1, 22, 3]
    items = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
    schema = gen.json_schema({"type": "object", "properties": {"a": {"type": "array", "items": items}}})
    plain = gen.stream(ScriptedModel('{"a": [{"b": 1}, {"b": 22}]}'), "x", schema, sampler=greedy())
    assert list(plain.items(of="a")) == [{"b": 1}, {"b": 22}]


def test_a_list_may_have_an_alias_and_items_of_several_types() -> None:
    class Basket(BaseModel):
        lines: list[int] | list[str] = Field(alias="Lines")

    @pydantic.dataclasses.dataclass
    class Box:
        lines: list[str] = Field(alias="Lines")

    class Note(BaseModel):
        said: str

    for kind in (Basket, Box, Basket | None, Annotated[Note | Basket, "one"], RootModel[Basket | Note]):
        for of in ("lines", "Lines"):
            stream = gen.stream(ScriptedModel('{"Lines": ["a", "bc"]}'), "x", kind, sampler=greedy())
            assert list(stream.items(of=of)) == ["a", "bc"]


class Box(BaseModel, Generic[T]):
    lines: list[T]


class Apple(BaseModel):
    grams: int


class Pear(BaseModel):
    grams: int


class Apples(BaseModel):
    kind: Literal["apples"]
    lines: list[Apple]


class Pears(BaseModel):
    kind: Literal["pears"]
    lines: list[Pear]


class Upper(BaseModel):
    model_config = ConfigDict(str_to_upper=True)
    lines: list[str]


class Rooted(BaseModel):
    root: str
    lines: list[int]


class Aliased(BaseModel):
    kind: Literal["aliased"]
    lines: list[Apple] = Field(alias="Lines")


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)
    lines: list[int] = Field(alias="Lines")


class Distinct(BaseModel):
    lines: set[int] | set[float]


class Listed(TypedDict, total=False):
    lines: Required[list[Apple]]


@pytest.mark.parametrize(
    ("kind", "text", "of"),
    [
        (Box[Apple], '{"lines": [{"grams": 1}]}', "lines"),
        (Annotated[Apples | Pears, Field(discriminator="kind")], '{"kind": "pears", "lines": [{"grams": 1}]}', "lines"),
        (RootModel[Apples | Pears], '{"kind": "pears", "lines": [{"grams": 1}, {"grams": 2}]}', "lines"),
        (list[int] | list[float], "[1, 2.5]", None),
        (RootModel[list[int] | list[str]], '["a", "7"]', None),
        (list[Apple] | Pear, '[{"grams": 1}]', None),
        (Aliased | Pears, '{"kind": "pears", "lines": [{"grams": 1}, {"grams": 2}]}', "lines"),
        (Pears | Aliased, '{"kind": "aliased", "Lines": [{"grams": 1}, {"grams": 2}]}', "lines"),
        (ByName, '{"lines": [1, 2]}', "lines"),
        (Upper, '{"lines": ["a", "b"]}', "lines"),
        (Rooted, '{"root": "a", "lines": [1, 2]}', "lines"),
        (Listed, '{"lines": [{"grams": 1}]}', "lines"),
        (TypeAliasType("Both", list[Apple]), '[{"grams": 1}]', None),
        (TypeAliasType("Many", list[T], type_params=(T,))[Apple], '[{"grams": 1}]', None),  # type: ignore[arg-type]
        (NewType("Boxed", Box[Apple]), '{"lines": [{"grams": 1}]}', "lines"),
    ],
)
def test_items_are_those_of_the_whole_value(kind: Any, text: str, of: str | None) -> None:
    stream = gen.stream(ScriptedModel(text), "x", kind, sampler=greedy())
    found, value = list(stream.items(of=of)), stream.completion().value
    value = value.root if isinstance(value, RootModel) else value
    whole = value if of is None else value[of] if isinstance(value, dict) else getattr(value, of)
    assert [(type(one), one) for one in found] == [(type(one), one) for one in whole]


def test_items_of_a_set_that_have_waited_come_once_each() -> None:
    stream = gen.stream(ScriptedModel('{"lines": [7.5, 2, 16]}'), "x", Distinct, sampler=greedy())
    found = list(stream.items(of="lines"))
    assert found[0] == 7.5 and sorted(found) == [2, 7.5, 16]


def test_items_of_one_piece_come_before_the_error_of_a_later_one() -> None:
    with gen.Engine(ScriptedModel("[2, 4, 5, 6]")) as engine:
        stream = engine.submit("x", list[Even])
        with pytest.raises(gen.ValueRefusedError):
            stream.completion()  # by then all of the text is one piece
        found = stream.items()
        assert [next(found), next(found)] == [2, 4]
        with pytest.raises(gen.ValueRefusedError, match="an odd number"):
            next(found)


@pytest.mark.parametrize(("text", "kind"), [("[2, 3, 4]", list[Even]), ("2;3;4", gen.repeat(Even, ";"))])
def test_an_item_that_its_type_refuses_is_told_where_it_comes(text: str, kind: Any) -> None:
    found = gen.stream(ScriptedModel(text), "x", kind, sampler=greedy()).items()
    assert next(found) == 2
    with pytest.raises(gen.ValueRefusedError, match="an odd number") as caught:
        next(found)
    assert text.startswith(caught.value.text)
    assert len(caught.value.errors) == 1


def few(numbers: list[int]) -> list[int]:
    if len(numbers) > 2:
        raise ValueError("too many numbers")
    return sorted(numbers)


Few = Annotated[list[int], AfterValidator(few)]


@pytest.mark.parametrize(("kind", "of", "form"), [(Few, None, "{}"), (Basket, "numbers", '{{"numbers": {}}}')])
def test_what_checks_a_whole_list_does_so_after_its_last_item(kind: Any, of: str | None, form: str) -> None:
    stream = gen.stream(ScriptedModel(form.format("[3, 2]")), "x", kind, sampler=greedy())
    assert list(stream.items(of)) == [3, 2]
    whole = stream.completion().value
    assert (whole if of is None else whole.numbers) == [2, 3]
    found = gen.stream(ScriptedModel(form.format("[3, 2, 1]")), "x", kind, sampler=greedy()).items(of)
    assert [next(found), next(found), next(found)] == [3, 2, 1]
    with pytest.raises(gen.ValueRefusedError, match="too many numbers"):
        next(found)


def test_a_reader_may_go_on_and_a_stream_that_is_closed_gives_no_more() -> None:
    for reads in ("values", "items"):
        stream = gen.stream(ScriptedModel("[1, 2, 3]"), "x", list[int], sampler=greedy())
        first = next(getattr(stream, reads)())
        second = next(getattr(stream, reads)())
        assert (first, second) == (([], [1]) if reads == "values" else (1, 2))
        stream.close()
        assert not list(getattr(stream, reads)())

    async def read() -> list[Any]:
        with gen.Engine(ScriptedModel(INVOICE)) as engine:
            stream = engine.submit("x", Invoice)
            values = stream.values()
            await anext(values)
            await stream.aclose()
            return [one async for one in values]

    assert asyncio.run(read()) == []


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (gen.repeat(int, ", "), "12, 7, 330", ["12,", "12, 7,", "12, 7, 330"]),
        (gen.repeat(gen.regex("[0-9];")), "1;2;", ["1;", "1;2;"]),
        (gen.repeat(gen.sequence(int, "-", gen.either(int, "x")), ";"), "1-22;3-x;4-5", ["1-22;", "1-22;3-x", ...]),
        (gen.repeat(gen.repeat(int, ",", 1), ";"), "1,2;3", ["1,2;", "1,2;3"]),
        (gen.repeat(list[int], ",", 2, 2), "[1],[2, 3]", ["[1]", "[1],[2, 3]"]),
        (gen.repeat(gen.regex("[a-z]+(, [a-z]+)?"), ", "), "a, b, c", ["a, b, c", "a, b, c"]),
        (gen.repeat(gen.choice(["x", "xy", "yz"]), "y"), "xyyz", ["xyyz", "xyyz"]),
        (gen.repeat(gen.choice(["a", "aab", "b"])), "aaba", ["aab", "aaba"]),
    ],
)
def test_parts_that_are_repeated_come_as_soon_as_no_further_text_changes_them(
    kind: Any, text: str, shown: list[Any]
) -> None:
    stream = gen.stream(ScriptedModel(text), "x", kind, sampler=greedy())
    found, texts = list[Any](), list[str]()
    for item in stream.items():
        found.append(item)
        texts.append(stream.so_far().text)
    assert found == stream.completion().value
    assert texts == [text if one is ... else one for one in shown]


def test_other_types_give_one_value_at_the_end() -> None:
    for kind, text, value in ((int, "77", 77), (gen.regex("[{a]+"), "{a{", "{a{"), (Literal["x", "y"], "y", "y")):
        assert list(gen.stream(ScriptedModel(text), "x", kind, sampler=greedy()).values()) == [value]
    assert list(gen.stream(ScriptedModel("Hi."), "x").values()) == ["Hi."]


def test_engines_give_values_and_items_in_threads_and_in_event_loops() -> None:
    async def read(stream: Any, of: str | None) -> list[Any]:
        return [one async for one in (stream.values() if of is None else stream.items(of=of))]

    lines = [Line(**line) for line in json.loads(INVOICE)["lines"]]
    with gen.Engine(ScriptedModel(INVOICE)) as engine:
        assert list(engine.submit("x", Invoice).values())[-1] == json.loads(INVOICE)
        assert list(engine.submit("x", Invoice).items(of="lines")) == lines
        assert asyncio.run(read(engine.submit("x", Invoice), None))[-1] == json.loads(INVOICE)
        assert asyncio.run(read(engine.submit("x", Invoice), "lines")) == lines


def test_what_has_no_items_and_what_is_read_twice_is_refused() -> None:
    refused: list[Any] = [int, Invoice, tuple[int, bool], Named, None]
    for kind, of in (*((one, None) for one in refused), (gen.repeat(int, ","), "a")):
        with pytest.raises(gen.ArgumentError, match="items"):
            gen.stream(ScriptedModel("7"), "x", kind).items(of=of)
    schema = gen.json_schema({"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]})
    wrong: list[Any] = ["title", "other", 7, ["lines"]]
    kinds: list[Any] = [Invoice, schema]
    for kind in kinds:
        for of in wrong:
            with pytest.raises(gen.ArgumentError, match="items"):
                gen.stream(ScriptedModel("7"), "x", kind).items(of=of)
    stream = gen.stream(ScriptedModel(INVOICE), "x", Invoice)
    stream.items(of="lines")
    with pytest.raises(gen.GenError, match="read as items of lines"):
        stream.values()
    stream = gen.stream(ScriptedModel(INVOICE), "x", Invoice)
    next(stream)
    with pytest.raises(gen.GenError, match="read as pieces"):
        stream.values()


def test_a_value_that_is_cut_ends_with_the_error_of_its_stream() -> None:
    class Long(BaseModel):
        text: str = Field(max_length=50)

    stream = gen.stream(ScriptedModel('{"text": "abcdefgh"}'), "x", Long, stop="d")
    shown = []
    with pytest.raises(gen.IncompleteError):
        for value in stream.values():
            shown.append(value)
    assert shown[-1] == {"text": "abc"}
