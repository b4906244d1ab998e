"""Patterns for what pydantic checks and no keyword of JSON Schema says: bounds of dates, number keys, addresses.

Example: dates from 2020-03-01 on are texts of the form of a date that are not less than "2020-03-01", letter by letter.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Any

from gen.constraints.schema.writing.formats import CLOCK, DATE, IPV4, OCTET

_EMAIL_LABEL = "[a-z0-9]+(-[a-z0-9]+)*"
_RESERVED = "arpa|example|internal|invalid|local|localhost|onion|test"  # top-level domains that no mail is sent to

NAIVE = f"^{DATE}T{CLOCK}$"
"""The texts of moments without an offset from UTC."""

NUMBER = r"^-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?$"

FORMATS: dict[str, dict[str, Any]] = {
    "email": {
        "pattern": rf"^(?!.*\.({_RESERVED})$)[a-z0-9]+([._+-][a-z0-9]+)*@({_EMAIL_LABEL}\.)+[a-z]{{2,12}}$",
        "maxLength": 64,
    },
    "ipv4interface": {"pattern": rf"^{IPV4}(/([12]?[0-9]|3[0-2]))?$"},
    "ipv4network": {"pattern": rf"^({IPV4}(/32)?|({OCTET}\.){{3}}0/24|({OCTET}\.){{2}}0\.0/16|{OCTET}\.0\.0\.0/8)$"},
    "ipv6interface": {"format": "ipv6"},
    "ipv6network": {"format": "ipv6"},
    "ipvanyaddress": {"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    "ipvanyinterface": {"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    "ipvanynetwork": {"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    "password": {},
    "path": {},
    **{f"uuid{version}": {"format": "uuid", "pattern": f"^.{{14}}{version}.{{4}}[89abAB]"} for version in range(1, 9)},
}
"""Pydantic's own formats in JSON Schema, beside `type`; pydantic reads every text that meets them."""


def dates(bounds: Mapping[str, Any]) -> str:
    """The pattern of dates within the bounds ge, gt, le and lt; only for texts that are dates."""
    low, high = _inclusive(bounds, timedelta(days=1), date.min, date.max)
    return _any(between(low.isoformat(), high.isoformat()))


def moments(bounds: Mapping[str, Any]) -> str:
    """The texts of moments in UTC within the bounds ge, gt, le and lt, in whole seconds and parts of them.

    The first and the last second have no parts, so that bounds hold to the microsecond.

    Raises:
        ValueError: a bound does not say its offset from UTC.
    """
    found = {}
    for word, bound in bounds.items():
        if bound.tzinfo is None:
            raise ValueError(f"{bound} has no offset from UTC")
        found[word] = bound.astimezone(UTC).replace(tzinfo=None)
    low, high = _inclusive(found, timedelta(microseconds=1), datetime.min, datetime.max)
    second = timedelta(seconds=1)
    first = low if not low.microsecond else low.replace(microsecond=0) + second
    last = high.replace(microsecond=0)
    whole = "|".join(between(first.isoformat(), last.isoformat()))
    parted = "|".join(between(first.isoformat(), (last - second).isoformat())) if last > datetime.min else ""
    ways = [f"({whole})Z"] * bool(whole) + [rf"({parted})\.[0-9]{{1,6}}Z"] * bool(parted)
    return _any(ways)


def _inclusive(bounds: Mapping[str, Any], step: timedelta, least: Any, most: Any) -> tuple[Any, Any]:
    """The lowest and the highest value of the bounds ge, gt, le and lt."""
    moved = {word: bound + {"gt": step, "lt": -step}.get(word, timedelta(0)) for word, bound in bounds.items()}
    lows, highs = ([moved[word] for word in words if word in moved] for words in (("ge", "gt"), ("le", "lt")))
    return max(lows, default=least), min(highs, default=most)


def _any(patterns: Iterable[str]) -> str:
    """A pattern of whole texts that match one of the patterns; without patterns, it matches no text."""
    found = "|".join(patterns)
    return f"^({found})$" if found else "^(?!)"


def decimals(digits: int | None, places: int | None, bounds: Mapping[str, Any]) -> str:
    """The texts of decimal numbers of at most `digits` digits, at most `places` of them after the point, within the
    bounds ge, gt, le and lt.
    """
    places = min(places or 0, 18 if digits is None else digits)
    before = min(18, 18 if digits is None else digits - places)
    if not bounds:
        whole = f"(0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
        after = rf"(\.[0-9]{{1,{places}}})" + "?" * bool(before) if places else ""
        return f"^-?{whole}{after}$"
    found: list[str] = []
    for count in range(0 if before else 1, places + 1):  # numbers with so many digits after the point, as whole ones
        limits = {word: Fraction(str(bound)) * 10**count for word, bound in bounds.items()}
        most = 10 ** (before + count) - 1
        low = max(-most, ceil(limits.get("ge", -most)), floor(limits.get("gt", -most - 1)) + 1)
        high = min(most, floor(limits.get("le", most)), ceil(limits.get("lt", most + 1)) - 1)
        found += _positive(max(low, 0), high, count)
        found += (f"-{text}" for text in _positive(max(-high, 1), -low, count))
    return _any(found)


def _positive(low: int, high: int, places: int = 0) -> Iterator[str]:
    """Patterns of the whole numbers from `low` to `high`, with a point before the last so many digits."""
    for length in range(max(len(str(low)), places + 1), max(len(str(high)), places + 1) + 1 if high >= low else 0):
        first = max(low, 10 ** (length - 1) if length > places + 1 else 0)
        last = min(high, 10**length - 1)
        yield from between(*(_pointed(str(one).rjust(length, "0"), places) for one in (first, last)))


def _pointed(digits: str, places: int) -> str:
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def between(low: str, high: str) -> Iterator[str]:
    """Patterns of the texts from `low` to `high`, of one length; characters that are no digits are the same in all."""
    if low > high:
        return
    same = next((place for place, (one, other) in enumerate(zip(low, high, strict=True)) if one != other), len(low))
    head = low[:same].replace(".", r"\.")
    if same == len(low):
        yield head
        return
    inner = (low[same + 1 :], high[same + 1 :])
    least, most = (_ends(text, digit) for text, digit in zip(inner, "09", strict=True))
    first, last = int(low[same]) + (not least), int(high[same]) - (not most)
    if not least:
        yield from (head + low[same] + tail for tail in between(inner[0], _filled(inner[0], "9")))
    if first <= last:
        yield head + f"[{first}-{last}]" + _filled(inner[0], "[0-9]").replace(".", r"\.")
    if not most:
        yield from (head + high[same] + tail for tail in between(_filled(inner[1], "0"), inner[1]))


def _ends(text: str, digit: str) -> bool:
    """Whether all digits of a text are this one."""
    return all(one == digit for one in text if one.isdigit())


def _filled(text: str, digit: str) -> str:
    """The text with something else in place of each digit."""
    return "".join(digit if one.isdigit() else one for one in text)
