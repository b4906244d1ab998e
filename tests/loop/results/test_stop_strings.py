"""Stop strings: found wherever the text is cut, by a brute-force oracle over random cuts."""

import random

import pytest

from gen.errors import ArgumentError
from gen.loop.results.stop_strings import StopStrings, read_stops
from gen.tokenizers import Detokenizer, Tokenizer
from tests.helpers import byte_tokenizer


def stopped(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the first stop string to end, by trying every end."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def test_any_cut_gives_what_brute_force_gives() -> None:
    rng = random.Random(0)
    cuts, found = 0, 0
    while cuts < 1000:
        text = "".join(rng.choice("ab中é🙂") for _ in range(rng.randint(0, 30)))
        stops = ["".join(rng.choice("ab中é🙂") for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(0, 3))]
        positions = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, 6)))
        cuts += len(positions)
        matcher = StopStrings(stops)
        out = ""
        for begin, end in zip([0, *positions], [*positions, len(text)], strict=True):
            out += matcher.push(text[begin:end])
            assert stopped(text, stops)[0].startswith(out), "text came out that a stop string takes back"
        out += matcher.flush()
        assert (out, matcher.found) == stopped(text, stops)
        found += matcher.found
    assert found > 20


def test_hidden_text_is_looked_at_and_never_passed_on() -> None:
    rng = random.Random(1)
    found = 0
    for _ in range(500):
        pieces = [(rng.choice(["a", "b", "ab", "ba", "aab"]), rng.random() < 0.3) for _ in range(rng.randint(0, 8))]
        stops = ["".join(rng.choice("ab") for _ in range(rng.randint(2, 5))) for _ in range(rng.randint(0, 2))]
        text = "".join(piece for piece, _ in pieces)
        hidden = [is_hidden for piece, is_hidden in pieces for _ in piece]
        before, ends = stopped(text, stops)
        matcher = StopStrings(stops)
        out = "".join(matcher.push(piece, hidden=is_hidden) for piece, is_hidden in pieces) + matcher.flush()
        shown = "".join(character for character, is_hidden in zip(before, hidden, strict=False) if not is_hidden)
        assert (out, matcher.found) == (shown, ends)
        found += ends
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


@pytest.mark.parametrize("stop", ["", ["a", ""], [3], [None], [b"x"]])
def test_empty_stop_strings_are_refused(stop: str | list[str]) -> None:
    with pytest.raises(ArgumentError, match="stop takes strings of at least one character, got"):
        read_stops(stop)
    assert read_stops(None) == ()
    assert read_stops("x") == ("x",)
