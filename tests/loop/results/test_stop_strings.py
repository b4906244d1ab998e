"""Stop strings are found wherever the text is cut into pieces; the oracle is brute force over random cuts."""

import random
import re
from copy import copy
from typing import Any

import pytest

from gen.errors import ArgumentError
from gen.loop.results.stop_strings import StopStrings
from gen.requests.settings import GivenStop, read_stops, read_stops_of_each
from gen.tokens.tokenizers import Detokenizer, Tokenizer
from tests.helpers import byte_tokenizer

PATTERNS = [
    *(r"ab+", r"b{2,3}a", r"a.*中", r"\Bb\B", r"^b|中a", r"\bab\b", r"(?i)AB", r"\W\b", r"\w\B.?", r"b$", r"[^ab]{2}"),
    *(r"a+?b", r"(?m:^a)|éé", r"(?:ab)+é"),
]


def stopped(text: str, stops: list[GivenStop]) -> tuple[str, str | None]:
    """By trying every end: the text before the stop that ends first, and that stop; None if there is none. What a regex
    matches ends with the text if it can, otherwise a character earlier, which only shows that it matches.
    """
    for end in range(1, len(text) + 1):
        found = [(end - len(stop), end) for stop in stops if isinstance(stop, str) and text[:end].endswith(stop)]
        for stop in stops:
            match = stop.search(text[:end]) if isinstance(stop, re.Pattern) else None
            if match:
                whole = match.re.fullmatch(text, match.start(), end)
                found.append((match.start(), end if whole else end - 1))
        if found:
            begin = min(found)[0]
            return text[:begin], text[begin : max(until for first, until in found if first == begin)]
    return text, None


def test_any_cut_gives_what_brute_force_gives() -> None:
    rng = random.Random(0)
    cuts, found = 0, 0
    while cuts < 2000:
        text = "".join(rng.choice("ab中é🙂") for _ in range(rng.randint(0, 30)))
        count = rng.randint(0, 3)
        stops: list[GivenStop] = [
            "".join(rng.choice("ab中é🙂") for _ in range(rng.randint(1, 4))) for _ in range(count)
        ]
        if rng.random() < 0.6:
            stops += [re.compile(pattern) for pattern in rng.sample(PATTERNS, rng.randint(1, 2))]
        positions = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 6)))
        cuts += len(positions)
        include = rng.random() < 0.5
        matcher = StopStrings(read_stops(stops), include=include)
        before, stop = stopped(text, stops)
        wanted = before + (stop or "") if include else before
        out = ""
        for begin, end in zip([0, *positions], [*positions, len(text)], strict=True):
            out += matcher.push(text[begin:end])
            assert wanted.startswith(out), "text came out that a stop takes back"
        out += matcher.flush()
        assert (out, matcher.found) == (wanted, stop is not None), (text, stops, positions)
        found += matcher.found
    assert found > 20


def test_hidden_text_is_looked_at_and_never_passed_on() -> None:
    rng = random.Random(1)
    found = 0
    for _ in range(500):
        pieces = [(rng.choice(["a", "b", "ab", "ba", "aab"]), rng.random() < 0.3) for _ in range(rng.randint(0, 8))]
        count = rng.randint(0, 2)
        stops: list[GivenStop] = ["".join(rng.choice("ab") for _ in range(rng.randint(2, 5))) for _ in range(count)]
        text = "".join(piece for piece, _ in pieces)
        hidden = [is_hidden for piece, is_hidden in pieces for _ in piece]
        before, ends = stopped(text, stops)
        matcher = StopStrings(read_stops(stops))
        out = "".join(matcher.push(piece, hidden=is_hidden) for piece, is_hidden in pieces) + matcher.flush()
        shown = "".join(character for character, is_hidden in zip(before, hidden, strict=False) if not is_hidden)
        assert (out, matcher.found) == (shown, ends is not None)
        found += ends is not None
    assert 50 < found < 450


def test_text_is_held_no_longer_than_needed() -> None:
    matcher = StopStrings(["END", "\n\n"])
    assert [matcher.push(piece) for piece in ["one E", "N", "x", "\n", "two", " END", "more"]] == [
        "one ",
        "",
        "ENx",
        "",
        "\ntwo",
        " ",
        "",
    ]
    assert matcher.found


def test_stop_strings_span_characters_that_span_tokens() -> None:
    tokenizer = Tokenizer(byte_tokenizer())
    detokenizer, matcher = Detokenizer(tokenizer, [ord(">")]), StopStrings(["。🙂"])
    pieces = [matcher.push(detokenizer.push(byte)) for byte in "好。好。🙂好".encode()]
    assert "".join(pieces) == "好。好"
    assert matcher.found


def test_text_that_a_regex_may_take_is_held_no_longer_than_needed() -> None:
    matcher = StopStrings(read_stops(re.compile(r"\n+User \d+:")))
    pieces = ["one\n", "\nUs", "ed\n", "User 1", "2", " ", "x\n\nUser 12", ":", "more"]
    assert [matcher.push(piece) for piece in pieces] == ["one", "", "\n\nUsed", "", "", "\nUser 12 ", "x", "", ""]
    assert matcher.found


@pytest.mark.parametrize(
    "pattern", [r"(?s)\A.*?\n\nEND", r"[\s\S]*</answer>", r"```[\s\S]*```", r"(a|aa|o.d|wo?r)+$\n"]
)
def test_a_regex_costs_the_same_at_each_character(pattern: str) -> None:
    """Each of these takes quadratic or exponential time where a search goes back: more than hours here."""
    matcher = StopStrings(read_stops(re.compile(pattern)))
    for _ in range(10_000):
        matcher.push("word ")
    assert not matcher.found


def test_a_copy_that_goes_on_by_itself_shows_what_the_first_one_hides() -> None:
    first = StopStrings(["<end>!"])
    first.push("<", hidden=True)
    second = copy(first)
    assert first.push("x", hidden=True) + second.push("y") == "y"


@pytest.mark.parametrize("stop", ["", ["a", ""], [3], [b"x"], [re.compile(b"x")], {3}])
def test_what_is_no_stop_is_refused(stop: Any) -> None:
    with pytest.raises(ArgumentError, match="stop takes strings of at least one character and compiled regexes, got"):
        read_stops(stop)
    with pytest.raises(ArgumentError, match="stop must be a string, a compiled regex or a list of those, got 3"):
        read_stops(3)
    with pytest.raises(ArgumentError, match=r"stop re.compile\('x\*'\) matches a text of no characters"):
        read_stops([re.compile("x*")])
    assert read_stops(None) == ()
    assert read_stops("x") == ("x",)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"(a)\1", "a reference to a group"),
        (r"(?<=a)b", "look-around"),
        (r"a(?!b)", "look-around"),
        (r"(?=ab)a", "look-around"),
        (r"^(?!.*b)a", "look-around"),
        (r"(?>a+)b", "an atomic group"),
        (r"a++b", "a possessive repeat"),
        (r"(a)?(?(1)b|c)", "a condition on a group"),
        (r"[ab]*a[ab]{14}c", "more than 2000"),
        (r"(?s)a.{3000}b", "more than 2000"),
    ],
)
def test_what_no_automaton_can_say_is_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(ArgumentError, match=f"stop re.compile.*: .*{named}.* A stop runs as an automaton"):
        read_stops(["x", re.compile(pattern)])


def test_each_prompt_may_have_a_list_or_none() -> None:
    pattern = re.compile("x")
    [text, search], *others = read_stops_of_each([["a", pattern], None, []], 3)
    assert (text, getattr(search, "pattern", None), others) == ("a", "x", [(), ()])
    assert read_stops_of_each(["a", "b", "c"], 3) == [("a", "b", "c")] * 3
    with pytest.raises(ArgumentError, match="one list or None for each of 3 prompts, got 2"):
        read_stops_of_each([["a"], None], 3)
    with pytest.raises(ArgumentError, match=r"'b' for prompt 1; write \['b'\] there"):
        read_stops_of_each([["a"], "b"], 2)
