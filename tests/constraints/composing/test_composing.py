"""Types made of types: both engines read them as brute force does, and refuse those that they cannot hold texts to."""

import random
import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import gen
from benchmarks.constraints.compositions import check_reading, compositions
from tests.helpers import EOS, byte_tokenizer, tiny_model

SPECIALS = ["[TOOL_CALLS]", "<|python_tag|>", "<|channel|>"]
NESTED = gen.json_schema({"type": "object", "properties": {"of": {"$ref": "#"}}})
NUMBERS = gen.json_schema({"type": ["integer", "array"], "items": {"$ref": "#"}})


@dataclass
class Person:
    name: Literal["Ada", "Alan"]
    age: int


@pytest.fixture(scope="module")
def model() -> Any:
    return gen.from_transformers(
        tiny_model(vocab_size=262, eos_token_id=EOS, max_position_embeddings=256), byte_tokenizer(specials=SPECIALS)
    )


@pytest.mark.parametrize("on_host", [0.0, 0.2])
def test_random_compositions_are_read_as_by_brute_force(model: Any, on_host: float) -> None:
    """The oracle tries all ways, the best first. If there is only one, it must be the way that was written."""
    rng = random.Random(7)
    engines = []
    for kind in compositions(50, seed=7, on_host=on_host):
        try:
            check_reading(model, kind, rng)
        except gen.ConstraintError as error:
            assert on_host and "cannot tell where one part ends" in str(error), kind
        else:
            engines.append(gen.compile(model, kind).engine)
    assert {*engines} == ({"device", "host"} if on_host else {"device"}) and len(engines) > 30


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("(a|ab)*(.*)", gen.sequence(gen.repeat(gen.either("a", "ab")), gen.text())),
        ("(.*)(,)(.*)", gen.sequence(gen.text(), ",", gen.text())),
        ("(.{0,2})(b*)(ab|a|b)?", gen.sequence(gen.text(max_chars=2), gen.regex("b*"), gen.either("ab", "a", "b", ""))),
    ],
)
def test_a_text_is_split_as_pythons_re_splits_it(model: Any, pattern: str, kind: Any) -> None:
    for text in ("", "a", "ab", "aab", "abab,b", "a,b,", "bbab", "abbba"):
        found = re.fullmatch(pattern, text)
        constraint = gen.compile(model, kind)
        assert constraint.accepts(text) is (found is not None)
        if found is not None:
            values = constraint.read(text)
            pieces = ["".join(one) if isinstance(one, list) else one for one in values]
            spans = [text[slice(*found.span(number))] for number in range(1, found.re.groups + 1)]
            assert "".join(pieces) == text
            assert pieces[-1] == spans[-1] or "*" in pattern[:8]


def test_each_part_gives_its_value_and_keeps_its_own_root(model: Any) -> None:
    refers = {"$defs": {"of": {"const": "x"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/of"}}}
    other = {"$defs": {"of": {"const": 7}}, "type": "array", "items": {"$ref": "#/$defs/of"}}
    kind = gen.sequence(
        gen.json_schema(refers), "\n", gen.json_schema(other, whitespace="compact"), "\n", gen.either(Person, "none")
    )
    constraint = gen.compile(model, kind)
    assert constraint.engine == "device"
    assert constraint.read('{"a": "x"}\n[7,7]\nnone') == ({"a": "x"}, "\n", [7, 7], "\n", "none")
    assert constraint.read('{}\n[]\n{"name": "Ada", "age": 3}')[-1] == Person("Ada", 3)
    for wrong in ('{"a": 7}\n[7,7]\nnone', '{"a": "x"}\n[7, 7]\nnone', '{}\n["x"]\nnone', "{}\n[]\n"):
        assert not constraint.accepts(wrong)


def test_an_automaton_is_as_large_as_that_of_the_same_regex(model: Any) -> None:
    kinds = [
        ("<a>([^<]*)</a>(yes|no)?", gen.sequence("<a>", gen.text("<"), "</a>", gen.either("yes", "no", ""))),
        ("([0-9]{2}(, [0-9]{2}){1,29})", gen.repeat(gen.regex("[0-9]{2}"), ", ", 2, 30)),
    ]
    for pattern, kind in kinds:
        compiled, regex = gen.compile(model, kind), gen.compile(model, gen.regex(pattern))
        assert compiled.states is not None and regex.states is not None
        assert compiled.states <= 1.2 * regex.states + 5


def test_what_is_not_regular_goes_to_the_host_engine_with_all_around_it(model: Any) -> None:
    kind = gen.sequence(gen.text("<of>"), "<of>", NESTED, gen.either("</of>", "!"))
    constraint = gen.compile(model, kind)
    assert (constraint.engine, constraint.states) == ("host", None)
    assert constraint.reason.startswith("one of its parts: $ref")
    text = 'a<b <of>{"of": {"of": {}}}!'
    assert constraint.grammar is not None and constraint.grammar.accepts(text.encode())
    assert constraint.read(text) == ("a<b ", "<of>", {"of": {"of": {}}}, "!")
    assert not constraint.accepts('<of>{"of":{}}!') and not constraint.grammar.accepts(b'<of>{"of":{}}!')
    listed = gen.compile(model, gen.repeat(NESTED, "\n", 1, 2))
    assert listed.engine == "host"
    for count, accepted in ((0, False), (1, True), (2, True), (3, False)):
        text = "\n".join(["{}"] * count)
        assert listed.accepts(text) is accepted
        assert listed.grammar is not None and listed.grammar.accepts(text.encode()) is accepted


def test_what_no_number_goes_on_with_may_follow_one_on_the_host_engine(model: Any) -> None:
    """llguidance takes a number as far as it goes, so that a digit behind one could never be written."""
    for kind, texts in (
        (gen.sequence(NUMBERS, ".5"), ["7.5", "[7].5"]),
        (gen.sequence(gen.repeat(gen.sequence(NUMBERS, ", ")), gen.regex("x?")), ["7, [7], x", "7, ", ""]),
        (gen.sequence(NUMBERS, gen.either("", "e")), ["7e", "7", "[]"]),
    ):
        constraint = gen.compile(model, kind)
        assert constraint.engine == "host" and constraint.grammar is not None
        for text in texts:
            assert constraint.accepts(text) and constraint.grammar.accepts(text.encode()), text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gen.either("a", int, "a"), "two equal branches, 'a'"),
        (lambda: gen.either(Person, gen.sequence("x"), Person), "two equal branches"),
        (lambda: gen.repeat(gen.text()), "repeats a part that may be empty"),
        (lambda: gen.sequence("x", gen.repeat(gen.either("", int))), "repeats a part that may be empty"),
        (lambda: gen.repeat(gen.grammar('start: "a"?')), "repeats a part that may be empty"),
        (lambda: gen.sequence("x", gen.regex("(?!)")), "no text meets one of its parts"),
        (lambda: gen.sequence("a</s>b"), "names '</s>', which ends this model's texts"),
        (lambda: gen.sequence(gen.text(), NESTED), "cannot tell where one part ends"),
        (lambda: gen.sequence(NUMBERS, "5"), "cannot tell where one part ends"),
        (lambda: gen.sequence(int, gen.regex("[0-9]"), NESTED), "cannot tell where one part ends"),
        (lambda: gen.sequence(gen.either(NUMBERS, "x"), gen.either("x", "1")), "cannot tell where one part ends"),
        (lambda: gen.sequence("x", 3), "3 is no output type"),
        (lambda: gen.sequence("x", ["a"]), "gen.choice takes options"),
        (lambda: gen.sequence(), "gen.sequence needs at least one"),
        (lambda: gen.either("a", None), "None in gen.either"),
        (lambda: gen.repeat("a", separator=3), "the separator must be a str, got 3"),  # type: ignore[arg-type]
        (lambda: gen.repeat("a", least=3, most=2), "most must be a whole number at least 3, got 2"),
        (lambda: gen.repeat("a", most=0), "most must be a whole number at least 1, got 0"),
        (lambda: gen.text(without=[""]), "strings of at least one character"),
        (lambda: gen.text(without=[b"a"]), "strings of at least one character"),  # type: ignore[list-item]
        (lambda: gen.text(without=3), "without= takes a list of strings"),  # type: ignore[arg-type]
        (lambda: gen.text(max_chars=-1), "max_chars must be a whole number at least 0"),
        (lambda: gen.sequence("\ud800"), "a lone surrogate"),
    ],
)
def test_what_cannot_be_held_to_is_refused(model: Any, make: Any, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        gen.compile(model, make())


def test_a_part_is_no_compiled_type(model: Any) -> None:
    with pytest.raises(gen.ConstraintError, match=r"a part is the type itself, without gen.compile"):
        gen.compile(model, gen.sequence("x", gen.compile(model, int)))


class TestSpecialTokens:
    def ids(self, model: Any) -> dict[str, int]:
        return {text: token_id for token_id, text in model.tokenizer.special_tokens.items()}

    @pytest.mark.parametrize("engine", ["device", "host"])
    @pytest.mark.parametrize("name", SPECIALS)
    def test_a_string_that_names_one_is_written_by_it_alone(self, model: Any, name: str, engine: str) -> None:
        tail = NESTED if engine == "host" else bool
        kind = gen.sequence("a", f"b{name}", tail)
        constraint = gen.compile(model, kind)
        assert constraint.engine == engine
        made = gen.generate(model, "x", constraint, seed=1, max_new_tokens=200, details=True)
        assert made.text.startswith(f"ab{name}")
        assert made.value[:2] == ("a", f"b{name}")
        assert made.token_ids[:3] == [ord("a"), ord("b"), self.ids(model)[name]]
        assert constraint.read(made.text) == made.value  # without token ids, names in the text are read too
        stream = gen.stream(model, "x", constraint, seed=1, max_new_tokens=200)
        assert "".join(stream) == made.text

    @pytest.mark.parametrize(
        "kind", [gen.text(), str, gen.regex(".*"), gen.json_schema({"type": "string"}), gen.choice(SPECIALS)], ids=str
    )
    def test_no_other_part_can_write_one(self, model: Any, kind: Any) -> None:
        ids = [self.ids(model)[name] for name in SPECIALS]
        wanted = gen.samplers.greedy(logit_bias=dict.fromkeys(ids, 100.0))
        for one in (kind, gen.either(gen.sequence(kind, "!"), NESTED)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "gen.calls.call.valued", lambda request, completion, rank: completion
                )  # the limit may cut the text
                made = gen.generate(model, "x", one, sampler=wanted, max_new_tokens=24, details=True)
            assert made.token_ids and not {*made.token_ids} & {*ids}

    def test_characters_like_a_token_are_no_token(self, model: Any) -> None:
        """The first part may contain the same characters; only the token ends it."""
        [name, *_] = SPECIALS
        constraint = gen.compile(model, gen.sequence(gen.text(), name, gen.text()))
        token = self.ids(model)[name]
        token_ids = [*f"a{name}b".encode(), token, *f"c{name}".encode()]
        written = constraint.written(f"a{name}b{name}c{name}", token_ids, cut=False)
        assert constraint.accepts(written)
        assert constraint.value(constraint.matched(written)) == (f"a{name}b", name, f"c{name}")
        assert constraint.read(f"a{name}b{name}c{name}") == (f"a{name}b{name}c", name, "")  # as far as a text tells
        walker = constraint.walker()
        assert all(walker.push(token_id) for token_id in token_ids)
        assert not walker.push(token)

    def test_a_stop_string_finds_it_once(self, model: Any) -> None:
        first, second, _ = SPECIALS
        kind = gen.sequence("a", first, second, "b")
        given: dict[str, Any] = {"details": True, "max_new_tokens": 9}
        assert gen.generate(model, "x", kind, stop=f"{first}{first}", **given).text == f"a{first}{second}b"
        with pytest.raises(gen.IncompleteError, match=r"ended \(stop\)") as cut:
            gen.generate(model, "x", kind, stop=f"{first}{second}", **given)
        assert cut.value.completion.text == "a"

    def test_one_that_ends_the_texts_of_a_call_cannot_be_part_of_them(self, model: Any) -> None:
        [name, other, *_] = SPECIALS
        kind = gen.sequence(name, bool)
        with pytest.raises(gen.ArgumentError, match="eos_token_id 259 spells"):
            gen.generate(model, "x", kind, eos_token_id=self.ids(model)[name])
        value = gen.generate(model, "x", kind, eos_token_id=self.ids(model)[other])
        assert value[0] == name and isinstance(value[1], bool)
