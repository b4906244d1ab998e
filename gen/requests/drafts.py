"""Reads `draft`: texts that were made before, which new texts may follow."""

from collections.abc import Sequence

from gen.arguments import as_lists, check_text, is_whole, read_token_ids
from gen.completions import Completion, Receipt
from gen.errors import ArgumentError, show
from gen.models.base import Model
from gen.requests.prompts import vocabulary

Draft = Completion | Receipt | str | Sequence[int] | None


def read_drafts(model: Model, draft: Draft | Sequence[Draft], prompts: int, *, batch: bool) -> list[list[int]]:
    """The token ids of each prompt's draft; empty if it has none.

    Args:
        batch: whether the prompts came as a list; then there is a draft or None for each.
    Raises:
        ArgumentError: a draft is something else, or has an id outside the vocabulary, or there are not as many drafts
            as prompts.
    """
    if draft is None:
        return [[]] * prompts
    given = as_lists(draft)
    if not batch:
        return [_read(model, given)]
    several = isinstance(given, list | tuple) and not any(map(is_whole, given))
    if not several or len(given) != prompts:
        raise ArgumentError(
            f"draft must be a list with one draft or None for each of {prompts} prompts, got {show(draft)}"
        )
    return [_read(model, one) for one in given]


def _read(model: Model, draft: Draft) -> list[int]:
    """The token ids of one draft."""
    if draft is None:
        return []
    if isinstance(draft, str):
        check_text("the draft", draft)
        return model.tokenizer.encode_plain(draft)
    if isinstance(draft, Completion | Receipt):
        draft = draft.token_ids
    known = vocabulary(model)
    return read_token_ids("draft", draft, known)
