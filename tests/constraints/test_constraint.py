"""Constraints as objects: one can be copied, or sent to another process."""

import copy
import pickle
from typing import Any

import pytest

import gen
from tests.helpers import byte_tokenizer, tiny_model

ASKED: list[Any] = [
    int,
    gen.regex("a{1,9}"),
    gen.choice(["a", 1]),
    gen.json_schema({"type": "null"}),
    gen.grammar('start: "a"'),
]


@pytest.fixture(scope="module")
def model() -> Any:
    return gen.from_transformers(tiny_model(), byte_tokenizer())


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_a_copy_is_the_constraint_and_a_pickle_is_refused_with_what_to_pickle(model: Any, asked: Any) -> None:
    constraint = gen.compile(model, asked)
    settings: dict[str, Any] = {"output_type": constraint, "seed": 1}
    copied = copy.deepcopy(settings)
    assert gen.generate(model, "x", **copied) == gen.generate(model, "x", **settings)
    assert copied["output_type"] is copy.copy(constraint) is constraint
    with pytest.raises(gen.ConstraintError, match=r"Pickle its output type, and compile it where the model is"):
        pickle.dumps(settings)
    again = gen.compile(model, pickle.loads(pickle.dumps(asked)))
    assert gen.generate(model, "x", again, seed=1) == gen.generate(model, "x", **settings)
