"""Constraints as objects: one can be copied, or sent to another process."""

import copy
import pickle
from typing import Any

import pytest

import gen
from tests.helpers import ScriptedModel, byte_tokenizer, tiny_model

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


BROKEN: list[str | bytes] = ["\ud800", "a\ud800b", '"\ud800"']
BROKEN += [b"\xff", b"a\xffb", b"\xed\xa0\x80", b'"\xc3"', b"\xf5", b"\xc0\x80"]


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_utf_8_is_no_text_of_any_type(model: Any, text: str | bytes) -> None:
    """Types of every engine, some of which allow any text."""
    anything = "start: /(?s:.*)/", 'start: /a.*b/ | "a" | /"[^"]*"/'
    host = [gen.grammar(anything[0]), gen.grammar(anything[1]), gen.sequence(gen.grammar(anything[0]))]
    device = [gen.regex("(?s).*"), gen.text(), gen.sequence(gen.regex("(?s).*")), gen.choice(["a", "b"]), str]
    for asked, engine in [*((one, "host") for one in host), *((one, "device") for one in device)]:
        constraint = gen.compile(model, asked)
        assert constraint.engine == engine
        assert not constraint.accepts(text)
        if isinstance(text, str):
            with pytest.raises(ValueError, match="no full match of the output type"):
                constraint.read(text)


def test_a_constraint_tells_how_deep_values_of_any_type_nest() -> None:
    model = ScriptedModel("x")
    assert gen.compile(model, dict[str, Any]).limits == {"depth": 4}
    assert gen.compile(model, gen.sequence("a", list[dict[str, Any]], gen.text())).limits == {"depth": 4}
    assert gen.compile(model, int).limits == gen.compile(model, gen.regex("a")).limits == {}
    assert gen.compile(model, gen.json_schema({"properties": {"a": {"$ref": "#"}}})).limits == {}
