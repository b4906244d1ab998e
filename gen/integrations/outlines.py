"""gen inside Outlines 0.0.46: gen's samplers, and exllamav2 by `gen.from_exllamav2`.

import gen.integrations.outlines
gen.integrations.outlines.patch()
model = outlines.models.exl2("path/of/exl2", device="cuda:1")
outlines.generate.text(model)("Once upon a time", stop_at=["."])
"""

import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gen.samplers
from gen.errors import ArgumentError
from gen.integrations.outlines_exl2 import OutlinesExl2, OutlinesState, exl2
from gen.runtime.forking import new_lock
from gen.samplers import GreedySampler, MultinomialSampler

VERSION = "0.0.46"
_SAMPLERS = (
    "BeamSearchSampler",
    "GreedySampler",
    "MultinomialSampler",
    "beam_search",
    "greedy",
    "keep_top_k_logits",
    "keep_top_p_logits",
    "multinomial",
    "rescale_logits",
)
_GENERATORS = ("cfg", "choice", "format", "fsm", "json", "regex", "text")  # functions of outlines.generate

_undo: list[tuple[Any, str, Any]] = []  # (owner, name, value before), in the order in which values were replaced
_lock = new_lock()


class _Patched:
    """The result of `patch`; as a with block it calls `unpatch` at its end."""

    def __enter__(self) -> None:
        """Outlines is patched already."""

    def __exit__(self, *error: object) -> None:
        unpatch()


def patch() -> _Patched:
    """Let Outlines 0.0.46 use gen, until `unpatch`, or to the end of the block of `with patch():`.

    This replaces Outlines' samplers, in every module that has imported them and in default arguments, and
    `models.exl2`. docs/outlines.md says what changes. A second call changes nothing more.

    Raises:
        ArgumentError: Outlines is not installed, or in another version; nothing is changed.
    """
    try:
        found = version("outlines")
    except PackageNotFoundError:
        found = "none"
    if found != VERSION:
        raise ArgumentError(
            f"patch() is for Outlines {VERSION}, there is {found}; install it with outlines=={VERSION}."
        )
    with _lock:
        if not _undo:
            try:
                for owner, name, value in list(_replacements()):
                    _undo.append((owner, name, getattr(owner, name)))
                    setattr(owner, name, value)
            except BaseException:
                _take_back()
                raise
    return _Patched()


def unpatch() -> None:
    """Restore Outlines to what it was before `patch`; does nothing if it is not patched."""
    with _lock:
        _take_back()


def _take_back() -> None:
    while _undo:
        owner, name, value = _undo.pop()
        setattr(owner, name, value)


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """What to replace: (owner, name, new value)."""
    import outlines.generate.api
    import outlines.generate.generator
    import outlines.models.exllamav2
    import outlines.samplers

    theirs = {name: getattr(outlines.samplers, name) for name in _SAMPLERS}
    for key, module in list(sys.modules.items()):
        if key.partition(".")[0] == "outlines":
            for name, original in theirs.items():
                if getattr(module, name, None) is original:
                    yield module, name, getattr(gen.samplers, name)
            if getattr(module, "exl2", None) is outlines.models.exllamav2.exl2:
                yield module, "exl2", exl2
    default = theirs["MultinomialSampler"]
    for name in _GENERATORS:
        function = getattr(sys.modules[f"outlines.generate.{name}"], name)
        for one in getattr(function, "registry", {None: function}).values():  # a function for each kind of model
            if one.__defaults__:
                made = (gen.samplers.multinomial() if type(value) is default else value for value in one.__defaults__)
                yield one, "__defaults__", tuple(made)
    yield outlines.generate.api, "sequence_generator", _sequence_generator(outlines.generate.api.sequence_generator)
    reorder = _reorder_kv_cache(outlines.generate.generator.reorder_kv_cache)
    yield outlines.generate.generator, "reorder_kv_cache", reorder


def _sequence_generator(theirs: Any) -> Any:
    """Outlines' loop; an exl2 model learns here whether its sampler ever continues another row."""

    def sequence_generator(model: Any, sampler: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(model, OutlinesExl2):
            model = partial(model, reorders=type(sampler) not in (GreedySampler, MultinomialSampler))
        return theirs(model, sampler, *arguments, **named)

    return sequence_generator


def _reorder_kv_cache(theirs: Any) -> Any:
    """Outlines' function that reorders a KV cache, which can now reorder the state of an exl2 model too."""

    def reorder_kv_cache(kv_cache: Any, ancestors: Any) -> Any:
        if not isinstance(kv_cache, OutlinesState):
            return theirs(kv_cache, ancestors)
        kv_cache.reorder(ancestors)
        return kv_cache

    return reorder_kv_cache
