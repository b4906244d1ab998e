"""Engines for JSON schemas behind one interface: a schema becomes a function that says whether it accepts a text."""

import json
import re
import signal
from collections.abc import Callable
from importlib.util import find_spec
from types import FrameType
from typing import Any

import gen
from gen.constraints.tables.vocabulary import vocabulary_of
from gen.models.base import Model

Accepts = Callable[[str], bool]
Engine = Callable[[Any], Accepts]
"""Takes a schema, and raises an error if it refuses it."""


class TooSlow(Exception):
    """An engine took longer than its time."""


def engines(model: Model) -> dict[str, Engine]:
    """The engines that are installed, for a model's vocabulary. Texts are compact."""
    out = {f"gen, {reading}": _ours(model, reading == "closed", device=True) for reading in ("closed", "open")}
    out |= {
        f"gen or host, {reading}": _ours(model, reading == "closed", device=False) for reading in ("closed", "open")
    }
    out["llguidance, open"] = _llguidance(model)
    if find_spec("outlines_core"):
        out["outlines_core, closed"] = _outlines_core
    if find_spec("xgrammar"):
        out |= {f"xgrammar, {reading}": _xgrammar(model, reading == "closed") for reading in ("closed", "open")}
    return out


def within(seconds: int, call: Callable[[Any], Any], argument: Any) -> Any:
    """The result of a call. Raises TooSlow if it takes more of the CPU's time; on Unix, in the main thread."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds} seconds of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return call(argument)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _ours(model: Model, closed: bool, *, device: bool) -> Engine:
    def compile(schema: Any) -> Accepts:
        constraint = gen.compile(model, gen.json_schema(schema, closed=closed, whitespace="compact"))
        if device and constraint.automaton is None:
            raise ValueError(constraint.reason)
        return constraint.accepts

    return compile


def _llguidance(model: Model) -> Engine:
    from llguidance import LLMatcher

    from gen.constraints.host_engine import Grammar

    def compile(schema: Any) -> Accepts:
        grammar = LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        )
        own = Grammar(grammar, vocabulary_of(model))
        return lambda text: own.accepts(text.encode())

    return compile


def _outlines_core(schema: Any) -> Accepts:
    """outlines_core's regular expression, matched by Python; its vocabulary index takes seconds more and is not
    built."""
    from outlines_core.json_schema import build_regex_from_schema

    pattern = re.compile(build_regex_from_schema(json.dumps(schema)))
    return lambda text: pattern.fullmatch(text) is not None


def _xgrammar(model: Model, closed: bool) -> Engine:
    import xgrammar  # type: ignore[import-not-found]

    tokens = [*vocabulary_of(model).tokens, b"<end>"]
    info = xgrammar.TokenizerInfo(tokens, vocab_size=len(tokens), stop_token_ids=[len(tokens) - 1])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(schema: Any) -> Accepts:
        grammar = compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=closed
        )

        def accepts(text: str) -> bool:
            matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
            return bool(matcher.accept_string(text)) and bool(matcher.is_terminated() or matcher.is_completed())

        return accepts

    return compile
