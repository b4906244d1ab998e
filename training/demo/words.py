"""Word lists as plain text, and the article before a word."""

import re


def words(text: str) -> tuple[str, ...]:
    """The entries of a list: separated by "|" if it has any (entries may then have spaces), otherwise by blanks."""
    return tuple(text.strip().split("|") if "|" in text else text.split())


def fix_articles(text: str) -> str:
    """Turn "a old owl" into "an old owl"; "a us..." (useful, usual) stays."""
    return re.sub(r"\b([Aa]) (?=[aeioAEIO]|[uU](?!s))", r"\1n ", text)
