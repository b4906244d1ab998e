"""A job goes on only with the classes and validators that it began with, whether it is finished or not."""

import json
import subprocess
import sys
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import pytest

import gen
from gen.offline.described import describe_type
from gen.offline.unchanged import sources_of
from tests.offline.helpers import write_rows

BASE = """
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar
from pydantic import AfterValidator, BaseModel, Field, create_model, field_validator
from typing_extensions import TypedDict

T = TypeVar("T")

def lower(text):
    return text.lower()

def unrelated():
    return 1

class Base(BaseModel):
    name: str = Field(max_length=20)

class Pet(BaseModel):
    kind: Literal["cat", "dog"]

class Colour(Enum):
    RED = "red"

class Person(Base):
    pets: list[Pet] = Field(max_length=1)
    nick: Annotated[str, AfterValidator(lower)] = Field(max_length=5)
    colour: Colour

@dataclass
class Data:
    age: int = 3

@dataclass
class Box(Generic[T]):
    left: T

class Typed(TypedDict):
    pet: Pet

class Named(NamedTuple):
    pet: Pet

Made = create_model("Made", name=(str, Field(max_length=20)))
Mood = Enum("Mood", {"GOOD": "good"})
"""
CHANGES = [  # what is changed, and which classes' sources it changes
    ("text.lower()", "text.upper()", "Person"),
    ("    name: str = Field(max_length=20)", "    name: str = Field(max_length=3)", "Person"),
    (
        '["cat", "dog"]',
        '["cat", "dog"]\n    @field_validator("kind")\n    def check(cls, kind):\n        return kind',
        "Person Typed Named",
    ),
    ('RED = "red"', 'RED = "crimson"', "Person"),
    ("age: int = 3", "age: int = 4", "Data"),
    ("class Typed(TypedDict)", "class Typed(TypedDict, total=False)", "Typed"),
    (
        'create_model("Made", name=(str, Field(max_length=20',
        'create_model("Made", name=(str, Field(max_length=3',
        "Made",
    ),
    ('{"GOOD": "good"}', '{"GOOD": "well"}', "Mood"),
    ("return 1", "return 2", ""),
    ("\ndef unrelated", "\n# a line before it\n\ndef unrelated", ""),
]
CLASSES = ("Person", "Data", "Typed", "Named", "Made", "Mood")


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module of classes, and imports it anew."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> Any:
        (tmp_path / "shapes_of_a_job.py").write_text(text)
        sys.modules.pop("shapes_of_a_job", None)
        for cached in tmp_path.glob("__pycache__/*"):
            cached.unlink()
        invalidate_caches()
        return import_module("shapes_of_a_job")

    yield write
    sys.modules.pop("shapes_of_a_job", None)


def sources(module: Any, name: str) -> dict[str, str]:
    return sources_of(describe_type(getattr(module, name)))


@pytest.mark.parametrize(("old", "new", "changed"), CHANGES)
def test_the_source_changes_with_everything_that_a_class_is_made_of(
    old: str, new: str, changed: str, shapes: Any
) -> None:
    module = shapes(BASE)
    before = {name: sources(module, name) for name in CLASSES}
    assert BASE.count(old) == 1
    module = shapes(BASE.replace(old, new))
    after = {name: sources(module, name) for name in CLASSES}
    assert {name for name in CLASSES if before[name] != after[name]} == set(changed.split())


def test_sources_are_the_same_in_every_process(shapes: Any, tmp_path: Path) -> None:
    module = shapes(BASE)
    described: Any = {
        "union": [{"of": "builtins:list", "args": [describe_type(getattr(module, name))]} for name in CLASSES]
    }
    found = sources_of(described)
    assert {name.rpartition(".")[2] for name in found} == {*CLASSES, "Base", "Pet", "Colour", "lower"}
    code = "import json, sys; from gen.offline.unchanged import sources_of\n"
    code += "print(json.dumps(sources_of(json.loads(sys.argv[1]))), 'torch' in sys.modules)"
    path = {"PYTHONPATH": f"{tmp_path}:{Path(gen.__file__).parents[1]}"}
    for seed in ("1", "2"):
        again = subprocess.run(
            [sys.executable, "-c", code, json.dumps(described)],
            env={**path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert again.stdout == f"{json.dumps(found)} False\n"


def test_the_source_of_a_generic_class_is_its_own_and_that_of_its_arguments(shapes: Any) -> None:
    box = shapes(BASE).Box[import_module("shapes_of_a_job").Pet]
    names = {name.rpartition(".")[2] for name in sources_of(describe_type(box))}
    assert names == {"Box", "Pet"}


def test_types_of_python_and_of_gen_have_none() -> None:
    for output_type in (
        int,
        list[dict[str, bool]],
        None,
        gen.regex("a"),
        gen.sequence("a", gen.choice(["b", 1])),
        Path,
    ):
        assert sources_of(describe_type(output_type)) == {}


@pytest.mark.usefixtures("workers_here")
def test_a_job_with_another_validator_is_refused_finished_or_not(shapes: Any, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.jsonl", [{"prompt": "x", "id": "1"}, {"prompt": "y", "id": "2"}])
    arguments: Any = {"model": "demo", "seed": 1, "part_rows": 1, "progress": False}
    out, module = tmp_path / "out", shapes(BASE)
    report = gen.run_batch(source, out, output_type=module.Pet, **arguments)
    changed = BASE.replace(*CHANGES[2][:2])
    told = r"the output type's source is not what the job began with: shapes_of_a_job\.Pet.* differ\. Begin another job"
    for _ in range(2):
        module = shapes(changed)
        with pytest.raises(gen.ArgumentError, match=told):
            gen.run_batch(source, out, output_type=module.Pet, **arguments)
        report.parts[1].unlink(missing_ok=True)
    module = shapes(BASE)
    assert gen.run_batch(source, out, output_type=module.Pet, **arguments).rows == 2
