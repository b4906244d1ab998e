"""The pytest plugin of gen: the fixture `gen_golden`, with which a test holds a model to the text that it has recorded.

The receipts of the test `test_answer` in `tests/test_chat.py` are in `tests/golden/test_chat/test_answer.jsonl`. See
docs/guides/golden.md.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # torch is loaded by the first test that uses the fixture
    from gen.completions import Completion, Receipt
    from gen.models.base import Model
    from gen.requests.request import Request

_PROPERTY = "gen_golden"  # under which a report has a note
_NOT_OF_TEXTS = {"top_logprobs", "prompt_logprobs", "max_time"}  # what shapes no recorded text; a clock should not


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's option."""
    parser.getgroup("gen", "texts of language models").addoption(
        "--update-gen-golden",
        action="store_true",
        help="make the texts of gen_golden anew, and write their receipts beside the tests",
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the notes of tests that have passed."""
    for report in terminalreporter.stats.get("passed", []):
        for name, note in report.user_properties:
            if name == _PROPERTY:
                terminalreporter.write_line(f"gen_golden: {report.nodeid}: {note}")


@pytest.fixture
def gen_golden(request: pytest.FixtureRequest) -> "Iterator[Golden]":
    """A function (model, prompt, output_type, **settings) that gives the recorded text, once it has verified it.

    It takes the arguments of `gen.generate` that shape one text, but for `max_time`, and gives what that returns.
    Without a seed, the seed is 0. With --update-gen-golden it makes the text and writes its receipt. Otherwise a
    missing receipt fails the test, and so does a difference that is no near tie.
    """
    name = re.sub(r"[^-.\w]+", "_", ".".join(request.node.nodeid.split("::")[1:]))
    path = request.path.parent / "golden" / request.path.stem / f"{name}.jsonl"
    golden = Golden(
        path,
        update=request.config.getoption("--update-gen-golden"),
        note=lambda text: request.node.user_properties.append((_PROPERTY, text)),
    )
    yield golden
    golden.end()


class Golden:
    """See `gen_golden`.

    Args:
        path: of the test's receipts.
        update: whether texts are made and recorded.
        note: takes a note on a text that differs in a near tie alone.
    """

    def __init__(self, path: Path, *, update: bool, note: Callable[[str], object]) -> None:
        self.path, self._update, self._note = path, update, note
        self._made: list[Receipt] = []
        self._recorded: list[Receipt] | None = None

    def __call__(self, model: "Model", prompt: Any, output_type: Any = None, **settings: Any) -> Any:
        """See `gen_golden`.

        Raises:
            ArgumentError: as `gen.generate`; or something has no receipt, such as a function.
        """
        __tracebackhide__ = True
        import gen
        from gen.calls.reading import read_call
        from gen.requests.settings import Settings

        settings = {"seed": 0, **settings}
        if unknown := settings.keys() - (Settings.__annotations__.keys() - _NOT_OF_TEXTS):
            raise gen.ArgumentError(f"gen_golden takes no {', '.join(sorted(unknown))}.")
        if self._update:
            made: Any = gen.generate(model, prompt, output_type, details=True, **settings)
            return self._record(made)
        call = read_call(model, prompt, output_type, Settings(**settings), details=True)
        requests = call.submitted()
        receipts = self._take(len(requests))
        of_prompts: list[list[Any]] = [[] for _ in call.requests]
        for request, receipt in zip(requests, receipts, strict=True):
            of_prompts[request.number].append(self._verify(model, request, receipt).value)
        single = [values[0] if len(values) == 1 else values for values in of_prompts]
        return single if call.batch else single[0]

    def _record(self, made: Any) -> Any:
        """Keep the receipts of completions, or of lists of them; returns their values."""
        if isinstance(made, list):
            return [self._record(one) for one in made]
        self._made.append(made.receipt)
        return made.value

    def end(self) -> None:
        """Write the receipts, or see that all of them have been asked for."""
        import gen

        if self._update:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            gen.Receipt.dump(self._made, self.path)
        elif self._recorded:
            pytest.fail(f"{self.path} has {len(self._recorded)} more texts than the test asks for; {_ADVICE}")

    def _take(self, count: int) -> "list[Receipt]":
        """The next recorded receipts."""
        import gen

        __tracebackhide__ = True
        if self._recorded is None:
            if not self.path.exists():
                pytest.fail(f"{self.path} is missing: no text is recorded for this test. {_ADVICE}")
            self._recorded = gen.Receipt.load(self.path)
        if len(self._recorded) < count:
            pytest.fail(f"{self.path} has fewer texts than the test asks for; {_ADVICE}")
        taken, self._recorded = self._recorded[:count], self._recorded[count:]
        return taken

    def _verify(self, model: "Model", request: "Request", recorded: "Receipt") -> "Completion":
        """The completion that the test's own request would have, if it still gives the recorded tokens."""
        from gen.completions import Completion
        from gen.errors import ArgumentError, show
        from gen.loop.results.values import valued
        from gen.receipts.diffing import words
        from gen.receipts.verifying import verify
        from gen.receipts.writing import asked, unwritable

        __tracebackhide__ = True
        if reasons := unwritable(request):
            raise ArgumentError(f"gen_golden records no text with {' and '.join(reasons)}: they are no plain values.")
        now = {**asked(request), "seed": request.seeds[0]}
        found = verify(model, replace(recorded, **now))
        changed = {**found.changed, **_changed(recorded, now)}
        told = "".join(f"\n  {name} was {show(old)}, is {show(new)}" for name, (old, new) in changed.items())
        if found.kind == "different" and found.difference is not None:
            pytest.fail(
                f"the model does not write the recorded text {recorded.text!r} any more: it differs "
                f"{words(model, found.difference)}.\nChanged since then:{told or ' nothing that a receipt knows'}\n"
                f"If this is what you want: {_ADVICE}",
                pytrace=False,
            )
        if found.kind == "near tie" and found.difference is not None:
            self._note(f"a near tie {words(model, found.difference)}; {found.ties} of them in the text")
        return valued(
            request,
            Completion(
                text=recorded.text,
                value=recorded.text,
                token_ids=list(recorded.token_ids),
                logprobs=list(recorded.logprobs),
                score=sum(recorded.logprobs),
                finish_reason=recorded.finish_reason,  # type: ignore[arg-type]  # verified
                seed=recorded.seed,
            ),
        )


_ADVICE = "run pytest --update-gen-golden, look at what it has written, and commit it."


def _changed(recorded: "Receipt", now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What the test asks for now that it did not ask for then, setting by setting."""
    from gen.receipts.reading import unlike

    then = {name: getattr(recorded, name) for name in now}
    old, new = ({**one, **one["sampler"], **one["settings"], "sampler": None, "settings": None} for one in (then, now))
    return unlike(old, new)
