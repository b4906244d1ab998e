"""Samplers as values: they are immutable, pickle, print and compare; they read and copy their arguments."""

import copy
import dataclasses
import inspect
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
import torch

import gen
from gen.errors import ArgumentError
from gen.samplers import (
    BeamSearchSampler,
    GreedySampler,
    MultinomialSampler,
    Penalties,
    beam_search,
    greedy,
    keep_top_k_logits,
    keep_top_p_logits,
    multinomial,
    rescale_logits,
)
from tests.helpers import ScriptedModel

SAMPLERS: list[tuple[Any, str]] = [
    (greedy(), "greedy()"),
    (greedy(repetition_penalty=1), "greedy()"),
    (greedy(bad_words=["no", [5, 7]]), "greedy(bad_words=('no', (5, 7)))"),
    (multinomial(), "multinomial()"),
    (multinomial(temperature=0.8, top_k=50), "multinomial(temperature=0.8, top_k=50)"),
    (multinomial(3, logit_bias={9: -math.inf, 4: 2}), "multinomial(samples=3, logit_bias={4: 2.0, 9: -inf})"),
    (multinomial(top_p=0.5, min_new_tokens=2), "multinomial(top_p=0.5, min_new_tokens=2)"),
    (beam_search(4, early_stopping="never"), "beam_search(beams=4, early_stopping='never')"),
]
ids = [text for _, text in SAMPLERS]


@pytest.mark.parametrize(("sampler", "text"), SAMPLERS, ids=ids)
def test_a_sampler_prints_as_the_call_that_makes_it(sampler: Any, text: str) -> None:
    assert repr(sampler) == text
    again = eval(
        repr(sampler), {name: getattr(gen.samplers, name) for name in gen.samplers.__all__} | {"inf": math.inf}
    )
    assert again == sampler and hash(again) == hash(sampler)
    assert sampler not in [other for other, text in SAMPLERS if text != repr(sampler)] or text == "greedy()"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize(
    "sampler",
    [sampler for sampler, _ in SAMPLERS]
    + [multinomial(temperature=torch.tensor([0.5, 1.0]), top_k=torch.tensor([5, 9]), top_p=0.9)],
    ids=[*ids, "tensors"],
)
def test_copies_and_pickles_behave_the_same(sampler: Any, copied: Any) -> None:
    again = copied(sampler)
    assert again == sampler and repr(again) == repr(sampler) and hash(again) == hash(sampler)
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    if sampler.samples in (1, 2):
        results = [one.step(logits, -torch.ones(2), torch.arange(2)) for one in (sampler, again)]
        for ours, theirs in zip(*results, strict=True):
            assert torch.equal(ours, theirs)
    assert again.penalties == sampler.penalties
    for name in ("temperature", "bad_words"):
        with pytest.raises(ArgumentError):
            setattr(again, name, 2)


def test_processors_of_logits_pickle() -> None:
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    sampler = multinomial(temperature=0.5, top_k=20, min_p=0.01)
    for processor in (*sampler.logits_processors, keep_top_k_logits(3), keep_top_p_logits(0.5), rescale_logits(0.3)):
        assert torch.equal(pickle.loads(pickle.dumps(processor))(logits), processor(logits))


@pytest.mark.parametrize("sampler", [greedy(), multinomial(temperature=1.0), beam_search(2), Penalties()], ids=repr)
def test_a_change_of_an_attribute_is_an_error_that_says_what_to_do(sampler: Any) -> None:
    before = repr(sampler)
    for name in (
        "temperature",
        "samples",
        "penalties",
        "logits_processors",
        "parameters",
        "repetition_penalty",
        "new",
    ):
        for change in (lambda name=name: setattr(sampler, name, 2), lambda name=name: delattr(sampler, name)):
            with pytest.raises(ArgumentError, match=rf"\.{name} cannot be changed; make a new one, as by dataclasses"):
                change()  # type: ignore[no-untyped-call]
    with pytest.raises(AttributeError):  # as for any frozen dataclass
        sampler.samples = 2
    assert repr(sampler) == before


def test_a_new_sampler_is_made_from_another_one() -> None:
    sampler = multinomial(2, temperature=0.5, bad_words=["no"], logit_bias={3: 1.0})
    warmer = dataclasses.replace(sampler, temperature=2)
    assert warmer == multinomial(2, temperature=2.0, bad_words=["no"], logit_bias={3: 1.0})
    assert warmer.parameters.temperature == 2.0
    assert dataclasses.replace(beam_search(3), length_penalty=0) == beam_search(3, length_penalty=0.0)


def test_a_subclass_may_have_attributes_of_its_own() -> None:
    class Counting(MultinomialSampler):
        def __init__(self, calls: int, **settings: Any) -> None:
            super().__init__(**settings)
            self.calls = calls

    sampler = Counting(3, temperature=0.5)
    sampler.calls += 1
    assert sampler.calls == 4 and repr(sampler) == "Counting(temperature=0.5)"
    with pytest.raises(ArgumentError):
        sampler.temperature = 2  # type: ignore[misc]


def test_what_the_caller_changes_later_changes_no_sampler() -> None:
    bias, words, ids, heat = {3: 1.0}, ["no"], [5, 7], torch.tensor([0.5, 1.0])
    given: list[Any] = [*words, ids]
    sampler = multinomial(logit_bias=bias, bad_words=given, temperature=heat)
    expected = copy.deepcopy(sampler)
    bias[3] = 9.0
    given.append("yes")
    ids.append(1)
    heat.fill_(9.0)
    assert sampler == expected
    assert sampler.temperature is not None and torch.equal(sampler.warp(torch.eye(2)), expected.warp(torch.eye(2)))


@pytest.mark.parametrize("sampler", [GreedySampler, MultinomialSampler, BeamSearchSampler, Penalties])
def test_every_argument_is_in_the_signature(sampler: Any) -> None:
    parameters = inspect.signature(sampler).parameters
    assert {*inspect.signature(Penalties).parameters} <= {*parameters}
    assert all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters.values())
    positional = {MultinomialSampler: ["samples"], BeamSearchSampler: ["beams"]}.get(sampler, [])
    assert [p.name for p in parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD] == positional
    with pytest.raises(ArgumentError, match="got 'bad_word'; did you mean 'bad_words'"):
        sampler(bad_word=["no"])


@pytest.mark.parametrize("make", [greedy, multinomial, beam_search])
def test_numbers_of_any_kind_are_read(make: Any) -> None:
    sampler = make(
        repetition_penalty=Fraction(3, 2),
        frequency_penalty=np.float32(0.5),
        presence_penalty=Decimal("0.25"),
        min_new_tokens=np.int32(2),
        no_repeat_ngram_size=2**62,
        logit_bias={np.int64(4): Fraction(1, 2), 5: np.float32(-math.inf)},
        bad_words=(np.array([1, 2]), torch.tensor([3]), "no"),
    )
    expected = make(
        repetition_penalty=1.5,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        min_new_tokens=2,
        no_repeat_ngram_size=2**62,
        logit_bias={4: 0.5, 5: -math.inf},
        bad_words=[[1, 2], [3], "no"],
    )
    assert sampler == expected and repr(sampler) == repr(expected)
    two, seven, half = cast(Any, np.int16(2)), cast(Any, np.int64(7)), Fraction(1, 2)
    assert multinomial(two).samples == beam_search(two).samples == 2
    assert multinomial(top_k=seven, top_p=half) == multinomial(top_k=7, top_p=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings", [{}, {"bad_words": None}, {"bad_words": []}, {"logit_bias": None}, {"logit_bias": {}}]
)
def test_settings_that_ask_for_nothing_are_none(settings: dict[str, Any]) -> None:
    assert greedy(**settings).penalties is None
    assert greedy(**settings, repetition_penalty=1, min_new_tokens=0, presence_penalty=0) == greedy()


UNUSABLE: list[Any] = [math.nan, math.inf, -math.inf, "1", True, [1], None, 1j, Decimal("sNaN"), Decimal("NaN")]
HUGE: list[Any] = [1e31, -1e31, 10**400, Fraction(10**400), np.float64(1e300)]
WORDS: list[Any] = ["abc", 5, [1], [None], [[]], [""], [["a"]], [[1.5]], [[True]], [[-1]], b"ab", [b"ab"], {"a": 1}]
NUMBERS = ["repetition_penalty", "presence_penalty", "frequency_penalty", "min_new_tokens", "no_repeat_ngram_size"]


@pytest.mark.parametrize("make", [greedy, multinomial, beam_search])
def test_unusable_settings_are_refused_when_the_sampler_is_made(make: Any) -> None:
    for name in NUMBERS:
        for value in UNUSABLE:
            with pytest.raises(ArgumentError, match=f"{name} must be a"):
                make(**{name: value})
    for name in NUMBERS[:3]:
        for value in HUGE:
            with pytest.raises(ArgumentError, match=f"{name} must be a number .* at most 1e.30"):
                make(**{name: value})
    for value in (0, -1, -0.0):
        with pytest.raises(ArgumentError, match="repetition_penalty must be a number above 0"):
            make(repetition_penalty=value)
    for name in NUMBERS[3:]:
        for value in (-1, 1.5, 2.0):
            with pytest.raises(ArgumentError, match=f"{name} must be a whole number at least 0"):
                make(**{name: value})
    for bias in ([3], "abc", 3, [(3, 1.0)], {"a": 1.0}, {1.5: 1}, {True: 1}, {-1: 1}):
        with pytest.raises(ArgumentError, match="logit_bias"):
            make(logit_bias=bias)
    for value in (math.nan, math.inf, 1e31, -1e31, "1", None, True):
        with pytest.raises(ArgumentError, match=r"a bias of logit_bias must be a number"):
            make(logit_bias={3: value})
    for words in WORDS:
        with pytest.raises(ArgumentError, match=r"bad.word"):
            make(bad_words=words)


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("samples", [0, True, 1.0], "samples must be a whole number at least 1, got "),
        (
            "temperature",
            [
                *(-1, 10**400, math.nan, math.inf, Decimal("1e400"), Fraction(-1, 10**300), "1", True),
                *([1.0] * 1000, 1j, torch.tensor(True), torch.ones(1, dtype=torch.complex64)),
            ],
            "temperature must be a (number at least 0|tensor)",
        ),
        ("top_k", [0, 2.5, -(10**400), torch.ones(1, dtype=torch.uint64)], "top_k must be a (whole number|tensor)"),
        ("top_p", [0.0, "0.9", 1 + 1e-9], "top_p must be a number above 0 and at most 1, got "),
        ("min_p", [1.1, -1e-300], "min_p must be a number at least 0 and at most 1"),
        ("topk", [5], "'topk'; did you mean 'top_k'"),
        (
            "length_penalty",
            [51, -51, math.inf, math.nan, 10**400],
            "length_penalty must be a number at least -50 and at most 50",
        ),
        (
            "early_stopping",
            [1, 0, None, "always", np.array([1, 2])],
            'early_stopping must be True, False or "never"',
        ),
        ("bad_words", [[1]], "bad_words takes a list of texts or of lists of token ids, got 1 as bad word 0"),
        ("bad_words", [["a", ["b"]]], r"got \['b'\] as bad word 1"),
        ("bad_words", [[torch.tensor([1.5])]], r"got Tensor \(1,\) float32 as bad word 0"),
        ("logit_bias", [[1, 2]], r"logit_bias must be a dict of token ids and biases, .* got \[1, 2\]"),
        ("logit_bias", [{"a": 1.0}], "a token id of logit_bias must be a whole number at least 0, got 'a'"),
    ],
)
def test_parameters_out_of_range_are_refused_when_the_sampler_is_made(
    name: str, values: list[Any], wanted: str
) -> None:
    make: Any = beam_search if name in ("length_penalty", "early_stopping") else multinomial
    for value in values:
        with pytest.raises(ArgumentError, match=wanted) as caught:
            make(**{name: value})
        assert len(str(caught.value)) < 300


def test_huge_settings_are_no_trouble_in_the_loop() -> None:
    model = ScriptedModel("hello")
    for settings in (
        {"min_new_tokens": 2**63 - 1},
        {"no_repeat_ngram_size": 2**63 - 1},
        {"presence_penalty": 1e30, "frequency_penalty": -1e30},
        {"repetition_penalty": 1e30},
        {"repetition_penalty": 1e-320},
        {"logit_bias": {7: 1e30, 8: -1e30}},
    ):
        for make in (greedy, multinomial, beam_search):
            assert gen.generate(model, "x", sampler=make(**settings), max_new_tokens=5) == "hello", settings
    # no eos before, and max_new_tokens is reached first
    unended = gen.generate(ScriptedModel("hi"), "x", sampler=greedy(min_new_tokens=2), max_new_tokens=9, details=True)
    assert (unended.text, unended.finish_reason) == ("hi", "eos")
