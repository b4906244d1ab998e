"""How large the code is: `python3 .ci/size.py` counts every folder, and fails above the numbers that stand here.

A line of code has a name, a number, a sign or a text on it: comments, docstrings and empty lines are none. Lines go
because what they did goes: so the tokens of a line of code are counted too, and packing lines gains nothing. A number
in LIMITS is lowered in the commit that makes the code smaller, and raised in a commit of its own that says why.
"""

import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VIRTUAL_GPUS = "virtual_gpus/src"
GEN = "gen without virtual GPUs"
PARTS = [GEN, "virtual GPUs", "tests", "benchmarks"]
# What is counted, of which part: today's limit, and the most that it is to be.
LIMITS: dict[tuple[str, str], tuple[float, float]] = {
    (GEN, "lines"): (50_014, 38_000),
    (GEN, "files"): (327, 255),
    ("virtual GPUs", "lines"): (7_200, 7_200),
    ("virtual GPUs", "files"): (40, 40),
    ("tests", "lines"): (51_600, 41_000),
    ("benchmarks", "lines"): (12_018, 10_000),
    ("all of gen", "tokens per line of code"): (10.40, 10.2),
}
_COUNTED = {tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING}
_F_STRING_STARTS = getattr(tokenize, "FSTRING_START", -1)  # from Python 3.12 on an f-string has tokens of its own
_F_STRING_ENDS = getattr(tokenize, "FSTRING_END", -1)
_BEFORE_A_STATEMENT = {tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_NO_TOKENS = {tokenize.COMMENT, tokenize.NL}


def counted_tokens(file: Path) -> Iterator[tuple[int, int]]:
    """The first and the last line of each token that is code. An f-string is one, whichever Python counts."""
    last, depth, first = tokenize.ENCODING, 0, 0  # depth: f-strings that are open, one in the other
    with file.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            if token.type == _F_STRING_STARTS:
                first = first if depth else token.start[0]
                depth += 1
            elif token.type == _F_STRING_ENDS:
                depth -= 1
                if not depth:
                    yield first, token.end[0]
            elif token.type in _COUNTED and not depth:
                docstring = token.type == tokenize.STRING and last in _BEFORE_A_STATEMENT
                if not docstring:
                    yield token.start[0], token.end[0]
            if token.type not in _NO_TOKENS:
                last = token.type


def size_of(file: Path) -> Counter[str]:
    """Lines, lines of code, tokens and files of one file."""
    tokens = list(counted_tokens(file))
    code = {line for first, last in tokens for line in range(first, last + 1)}
    lines = file.read_bytes().count(b"\n")
    return Counter({"files": 1, "lines": lines, "lines of code": len(code), "tokens": len(tokens)})


def folder_of(file: Path) -> str:
    """The row that a file is counted in: the folders of gen/ apart, the others whole."""
    parts = file.parts
    if file.is_relative_to(VIRTUAL_GPUS):
        return "virtual GPUs"
    return "/".join(parts[: 2 if parts[0] == "gen" and len(parts) > 2 else 1])


def part_of(folder: str) -> str:
    return GEN if folder.split("/")[0] == "gen" else folder


def sizes(root: Path) -> dict[str, Counter[str]]:
    """What each folder has, by name, then each part, and all of gen."""
    found: dict[str, Counter[str]] = {}
    for top in ("gen", VIRTUAL_GPUS, "tests", "benchmarks"):
        for file in sorted((root / top).rglob("*.py")):
            folder = folder_of(file.relative_to(root))
            found[folder] = found.get(folder, Counter()) + size_of(file)
    parts = {part: Counter[str]() for part in PARTS}
    for folder, size in found.items():
        parts[part_of(folder)] += size
    folders = {folder: size for folder, size in found.items() if folder not in parts}
    return folders | parts | {"all of gen": parts[GEN] + parts["virtual GPUs"]}


def value_of(size: Counter[str], what: str) -> float:
    return size["tokens"] / max(1, size["lines of code"]) if what == "tokens per line of code" else size[what]


def shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def main(root: Path = ROOT) -> int:
    found = sizes(root)
    columns = ["lines", "lines of code", "tokens", "files", "tokens per line of code"]
    print(f"{'':26}" + "".join(f"{name:>{len(name) + 3}}" for name in columns))
    for folder, size in found.items():
        cells = (f"{shown(value_of(size, name)):>{len(name) + 3}}" for name in columns)
        print(f"{folder:26}" + "".join(cells))
    print()
    too_much = []
    for (part, what), (limit, target) in LIMITS.items():
        value = value_of(found[part], what)
        print(f"{part}: {shown(value)} {what}, limit {shown(limit)}, to be at most {shown(target)}")
        if round(value, 2) > limit:
            too_much.append(f"{part} has {shown(value)} {what}, the limit is {shown(limit)}")
    for line in too_much:
        print(f"{line}: make it smaller, or raise the limit in a commit of its own that says why", file=sys.stderr)
    return bool(too_much)


if __name__ == "__main__":
    sys.exit(main())
