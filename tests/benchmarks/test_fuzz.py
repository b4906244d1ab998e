"""A hundred of the random types that `benchmarks.constraints.fuzz` tries, and the judge of their texts."""

import warnings
from collections import Counter
from collections.abc import Iterable

import pytest

import gen
from benchmarks.constraints import fuzz
from benchmarks.constraints.judge import Judge, in_ecma

FOUND = [1006, 1138, 2247]  # of thousands: what they found is mended


def summed(found: Iterable[fuzz.Found]) -> Counter[str]:
    """What was counted of all types, of which none may be wrong."""
    counts = Counter[str]()
    for counted, wrong in found:
        assert wrong == []
        counts += counted
    return counts


@pytest.mark.parametrize("tens", range(10))
def test_what_a_random_schema_takes_is_valid(whole_demo: gen.models.base.Model, tens: int) -> None:
    some = range(10 * tens, 10 * tens + 10)
    counts = summed(fuzz.of_schema(whole_demo, number, walks=2) for number in [*some, *FOUND[tens : tens + 1]])
    assert counts["valid accepted"] > 30 and counts["invalid rejected"] > 30


@pytest.mark.parametrize("tens", range(10))
def test_what_a_random_regex_takes_matches(whole_demo: gen.models.base.Model, tens: int) -> None:
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # Python warns about "[["
        counts = summed(fuzz.of_regex(whole_demo, number, walks=2) for number in range(10 * tens, 10 * tens + 10))
    assert counts["match accepted"] > 30 and counts["no match rejected"] > 30


def test_both_engines_take_the_same_texts(whole_demo: gen.models.base.Model) -> None:
    counts = summed(fuzz.of_both(whole_demo, number) for number in range(150))
    assert counts["texts, taken"] > 2000 and counts["texts, refused"] > 2000 and counts["no value"] > 10


def test_what_is_wrong_is_told(whole_demo: gen.models.base.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "takes", lambda self, text: False)
    _, wrong = fuzz.of_schema(whole_demo, 3, walks=1)
    assert wrong


def test_the_judge_reads_numbers_as_they_are_written_and_patterns_twice() -> None:
    judge = Judge({"type": ["number", "string"], "multipleOf": 0.1, "pattern": r"^\S.$"})
    assert judge.takes("0.3") and judge.takes("1e2") and not judge.takes("0.35") and not judge.takes("5e-7")
    assert judge.takes('"ab"') and not judge.takes(r'"\ufeffb"') and not judge.takes(r'"a\u2028"')
    assert not judge.takes('"ab\\n"') and Judge({"pattern": "^a$"}).takes('"a"')
    assert Judge({"uniqueItems": True}).takes("[1, true]") and not Judge({"uniqueItems": True}).takes("[1, 1.0]")
    assert not Judge({"const": [1]}).takes("[true]") and Judge({"type": "integer"}).takes("4.0")
    for pattern, text in ((r"[\s.]", "\ufeff"), (r"\$|\.", "$"), ("[^]a]", "b")):
        assert in_ecma(pattern).search(text)
