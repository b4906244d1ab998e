"""Operations on sets of texts: `both`, `without`, of a length, listed. Oracle: sets of texts written out."""

from itertools import product

import pytest

from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import Budget, TooLarge
from gen.constraints.automata.regexes import matched
from gen.constraints.automata.texts import ANY, both, holds, listed, of_length

TEXTS = ["".join(text) for length in range(6) for text in product("ab", repeat=length)]
PATTERNS = ["any", "a*", "(ab)*", "a|bb", "[ab]*b", "(a|b){2,4}", "b(a|ab)*", "(?!)", "[^c]*", ""]


def members(texts: Dfa | None) -> set[str]:
    return {text for text in TEXTS if holds(texts, text)}


def texts_of(pattern: str) -> Dfa | None:
    return ANY if pattern == "any" else matched(pattern, Budget())


@pytest.mark.parametrize("one", PATTERNS)
@pytest.mark.parametrize("other", PATTERNS)
def test_both_and_without(one: str, other: str) -> None:
    mine, theirs = texts_of(one), texts_of(other)
    assert members(both(mine, theirs, Budget())) == members(mine) & members(theirs)
    assert members(both(mine, theirs, Budget(), without=True)) == members(mine) - members(theirs)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("low", "high"), [(0, None), (1, None), (3, None), (0, 0), (0, 2), (2, 2), (2, 4), (3, 1)])
def test_of_length(pattern: str, low: int, high: int | None) -> None:
    texts = texts_of(pattern)
    found = of_length(texts, low, high)
    assert members(found) == {
        text for text in members(texts) if low <= len(text) and (high is None or len(text) <= high)
    }
    assert found is None or members(found) or high is None or high > 5 or not members(texts)


def test_too_long_texts_are_refused_before_they_are_made() -> None:
    with pytest.raises(TooLarge, match="0 to 10000000000 characters"):
        of_length(ANY, 0, 10**10)
    with pytest.raises(TooLarge):
        of_length(texts_of("(ab)*c?"), 10**10, None)
    assert members(of_length(texts_of("a{0,3}"), 0, 10**10)) == {"", "a", "aa", "aaa"}


@pytest.mark.parametrize("texts", [["a", "ab", "b"], [""], [b"ab", b""], ["ab"] * 3, []])
def test_listed(texts: list[str | bytes]) -> None:
    assert members(listed(texts)) == {one.decode() if isinstance(one, bytes) else one for one in texts}
