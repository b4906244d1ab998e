"""The formats of JSON Schema as regular expressions.

Each allows the part of its RFC that every reader accepts: no leap seconds, no year 0, names short enough that no part
of them is too long. Any other format says nothing about a text, as in the specification.
"""

from functools import cache

from gen.constraints.automata.dfa import Dfa
from gen.constraints.automata.limits import MOST_WORK_OF_A_CONSTANT, Budget
from gen.constraints.automata.regexes import matched
from gen.constraints.automata.texts import ANY, of_length

_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"
_MONTH_AND_DAY = r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
DATE = rf"({_YEAR}-{_MONTH_AND_DAY}|{_LEAP}-02-29)"
CLOCK = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?"
_TIME = rf"{CLOCK}(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_TIME_OF_DURATION = r"T(\d{1,9}H(\d{1,9}M(\d{1,9}S)?)?|\d{1,9}M(\d{1,9}S)?|\d{1,9}S)"
_DAYS_OF_DURATION = r"(\d{1,9}D|\d{1,9}M(\d{1,9}D)?|\d{1,9}Y(\d{1,9}M(\d{1,9}D)?)?)"
OCTET = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
IPV4 = rf"{OCTET}(\.{OCTET}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"
_MIDDLES = "|".join(f"({_GROUP}:){{1,{7 - after}}}(:{_GROUP}){{1,{after}}}" for after in range(1, 7))
_IPV6 = f"(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,7}}:|{_MIDDLES}|:(:{_GROUP}){{1,7}}|::)"
_LABEL = (  # third and fourth character are not both hyphens: that marks names in other alphabets
    "[a-zA-Z0-9]([a-zA-Z0-9]|[a-zA-Z0-9-]([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
    "|-[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?))?"
)
_PLAIN_LABEL = "[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*"  # two hyphens are special in names of other alphabets
_EMAIL = rf"[a-zA-Z0-9_+-]+(\.[a-zA-Z0-9_+-]+)*@{_LABEL}(\.{_LABEL})+"
_ESCAPED = r"%[0-9a-fA-F]{2}"
_PATH = rf"([a-zA-Z0-9._~!$&'()*+,;=:@-]|{_ESCAPED})"
_QUERY = rf"([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|{_ESCAPED})*"
_AFTER_PATH = rf"(\?{_QUERY})?(#{_QUERY})?"
_AUTHORITY = rf"//(([a-zA-Z0-9._~!$&'()*+,;=:-]|{_ESCAPED})+@)?{_LABEL}(\.{_LABEL})*(:[1-9]\d{{0,3}})?"
_LOCAL = rf"//(/{_PATH}+)+/?"  # after "file:", of no host
_URI = rf"([a-zA-Z][a-zA-Z0-9+.-]*:({_AUTHORITY}(/{_PATH}*)*|/?{_PATH}+(/{_PATH}+)*/?)|file:{_LOCAL}){_AFTER_PATH}"
_SEGMENT = rf"([a-zA-Z0-9._~!$&'()*+,;=@-]|{_ESCAPED})"  # without a colon, so that a first segment is no scheme
_REFERENCE = rf"({_URI}|(/({_PATH}+(/{_PATH}*)*)?|{_SEGMENT}+(/{_PATH}*)*)?{_AFTER_PATH})"
_POINTER = r"(/([^/~]|~[01])*)*"
_ATOM = r"([a-zA-Z0-9 _,:;@%&=~\"'<>!#/-]|\\[dDwWsS.\\/^$*+?()\[\]{}|-]|\.|\[\^?([a-zA-Z0-9 _.,:@]|a-z|A-Z|0-9)+\])"
_ATOMS = rf"({_ATOM}([*+?]|\{{[1-9]\}})?|\\[bB])*"
_BRANCH = rf"\^?{_ATOMS}(\({_ATOMS}(\|{_ATOMS})*\)[*+?]?{_ATOMS})*\$?"

FORMATS = {
    "date": DATE,
    "time": _TIME,
    "date-time": f"{DATE}T{_TIME}",
    "duration": rf"P(\d{{1,9}}W|{_DAYS_OF_DURATION}({_TIME_OF_DURATION})?|{_TIME_OF_DURATION})",
    "ipv4": IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "idn-hostname": rf"{_PLAIN_LABEL}(\.{_PLAIN_LABEL})*",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "uri-template": _URI,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d{{0,8}})(#|{_POINTER})",
    "regex": rf"{_BRANCH}(\|{_BRANCH})*",
    "base64 encoding": r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
}

LONGEST = {"hostname": 63, "idn-hostname": 63, "email": 64, "idn-email": 64}  # of the whole text: the limit of one part


def format_texts(name: str) -> Dfa | None:
    """The texts of a format; any text for other formats."""
    return _known(name) if name in FORMATS else ANY


@cache
def _known(name: str) -> Dfa | None:
    return of_length(matched(FORMATS[name], Budget(MOST_WORK_OF_A_CONSTANT)), 0, LONGEST.get(name))
