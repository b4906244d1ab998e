"""Engines for JSON schemas behind one interface: a schema becomes a function that says whether it accepts a text."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import Any

import gen
from gen.constraints.tables.vocabulary import vocabulary_of
from gen.models.base import Model

Accepts = Callable[[str], bool]


class TooSlow(Exception):
    """An engine took longer than its time."""


@dataclass(frozen=True)
class Engine:
    """An engine in one reading.

    Attributes:
        compile: takes a schema; gives what says whether a text is accepted, and facts to report.
        refusals: the errors that refuse a schema.
    """

    name: str
    compile: Callable[[Any], tuple[Accepts, dict[str, Any]]]
    refusals: tuple[type[Exception], ...] = (Exception,)


def engines(model: Model) -> Iterator[Engine]:
    """The engines that are installed, for a model's vocabulary; the open reading comes first. Texts are compact."""
    for name, device in (("gen", True), ("gen or host", False)):
        for reading in ("open", "closed"):
            compile = partial(_ours, model, reading == "closed", device)
            yield Engine(f"{name}, {reading}", compile, (gen.ConstraintError, TooSlow))
    yield Engine("llguidance, open", partial(_llguidance, model))
    if find_spec("outlines_core"):
        yield Engine("outlines_core, closed", _outlines_core)
    if find_spec("xgrammar"):
        for reading in ("open", "closed"):
            yield Engine(f"xgrammar, {reading}", _xgrammar(model, reading == "closed"))


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


def _ours(model: Model, closed: bool, device: bool, schema: Any) -> tuple[Accepts, dict[str, Any]]:
    constraint = gen.compile(model, gen.json_schema(schema, closed=closed, whitespace="compact"))
    if device and constraint.automaton is None:
        raise gen.ConstraintError(constraint.reason)
    facts = {"engine": constraint.engine, "states": constraint.states, "reason": constraint.reason[:200]}
    return constraint.accepts, facts


def _llguidance(model: Model, schema: Any) -> tuple[Accepts, dict[str, Any]]:
    from llguidance import LLMatcher

    from gen.constraints.host_engine import Grammar

    written: Any = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
    grammar = Grammar(LLMatcher.grammar_from_json_schema(schema, overrides=written), vocabulary_of(model))
    return lambda text: grammar.accepts(text.encode()), {}


def _outlines_core(schema: Any) -> tuple[Accepts, dict[str, Any]]:
    """outlines_core's regular expression, matched by Python; its vocabulary index takes seconds more and is not
    built."""
    from outlines_core.json_schema import build_regex_from_schema

    pattern = re.compile(build_regex_from_schema(json.dumps(schema)))
    return lambda text: pattern.fullmatch(text) is not None, {}


def _xgrammar(model: Model, closed: bool) -> Callable[[Any], tuple[Accepts, dict[str, Any]]]:
    import xgrammar  # type: ignore[import-not-found]

    tokens = [*vocabulary_of(model).tokens, b"<end>"]
    info = xgrammar.TokenizerInfo(tokens, vocab_size=len(tokens), stop_token_ids=[len(tokens) - 1])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(schema: Any) -> tuple[Accepts, dict[str, Any]]:
        grammar = compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=closed
        )

        def accepts(text: str) -> bool:
            matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
            return bool(matcher.accept_string(text)) and bool(matcher.is_terminated() or matcher.is_completed())

        return accepts, {}

    return compile
