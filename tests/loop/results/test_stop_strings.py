"""Stop strings are found wherever the text is cut into pieces; the oracle is brute force over random cuts."""

import random
import re
from copy import copy
from typing import Any

import pytest

from gen.errors import ArgumentError
from gen.loop.results.stop_strings import StopStrings
from gen.requests.stops import Stop, read_stops, read_stops_of_each
from gen.tokenizers import Detokenizer, Tokenizer
from tests.helpers import byte_tokenizer

PATTERNS = [
    *(r"ab+", r"b{2,3}a", r"a.*中", r"(?<=a)b", r"a(?=b)", r"b(?!a)", r"^b|中a", r"(a|é)\1", r"\bab\b", r"(?i)AB"),
    *(r"b$", r"[^ab]{2}", r"a+?b", r"(?m:^a)|éé", r"(?:ab)+é"),
]


def stopped(text: str, stops: list[Stop]) -> tuple[str, str | None]:
    """By trying every end: the text before the stop that ends first, and that stop; None if there is none."""
    for end in range(1, len(text) + 1):
        found = [(end - len(stop), end) for stop in stops if isinstance(stop, str) and text[:end].endswith(stop)]
        matches = [stop.search(text[:end]) for stop in stops if isinstance(stop, re.Pattern)]
        if found := [*found, *(match.span() for match in matches if match)]:
            begin = min(found)[0]
            return text[:begin], text[begin : max(until for first, until in found if first == begin)]
    return text, None


def test_any_cut_gives_what_brute_force_gives() -> None:
    rng = random.Random(0)
    cuts, found = 0, 0
    while cuts < 2000:
        text = "".join(rng.choice("ab中é🙂") for _ in range(rng.randint(0, 30)))
        count = rng.randint(0, 3)
        stops: list[Stop] = ["".join(rng.choice("ab中é🙂") for _ in range(rng.randint(1, 4))) for _ in range(count)]
        if rng.random() < 0.6:
            stops += [re.compile(pattern) for pattern in rng.sample(PATTERNS, rng.randint(1, 2))]
        positions = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 6)))
        cuts += len(positions)
        include = rng.random() < 0.5
        matcher = StopStrings(stops, include=include)
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
        stops: list[Stop] = ["".join(rng.choice("ab") for _ in range(rng.randint(2, 5))) for _ in range(count)]
        text = "".join(piece for piece, _ in pieces)
        hidden = [is_hidden for piece, is_hidden in pieces for _ in piece]
        before, ends = stopped(text, stops)
        matcher = StopStrings(stops)
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
    matcher = StopStrings([re.compile(r"\n+User \d+:")])
    pieces = ["one\n", "\nUs", "ed\n", "User 1", "2", " ", "x\n\nUser 12", ":", "more"]
    assert [matcher.push(piece) for piece in pieces] == ["one", "", "\n\nUsed", "", "", "\nUser 12 ", "x", "", ""]
    assert matcher.found


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


def test_each_prompt_may_have_a_list_or_none() -> None:
    pattern = re.compile("x")
    assert read_stops_of_each([["a", pattern], None, []], 3) == [("a", pattern), (), ()]
    assert read_stops_of_each(["a", "b", "c"], 3) == [("a", "b", "c")] * 3
    with pytest.raises(ArgumentError, match="one list or None for each of 3 prompts, got 2"):
        read_stops_of_each([["a"], None], 3)
    with pytest.raises(ArgumentError, match=r"'b' for prompt 1; write \['b'\] there"):
        read_stops_of_each([["a"], "b"], 2)
