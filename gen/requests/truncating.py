"""Cuts prompts that do not fit into the context, on the left, if the user says so."""

from collections.abc import Sequence
from typing import Literal

from gen.errors import ArgumentError, show

Truncate = Literal["left"] | None


def check_truncate(truncate: object) -> None:
    """Raise an ArgumentError unless it is "left" or None."""
    if truncate is not None and not (isinstance(truncate, str) and truncate == "left"):
        raise ArgumentError(f'truncate must be "left" or None, got {show(truncate)}')


def cut_left(
    number: int, token_ids: Sequence[int], context_length: int, new_tokens: int, *, bos_token_id: int | None, why: str
) -> list[int]:
    """A prompt's last tokens, few enough for the new tokens to fit; its bos token stays if it begins with one.

    Args:
        number: the prompt's number, for errors.
        why: why the prompt must not be cut, such as "is a chat"; "" if it may be cut.
    Raises:
        ArgumentError: the prompt is too long and must not be cut, or there is no room for any prompt.
    """
    kept = context_length - new_tokens
    if len(token_ids) <= kept:
        return list(token_ids)
    if why:
        raise ArgumentError(
            f"prompt {number} {why}, which is not cut: its {len(token_ids)} tokens and {new_tokens} new ones are more "
            f"than the model's context of {context_length}. Shorten it yourself, or give less max_new_tokens."
        )
    begin = [token_ids[0]] if token_ids[0] == bos_token_id else []
    if kept <= len(begin):
        raise ArgumentError(
            f"max_new_tokens is {new_tokens}, and the model's context of {context_length} leaves no room for a prompt "
            "beside them; give less."
        )
    return [*begin, *token_ids[len(token_ids) - kept + len(begin) :]]
