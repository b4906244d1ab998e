"""The base classes of adapters: what a class that does not inherit from them is told, and one that lacks something."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gen
from gen.models.base import Model, Rows
from tests.helpers import ScriptedModel


class Alone:
    """All members of a model, without the base class."""

    def __init__(self) -> None:
        vars(self).update(vars(ScriptedModel("a")))

    def new_rows(self, count: int, length: int) -> Any:
        raise AssertionError("it is not asked for rows")


def test_a_model_that_does_not_inherit_is_told_from_what() -> None:
    with pytest.raises(gen.ArgumentError, match=r"got Alone; an adapter inherits from gen\.models\.base\.Model,"):
        gen.generate(Alone(), "x")  # type: ignore[call-overload]


def test_rows_that_do_not_inherit_are_told_from_what() -> None:
    class Other(ScriptedModel):
        def new_rows(self, count: int, length: int) -> Any:
            return SimpleNamespace(count=count, length=length)

    with pytest.raises(gen.ArgumentError, match=r"gives SimpleNamespace, which must inherit from gen\.models\.base\."):
        gen.generate(Other("a"), "x")
    with pytest.raises(gen.ArgumentError, match="gives SimpleNamespace"):
        gen.score(Other("a"), "x", "y")


def test_a_model_that_lacks_attributes_is_told_which() -> None:
    class Bare(Model):
        vocab_size = 3

        def new_rows(self, count: int, length: int) -> Rows:
            raise AssertionError("it is not asked for rows")

    with pytest.raises(gen.ArgumentError, match="got Bare without placement and tokenizer and context_length"):
        gen.generate(Bare(), "x")


def test_what_is_not_overridden_says_so_instead_of_doing_something_else() -> None:
    model = ScriptedModel("a")
    rows = model.new_rows(1, 8)
    assert not (rows.reads_places or rows.recurrent or rows.saves or rows.parts_rows or rows.lent or model.parts_rows)
    assert rows.widest == 1 and not model.goes_wide and model.check() is model.version(None) is model.weights() is None
    for call in (lambda: rows.save(0, 0, 1), lambda: rows.verify(torch.zeros(1, 2), 8), lambda: rows.lay_out(8, {})):
        with pytest.raises(NotImplementedError, match="ScriptedRows has no"):
            call()
    with pytest.raises(gen.ModelError, match="exact=True is not possible with ScriptedModel"):
        model.find_step_rows()


def test_the_tensors_among_a_rows_attributes_are_its_parts() -> None:
    rows = ScriptedModel("a").new_rows(1, 8)
    vars(rows)["table"] = table = torch.zeros(2)
    [(name, tensor, device)] = rows.parts()
    assert (name, tensor is table, device) == ("table", True, torch.device("cpu"))
