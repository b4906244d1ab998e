"""Regular expressions. Oracle: Python's re, with and without re.ASCII, on random patterns and random texts."""

import random
import re
import unicodedata
from re import _parser as parser  # type: ignore[attr-defined]

import pytest

from benchmarks.constraints.random_types import REGEX_LETTERS, random_pattern
from gen.constraints.automata.dfa import Table
from gen.constraints.automata.limits import Budget, Empty, TooLarge, Unsupported
from gen.constraints.automata.parsing import parsed
from gen.constraints.automata.regexes import choice_table, matched, regex_table
from gen.constraints.automata.spelling import raw_table
from gen.constraints.automata.texts import holds
from tests.constraints.walks import random_texts

pytestmark = pytest.mark.filterwarnings("ignore:Possible:FutureWarning")  # Python warns about "[["


def table_of(pattern: str) -> Table | None:
    try:
        return regex_table(pattern)
    except Empty:
        return None


def accepts(table: Table | None, text: str) -> bool:
    return table is not None and table.accepts(text.encode())


@pytest.mark.parametrize("seed", range(3))
def test_a_regex_accepts_what_fullmatch_does(seed: int) -> None:
    """Accepted texts match with and without re.ASCII, and whatever both readings match is accepted, but for letters
    beyond ASCII where these are in doubt."""
    chance, matches = random.Random(seed), 0
    for _ in range(130):
        pattern = random_pattern(chance)
        try:
            found = table_of(pattern)
        except Unsupported:
            continue
        for _ in range(40):
            text = "".join(chance.choices(REGEX_LETTERS, k=chance.randint(0, 6)))
            unicode, ascii_only = (re.fullmatch(pattern, text, flags) is not None for flags in (0, re.ASCII))
            if not re.search(r"\\[dwsb]", pattern.lower()):
                assert accepts(found, text) == unicode, (pattern, text)
            elif accepts(found, text):
                assert unicode and ascii_only, (pattern, text)
            elif text.isascii() and "(?i" not in pattern:
                assert not (unicode and ascii_only), (pattern, text)
            matches += accepts(found, text)
    assert matches > 100


def test_general_categories_of_unicode_are_sets_of_characters() -> None:
    characters = "aAé٣3 _-ǅ\u0300€😀\n\u0378"  # the last one is not assigned
    named = {"L": "L", "Lu": "Lu", "gc=Nd": "Nd", "P": "P", "Sc": "Sc"}
    for name, begin in named.items():
        for one in characters:
            within = unicodedata.category(one).startswith(begin)
            assert accepts(table_of(rf"\p{{{name}}}"), one) == within
            assert accepts(table_of(rf"[x\p{{{name}}}]"), one) == within
            for pattern in (rf"\P{{{name}}}", rf"[^\p{{{name}}}]"):
                assert accepts(table_of(pattern), one) == (not within and one != "\u0378")
    with pytest.raises(Unsupported, match="only general categories of Unicode"):
        regex_table(r"\p{Script=Greek}")


@pytest.mark.parametrize(
    "pattern",
    [r"\bab\b.*", r".*\bé.*", r"\w+\b \b\w+", r".*a\B.*", r"(\b|x)a+(\b|x)", r"(?m:^a\b.$)", r"\b\b"],
)
def test_word_boundaries_hold_in_both_readings(pattern: str) -> None:
    chance = random.Random(3)
    found = table_of(pattern)
    for _ in range(3000):
        text = "".join(chance.choices("ab é_x.\n", k=chance.randint(0, 6)))
        unicode, ascii_only = (re.fullmatch(pattern, text, flags) is not None for flags in (0, re.ASCII))
        assert accepts(found, text) == (unicode and ascii_only) or (not text.isascii() and not accepts(found, text))


ODD = "a_1 \t\n\x1c\x85\xa0éß٣日²\u017fİ\ufeff\u2028😀"


def test_a_class_holds_what_it_holds_in_every_reading() -> None:
    """Random classes, against Python's re with and without re.ASCII: both readings must take a character."""
    chance = random.Random(8)
    parts = [r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "a", "é", "1-3", " ", "_"]
    for _ in range(150):
        pattern = f"[{chance.choice(['', '^'])}{''.join(chance.sample(parts, chance.randint(1, 3)))}]"
        found, ascii_only = table_of(pattern), table_of(f"(?a){pattern}")
        for text in ODD:
            readings = [re.fullmatch(pattern, text, flags) is not None for flags in (0, re.ASCII)]
            if text != "\ufeff" or not {"\\s", "\\S"} & set(
                re.findall(r"\\.", pattern)
            ):  # white space for ECMA 262 alone
                assert accepts(found, text) == all(readings), (pattern, text)
            assert accepts(ascii_only, text) == readings[1], (pattern, text)
    for pattern in (r"[\w\W]", r"[\d\D]", r"[\s\S]", r"[^\w\d]|[\w]|[\s\S]"):
        assert all(accepts(table_of(pattern), text) for text in ODD)


def test_with_ascii_a_pattern_is_read_as_written() -> None:
    chance = random.Random(9)
    patterns = [r"é\B.?", r"\bx\b.*", r"\W+", r"(\w\W)*", r".\B.", "(?i:\u017f|k)+"]
    for pattern in patterns:
        found = table_of(f"(?a){pattern}")
        for _ in range(500):
            text = "".join(chance.choices("xé _K\u017f٣", k=chance.randint(0, 4)))
            assert accepts(found, text) == (re.fullmatch(pattern, text, re.ASCII) is not None), (pattern, text)


def test_every_text_of_a_regex_matches_it() -> None:
    for number, pattern in enumerate([r"\S+@\S+", r"\W{3}", r"[^\d]+", r"(?i)straße\s\D*", r"\w+(?s:.)\w+$"]):
        for text in random_texts(regex_table(pattern), 60, seed=number):
            assert re.fullmatch(pattern, text), text
            assert "(?i" in pattern or re.fullmatch(pattern, text, re.ASCII), text


def test_search_is_that_of_json_schema() -> None:
    for pattern in ("^a|b$", "a", "^[ab]+$", "^$", "", "(^a$|^b)", "a.b", "^(?!.*bb)a", "^(?=.*b)(?=.*a)"):
        texts = matched(pattern, Budget(), search=True, ecma=True)
        for length in range(5):
            for number in range(4**length):
                text = "".join("ab\nc"[number // 4**place % 4] for place in range(length))
                strict = re.search(pattern.replace("$", r"\Z"), text) is not None  # ECMA's $ means only the end
                assert holds(texts, text) == strict, (pattern, text)


def test_a_pattern_is_narrow_in_every_reading_and_wide_in_any() -> None:
    for pattern, text in ((r"^\w$", "é"), (r"^\d$", "٣"), (r"^\s$", "\x1c"), (r"^.$", "\r"), (r"^a$", "a\n")):
        narrow, wide = (matched(pattern, Budget(), search=True, ecma=True, certain=one) for one in (True, False))
        assert not holds(narrow, text) and holds(wide, text), pattern
        assert re.search(pattern, text)  # Python's reading


def test_flags_that_a_pattern_begins_with() -> None:
    for flags, written in (
        (re.IGNORECASE | re.ASCII, "(?ai)"),
        (re.IGNORECASE, "(?i)"),
        (re.DOTALL, "(?s)"),
        (re.VERBOSE, "(?x)"),
        (re.MULTILINE, "(?m)"),
    ):
        found = regex_table(f"{written}^a .b$")
        for text in ("a xb", "A XB", "a \nb", "axb", "a xb\n", "ax b"):
            expected = re.fullmatch("^a .b$", text, flags) is not None
            assert accepts(found, text) == expected


@pytest.mark.parametrize(
    "pattern",
    [r"(a)\1", r"a(?=b)b", r"(?<=a)b", r"(?:(?!x).)*", r"a++", r"(?>a)", r"(", r"a{5,2}", r"\p{Greek}"],
)
def test_what_is_not_regular_is_unsupported_and_named(pattern: str) -> None:
    with pytest.raises(Unsupported, match="regex"):
        regex_table(pattern)


def test_what_looks_like_a_named_group_of_ecma_is_none() -> None:
    for pattern in (r"\(?<b>", r"[(?<a-c]+", r"\\(?P<b>a)", r"[a(?<b]\(?<c"):
        for text in ("<b>", "(<b>", "P<b>", "(?<b", "P", "\\a", "(<c", "a<c", "aP<c"):
            assert accepts(table_of(pattern), text) == bool(re.fullmatch(pattern, text)), (pattern, text)
    assert accepts(table_of("(?<name>a)(?<_b>b)"), "ab")


def test_brackets_in_comments_are_none() -> None:
    """Random pieces of patterns have the parse trees that re itself makes."""
    chance = random.Random(11)
    pieces = [
        "a",
        "[",
        "]",
        "^",
        "(",
        "(?:",
        ")",
        "(?x:",
        "(?-x:",
        "#",
        " ",
        "\n",
        "\\",
        "(?#",
        "-",
        "&&",
        "\\]",
        "\\#",
    ]
    read = 0
    for _ in range(20_000):
        pattern = "".join([chance.choice(["", "(?x)"]), *chance.choices(pieces, k=chance.randint(1, 8))])
        trees = list[str | None]()
        for parse in (parser.parse, parsed):
            try:
                trees.append(repr(parse(pattern)))
            except (re.error, Unsupported):
                trees.append(None)
        assert trees[0] == trees[1], pattern
        read += trees[0] is not None
    assert read > 4000
    for pattern in ("(?x)a # [of a\n[b]", "(?#[)a[b]", "(?x: a # [\n [b] )", r"(?x)a # \p{unknown}" "\nb"):
        assert accepts(table_of(pattern), "ab") and not accepts(table_of(pattern), "a[b]"), pattern


def test_a_regex_without_texts_is_empty() -> None:
    for pattern in (r"a\bb", "$a", "a^b", "(?!a)a", r"[^\s\S]"):
        with pytest.raises(Empty):
            regex_table(pattern)


def test_a_choice_is_its_options_and_nothing_else() -> None:
    options = ["", "yes", "no", "nobody", "é", "日本", "no way"]
    found = choice_table(options)
    for text in [*options, "y", "n", "nob", "日", "yesno", " no"]:
        assert found.accepts(text.encode()) == (text in options)
    with pytest.raises(Empty):
        choice_table([])


def test_bytes_that_are_no_utf8_are_never_accepted() -> None:
    texts = matched("[\\s\\S]{1,2}", Budget())
    assert texts is not None
    found = raw_table(texts, Budget())
    for data in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x98", b"a\x80"):
        assert not found.accepts(data)
    for code in (0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF):
        assert found.accepts(chr(code).encode())


def test_a_long_or_deep_pattern_is_too_large() -> None:
    for pattern in ("(" * 5000 + ")" * 5000, "a" * 200_000):
        with pytest.raises(TooLarge):
            regex_table(pattern)
