"""A call's outcome as JSON, without what differs from run to run: times, places, and how the work was shared out."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

VOLATILE = {"cached_tokens", "drafted", "accepted", "seconds"}
TOLERANCE = 2e-4  # of log-probabilities: gen promises 1e-4 for drafts
Difference = tuple[str, Any, Any]
"""Where two outcomes differ, and what is there in each."""


def told(value: Any, root: str = "") -> Any:
    """A value, or an error, as JSON.

    Args:
        root: the folder with the gen that was called, whose name tells nothing.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else repr(value)
    if isinstance(value, str):
        text = value.replace(root, "ROOT") if root else value
        return re.sub(rf"{re.escape(tempfile.gettempdir())}/[\w.-]+", "TMP", re.sub(r"\b0x[0-9a-f]{6,}", "0x", text))
    if isinstance(value, BaseException):
        more = {name: told(getattr(value, name), root) for name in ("completion", "results") if hasattr(value, name)}
        return {"error": told(f"{type(value).__name__}: {value}", root), **more}
    if isinstance(value, Tensor | np.ndarray):
        return told(value.tolist(), root)
    if is_dataclass(value) and not isinstance(value, type) and type(value).__module__.startswith("gen."):
        shown = {one.name: getattr(value, one.name) for one in fields(value) if one.repr}
        return told({name: one for name, one in shown.items() if name not in VOLATILE}, root)
    if isinstance(value, Mapping):
        return {str(name): told(one, root) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [told(one, root) for one in value]
    return told(f"{type(value).__name__}: {value!r}", root)


def differences(before: Any, after: Any, tolerance: float, path: str = "") -> Iterator[Difference]:
    """Where two outcomes differ; numbers with a point may differ by this share."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            none = "nothing"
            yield from differences(before.get(name, none), after.get(name, none), tolerance, f"{path}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, tolerance, f"{path}[{number}]")
    elif isinstance(before, float) and isinstance(after, float):
        if abs(before - after) > tolerance * max(1.0, abs(before)):
            yield path, before, after
    elif before != after or type(before) is not type(after):
        yield path, before, after


def short(before: Any, after: Any, length: int = 100) -> list[str]:
    """Both from a little before the first place where they differ."""
    texts = [repr(before), repr(after)]
    at = next((n for n, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
    begin = max(0, at - 30)
    return [("..." if begin else "") + text[begin:][:length] + "..." * (len(text) > begin + length) for text in texts]
