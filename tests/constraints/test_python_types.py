"""Python types: pydantic reads every text of a type's automaton; types that only pydantic can check are refused."""

import builtins
import collections
import functools
import json
import random
import re
import typing
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Network
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest
from annotated_types import MultipleOf
from pydantic import AliasChoices, AliasGenerator, AliasPath, BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.types import PaymentCardNumber
from typing_extensions import TypeAliasType, TypedDict

import gen
from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.plans import read_plan
from gen.constraints.python_types import is_text, schema_of
from gen.errors import ConstraintError
from tests.constraints.walks import random_texts
from tests.helpers import ScriptedModel


class Color(Enum):
    RED = "red"
    DARK_GREEN = "dark green"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Name(StrEnum):
    ADA = "Ada"


class Half(Enum):
    HALF = 0.5
    TEXT = "x"
    NO = False
    NONE = None
    MAP = {"a": 1}  # noqa: RUF012


class Pair(NamedTuple):
    number: int
    name: str = "x"


class Partial(TypedDict, total=False):
    name: str
    when: date


@dataclass
class Point:
    x: float
    y: float
    tags: list[str] = field(default_factory=list)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, Field(min_length=1, max_length=8, pattern="^[A-Z]")]


class Owner(BaseModel):
    name: str = Field(alias="full name")
    born: date | None = None
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = Field(max_length=2)
    level: Level
    home: Point
    notes: dict[str, bool] = {}


class Short(BaseModel):
    model_config = ConfigDict(str_min_length=2, str_max_length=4, str_strip_whitespace=True)
    names: list[str]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    number: int


class FrozenLists(Frozen):
    lists: list[int]


@dataclass(frozen=True)
class Deep:
    lists: tuple[FrozenLists, ...]


class Listed(NamedTuple):
    numbers: list[int]


class Hashing(FrozenLists):
    def __hash__(self) -> int:
        return self.number


class OnlyWithK(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Annotated[str, Field(pattern="^k")], int]


class Square(BaseModel):
    kind: Literal["square"] = "square"
    side: int


class Circle(BaseModel):
    kind: Literal["circle"] = "circle"
    radius: int = 1


class AliasedSquare(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    kind: Literal["square"] = Field("square", alias="Kind")
    side: Literal["a"] = "a"


class AliasedCircle(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    kind: Literal["circle"] = Field("circle", alias="Kind")
    side: Literal["a"] = "a"


class OtherSquare(AliasedSquare):
    side: Literal["b"] = "b"  # type: ignore[assignment]


Shape = Annotated[Square | Circle, Field(discriminator="kind")]
Flag = TypeAliasType("Flag", bool)  # types with a name of their own are referred to, where they come twice
AnyCase = Annotated[str, pydantic.StringConstraints(to_lower=True, pattern="^[abAB]$")]


class Flags(BaseModel):
    one: Flag
    more: Annotated[set[Flag | Literal[1]], Field(min_length=2)]


class Lists(BaseModel):
    one: "Some"
    more: "set[Some]"


Some = TypeAliasType("Some", list[int])


def has_y(value: Any) -> str:
    return "with y" if "y" in value else "x alone"


class WithX(BaseModel):
    x: int


class WithY(BaseModel):
    x: int
    y: int = 0


class Chosen(BaseModel):
    one: Annotated[
        Annotated[WithX, pydantic.Tag("x alone")] | Annotated[WithY, pydantic.Tag("with y")],
        pydantic.Discriminator(has_y),
    ]


class OneNameTwice(BaseModel):
    a: int = Field(default=1, alias="q")
    b: Annotated[float, Field(lt=5)] = Field(default=2, validation_alias=AliasChoices("q", "r"))


class OthersName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: int = Field(default=1, alias="b")
    b: str = Field(default="x", alias="a")


class OddNames(BaseModel):
    type: str
    metadata: list[pydantic.ImportString[Any]]


class OthersPart(BaseModel):
    a: list[str] = Field(alias="q")
    b: Annotated[int, Field(validation_alias=AliasChoices("r", AliasPath("q", 0)))] = 3


class BadDefaults(BaseModel):
    model_config = ConfigDict(validate_default=True)
    a: int = "bad"  # type: ignore[assignment]
    b: "list[Cat]" = Field(default_factory=list)
    c: Shape | None = None
    d: int = Field(default_factory=lambda others: f"bad{others}")  # type: ignore[assignment]
    e: list[Any] = Field(default_factory=list, min_length=1)


@pydantic.dataclasses.dataclass
class BadDefault:
    a: int = Field(default="bad", validate_default=True)
    b: int = "never looked at"  # type: ignore[assignment]


def same(value: Any) -> Any:
    return value


Same = pydantic.AfterValidator(same)
Squares = Annotated[AliasedSquare | OtherSquare, Field(discriminator="side")]


class Days(Enum):
    FIRST = date(2020, 1, 1)


class Pairs(Enum):
    ONE = (1, 2)


class Bytes(Enum):
    A = b"a"


NEW_YEAR = datetime(2020, 1, 1, tzinfo=UTC)
STRINGS: list[Any] = [
    str,
    Literal["a", "b c"],
    Color,
    date,
    datetime,
    time,
    timedelta,
    uuid.UUID,
    pydantic.UUID1,
    pydantic.UUID4,
    pydantic.UUID5,
    IPv4Address,
    IPv6Address,
    pydantic.AnyUrl,
    pydantic.HttpUrl,
    pydantic.FtpUrl,
    Annotated[pydantic.AnyHttpUrl, pydantic.UrlConstraints(max_length=20)],
    pydantic.AwareDatetime,
    Annotated[str, Field(pattern="^[a-f]+$", max_length=9)],
    Annotated[str, Field(min_length=2, max_length=3)],
    date | Literal["unknown"],
    Color | Literal["z"],
    Annotated[str, Field(min_length=3, max_length=5)] | Literal[""],
    Annotated[Decimal, Field(max_digits=4, decimal_places=2)],
    Annotated[Decimal, Field(max_digits=2, decimal_places=2)],
    Annotated[Decimal, Field(max_digits=1, decimal_places=3)],
    Annotated[Decimal, Field(decimal_places=3)],
    Annotated[Decimal, Field(max_digits=3)],
    Annotated[Decimal, Field(max_digits=5, decimal_places=2, ge=0, le=Decimal("123.45"))],
    Annotated[Decimal, Field(max_digits=4, decimal_places=2, gt=Decimal("-1.5"), lt=7)],
    Annotated[Decimal, Field(decimal_places=3, ge=-12, lt=Decimal("-0.05"))],
    Annotated[Decimal, Field(max_digits=2, decimal_places=2, gt=0)],
    pydantic.SecretStr,
    Annotated[pydantic.SecretBytes, Field(min_length=2, max_length=4)],
    Path,
    IPv4Interface,
    IPv6Network,
    pydantic.IPvAnyAddress,
    pydantic.NaiveDatetime,
    Annotated[date, Field(ge=date(2020, 2, 28), lt=date(2021, 3, 1))],
    Annotated[datetime, Field(gt=NEW_YEAR)],
    Annotated[datetime, Field(ge=NEW_YEAR, le=NEW_YEAR.replace(second=1, microsecond=500))],
    Annotated[str, pydantic.StringConstraints(strip_whitespace=True, min_length=1, max_length=3)],
    Annotated[str, Field(pattern="(?i)^k+$")],
    Annotated[str, Same, Field(pattern="^a", max_length=3)],
    Annotated[str, Same, pydantic.StringConstraints(strip_whitespace=True, min_length=2, max_length=3)],
    Annotated[Literal["a", "b", "bc"], Field(pattern="^b", min_length=2)],
    Annotated[pydantic.HttpUrl, pydantic.AfterValidator(str), Field(pattern="^https:")],
    Annotated[Color, Field(pattern="^r")],
    Annotated[pydantic.AnyHttpUrl, Field(min_length=15, max_length=20)],
    Annotated[str | Path, Field(min_length=2, max_length=3)],
    Annotated[pydantic.HttpUrl | Literal["q"], Field(max_length=15)],
]
OTHERS: list[Any] = [
    int,
    float,
    bool,
    type(None),
    Decimal,
    Annotated[Decimal, Field(ge=0, lt=10)],
    Annotated[int, Field(gt=-5, le=1200)],
    Annotated[float, Field(ge=0, le=1)],
    Literal["a", 1, True, None],
    Level,
    Half,
    Literal[Name.ADA, 5],
    Pair,
    Partial,
    Point,
    Cat | Dog,
    Owner,
    int | str | None,
    date | int,
    list[int],
    Annotated[list[bool], Field(min_length=1, max_length=3)],
    dict[str, float],
    dict[int, bool],
    dict[date, int],
    dict[Color, int],
    dict[Literal["a", "b"], int],
    dict[Annotated[str, Field(pattern="^k")], int],
    tuple[int, str],
    tuple[bool, ...],
    set[int],
    frozenset[Color],
    Annotated[set[int], Field(min_length=1)],
    Any,
    list[Any],
    dict[str, Any],
    dict[bool, int],
    dict[float, int],
    dict[Annotated[int, Field(ge=-3, lt=120)], int],
    dict[int | str, int],
    Counter[int],
    set[Any],
    set[Frozen],
    set[Hashing],
    set[tuple[int, str]],
    Annotated[set[Literal["a", "b", "c"]], Field(min_length=2)],
    Annotated[set[Annotated[int, Field(ge=1, le=49)]], Field(min_length=6, max_length=6)],
    Annotated[float, Field(multiple_of=5)],
    Annotated[float, Field(multiple_of=0.7)],
    Annotated[float, Field(multiple_of=1e-7)],
    Short,
    list[Shape],
    Annotated[AliasedSquare | AliasedCircle, Field(discriminator="kind")],
    Annotated[Squares | AliasedCircle, Field(discriminator="kind")],
    Annotated[set[Literal[1, True, "a"]], Field(min_length=1)],
    Annotated[set[bool], Field(min_length=2)],
    Annotated[int | float, Field(gt=0, lt=1.5)],
    Annotated[int, Same, Field(ge=3, le=40, multiple_of=4)],
    Annotated[int | str, Field(gt=3)],
    Annotated[list[int] | set[str], Field(min_length=1, max_length=2)],
    Annotated[dict[str, int], Same, Field(max_length=1)],
    Annotated[str | list[int], Field(max_length=2)],
    Annotated[str | int, pydantic.StringConstraints(min_length=2)],
    Annotated[Level, Field(ge=2)],
    Annotated[int | Path, Field(gt=3)],
    Annotated[str | None, Same, Field(min_length=2)],
    Annotated[pydantic.SecretStr | None, Same, Field(max_length=2)],
    Annotated[bool | str | list[int], Field(max_length=2, pattern="^a")],
    Annotated[str | float | None, Field(allow_inf_nan=False)],
    Annotated[tuple[int, str], Field(min_length=1, max_length=4)],
    Annotated[set[int] | str, Field(min_length=1, max_length=2)],
    Annotated[Any, Field(max_length=2)],
    Annotated[int | float, Field(le=float("inf"))],
    Annotated[Decimal, Field(ge=Decimal("0.12345678901234561"), le=Decimal("0.12345678901234567890123"))],
    Annotated[Decimal, Field(ge=Decimal("-Infinity"), le=2**53 + 1)],
    Annotated[float, Field(ge=0, le=Decimal("0.1"))],
    Annotated[int, Field(ge=0, le=Decimal(3))],
    Chosen,
    OneNameTwice,
    OthersName,
    BadDefaults,
    BadDefault,
    dict[Annotated[Literal["a", "bc"], Field(max_length=1)], int],
]


def named(output_type: object) -> str:
    """A test's name, which must be the same in all processes: without the addresses of functions."""
    return re.sub(r" at 0x\w+", "", str(output_type))


@pytest.mark.parametrize("output_type", STRINGS + OTHERS, ids=named)
def test_pydantic_reads_every_text_of_a_type_and_the_example_in_its_description(output_type: Any) -> None:
    plan = read_plan(output_type)
    assert plan.table is not None
    for text in random_texts(plan.table(), 150):
        plan.parse(text)
    _, example = gen.describe(output_type, form="example").split("\n", 1)
    plan.parse(example)
    assert plan.table().accepts(example.encode())


@pytest.mark.parametrize(
    ("output_type", "names"),
    [
        (Owner, ["full name", "born", "pets", "level", "home", "notes"]),
        (Point, ["x", "y", "tags"]),
        (Partial, ["name", "when"]),
        (Pair, [0, 1]),
        (TypeAliasType("Known", Partial), ["name", "when"]),
        (typing.NewType("Point2", Point), ["x", "y", "tags"]),
    ],
)
def test_with_all_fields_required_every_text_has_them_and_is_a_value(output_type: Any, names: list[Any]) -> None:
    def found(asked: Any) -> list[list[Any]]:
        plan = read_plan(asked)
        assert plan.table is not None
        values = []
        for text in random_texts(plan.table(), 60):
            assert plan.parse(text) == TypeAdapter(output_type).validate_json(text)
            values.append(json.loads(text))
        return [[*one] if isinstance(one, dict) else [*range(len(one))] for one in values]

    assert found(output_type).count(names) < 60
    for whitespace in ("line", "compact", "indent"):
        assert found(gen.json_schema(output_type, required="all", whitespace=whitespace)) == [names] * 60


def test_pydantic_reads_every_text_of_every_type_that_it_and_typing_export() -> None:
    """Each type that compiles is tried bare and with Any as its arguments."""
    taken = []
    for module in (pydantic, pydantic.networks, typing, collections, collections.abc, builtins):
        for name in getattr(module, "__all__", dir(module)):
            for output_type in _with_arguments(getattr(module, name, None)):
                try:
                    plan = read_plan(output_type)
                    assert plan.table is not None
                    table = plan.table()
                except (ConstraintError, Unsupported):
                    continue
                for text in random_texts(table, 60, longest=20):
                    plan.parse(text)
                taken.append(name)
    assert {"set", "Sequence", "Counter", "SecretStr", "IPvAnyNetwork", "JsonValue", "FiniteFloat"} <= set(taken)
    assert not {"ImportString", "FilePath", "NewPath", "ByteSize", "Hashable", "PaymentCardNumber"}.intersection(taken)


def _with_arguments(exported: Any) -> list[Any]:
    """An exported name, if it may be a type, and the same type with Any as its arguments."""
    if exported is None or isinstance(exported, ModuleType | FunctionType | BuiltinFunctionType):
        return []
    try:
        return [exported, exported[Any]]
    except (TypeError, ValueError, pydantic.PydanticUserError):  # it takes no arguments, or two
        return [exported]


@pytest.mark.parametrize("output_type", STRINGS + OTHERS, ids=named)
def test_types_whose_json_is_always_a_string_have_no_quotes(output_type: Any) -> None:
    schema, _ = schema_of(output_type)
    assert is_text(schema, schema) == any(output_type is one for one in STRINGS)


def test_a_class_without_fields_has_one_text() -> None:
    class Model(BaseModel):
        pass

    @dataclass
    class Record:
        pass

    for kind in (Model, Record, TypedDict("Typed", {})):  # type: ignore[operator]  # an empty one is legal
        table = read_plan(kind).table()  # type: ignore[misc]  # it has one
        assert table.accepts(b"{}") and not table.accepts(b'{"x": 1}')
    extra = read_plan(type("Open", (Model,), {"model_config": ConfigDict(extra="allow")})).table()  # type: ignore[misc]
    assert extra.accepts(b"{}") and extra.accepts(b'{"x": 1}')


def test_a_value_that_pydantic_writes_is_a_text_of_its_type() -> None:
    """Values that pydantic's own serializer writes show which texts a type wrongly refuses."""
    pets: list[Cat | Dog] = [Cat(kind="cat", lives=9), Dog(kind="dog", name="Rex")]
    owner = Owner.model_validate(
        {"full name": "Ada", "born": date(1815, 12, 10), "pets": pets, "level": 2, "home": Point(0.5, -1, ["x", "é"])}
    )
    values: list[tuple[Any, Any]] = [
        (Owner, owner),
        (Pair, Pair(3, "y")),
        (set[int], {1, 2}),
        (dict[int, bool], {-5: True, 12: False}),
        (Partial, {"name": "a"}),
        (tuple[int, str], (1, "\n")),
    ]
    for output_type, value in values:
        plan = read_plan(output_type)
        assert plan.table is not None
        text = json.dumps(TypeAdapter(output_type).dump_python(value, mode="json", by_alias=True), ensure_ascii=False)
        assert plan.table().accepts(text.encode())
        assert plan.parse(text) == value


@pytest.mark.parametrize(
    ("output_type", "message"),
    [
        (print, "is no output type|a function, which pydantic would call"),
        pytest.param(lambda x: x, "a function, which pydantic would call", id="lambda"),
        pytest.param(functools.partial(lambda x: x, 3), "a function, which pydantic would call", id="partial"),
        (Callable[[int], int], "is no output type"),
        (pydantic.ImportString, "ImportString imports what a text names; take gen.choice"),
        (list[pydantic.ImportString[Any]], "ImportString imports what a text names"),
        (OddNames, "ImportString imports what a text names"),
        (dict[str, pydantic.FilePath], "this path is looked up in the file system"),
        (pydantic.NewPath, "this path is looked up in the file system"),
        (pydantic.ByteSize, "ByteSize reads units; take int"),
        (PaymentCardNumber, "PaymentCardNumber checks a sum"),
        (typing.Hashable, "no JSON is an instance of Hashable; take str"),
        (set[list[int]], "#: a set of lists, which cannot be hashed"),
        (set[Cat], "a set of Cat, which cannot be hashed"),
        (set[Listed], "#: a set of lists, which cannot be hashed"),
        (set[FrozenLists], "#: a set of lists, which cannot be hashed"),
        (dict[str, set[Deep]], "#/additionalProperties: a set of lists, which cannot be hashed"),
        (Annotated[str, Field(pattern="[a&&b]")], "the pattern '.a&&b.', whose brackets"),
        (Annotated[str, Field(pattern=r"^\<a\>$")], "in which its engine reads"),
        (Annotated[str, Field(pattern=r"^a\b{start}$")], "in which its engine reads"),
        (Annotated[str, Field(pattern="(?x)^[a b]$")], "in whose brackets its engine reads no spaces"),
        (Annotated[dict[float, int], Field(min_length=2)], "at least 2 keys that may be read as one"),
        (Annotated[dict[datetime, int], Field(min_length=3)], "at least 3 keys that may be read as one"),
        (
            Annotated[dict[Annotated[str, pydantic.StringConstraints(to_lower=True)], int], Field(min_length=4)],
            "at least 4",
        ),
        (Annotated[set[Literal[1, True]], Field(min_length=2)], "#: at least two members that may be read as one"),
        (list[Annotated[frozenset[Level | bool], Field(min_length=3)]], "#/items: at least two members"),
        (
            Annotated[set[Annotated[str, pydantic.StringConstraints(to_upper=True)]], Field(min_length=2)],
            "at least two members that may be read as one",
        ),
        (Flags, "#/properties/more: at least two members that may be read as one"),
        (Lists, "#/properties/more: a set of lists, which cannot be hashed"),
        (Annotated[set[AnyCase | None], Field(min_length=3)], "at least two members that may be read as one"),
        (Annotated[set[Decimal | bool], Field(min_length=2)], "at least two members that may be read as one"),
        (
            Annotated[set[Annotated[Decimal, Field(max_digits=2)] | Literal["0"]], Field(min_length=2)],
            "at least two members that may be read as one",
        ),
        (set[Iterable[int]], "#: a set of generators, which cannot be hashed"),
        (Annotated[Path | str, Field(max_length=3)], "#: pydantic knows lengths of strings, lists and dicts alone"),
        (
            dict[str, Annotated[date | str, Field(pattern="^a")]],
            "pydantic knows patterns and the like of strings alone",
        ),
        (Annotated[IPv4Address, Field(max_length=3)], "pydantic knows lengths of strings, lists and dicts alone"),
        (Annotated[pydantic.IPvAnyAddress, Field(pattern="^1")], "pydantic knows patterns and the like of strings"),
        (Annotated[pydantic.IPvAnyAddress | int, Field(gt=3)], "pydantic knows bounds of numbers alone"),
        (Annotated[pydantic.Secret[str], Field(max_length=3)], "pydantic knows lengths of strings, lists and dicts"),
        (Annotated[pydantic.Secret[int], Field(gt=3)], "pydantic knows bounds of numbers alone"),
        (Annotated[set[int] | str, Field(min_length=2)], "pydantic knows lengths of strings, lists and dicts alone"),
        (Annotated[dict[str, int] | Cat, Field(max_length=2)], "pydantic knows lengths of strings, lists and dicts"),
        (Annotated[str, Field(allow_inf_nan=False)], "pydantic knows bounds of numbers alone"),
        (Annotated[int | Path, Field(max_length=3)], "pydantic knows lengths of strings, lists and dicts alone"),
        (Annotated[Decimal | str, Field(pattern="^1")], "pydantic knows patterns and the like of strings alone"),
        (Annotated[timedelta, MultipleOf(timedelta(seconds=2))], "multiple_of of a timedelta"),
        (Annotated[Path, Field(max_length=3)], "pydantic knows lengths of strings, lists and dicts alone"),
        (
            Annotated[list[int], Field(ge=0)],
            "#: pydantic knows bounds of numbers alone, and raises a TypeError for what else this type has; write",
        ),
        (dict[str, Annotated[str, Field(gt=3)]], "#/additionalProperties: pydantic knows bounds of numbers alone"),
        (Annotated[float, Field(min_length=1)], "pydantic knows lengths of strings, lists and dicts alone"),
        (Annotated[dict[str, int], Field(pattern="^a$")], "pydantic knows patterns and the like of strings alone"),
        (
            Annotated[pydantic.HttpUrl, Field(pattern="^https:")],
            "#: pydantic knows patterns and the like of strings alone",
        ),
        (dict[str, Annotated[Path, Field(pattern="[.]py$")]], "#/additionalProperties: pydantic knows patterns"),
        (Annotated[date | None, Field(pattern="^2")], "pydantic knows patterns and the like of strings alone"),
        (Annotated[pydantic.SecretStr, pydantic.StringConstraints(strip_whitespace=True)], "pydantic knows patterns"),
        (Annotated[Color, Field(max_length=3)], "pydantic knows lengths of strings, lists and dicts alone"),
        (Annotated[Decimal, Field(max_digits=3), Same, Field(gt=3)], "pydantic knows bounds of numbers alone"),
        (Annotated[pydantic.RootModel[int], Field(gt=3)], "pydantic knows bounds of numbers alone"),
        (Annotated[int | float, Field(le=Decimal("0.1"))], "le of what is not plainly of one type"),
        (Annotated[date | datetime, Field(ge=date(2020, 1, 1))], "ge of what is not plainly of one type"),
        (Annotated[Decimal, MultipleOf(Decimal("0.33333333333333333333"))], "a multiple of 0.3333"),
        (OthersPart, "#/properties/q: a part of 'q' as another field"),
        (Annotated[str, Field(pattern="^(?x:[a b])$")], "in whose brackets its engine reads no spaces"),
        (OnlyWithK, "#: a limit of the names of further properties"),
        (dict[Literal["a", 1], int], "#: pydantic reads no key of JSON as 1; take options that are strings"),
        (list[dict[Half, int]], "#/items: pydantic reads no key of JSON as"),
        (Annotated[int, gen.regex("1")], "#: gen.regex cannot stand in Annotated; give it as it is"),
        (Annotated[str | None, gen.regex("1")], "gen.regex cannot stand in Annotated"),
        (Annotated[str, gen.choice(["a", 2])], "gen.choice cannot stand in Annotated"),
        (Annotated[str, gen.grammar("start: /a/")], "gen.grammar cannot stand in Annotated"),
        (Annotated[str, gen.json_schema({})], "gen.json_schema cannot stand in Annotated"),
        (Annotated[str, gen.sequence("a")], "gen.sequence cannot stand in Annotated"),
        (Annotated[str, gen.either("a")], "gen.either cannot stand in Annotated"),
        (list[Annotated[str, gen.repeat("a")]], "#/items: gen.repeat cannot stand in Annotated"),
        (list[Annotated[int, gen.choice([1, 2])]], "#/items: gen.choice cannot stand in Annotated"),
        (dict[str, Annotated[dict[str, int], gen.json_schema({})]], "gen.json_schema cannot stand in Annotated"),
        (list[pydantic.Base64Bytes], "#/items: the format 'base64'"),
        (bytes, "the format 'binary'"),
        (pydantic.Json[int], "text that holds other data"),
        (pydantic.PastDate, "now_op of a date"),
        (Annotated[pydantic.NaiveDatetime, Field(gt=datetime(2020, 1, 1))], "a bound of a datetime without an offset"),
        (Annotated[datetime, Field(gt=datetime(2020, 1, 1))], "2020-01-01 00:00:00 has no offset from UTC"),
        (Annotated[timedelta, Field(lt=timedelta(1))], "lt of a timedelta"),
        (Annotated[Decimal, Field(max_digits=3, multiple_of=5)], "a multiple with counted digits"),
        (pydantic.RedisDsn, "a URL of the schemes redis"),
        (pydantic.PostgresDsn, "a URL of the schemes postgres|a URL with several hosts|the format 'multi-host-uri'"),
        (dict[Annotated[float, Field(ge=0)], int], "#: keys of type number with minimum"),
        (dict[int | None, int], "#: keys of several types"),
        (dict[Annotated[str | int, Field(max_length=2)], int], "#: keys of several types"),
        (dict[str, list[complex]], "#/additionalProperties/items: a complex number"),
        (type[int], "a class"),
        (5, r"5 is no output type: Unable to generate pydantic-core schema for 5\.$"),  # without pydantic's advice
        (range, "is no output type"),
        (Days, "#: pydantic reads no JSON as <Days.FIRST: "),
        (list[Pairs], "#/[$]defs/Pairs: pydantic reads no JSON as <Pairs.ONE: "),
        (dict[str, Bytes | None], "pydantic reads no JSON as <Bytes.A: "),
        (Literal[b"a"], "pydantic reads no JSON as b'a'"),
        (Literal[Half.TEXT, "y"], "pydantic reads no JSON as <Half.TEXT: "),
        (Literal[-1, 10**30], "pydantic reads no JSON as 1000"),
        (Enum("Empty", []), 'is no output type: Error building "enum" validator: .*member'),
    ],
    ids=lambda one: re.sub(" at 0x[0-9a-f]+", "", str(one)),
)
def test_what_pydantic_alone_can_check_is_refused_by_name_and_place(output_type: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        schema_of(output_type)


def test_options_that_a_function_of_the_users_makes_readable_are_taken() -> None:
    def day(text: str) -> date:
        return date.fromisoformat(text)

    class Both(BaseModel):
        first: Annotated[Days, pydantic.BeforeValidator(day)]
        second: Annotated[Days, pydantic.BeforeValidator(day)]

    plan = read_plan(Both)
    text = '{"first": "2020-01-01", "second": "2020-01-01"}'
    assert plan.table is not None and plan.table().accepts(text.encode())
    read = plan.parse(text)
    assert (read.first, read.second) == (Days.FIRST, Days.FIRST)
    with pytest.raises(ConstraintError, match=r"pydantic reads no JSON as <Days[.]FIRST: "):  # which no function reads
        read_plan(tuple[Both, Literal[Days.FIRST]])


PATH = AliasPath("names", 0)
Placed = Annotated[int, Field(validation_alias=PATH)]
BY_NAME = ConfigDict(populate_by_name=True)


class ByPath(BaseModel):
    x: Placed


class ByPaths(BaseModel):
    x: int = Field(default=3, validation_alias=AliasChoices(PATH, AliasPath("a", "b")))


class ByShortPath(BaseModel):
    x: int = Field(validation_alias=AliasPath("a"))


class ByGeneratedPath(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(validation_alias=lambda name: AliasPath(name, 0)))
    x: int


class HasOneByPath(BaseModel):
    model_config = BY_NAME  # it does not apply to its field
    inner: ByPath


@dataclass
class PointByPath:
    x: Placed


@pydantic.dataclasses.dataclass
class OwnPointByPath:
    x: int = Field(validation_alias=PATH)


class MapByPath(TypedDict):
    x: Placed


@pytest.mark.parametrize(
    ("output_type", "place"),
    [
        (ByPath, r"#/properties/x: .* at \['names', 0\]"),
        (ByPaths, r"#/properties/x: .* at \[\['names', 0\], \['a', 'b'\]\]"),
        (ByShortPath, r"#/properties/x: .* at \['a'\]"),
        (ByGeneratedPath, r"#/properties/x: .* at \['x', 0\]"),
        (HasOneByPath, r"#/[$]defs/ByPath/properties/x: .* at \['names', 0\]"),
        (dict[str, list[ByPath | None]], r"#/[$]defs/ByPath/properties/x: "),
        (PointByPath, "#/properties/x: "),
        (OwnPointByPath, "#/properties/x: "),
        (MapByPath, "#/properties/x: "),
    ],
    ids=str,
)
def test_a_field_that_pydantic_reads_by_no_name_is_refused_with_its_place(output_type: Any, place: str) -> None:
    with pytest.raises(ConstraintError, match=f"{place}.*give it a name too"):
        schema_of(output_type)


class Aliased(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(alias=str.upper))
    generated: int
    written: int = Field(serialization_alias="other")
    both: int = Field(validation_alias="read", serialization_alias="other")
    chosen: int = Field(validation_alias=AliasChoices(PATH, "first", "second"))


class ReadByName(BaseModel):
    model_config = BY_NAME
    placed: Placed
    aliased: int = Field(alias="y")
    point: PointByPath  # dataclasses of the standard library take their model's config
    map: MapByPath


class AliasedMap(TypedDict):
    __pydantic_config__ = ConfigDict(alias_generator=str.upper)  # type: ignore[misc]
    x: int


@pydantic.dataclasses.dataclass(config=ConfigDict(extra="forbid"))
class HalfMade:
    x: Annotated[int, Field(alias="y")]
    made: int = field(init=False, default=3)


@pytest.mark.parametrize(
    ("output_type", "keys"),
    [
        (Aliased, ["GENERATED", "WRITTEN", "read", "first"]),
        (ReadByName, ["placed", "y", "point", "map"]),
        (AliasedMap, ["X"]),
        (HalfMade, ["y"]),
    ],
)
def test_keys_are_the_names_that_pydantic_reads(output_type: Any, keys: list[str]) -> None:
    schema, adapter = schema_of(output_type)
    assert [*schema["properties"]] == keys
    inner = {"point": {"x": 5}, "map": {"x": 6}}
    given = {key: inner.get(key, number) for number, key in enumerate(keys)}
    read = adapter.validate_python(given)
    found = [*(read.values() if isinstance(read, dict) else vars(read).values())]
    expected = [{"point": PointByPath(5), "map": {"x": 6}}.get(key, number) for number, key in enumerate(keys)]
    assert found == expected + ([3] if output_type is HalfMade else [])


class OpenToNames(BaseModel):
    model_config = ConfigDict(extra="allow", validate_by_name=True, validate_by_alias=True)
    a: int = Field(alias="A", default=0)


class OpenToChoices(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = Field(validation_alias=AliasChoices("A", "b", AliasPath("c", 0)), default=0)


@pytest.mark.parametrize("output_type", [OpenToNames, OpenToChoices])
def test_other_properties_have_no_name_from_which_a_field_is_read(output_type: Any) -> None:
    plan = read_plan(output_type)
    assert plan.table is not None
    table, refused = plan.table(), 0
    for text in ('{"A": 1}', *(f'{{"{name}": ["x"]}}' for name in "abcd")):
        try:
            plan.parse(text)
        except ValueError:
            refused += 1
            assert not table.accepts(text.encode()), text
    assert refused and table.accepts(b'{"A": 1}') and table.accepts(b'{"A": 1, "d": ["x"]}')


def test_an_iterable_is_read_as_a_list_whose_items_are_checked_at_once() -> None:
    no_nine = Annotated[int, pydantic.AfterValidator(lambda number: 1 // (number != 9) and number)]
    for asked in (Iterable[no_nine], gen.json_schema(Iterable[no_nine])):
        plan = read_plan(asked)
        assert plan.parse("[1, 2]") == [1, 2]
        with pytest.raises(ZeroDivisionError):
            plan.parse("[1, 9]")
    assert read_plan(dict[str, Iterable[int]]).parse('{"a": [1]}') == {"a": [1]}


def test_a_function_is_never_called() -> None:
    def record(x: int) -> None:
        raise AssertionError("called")

    for output_type in (record, list[record], dict[str, record]):  # type: ignore[valid-type]
        with pytest.raises(ConstraintError):
            read_plan(output_type)


@dataclass
class Held:
    code: Annotated[str, gen.regex(r'\d{3}"?')]
    kind: Annotated[str, gen.choice(["x", "y\n"])]
    note: Annotated[str, gen.text(without=["ab", '"'], max_chars=5)]
    names: list[Annotated[str, gen.regex("(?i)k+|z")]]


def test_a_str_in_annotated_is_held_to_gens_types_escaped_as_json_escapes() -> None:
    model: Any = ScriptedModel("x")
    constraint = gen.compile(model, Held)
    good: dict[str, Any] = {"code": '123"', "kind": "y\n", "note": "a\nb", "names": ["Kk", "z"]}
    changes = [("code", "1234"), ("code", "abc"), ("kind", "z"), ("note", "cab"), ("note", "123456"), ("names", ["zz"])]
    assert constraint.read(json.dumps(good)) == Held(**good)
    for name, wrong in changes:
        assert not constraint.accepts(json.dumps(good | {name: wrong}))


@pytest.mark.parametrize(
    ("asked", "good", "wrong"),
    [
        (gen.regex(r"\d{3}"), ["123"], ["abc", "1234", "123\n"]),
        (gen.regex("a|bc"), ["a", "bc"], ["ab", "abc", ""]),
        (gen.regex("(?x)a # not b\n c*  # nor d"), ["a", "acc"], ["b", "a "]),
        (gen.regex("(?m)^a$\n^b$"), ["a\nb"], ["a", "b"]),
        (gen.choice(["a", 'b"']), ["a", 'b"'], ["b", "a\n"]),
        (gen.text(without=["."]), ["", "a\n"], ["a.b"]),
        (gen.text(max_chars=2), ["", "é\n"], ["abc"]),
        (gen.text(), ["", "x"], []),
    ],
    ids=str,
)
def test_alone_too_without_quotes(asked: Any, good: list[str], wrong: list[str]) -> None:
    """Together with a pattern of pydantic, both apply."""
    model: Any = ScriptedModel("x")
    constraint, plain = (gen.compile(model, one) for one in (Annotated[str, asked], asked))
    both = gen.compile(model, Annotated[str, pydantic.Field(pattern="^a"), asked]) if "a" in good else None
    for text in [*good, *wrong]:
        assert constraint.accepts(text) is plain.accepts(text) is (text in good)
        assert both is None or both.accepts(text) is (text in good and text.startswith("a"))


def test_all_of_several_types_in_annotated_apply() -> None:
    kind = Annotated[str, gen.text(without=["b"]), gen.text(max_chars=2), gen.regex("a.*")]
    constraint = gen.compile(ScriptedModel("x"), kind)
    assert [text for text in ("a", "ac", "ab", "acc", "ca") if constraint.accepts(text)] == ["a", "ac"]


def test_a_format_that_a_str_names_holds_beside_its_own_limits() -> None:
    kind = Annotated[str, Field(max_length=6, pattern="^a", json_schema_extra={"format": "email"})]
    constraint = gen.compile(ScriptedModel("x"), kind)
    assert [text for text in ("a@b.de", "c@b.de", "aa@b.de", "a@b.d") if constraint.accepts(text)] == ["a@b.de"]


@pytest.mark.parametrize(
    "pattern",
    [
        re.compile("^[^a]$", re.I),
        re.compile(" ^ a b $ ", re.X),
        re.compile("^a.b$", re.S),
        re.compile(r"^\w$", re.A),
        re.compile("b$"),
        *[r"^\W$", r"^[^\w\d]$", r"^\D$", r"^a\b\W$", r"^\B.\B$", r"^\\<$", r"^[\[\-]$"],
    ],
    ids=str,
)
def test_pydantic_reads_each_text_of_a_pattern(pattern: Any) -> None:
    """Its own engine has newer and other classes than Python's re, which reads compiled patterns."""
    kind = Annotated[str, Field(pattern=pattern)]
    plan, reader = read_plan(kind), TypeAdapter(list[kind])
    assert plan.table is not None
    table = plan.table()
    odd = "aAbB<[-\\ _1\u0301\u200d\u20e3\u24b6\u0660\u0d3e²é\U00010d40\U000105c0\U0001f130"
    texts = [before + one for before in ("", "a", "é") for one in (*odd, "\\<", "a.b", "a b", "a\nb")]
    good = [text for text in texts if table.accepts(text.encode())]
    assert good and reader.validate_python(good) == good


def test_a_pattern_that_matches_anywhere_is_told_in_a_logged_line(caplog: pytest.LogCaptureFixture) -> None:
    for pattern, told in (("a+", True), ("^a+$", False), ("^a", False), ("a$", False)):
        caplog.clear()
        schema_of(Annotated[str, Field(pattern=pattern)])
        assert [record.getMessage() for record in caplog.records] == (
            [f"pattern={pattern!r} matches anywhere in a text; write ^...$ for whole texts"] if told else []
        )


def test_addresses_of_mail_are_those_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that reads addresses is not installed here; it accepted all of 6,000 texts of this type."""
    monkeypatch.setattr(pydantic.networks, "import_email_validator", lambda: None)
    plan = read_plan(pydantic.EmailStr)
    assert plan.table is not None
    table = plan.table()
    for text in ("ada@example.org", "ada.b+c-d_e@mail.a-b.example.com", "1@2.aa"):
        assert table.accepts(text.encode())
    for text in ("ada@b.test", "ada@localhost", "a..b@c.org", ".a@b.org", "a@b-.org", "a@b.c0", "A@b.org", "a" * 65):
        assert not table.accepts(text.encode())


class Node(BaseModel):
    below: "list[Node]"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            Annotated[set[int], Field(min_length=2)],
            "uniqueItems at #, of items that are not few",
        ),
        (Annotated[dict[str, int], Field(min_length=5)], "minProperties at # with 5 properties that are not listed"),
        (Node, r"\$ref at #/properties/below.*: the schema refers to itself"),
    ],
)
def test_refusals_name_the_keyword_of_the_type_s_schema_and_its_place(asked: Any, words: str) -> None:
    table = read_plan(asked).table
    assert table is not None
    with pytest.raises((Unsupported, TooLarge), match=words):
        table()


def test_a_model_that_was_rebuilt_is_read_anew() -> None:
    class Changing(BaseModel):
        a: int

    before = [read_plan(one) for one in (Changing, list[Changing])]
    Changing.__annotations__["a"] = Literal["x"]
    Changing.model_fields["a"].annotation = Literal["x"]
    Changing.model_rebuild(force=True)
    after = [read_plan(one) for one in (Changing, list[Changing])]
    assert [plan.parse('{"a": 1}').a for plan in before[:1]] == [1]
    with pytest.raises(ValueError, match="a"):
        after[0].parse('{"a": 1}')
    for plan, text in zip(after, (b'{"a": "x"}', b'[{"a": "x"}]'), strict=True):
        assert plan.table is not None and plan.table().accepts(text)


@pytest.mark.parametrize(
    "asked",
    [
        Annotated[Decimal, Field(max_digits=5, decimal_places=2, ge=0, le=Decimal("123.45"))],
        Annotated[Decimal, Field(max_digits=4, decimal_places=2, gt=Decimal("-1.5"), lt=7)],
        Annotated[Decimal, Field(max_digits=7, decimal_places=3, ge=99, lt=1000)],
    ],
)
def test_amounts_of_money_are_all_that_pydantic_reads(asked: Any) -> None:
    """Texts of digits as usual, with at most two after the point; the oracle is pydantic."""
    chance, reader, plan = random.Random(1), pydantic.TypeAdapter(asked), read_plan(asked)
    assert plan.table is not None
    table, read = plan.table(), 0
    for _ in range(3000):
        places = chance.randint(0, 2)
        text = f"{chance.uniform(-20, 200) * chance.choice([0.01, 1, 1, 10]):.{places}f}"
        try:
            reader.validate_json(json.dumps(text))
        except ValueError:
            assert not table.accepts(text.encode()), text
            continue
        if not text.startswith("-0") or float(text):
            assert table.accepts(text.encode()), text
            read += 1
    assert read > 100


def test_a_set_of_literals_never_repeats_one() -> None:
    kind = set[Literal["a", "b", "c"]]
    plan = read_plan(kind)
    assert plan.table is not None
    assert [plan.table().accepts(text) for text in (b'["b", "a"]', b'["a", "b", "a"]', b"[]")] == [True, False, True]
