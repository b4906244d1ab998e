"""What errors quote: values of any kind and length, on one short line."""

import ast
import asyncio
import copy
import pickle
import traceback
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import gen
from gen.calls.reading import read_call
from gen.errors import ArgumentError, show
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.requests.settings import Settings
from tests.helpers import ScriptedModel


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "3"),
        (numpy.int64(3), "np.int64(3)"),
        ("two\nlines", r"'two\nlines'"),
        ("\ud800", r"'\ud800'"),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, ...]"),
        (torch.zeros(2, 3), "Tensor (2, 3) float32"),
        ([torch.zeros(2), numpy.zeros(3)], "[Tensor (2,) float32, ndarray (3,) float64]"),
        (b"x" * 10_000, "b'xxxxxxxxxxxxxxxxxxxx'..."),
        (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), "<Sequential>"),
        (10**5000, "<int>"),
        (torch.float32, "torch.float32"),
        (object(), "<object object>"),
        (Path("a"), "PosixPath('a')"),
    ],
    ids=show,
)
def test_values_are_quoted_in_short(value: object, shown: str) -> None:
    assert show(value) == shown


@pytest.mark.parametrize(
    "value", ["x" * 10_000, ["x" * 1000] * 1000, {n: [n] * 100 for n in range(100)}, Unprintable(), 10**4000], ids=show
)
def test_no_value_takes_more_than_80_characters_or_a_line(value: object) -> None:
    assert len(show(value)) <= 80
    assert "\n" not in show(value)


def test_every_error_that_reaches_a_caller_is_public() -> None:
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for file in Path(gen.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.ClassDef)
    }

    def is_ours(name: str) -> bool:
        return name == "GenError" or any(map(is_ours, bases.get(name, [])))

    caught = {"TooManyRows"}  # a job's worker says what to do instead
    assert {name for name in bases if is_ours(name)} == {name for name in gen.__all__ if is_ours(name)} | caught


def test_errors_come_out_of_a_pickle_as_they_were() -> None:
    with pytest.raises(gen.IncompleteError) as caught:
        gen.generate(ScriptedModel("hello"), "x", gen.grammar('start: "hello"'), max_new_tokens=2)
    errors: list[BaseException] = [
        caught.value,
        gen.ValueRefusedError("no", [{"loc": ("age",), "msg": "too young"}], caught.value.completion),
        gen.BatchError(2, {1: ValueError("no")}, ["text", None]),
        gen.Interrupted(["text", None]),
        ArgumentError("no"),
    ]
    for error in errors:
        for made in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert (type(made), str(made), made.args, vars(made)) == (type(error), str(error), error.args, vars(error))


class FailingModel(ScriptedModel):
    """A model whose steps fail for all prompts alike."""

    def new_rows(self, count: int, length: int) -> Any:
        rows: Any = super().new_rows(count, length)
        rows.step = self.fail
        return rows

    def fail(self, *_: object) -> Any:
        raise RuntimeError("a step has failed")


def lines_of(error: BaseException) -> int:
    return sum(text.count("\n") for text in traceback.format_exception(error))


@pytest.mark.parametrize("call", [gen.generate, lambda *args: asyncio.run(gen.agenerate(*args))])
def test_an_error_of_many_prompts_has_a_traceback_as_long_as_that_of_one(call: Any) -> None:
    """The prompts have the same text and sampler, and fail together."""
    lengths = []
    for count in (1, 40):
        with pytest.raises(RuntimeError, match="a step has failed") as caught:
            call(FailingModel("abc"), ["x"] * count)
        lengths.append(lines_of(caught.value))
    assert lengths[1] <= lengths[0] + 40  # a step of many rows may be tried again


def test_each_prompt_has_an_error_of_its_own() -> None:
    found = gen.generate(FailingModel("abc"), ["x"] * 20, errors="return")
    assert len({id(error) for error in found}) == 20
    assert len({lines_of(error) for error in found}) == 1


@pytest.mark.parametrize("sampler", [None, gen.samplers.beam_search(2)])
def test_an_error_that_is_asked_for_again_is_as_short_as_before(sampler: Any) -> None:
    nothing = [lambda token_ids, lengths, logits: logits.fill_(-torch.inf)]
    model: Any = ScriptedModel("a")
    [request] = read_call(model, "x", None, Settings(sampler=sampler, logits_processors=nothing)).requests
    job = new_job(model, request)
    run_all(model, [job], Options())
    lengths = []
    for _ in range(3):
        with pytest.raises(gen.SamplingError) as caught:
            job.completions()
        lengths.append(lines_of(caught.value))
    assert len(set(lengths)) == 1
