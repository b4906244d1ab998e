"""Texts of numbers. Oracle: fractions, and the floats that Python reads from the texts."""

import json
import math
import random
import re
from fractions import Fraction
from operator import ge, le

import pytest

from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import TooLarge, Unsupported
from gen.constraints.automata.texts import holds
from gen.constraints.schema import schema_table
from gen.constraints.schema.parts import Bound
from gen.constraints.schema.writing.numbers import number_texts

NUMBER = re.compile(r"-?(0|[1-9]\d{0,18})(\.\d{1,20})?\Z")
WHOLE = re.compile(r"(-?[1-9]\d{0,18}|0)\Z")
BOUNDS = [
    0,
    1,
    -1,
    5,
    9,
    10,
    12,
    90,
    99,
    100,
    105,
    -10,
    -90,
    -128,
    127,
    1000,
    0.5,
    0.1,
    -0.25,
    2.75,
    12.5,
    -12.5,
    99.99,
]


def random_text(chance: random.Random) -> str:
    near = chance.choice(BOUNDS) if chance.random() < 0.7 else round(chance.uniform(-200, 200), chance.randint(0, 9))
    text = str(near) + (chance.choice(["0", "1", "9", "00", ".0", ".5", ".9", "001"]) if chance.random() < 0.5 else "")
    text = text.replace(".", "") if chance.random() < 0.2 else text
    return f"-{text}" if chance.random() < 0.2 else text


def within(value: Fraction, low: Bound | None, high: Bound | None) -> bool:
    above = low is None or value > low[0] or (value == low[0] and not low[1])
    return above and (high is None or value < high[0] or (value == high[0] and not high[1]))


@pytest.mark.parametrize("seed", range(2))
def test_numbers_are_those_within_the_bounds(seed: int) -> None:
    chance = random.Random(seed)
    accepted = 0
    for _ in range(150):
        low, high = (
            (Fraction(str(chance.choice(BOUNDS))), chance.random() < 0.4) if chance.random() < 0.7 else None
            for _ in range(2)
        )
        whole = chance.random() < 0.5
        multiples = (Fraction(chance.choice([1, 2, 3, 5, 7, 10, 25])),) if chance.random() < 0.3 else ()
        if low is None and high is None and not multiples:
            continue
        texts = number_texts(low, high, multiples, whole)
        for _ in range(60):
            text = random_text(chance)
            form = WHOLE if whole or multiples else NUMBER
            expected = form.match(text) is not None and within(Fraction(text), low, high)
            expected = expected and all((Fraction(text) / one).denominator == 1 for one in multiples)
            assert holds(texts, text) == expected, (low, high, whole, multiples, text)
            accepted += expected
    assert accepted > 500


def walk(texts: Dfa, chance: random.Random) -> str:
    state, text = 0, ""
    while not texts.final[state] or (texts.lines[state] and chance.random() < 0.95):
        low, high, state = chance.choice(texts.lines[state])
        text += chr(chance.randint(low, high))
    return text


@pytest.mark.parametrize("step", ["0.1", "0.01", "0.001", "1", "10", "0.5", "2.5", "7"])
@pytest.mark.parametrize(("low", "high"), [(None, None), ("0", None), ("-1", "1000.5"), (None, "1e-5")])
def test_every_number_of_multiples_is_one(step: str, low: str | None, high: str | None) -> None:
    """Walks through the automaton find what a list of texts leaves out, such as 5e-7, no multiple of 0.1."""
    least, most = (None if bound is None else (Fraction(bound), False) for bound in (low, high))
    for whole in (False, True):
        texts = number_texts(least, most, (Fraction(step),), whole)
        assert texts is not None
        chance = random.Random(0)
        for text in (walk(texts, chance) for _ in range(30)):
            value = Fraction(text)
            assert (value / Fraction(step)).denominator == 1 and within(value, least, most), text
            assert not whole or value.denominator == 1


@pytest.mark.parametrize(("low", "high"), [("0.1", "1"), ("-1", "0"), ("-0.5", "99.99"), ("0", "0.001"), ("7", "8")])
def test_long_numbers_keep_excluded_bounds_as_floats_too(low: str, high: str) -> None:
    """0.9999999999999999999 is below 1, but a reader of floats gets 1.0."""
    texts = number_texts((Fraction(low), True), (Fraction(high), True), (), False)
    assert texts is not None
    chance = random.Random(0)
    longest = 0
    for _ in range(2000):
        text = walk(texts, chance)
        assert float(low) < float(text) < float(high), text
        longest = max(longest, len(text))
    assert longest > 10
    nines = number_texts(None, (Fraction(1), True), (), False)
    assert holds(nines, "0.9999999999999999") and not holds(nines, "0.999999999999999999")


@pytest.mark.parametrize(
    ("low", "high"), [("0", None), ("-1", "1"), ("0", "100"), ("1e-7", "2.5e20"), (None, "-3e-9"), ("1e16", None)]
)
@pytest.mark.parametrize("excluded", [False, True])
def test_bounds_forbid_no_digits_and_no_exponents_of_a_float(low: str | None, high: str | None, excluded: bool) -> None:
    """As json.dumps writes it, a float is a text if and only if it is within the bounds, if it is not below 1e-99."""
    least, most = (None if bound is None else (Fraction(bound), excluded) for bound in (low, high))
    texts = number_texts(least, most, (), False)
    chance = random.Random(7)
    edges = [float(bound) for bound in (low, high) if bound is not None]
    near = [math.nextafter(edge, towards) for edge in edges for towards in (-math.inf, math.inf)]
    drawn = [chance.uniform(-1, 1) * 10.0 ** chance.randint(-12, 23) for _ in range(600)]
    within_bounds = 0
    for value in [*edges, *near, *drawn, *(chance.uniform(-110, 110) for _ in range(200))]:
        if value == 0 or abs(value) >= 1e-99:
            expected = within(Fraction(repr(value)), least, most)
            assert holds(texts, json.dumps(value)) == expected, value
            within_bounds += expected
    assert within_bounds > 20


@pytest.mark.parametrize(("low", "high"), [(-5, 5), (-1000, None), (None, 3)])
def test_a_number_leads_to_each_of_its_states(low: int | None, high: int | None) -> None:
    bounds = (one if one is None else (Fraction(one), False) for one in (low, high))
    found = number_texts(*bounds, (), False)
    assert found is not None and {*found.edges[:, 3].tolist()} == {*range(1, len(found.final))}


def test_numbers_without_bounds_have_19_digits_and_are_finite() -> None:
    whole, any_number = (number_texts(None, None, (), one) for one in (True, False))
    for text in (
        "0",
        "-1",
        "9" * 19,
        "1.5",
        "-0.0",
        "1e99",
        "1E-5",
        "-0",
        "01",
        "1" * 20,
        ".5",
        "1.",
        "1e100",
        "+1",
        "--1",
    ):
        assert holds(whole, text) == (WHOLE.match(text) is not None)
        assert holds(any_number, text) == (re.fullmatch(NUMBER.pattern[:-2] + r"([eE][+-]?\d{1,2})?", text) is not None)


def test_bounds_between_two_floats_are_kept_as_floats_too() -> None:
    for bound in (2**53 + 1, 2**53 + 3, 2**60 + 1, -(2**53) - 1):
        for word, keeps in (("minimum", ge), ("maximum", le)):
            table = schema_table({"type": "number", word: bound}, closed=True, whitespace="line")
            for text in (f"{bound + step}{more}" for step in range(-2, 3) for more in ("", ".0", ".4")):
                assert keeps(json.loads(text), bound) or not table.accepts(text.encode()), (word, text)
            assert table.accepts(str(max(bound, 0) * 2 if word == "minimum" else min(bound, 0) * 2).encode())


def test_what_numbers_cannot_be_is_refused() -> None:
    with pytest.raises(Unsupported, match="multipleOf of zero"):
        number_texts(None, None, (Fraction(0),), False)
    with pytest.raises(TooLarge):
        number_texts(None, None, (Fraction(999983),), True)
    assert number_texts((Fraction(5), True), (Fraction(5), False), (), False) is None
    assert number_texts((Fraction(5), True), (Fraction(6), True), (), True) is None
    large = number_texts((Fraction(10**25), False), None, (), True)
    assert holds(large, str(10**25)) and not holds(large, "9" * 25)


def test_numbers_that_are_not_whole_are_none_as_floats_either() -> None:
    table = schema_table({"type": "number", "not": {"type": "integer"}}, closed=True, whitespace="line")
    assert table.accepts(b"-123.5") and not table.accepts(b"5") and not table.accepts(b"8026892091801100103.118")
