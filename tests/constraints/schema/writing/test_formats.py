"""Formats. Oracle: Python's own readers, and written-out rules of names and addresses."""

import re
import uuid
from collections.abc import Callable
from datetime import date, datetime, time
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator

from gen.constraints.schema import string_table
from tests.constraints.walks import random_texts

POINTER = re.compile(r"(/([^/~]|~[01])*)*")
RELATIVE = re.compile(rf"\d+(#|{POINTER.pattern})")


def hostname(text: str) -> bool:
    labels = text.split(".")
    return len(text) <= 253 and all(re.fullmatch(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)", label) for label in labels)


def email(text: str) -> bool:
    local, _, domain = text.rpartition("@")
    return bool(local) and ".." not in local and hostname(domain) and "." in domain


def uri(text: str) -> bool:
    parts = urlsplit(text)
    legal = re.fullmatch(r"([a-zA-Z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9a-fA-F]{2})*", text) is not None
    return legal and bool(parts.scheme) and (not parts.netloc or bool(parts.hostname)) and (parts.port or 0) >= 0


def reference(text: str) -> bool:
    return uri(f"s:{text}") or uri(text)


def known(name: str) -> Callable[[str], object]:
    checker = Draft202012Validator.FORMAT_CHECKER
    return lambda text: name not in checker.checkers or checker.conforms(text, name)


ORACLES: dict[str, tuple[Callable[[str], object], list[str], list[str]]] = {
    "date": (
        date.fromisoformat,
        ["2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31"],
        ["2023-02-29", "1900-02-29"],
    ),
    "time": (time.fromisoformat, ["23:59:59Z", "00:00:00.5+01:30"], ["24:00:00Z", "12:00:60Z", "12:00"]),
    "date-time": (datetime.fromisoformat, ["2024-02-29T23:59:59.123-08:00"], ["2024-01-01 00:00:00Z", "2024-01-01"]),
    "duration": (
        re.compile(r"P(?=.)(\d+[YMWD])*(T(\d+[HMS])+)?").fullmatch,
        ["P1Y2M3D", "PT5M", "P3W"],
        ["P", "PT", "1D"],
    ),
    "ipv4": (IPv4Address, ["0.0.0.0", "255.255.255.255"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
    "ipv6": (
        IPv6Address,
        ["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2"],
        ["1::2::3", ":::", "1:2:3:4:5:6:7:8:9"],
    ),
    "uuid": (uuid.UUID, [str(uuid.UUID(int=7))], ["0" * 32]),
    "hostname": (
        hostname,
        ["a", "ab", "a-b.example.com", "a--b", "x" * 63],
        ["-a", "a..b", "x" * 64, "a_b", "xn--ihqwcrb4cv8a", "ab--c"],
    ),
    "idn-hostname": (hostname, ["example.org"], ["a b"]),
    "email": (email, ["ada.lovelace+x@example.org"], ["a@b", "@example.org", "a@@b.cd", "a b@c.de"]),
    "idn-email": (email, ["ada@example.org"], ["a"]),
    "uri": (
        uri,
        ["https://ada@x.org:80/a/b?q=1#f", "https://u:p%20w@x.org", "file:///a/b", "urn:isbn:1", "mailto:a@b.de"],
        ["//a.b", "http://x:abc", "1:x", "http:///a", "file://", "http://@/a"],
    ),
    "iri": (uri, ["http://example.org/"], ["http://"]),
    "uri-template": (uri, ["http://example.org/a"], [" "]),
    "uri-reference": (
        lambda text: uri(f"s:{text}") or uri(text),
        ["", "/a/b", "a?b#c", "#x", "http://a.b"],
        ["%", "a b"],
    ),
    "iri-reference": (reference, ["../a"], ["\\"]),
    "json-pointer": (POINTER.fullmatch, ["", "/a~1b/0", "/"], ["a", "/~", "/~2"]),
    "relative-json-pointer": (RELATIVE.fullmatch, ["0", "1/a", "2#"], ["01", "/a", "-1"]),
    "regex": (
        re.compile,
        ["^[a-z]+$", r"a\.b?", "(a|b)*c", "^on|off$", "|", r"\bx"],
        ["(", "[", "a**", "*", "a|*", "a|(b", r"\B*"],
    ),
}


@pytest.mark.parametrize("name", ORACLES)
def test_every_text_of_a_format_is_one_to_other_readers(name: str) -> None:
    oracle, good, bad = ORACLES[name]
    table = string_table({"type": "string", "format": name})
    for text in random_texts(table, 150, seed=len(name), longest=80):
        assert oracle(text) not in (False, None), text
        assert known(name)(text), text
    for text in good:
        assert table.accepts(text.encode()), text
    for text in bad:
        assert not table.accepts(text.encode()), text


def test_a_format_that_is_none_of_json_schema_says_nothing() -> None:
    table = string_table({"type": "string", "format": "color", "maxLength": 3})
    assert table.accepts(b"any") and table.accepts(b"") and not table.accepts(b"many")
