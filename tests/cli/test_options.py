"""Options of the command line: which sampler they ask for, and escapes in stop strings."""

import re
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import gen
import gen.server
from gen.cli.commands import app
from gen.cli.options import TextOptions
from gen.cli.values import choose_sampler, unescape
from gen.offline.described import made_sampler
from gen.requests.settings import read_stops
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler, Penalties


def read_sampler(**settings: Any) -> Any:
    """The sampler that options ask for."""
    return made_sampler(choose_sampler(**settings))


def test_no_option_leaves_the_choice_to_the_checkpoint() -> None:
    assert read_sampler() is None
    assert read_sampler(temperature=None, repetition_penalty=None, bad_words=None) is None


PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5},
    {"presence_penalty": 1.0},
    {"frequency_penalty": -1.0},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 5},
    {"bad_words": ["no"]},
]


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (MultinomialSampler, {}),
        (MultinomialSampler, {"temperature": 0.5, "samples": 2}),
        (GreedySampler, {"greedy": True}),
        (BeamSearchSampler, {"beams": 3, "length_penalty": 0.5}),
    ],
)
def test_penalties_go_with_every_sampler(kind: Any, settings: Any, penalty: Any) -> None:
    sampler = read_sampler(**settings, **penalty)
    assert type(sampler) is kind
    assert sampler.penalties == Penalties(**penalty)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 2, "top_k": 3}, "--beams looks for the likeliest text, --top-k asks for another"),
        ({"beams": 2, "greedy": True}, "--beams looks for the likeliest text, --greedy asks for another"),
        ({"greedy": True, "temperature": 0.5}, "--greedy makes one text, without chance; leave --temperature out"),
        ({"greedy": True, "samples": 2}, "leave --samples out"),
        ({"beams": 2, "samples": 3}, "--samples 3 of --beams 2 cannot be written; give as many beams or more"),
        ({"length_penalty": 2.0}, "--length-penalty is for beams; give --beams too"),
    ],
)
def test_options_at_odds_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        read_sampler(**settings)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (r"\n\n", "\n\n"),
        (r"a\tb\r", "a\tb\r"),
        (r"C:\\n", r"C:\n"),
        (r"\u00fc\u2026.", "ü…."),
        (r"\ud83d\ude00", "😀"),
        ("\n", "\n"),
        ("plain", "plain"),
    ],
)
def test_stop_strings_have_escapes(given: str, meant: str) -> None:
    assert unescape(given) == meant


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (r"\d", r"has a backslash before 'd'; write \\n, "),
        ("end\\", "has a backslash before ''"),
        (r"\u12", "has a backslash before 'u'"),
        (r"\ud83d", "has half of a pair of surrogates"),
        ("", "stop takes strings of at least one character"),
    ],
)
def test_a_wrong_escape_is_refused(given: str, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        read_stops([unescape(given)])


def test_gen_serve_has_the_defaults_of_the_library() -> None:
    command: Any = get_command(app)
    options = {option.name: option for option in command.commands["serve"].params}
    shared = [
        (name, options[name].default, parameter.default)
        for function in (gen.load, gen.Engine, gen.server.Settings)
        for name, parameter in signature(function).parameters.items()
        if name in options.keys() - {"model"}
    ]
    assert len(shared) > 15
    assert not [one for one in shared if one[1] != one[2]]


@pytest.mark.parametrize(("given", "thinks"), [(None, None), ("on", True), ("off", False), ("0", 0), ("250", 250)])
def test_the_option_thinking(given: Any, thinks: Any) -> None:
    assert TextOptions(thinking=given).thinks is thinks or TextOptions(thinking=given).thinks == thinks


@pytest.mark.parametrize("wrong", ["yes", "-3", "1.5", ""])
def test_what_thinking_cannot_be(wrong: str) -> None:
    with pytest.raises(gen.ArgumentError, match="--thinking must be on, off or a number"):
        _ = TextOptions(thinking=wrong).thinks


def test_the_help_shows_all_that_is_said_of_each_option_and_breaks_no_paragraph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 1000)
    commands: Any = get_command(app)
    batch = commands.commands["batch"]
    named: dict[tuple[str, ...], Any] = {(name,): one for name, one in commands.commands.items() if one is not batch}
    named |= {("batch", name): one for name, one in batch.commands.items()}
    for names, command in named.items():
        lines = CliRunner().invoke(app, [*names, "--help"]).output.splitlines()
        said = [parameter.help or "" for parameter in command.params] + command.help.split("\n\n")
        for one in said:
            plain = " ".join(one.replace(r"\\\\", r"\\").replace("`", "").split())  # as Markdown shows it
            assert any(plain in line for line in lines), (names, plain)


def test_every_option_is_in_the_guides() -> None:
    docs = Path(__file__).parents[2] / "docs"
    pages = {"serve": ["guides/serve.md", "guides/operate.md"], "batch": ["batch.md", "command_line.md"]}
    commands: Any = get_command(app)
    for name, command in commands.commands.items():
        text = "".join((docs / page).read_text() for page in pages.get(name, ["command_line.md"]))
        for one in [command, *getattr(command, "commands", {}).values()]:
            names = {longest for option in one.params for longest in option.opts if longest.startswith("--")}
            assert {option for option in names - {"--help"} if not re.search(rf"{option}(?![\w-])", text)} == set(), (
                name
            )
