"""Checks recorded texts: at each place of a text, what its own key draws from the logits there.

A draw depends on the logits, the settings and the key alone, see docs/inside/drawing.md, and the key on the seed and
the number of tokens. So nothing has to be generated: a text is read like a prompt, many places at a time, and at each
place the stages and the search of the loop choose, as in a step that reads drafts.

Example: the receipt says that after "The" came "cat", "sat". The model reads "The cat" at once. Its logits after "The"
give "cat" with the first key, as recorded; those after "cat" give "ran" with the second. The text differs at token 1,
and the margin says how close "sat" was.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from math import inf
from typing import overload

from gen.arguments import read_whole
from gen.completions import Receipt
from gen.errors import ArgumentError
from gen.loop.jobs import new_job
from gen.loop.memory import in_halves
from gen.loop.options import Options
from gen.loop.prefixes.columns import common
from gen.loop.results.texts import Text
from gen.loop.runner import run_all
from gen.models.base import Model
from gen.models.checks import check_model
from gen.receipts.blocks import Reading
from gen.receipts.checks import Check, Difference, Kind, Verification
from gen.receipts.margins import tolerance
from gen.receipts.reading import changes, listed, read_receipt
from gen.runtime.streams import Streams
from gen.samplers import BeamSearchSampler

_ROWS = {"cpu": 16, "cuda": 64}  # receipts side by side, by type of device


@overload
def verify(model: Model, receipts: Receipt, *, max_batch_tokens: int | None = None) -> Verification: ...
@overload
def verify(model: Model, receipts: Sequence[Receipt], *, max_batch_tokens: int | None = None) -> list[Verification]: ...
def verify(
    model: Model, receipts: Receipt | Sequence[Receipt], *, max_batch_tokens: int | None = None
) -> Verification | list[Verification]:
    """Check whether a model still makes recorded texts, much faster than by making them.

    Each token is checked: what the text's own seed draws there, with its penalties, bans, output type, limit and stops.
    Texts are read in blocks of tokens, several side by side; prompts and beginnings that they share are read once.
    After a near tie the text goes on with the recorded token. Texts of a beam search are made again.

    A **margin** is the log ratio of the arrival times of the recorded and the chosen token in the race of a draw, at
    the level where they part; for a token that a cut has taken, its distance from the cut; for greedy texts, the
    difference of the logits. A difference is a near tie if its margin is at most four times what the logits of this
    model were measured to move by between steps, readings and batches, divided by the temperature.

    Args:
        receipts: of one text, or a list of them.
        max_batch_tokens: how many tokens all rows together may have room for; None for what is usual.
    Returns:
        A verification, or a list with one for each receipt.
    Raises:
        ArgumentError: a receipt is not whole, its tokens are none of this model's, or max_batch_tokens is too little
            for it; nothing has run.
        ConstraintError: neither engine can enforce an output type here.
        ModelError: memory has no room for one of the texts.
    Host sync: one at the end of a block, and some where a token differs. On CUDA output types on the host engine wait
    at each token.
    """
    given = listed("verify", receipts)
    check_model(model)
    most = None if max_batch_tokens is None else read_whole("max_batch_tokens", max_batch_tokens, minimum=1)
    streams = Streams(model.placement)
    checks = [_begin(model, one, number) for number, one in enumerate(given)]
    for number, check in enumerate(checks):
        if most is not None and len(check.tokens) > most:
            raise ArgumentError(
                f"max_batch_tokens={most} is too little for receipt {number}, whose {len(check.tokens)} tokens are "
                "read in one row; give more."
            )
    drawn = [check for check in checks if not isinstance(check.request.sampler, BeamSearchSampler)]
    _search_again(model, [check for check in checks if check not in drawn], most)  # refuses what has no room, first
    with streams.current():
        for batch in _batches(model, drawn, most):
            in_halves(partial(_read, model), batch, partial(_too_large, model))
    found = [_verdict(model, check) for check in checks]
    return found[0] if isinstance(receipts, Receipt) else found


def _begin(model: Model, receipt: Receipt, number: int) -> Check:
    """A receipt, its request, and what must be chosen at each place; the host lets the text grow as in the loop."""
    request = read_receipt(model, receipt, number)
    text = Text(request, 0, model.tokenizer)
    token_ids = list(receipt.token_ids)
    for place, (token_id, logprob) in enumerate(zip(token_ids, receipt.logprobs, strict=True)):
        if text.finish_reason is not None:
            reason = f"the text ends before ({text.finish_reason})"
            ended = Difference(at=place, recorded=token_id, found=None, margin=inf, reason=reason)
            return Check(receipt, request, text, [*token_ids[:place]], ended)
        text.push(token_id, logprob)
        if text.error is not None:  # the output type does not allow the token
            return Check(receipt, request, text, [*token_ids[: place + 1]])
    begun = receipt.finish_reason in ("timeout", "cancelled")
    wanted: list[int | None] = [*token_ids, *([] if begun or text.finish_reason is not None else [None])]
    return Check(receipt, request, text, wanted)


def _batches(model: Model, checks: Sequence[Check], most: int | None) -> Iterator[list[Check]]:
    """Checks that are read side by side: prompts that begin alike come together, and the longest text first."""
    count = _ROWS.get(model.placement.logits_device.type, 16)
    waiting = [check for check in checks if check.wanted]

    def apart(check: Check) -> tuple[bool, bool]:
        """Prompts with images are read in steps, and one of one token has nothing to read before the first place."""
        return check.request.illustrated is not None, bool(check.lead)

    for _, alike in groupby(sorted(waiting, key=lambda one: (apart(one), one.lead)), apart):
        batch: list[Check] = []
        for check in alike:
            longest = max(len(one.tokens) for one in [*batch, check])
            if batch and (len(batch) == count or (most is not None and (len(batch) + 1) * longest > most)):
                yield sorted(batch, key=lambda one: -len(one.wanted))
                batch = []
            batch.append(check)
        yield sorted(batch, key=lambda one: -len(one.wanted))


def _too_large(model: Model, check: Check) -> tuple[str, str]:
    told = f"receipt {check.request.number}, of {len(check.tokens)} tokens, does not fit into the memory of"
    return f"{told} {model.placement.logits_device}", "Free some of it, or verify the text elsewhere."


def _read(model: Model, checks: Sequence[Check]) -> None:
    for check in checks:
        check.begin()
    reading = Reading(model, checks)
    try:
        reading.run()
    finally:
        reading.rows.give_back()


def _search_again(model: Model, checks: Sequence[Check], most: int | None) -> None:
    """Run the searches again, and compare the text of the same rank."""
    jobs = [new_job(model, check.request) for check in checks]
    run_all(model, jobs, Options(max_batch_tokens=most))
    for check, job in zip(checks, jobs, strict=True):
        texts, receipt = job.completions(), check.receipt
        check.checked, token_ids = len(receipt.token_ids), list(receipt.token_ids)
        found = texts[min(receipt.sample, len(texts) - 1)]
        check.searched = found
        if found.token_ids == token_ids:
            check.moved = max((abs(a - b) for a, b in zip(found.logprobs, receipt.logprobs, strict=True)), default=0.0)
            continue
        at = common(found.token_ids, token_ids)
        same = next((one for one in texts if one.token_ids == token_ids), None)
        margin = inf if same is None else abs(same.score - found.score)
        one, other = ([*ids, None][at] for ids in (token_ids, found.token_ids))
        difference = Difference(at=at, recorded=one, found=other, margin=margin)
        check.differ(difference, tolerance(model, check.tokens, receipt.model.get("dtype")))


def _verdict(model: Model, check: Check) -> Verification:
    difference = check.different or check.ended or check.how_it_ends()
    kind: Kind = "different" if difference is not None else "near tie" if check.ties else "equal"
    return Verification(
        kind=kind,
        difference=difference or next(iter(check.ties), None),
        ties=len(check.ties),
        tokens=check.checked,
        logprob_difference=check.moved,
        tolerance=check.tolerance,
        changed=changes(model, check.receipt),
    )
