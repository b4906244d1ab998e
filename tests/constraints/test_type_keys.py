"""Types are read once: a second reading makes no schema, and a type that has changed is read again."""

import gc
import typing
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest
from pydantic import BaseModel, Field, create_model
from typing_extensions import TypedDict

from gen.constraints import plans, python_types
from gen.constraints.plans import read_plan
from gen.constraints.type_keys import TypeKey
from gen.errors import ConstraintError


def nothing() -> None:
    """No type."""


class Home(BaseModel):
    street: str


class Person(BaseModel):
    name: str
    home: Home


@dataclass
class Point:
    x: float
    home: Home


class Pair(NamedTuple):
    one: int
    two: list[Point]


class Options(TypedDict):
    pair: Pair


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The types whose schema pydantic is asked for."""
    asked: list[Any] = []
    real = python_types.schema_of

    def counted(output_type: Any) -> Any:
        asked.append(output_type)
        return real(output_type)

    monkeypatch.setattr(python_types, "schema_of", counted)
    plans._read.clear()
    return asked


@pytest.mark.parametrize(
    "make",
    [
        lambda: Person,
        lambda: Point,
        lambda: Options,
        lambda: list[Person],
        lambda: dict[str, list[Point | None]],
        lambda: Literal["a", 1, None],
        lambda: int | str,
        lambda: Pair | None,
        lambda: tuple[int, ...],
        lambda: Any,
        lambda: type(None),
    ],
)
def test_a_type_is_read_once(read: list[Any], make: Callable[[], Any]) -> None:
    assert read_plan(make()) is read_plan(make())
    assert len(read) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Literal[1], Literal[True]),
        (Literal["int"], Literal["str"]),
        (int | str, str | int),
        (list[int] | str, list[int | str]),
        (Annotated[int, Field(ge=1)], Annotated[int, Field(ge=2)]),
        (Person, Home),
    ],
)
def test_types_that_differ_have_plans_of_their_own(read: list[Any], one: Any, other: Any) -> None:
    assert read_plan(one) is not read_plan(other)
    assert TypeKey(one).ids != TypeKey(other).ids


def test_a_model_that_was_rebuilt_is_read_anew(read: list[Any]) -> None:
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


def test_a_dataclass_whose_annotations_were_changed_is_read_anew(read: list[Any]) -> None:
    @dataclass
    class Changing:
        a: int

    before = read_plan(Changing)
    Changing.__annotations__["a"] = bool
    Changing.__dataclass_fields__["a"].type = bool
    after = read_plan(Changing)
    assert before.table is not None and after.table is not None
    assert before.table().accepts(b'{"a": 1}') and not after.table().accepts(b'{"a": 1}')
    assert after.table().accepts(b'{"a": true}')


def test_a_name_in_an_annotation_is_looked_up_each_time(read: list[Any]) -> None:
    class Named(TypedDict):
        home: "Home"

    assert not TypeKey(Named).known and not TypeKey(list["Home"]).known
    read_plan(Named)
    read_plan(Named)
    assert len(read) == 2


def test_few_types_are_kept(read: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_MOST_READ", 2)
    models = [create_model(f"Model{number}", a=(int, ...)) for number in range(4)]
    for model in models:
        read_plan(model)
    read_plan(models[-1])
    assert len(read) == 4 and len(plans._read) == 2
    gone = weakref.ref(models[0])
    read.clear()
    del models, model
    pydantic.TypeAdapter(int)
    gc.collect()
    assert gone() is None


def test_what_is_not_known_whole_is_no_other_type_that_was_read() -> None:
    bare = vars(typing)["List"]  # its origin is list
    assert TypeKey(list[nothing]).ids == TypeKey(bare).ids  # type: ignore[valid-type]
    read_plan(bare)
    with pytest.raises(ConstraintError):
        read_plan(list[nothing])  # type: ignore[valid-type]
