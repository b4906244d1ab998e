"""Values of every kind for every argument: each works, or a short error of gen refuses it before a model runs."""

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from inspect import Parameter, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models

import gen
from gen.errors import show
from gen.integrations.transformers import SamplerProcessor
from gen.samplers import Penalties, beam_search, greedy, multinomial
from tests.helpers import ScriptedModel, ScriptedRows, byte_tokenizer, encoder_tokenizer, tiny_encoder, tiny_model
from tests.models.exported.programs import exported


class Hostile:
    """Refuses to be shown, compared, counted or tested."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    __hash__ = None  # type: ignore[assignment]


def of_numbers(value: int) -> list[Any]:
    """The number as every library has it, alone and in lists."""
    alone = [value, float(value), numpy.int64(value), numpy.float32(value), torch.tensor(value), torch.tensor([value])]
    return [*alone, numpy.array([value, value]), numpy.array([[value]]), [value], (value, value), [[value], [value]]]


def values() -> list[Any]:
    """Values of every kind, newly made, since some can be read only once."""
    huge, tiny, nan, inf = 1e300, 1e-300, float("nan"), float("inf")
    message = {"role": "user", "content": "x"}
    int64, meta = torch.int64, torch.device("meta")
    numbers: list[Any] = [number for value in (0, 1, 2, -1, 300) for number in of_numbers(value)]
    numbers += [0.5, -0.0, tiny, huge, -huge, 1e39, nan, inf, -inf, 1j, 2**63, -(2**70), Fraction(1, 2)]
    numbers += [Decimal("0.5"), timedelta(1), True, False, numpy.True_, torch.tensor(True), numpy.float64(nan)]
    texts: list[Any] = ["", "a", "text", "\ud800", "a\0b", "never", "mean", "auto", "cpu", "cuda:9", "mps", "float32"]
    texts += ["x" * 10_000, numpy.str_("a"), b"", b"bytes", bytearray(b"x"), memoryview(b"x"), Path("x" * 5000)]
    lists: list[Any] = [[], (), {}, set(), [[]], [None], ["a", 1], ["a", "b"], [""], ["\ud800"], [b"a"], [1.5], [True]]
    lists += [{1: 2.0}, {"a": "b"}, {1: "a"}, {1: None}, {1.5: 1}, {3: nan}, {3: huge}, {"a"}, {1, 2}, range(3)]
    lists += [iter("ab"), (text for text in "ab"), map(str, "ab"), [1] * 1000, ["x" * 100] * 1000]
    lists += [message, [message], [{}], [{"role": 3, "content": None}]]
    tensors: list[Any] = [torch.zeros(2), torch.zeros(2, 2), torch.zeros(0), torch.zeros(0, dtype=int64)]
    tensors += [torch.ones(2, dtype=int64, device=meta), torch.ones((), device=meta), torch.ones(1, 1, 1, dtype=int64)]
    tensors += [torch.zeros(3, 0), torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.bool)]
    tensors += [torch.zeros(3).to_sparse(), torch.zeros(3, dtype=int64).to_sparse(), torch.nn.Parameter(torch.ones(1))]
    arrays: list[Any] = [numpy.zeros(2), numpy.array(["a", "b"]), numpy.array([None, 1]), numpy.zeros((0,), dtype=int)]
    arrays += [numpy.zeros(2, dtype=complex), numpy.array([2**64 - 1], dtype=numpy.uint64), numpy.datetime64(0, "s")]
    things: list[Any] = [None, ..., NotImplemented, object(), Hostile(), int, str, torch.Tensor, greedy, len, gen]
    things += [torch.float16, int64, torch.device("cpu"), torch.device("meta"), torch.device("mps"), torch.Generator()]
    things += [Penalties(), greedy(), SimpleNamespace(step=print), SimpleNamespace(shape=3, dtype=4), ValueError("x")]
    things += [torch.nn.Linear(2, 2), FAST_TOKENIZER, TOKENIZER, ENCODER_TOKENIZER]
    return [*numbers, *texts, *lists, *tensors, *arrays, *things]


class Rows(ScriptedRows):
    """Tokens outside the script may come too, if an output type forbids the script's."""

    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        return super().logits(rows).clamp(min=-50)


class Model(ScriptedModel):
    """Also counts rows, even those that no prompt is read into."""

    def new_rows(self, count: int, length: int) -> ScriptedRows:
        self.steps += 1
        return Rows(self, count, length)


MODEL, HF_MODEL, HF_ENCODER, PROGRAM = Model("hello"), tiny_model(), tiny_encoder(), exported()
TOKENIZER, ENCODER_TOKENIZER, FAST_TOKENIZER = byte_tokenizer(), encoder_tokenizer(), FastTokenizer(models.BPE())
ENCODER = gen.from_transformers_encoder(HF_ENCODER, ENCODER_TOKENIZER)


def ask(
    prompt: Any = "x",
    output_type: Any = None,
    details: Any = False,
    cache_salt: Any = None,
    priority: Any = 0,
    receipts: Any = True,
    retries: Any = 0,
) -> Any:
    """A call of an engine, with the arguments that `gen.stream` does not have."""
    settings = {"cache_salt": cache_salt, "priority": priority, "receipts": receipts, "retries": retries}
    with gen.Engine(Model("hello")) as engine:
        return engine.generate(prompt, output_type, details=details, max_new_tokens=2, shorten=True, **settings)


def places() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any], str]]:
    """Every argument of every function, with values for the other arguments."""
    calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (gen.generate, {"model": MODEL, "prompt": "x", "max_new_tokens": 2, "shorten": True}),
        (gen.stream, {"model": MODEL, "prompt": "x", "max_new_tokens": 2}),
        (gen.compile, {"model": MODEL, "output_type": int}),
        (gen.classify, {"model": MODEL, "prompt": "x", "options": ["a", "b"]}),
        (gen.generate_iter, {"model": MODEL, "prompts": ["x"], "max_new_tokens": 2}),
        (gen.Engine, {"model": MODEL}),
        (ask, {}),
        (gen.Speculation, {}),
        (SamplerProcessor, {"sampler": greedy()}),
        (gen.describe, {"output_type": int}),
        (gen.score, {"model": MODEL, "prompts": "x", "continuations": "a"}),
        (gen.tool_calls, {"tools": [len]}),
        (gen.verify, {"model": MODEL, "receipts": []}),
        (gen.diff, {"old": [], "new": []}),
        (gen.prefix, {"model": MODEL, "prompt": "x"}),
        (gen.regex, {"pattern": "a"}),
        (gen.choice, {"options": ["a"]}),
        (gen.json_schema, {"schema": {}}),
        (gen.grammar, {"lark": 'start: "a"'}),
        (gen.text, {}),
        (gen.repeat, {"part": int}),
        (gen.embed, {"model": ENCODER, "texts": ["a cat", "the moon"]}),
        (gen.from_transformers, {"model": HF_MODEL, "tokenizer": TOKENIZER}),
        (gen.from_transformers_encoder, {"model": HF_ENCODER, "tokenizer": ENCODER_TOKENIZER}),
        (gen.from_exported, {"path_or_program": PROGRAM, "tokenizer": TOKENIZER, "context_length": 65}),
        (gen.from_exllamav2, {"path": "no/such/folder"}),
        (gen.from_exllamav3, {"path": "no/such/folder"}),
        (gen.load, {"path_or_hub_id": "no/such/folder"}),
        (gen.load_encoder, {"path_or_hub_id": "no/such/folder"}),
        (greedy, {}),
        (multinomial, {}),
        (beam_search, {}),
        (Penalties, {}),
        (gen.samplers.keep_top_k_logits, {}),
        (gen.samplers.keep_top_p_logits, {}),
        (gen.samplers.rescale_logits, {}),
        (gen.samplers.sample_seed, {"seed": 1, "sample": 1}),
    ]
    settings = [*signature(Penalties).parameters]
    samplers = [greedy, multinomial, beam_search]
    for function, others in calls:
        for parameter in signature(function).parameters.values():
            if parameter.kind is Parameter.VAR_KEYWORD:
                names = settings if parameter.name == "settings" else []
            elif function in samplers and parameter.name in settings:
                # each with one sampler: all hand them to Penalties, to which each is given below
                names = [parameter.name] if samplers[settings.index(parameter.name) % 3] is function else []
            elif function is gen.generate_iter and parameter.name in signature(gen.stream).parameters:
                names = []  # given to gen.generate and gen.stream
            else:
                names = [parameter.name]
            for name in names:
                yield f"{function.__name__} {name}", function, others, name


def use(function: Callable[..., Any], result: Any) -> None:
    """Use the result, as far as that is quick."""
    if function is gen.Engine:
        result.close()
    elif function in (gen.stream, gen.generate_iter):
        next(iter(result), None)
    elif function in (greedy, multinomial, beam_search) and result.samples < 10:  # more may take long
        gen.generate(MODEL, "x", sampler=result, max_new_tokens=2)


@pytest.mark.parametrize(("function", "others", "name"), [case[1:] for case in places()], ids=[c[0] for c in places()])
def test_each_value_works_or_is_refused_before_the_model_runs(
    function: Callable[..., Any], others: dict[str, Any], name: str
) -> None:
    for value in values():
        MODEL.steps = 0
        try:
            result = function(**(others | {name: value}))
        except gen.GenError as error:
            assert len(str(error)) < 500, show(value)
            str(error).encode()  # can be printed
            assert MODEL.steps == 0, f"{show(value)}: {error}"
            continue
        except Exception as error:
            raise AssertionError(f"{name}={show(value)} gave {error!r}") from error
        try:
            use(function, result)
        except gen.GenError as error:  # errors that the host sees only at a step
            assert len(str(error)) < 500, show(value)
        except Exception as error:
            raise AssertionError(f"{name}={show(value)} gave {error!r} later") from error


@pytest.mark.parametrize("function", [gen.generate, gen.stream])
def test_several_values_at_once_work_or_are_refused(function: Callable[..., Any]) -> None:
    rng = random.Random(0)
    names = [name for name, one in signature(function).parameters.items() if one.kind is not Parameter.VAR_KEYWORD]
    for _ in range(300):
        everything = values()
        arguments = {"model": MODEL, "prompt": "x", "max_new_tokens": 2}
        arguments |= {name: rng.choice(everything) for name in rng.sample(names[1:], 3)}
        try:
            function(**arguments)
        except gen.GenError as error:
            assert len(str(error)) < 500
        except Exception as error:
            given = ", ".join(f"{name}={show(value)}" for name, value in arguments.items())
            raise AssertionError(f"{given} gave {error!r}") from error
