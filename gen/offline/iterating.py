"""`generate_iter`: reads prompts while texts grow, and yields texts as they end.

Example, two rows: four prompts are read, A to D. B ends first and is yielded; C takes its row, and a fifth prompt is
read.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Unpack

from gen.arguments import as_lists, is_whole, read_whole
from gen.calls.call import Call
from gen.calls.reading import find_step_rows, read_call
from gen.calls.retrying import next_job
from gen.constraints.compiling import compile
from gen.errors import ArgumentError, show
from gen.loop.jobs import Job, new_job
from gen.loop.memory import check_room
from gen.loop.options import Options
from gen.loop.row_pool import usual_rows
from gen.loop.runner import Runner
from gen.loop.speculation.settings import Speculate
from gen.models.base import Model
from gen.models.checks import check_model
from gen.requests.images import read_images
from gen.requests.prompts import Prompt
from gen.requests.settings import AllSettings, is_list_for_each, read_settings, shows_settings, trial_prompt
from gen.samplers.kinds import refuse_tensors


@shows_settings
def generate_iter(
    model: Model,
    prompts: Iterable[Prompt],
    output_type: Any = None,
    *,
    rows: int | None = None,
    details: bool = False,
    num_return_sequences: int = 1,
    max_batch_tokens: int | None = None,
    replay: bool = True,
    cuda_graph: bool = True,
    exact: bool = False,
    speculate: Speculate = "auto",
    retries: int = 0,
    **settings: Unpack[AllSettings],
) -> Iterator[tuple[int, Any]]:
    """Continue prompts that come one after the other, as from a file or a generator, in memory that does not grow.

    A text is what `gen.generate` gives for the same prompt and arguments. A prompt that fails does not affect others.

    Arguments that are not listed here are as for `gen.generate`.

    Args:
        prompts: prompts as `gen.generate` takes them, even without end. At most `2 * rows` are
            read before you have taken the results of earlier ones.
        output_type: one for all prompts.
        images: pictures that every prompt has, as for one prompt of `gen.generate`; None for none.
        rows: how many run at once; None is as many as `gen.generate` runs on this device. Memory may allow fewer.
        max_new_tokens: one for all prompts, or a list with one for each; so are `seed` and `thinking`.
        max_time: counts from the moment at which a prompt is read.
        draft: a list with a draft or None for each prompt; None for none.
    Yields:
        (number, result): the number of the prompt, from 0, and what `gen.generate` returns for it, or the error that it
        would raise. They come in the order in which the texts end.
    Raises:
        ArgumentError, ConstraintError, ModelError: as `gen.generate`, at the call, for what all prompts share.
        Exception: what `prompts` has raised, once the prompts before it have their results.
    Host sync: as `gen.generate`.
    """
    shared = read_settings(generate_iter, settings)
    check_model(model)
    try:
        numbered = None if isinstance(prompts, str | bytes | Mapping) else enumerate(prompts)
    except TypeError:  # also a tensor of shape ()
        numbered = None
    if numbered is None:
        raise ArgumentError(f"prompts must be something that gives prompts, such as a list, got {show(prompts)}")
    rows = usual_rows(model) if rows is None else read_whole("rows", rows, minimum=1)
    options = Options(
        rows=rows,
        step_rows=find_step_rows(model, exact),
        max_batch_tokens=max_batch_tokens,
        replay=replay,
        cuda_graph=cuda_graph,
        speculate=speculate,
    )
    each = shared.stop if is_list_for_each(shared.stop) else None
    for name, given in (("output_type", output_type), ("sampler", shared.sampler), ("stop", each)):
        if isinstance(given, list | tuple):
            raise ArgumentError(f"generate_iter takes one {name} for all prompts, got the list {show(given)}")
    refuse_tensors([shared.sampler])
    constraint = None if output_type is None else compile(model, output_type)
    lists = {name: as_lists(getattr(shared, name)) for name in ("max_new_tokens", "seed", "thinking", "draft")}
    drafts = lists["draft"]
    if not (drafts is None or (isinstance(drafts, list | tuple) and not any(map(is_whole, drafts)))):
        raise ArgumentError(f"draft must be a list with one draft or None for each prompt, got {show(drafts)}")

    def read(number: int, prompt: Prompt, **other: Any) -> Call:
        own = {name: _of_prompt(name, given, number) for name, given in lists.items()}
        call = read_call(
            model,
            prompt,
            constraint,
            replace(shared, **own, **other),
            details=details,
            num_return_sequences=num_return_sequences,
            max_batch_tokens=options.max_batch_tokens,
            exact=exact,
            retries=retries,
        )
        if call.batch:
            raise ArgumentError(f"prompt {number} is a list of prompts; give each by itself.")
        return call

    # what all prompts share; a chat has a place for each image, the plain prompt "x" has none
    first = {"retries": retries, "thinking": _of_prompt("thinking", lists["thinking"], 0)}
    read(0, trial_prompt({**vars(shared), **first}), images=shared.images if shared.chat is True else None)
    [pictures] = read_images(shared.images, None, local_files=shared.local_files)  # once for all prompts
    shared = replace(shared, images=pictures)
    return _results(model, read, numbered, rows, options)


def _results(
    model: Model,
    read: Callable[[int, Prompt], Call],
    prompts: Iterator[tuple[int, Prompt]],
    rows: int,
    options: Options,
) -> Iterator[tuple[int, Any]]:
    """Each prompt's result or error; everything that was needed for it is freed after its yield."""
    calls: dict[Job, tuple[int, Call]] = {}
    ended: deque[Job] = deque()
    refused: deque[tuple[int, Exception]] = deque()
    again: deque[Job] = deque()
    broken: list[Exception] = []

    def until_it_breaks() -> Iterator[tuple[int, Prompt]]:
        try:
            yield from prompts
        except Exception as error:
            broken.append(error)

    numbered = until_it_breaks()

    def read_on() -> Iterator[Job]:
        """The next turns of chats, and the next prompts, as many as may be read ahead."""
        while again:
            yield again.popleft()
        for number, prompt in islice(numbered, 2 * rows - len(calls) - len(refused)):
            try:
                call = read(number, prompt)
                job = new_job(model, replace(call.requests[0], number=number))
                check_room([job.request], options.step_rows, options.max_batch_tokens)
            except (ArgumentError, RecursionError) as error:  # of values too far within one another
                error.args = re.sub(r"\bprompt 0\b", f"prompt {number}", str(error), count=1), *error.args[1:]
                refused.append((number, error))
                continue
            calls[job], job.done = (number, call), ended.append
            if job.ended:  # no token is wanted
                job.finish()
            else:
                yield job

    def hand_out() -> Iterator[tuple[int, Any]]:
        """The results so far; each counts as a prompt that is read ahead until it is taken."""
        while refused:
            yield refused[0]
            refused.popleft()
        while ended:
            job = ended.popleft()
            number, call = calls[job]
            if (turn := next_job(model, call, job)) is not None:
                calls[turn], turn.done = calls.pop(job), ended.append
                again.append(turn)
                continue
            try:
                result = call.result(job)
            except Exception as error:  # the user's logits processors fail with errors of every kind
                result = error
            yield number, result
            del calls[job]

    first = list(read_on())
    while not first and (ended or refused):
        yield from hand_out()
        first = list(read_on())
    if first:
        with Runner(model, first, options, min(rows, sum(job.rows for job in first))) as runner:
            while calls or refused:
                yield from hand_out()
                for job in read_on():
                    runner.add(job)
                if not runner.idle:
                    runner.advance()
    if broken:
        raise broken[0]


def _of_prompt(name: str, given: Any, number: int) -> Any:
    """A prompt's own value if `given` is a list; otherwise the value of all prompts."""
    if not isinstance(given, list | tuple | range):
        return given
    if number < len(given):
        return given[number]
    raise ArgumentError(f"{name} is a list of {len(given)}, one for each prompt, and there is a prompt {number}.")
