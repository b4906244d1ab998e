"""Regexes sought in a text that grows. Oracle: Python's re, by a search of each longer text."""

import random
import re

import pytest

from gen.constraints.automata.searching import Found, Search

pytestmark = pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # Python warns about "[["

PLAIN = ["a", "b", "c", "é", "☃", "😀", "ß", "[ab]", "[^a]", "[a-cé-ü]", "[^é☃]", ".", "\\n", "[[a]", "[]a]", "[a-]"]
PLAIN += ["[+--]", "[a-z&&[b]", "\\.", " ", "(?i:k)", "(?i:ß)", "(?i:[a-k])", "(?i:[^é])", "(?i:Σ)", "(?s:.)"]
PLAIN += ["(?ai:k)", "(?ai:[a-k])", "(?ai:[^s])"]
CATEGORIES = [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"[\w-]", r"[^\w]", r"[^\s\d]"]
ATOMS = [*PLAIN, *CATEGORIES, r"\b", r"\B", r"\b", r"\B", "^", "$", "(?m:$)", "(?m:^)", r"(?a:\w)", r"(?a:\b)"]
ATOMS += [r"(?i:[^\w])", "(?i:İ)", r"(?i:[\d_])"]
ANCHORS = ["^", "$", r"\A", r"\Z", "(?m:^)", "(?m:$)"]
REPEATS = ["*", "+", "?", "{2}", "{1,3}", "{0,2}", "*?", "+?", "{2,}"]
LETTERS = "aabbccék☃😀ßKk\u017fK\n\n[-+.] AÉΣς&1٣ \x1c_z\r\t"
FLAGS = [re.NOFLAG] * 3 + [re.I, re.M, re.S, re.A, re.X, re.I | re.A]


def random_pattern(chance: random.Random, depth: int = 4) -> str:
    kind = chance.random()
    if depth == 0 or kind < 0.35:
        return chance.choice(ANCHORS if chance.random() < 0.08 else ATOMS)
    inner = random_pattern(chance, depth - 1)
    if kind < 0.8:
        other = random_pattern(chance, depth - 1)
        return inner + other if kind < 0.65 else f"({inner}|{other})"
    return f"(?:{inner}){chance.choice(REPEATS)}"


def sought(pattern: re.Pattern[str], text: str) -> Found | None:
    """By a search of each longer text."""
    for end in range(1, len(text) + 1):
        match = pattern.search(text, 0, end)
        if match:
            whole = pattern.fullmatch(text, match.start(), end)
            assert whole or match.end() == end - 1
            return Found(match.start(), end if whole else end - 1, end)
    return None


@pytest.mark.parametrize("seed", range(2))
def test_a_search_finds_what_re_finds_wherever_the_text_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    found = late = patterns = 0
    while patterns < 60:
        pattern = re.compile(random_pattern(chance), chance.choice(FLAGS))
        search = Search(pattern)
        assert search.empty == (pattern.search("") is not None)
        if search.empty:
            continue
        patterns += 1
        for _ in range(10):
            text = "".join(chance.choices(LETTERS, k=chance.randint(1, 9)))
            wanted, got = sought(pattern, text), None
            threads, place = search.start(), 0
            while place < len(text) and got is None:
                until = chance.randint(place + 1, len(text))
                threads, got = search.read(threads, text[:until], place)
                place = until
                begins = list(threads.values())
                assert begins == sorted(begins)
                assert got or wanted is None or wanted.begin >= min([*begins, place]), "it was given up too early"
            assert got == wanted, (pattern, text)
            found += wanted is not None
            late += wanted is not None and wanted.end < wanted.shown
    assert found > 180 and late > 6


def test_a_thread_ends_where_no_text_can_make_it_a_match() -> None:
    for pattern, text, begin in (
        (r"ab+c", "abbab", 3),
        (r"ab+c", "abbd", 4),
        (r"\bend\b", "the en", 4),
        (r"\bend\b", "then en", 5),
        (r"(?m)^User:", "a User:\nUs", 8),
        (r"[\s\S]*x", "abc", 0),
        (r"\Aab", "b", 1),
    ):
        threads, found = Search(re.compile(pattern)).read(Search(re.compile(pattern)).start(), text, 0)
        assert found is None
        assert min(threads.values(), default=len(text)) == begin, pattern


def test_a_search_at_the_beginning_alone_is_a_match() -> None:
    search = Search(re.compile("ab|c"), anywhere=False)
    assert search.read(search.start(), "cab", 0)[1] == Found(0, 1, 1)
    assert search.read(search.start(), "xab", 0) == ({}, None)
