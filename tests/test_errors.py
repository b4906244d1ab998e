"""What errors quote: values of any kind and length, on one short line."""

import copy
import pickle
from pathlib import Path

import numpy
import pytest
import torch

import gen
from gen.errors import ArgumentError, check_number, show
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


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), "1", None, True, [1.0] * 1000, 1j], ids=show)
def test_what_is_no_number_in_range_is_refused_shortly(value: object) -> None:
    with pytest.raises(ArgumentError, match="temperature must be a number at least 0, got ") as caught:
        check_number("temperature", value, minimum=0)
    assert len(str(caught.value)) < 150


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
