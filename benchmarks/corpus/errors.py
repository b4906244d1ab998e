"""Arguments that cannot be used, and what is said about them; those that can be used after all make a short text."""

from typing import Any

import numpy as np
import torch

import gen
from benchmarks.corpus.calls import call, on_model, stream
from benchmarks.corpus.later import Cases, G, S, every, later
from benchmarks.corpus.models import DATA, model

NAN, ARGUMENTS = float("nan"), DATA["arguments"]
WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    1.5,
    NAN,
    -float("inf"),
    "x",
    "",
    [],
    [None],
    [1, 2],
    {},
    {"a": 1},
    b"a",
    object,
]
MORE: list[Any] = [2**63, np.array([1, 2]), torch.tensor(2), torch.tensor([0.5, 2.0]), "\ud800", [["a"]], {1: NAN}]


@later
def set_up(function: str, *args: Any, **given: Any) -> str:
    """An engine, an encoder or a model that is made and dropped again."""
    one = getattr(gen, function)(*([model("demo")] if function == "Engine" else args), **given)
    if function == "Engine":
        one.close()
    return type(one).__name__


def arguments() -> Cases:
    for name, wrong in every(ARGUMENTS["generate"], WRONG + MORE):
        if name != "seed" or wrong is not None:  # which draws a seed
            yield call("ab", max_new_tokens=2, **{name: wrong})
    for name in ARGUMENTS["generate"]:
        yield call(["ab", "c"], max_new_tokens=2, **{name: [-1, -1]})
    for wrong in [*WRONG, *MORE[1:], [{"role": "user"}], ["a", 1.5], [[1], [2000]], [-1], [2**40]]:
        yield call(wrong, max_new_tokens=2)
        yield call("ab", max_new_tokens=wrong, eos_token_id=[*range(3, 2000)])
        yield stream(wrong, max_new_tokens=2)
        yield from (on_model("score", wrong), on_model("score", "ab", wrong), on_model("classify", "ab", wrong))
        yield from (on_model("classify", wrong, ["a"]), on_model("prefix", wrong), on_model("compile", wrong))
    for function in ("score", "classify"):
        for name, wrong in every(ARGUMENTS[function], WRONG):
            yield on_model(function, "ab", ["c"], **{name: wrong})


def made_with() -> Cases:
    for kind in ("multinomial", "beam_search", "greedy"):
        for name, wrong in every(ARGUMENTS[kind], WRONG + MORE):
            yield getattr(S, kind)(**{name: wrong})
    for name, wrong in every(ARGUMENTS["Engine"], WRONG):
        yield set_up("Engine", **{name: wrong})
    for name, wrong in every(ARGUMENTS["load"], (None, "x", -1, 1.5, "cuda:9", {"": "cpu"}, torch.float16)):
        yield set_up("load", "demo", **{name: wrong})
    for function, name in every(("load", "load_encoder"), ("/nowhere", "", "no/such-model", 5, None, "gen", "/etc")):
        yield set_up(function, name)
    for function in DATA["loaders"]:
        yield set_up(function, 5, 6)
    for name, wrong in every(DATA["makers"], WRONG):
        yield getattr(G, name)(wrong)
    for wrong in WRONG:
        yield from (G.repeat("a", wrong), G.repeat("a", "", wrong), G.repeat("a", "", 1, wrong), G.text("a", wrong))
        yield from (G.json_schema({}, whitespace=wrong), G.json_schema({}, closed=wrong), G.Speculation(most=wrong))


GROUPS = [arguments, made_with]
