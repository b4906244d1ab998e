"""`gen.prefix`: reads the common beginning of prompts once, and keeps it."""

from collections.abc import Mapping, Sequence
from typing import Self
from weakref import ref

from gen.arguments import as_lists, check_flag, check_salt
from gen.errors import ArgumentError, ModelError
from gen.loop.memory import is_out_of_memory
from gen.loop.options import WHOLE
from gen.loop.prefixes.columns import Columns, common, load
from gen.loop.prefixes.tree import PrefixTree, tree_of
from gen.loop.replay.recorded import rests_on, version_of
from gen.models.base import Model
from gen.models.checks import check_usable, new_rows
from gen.requests.prompts import Prompt, as_chats, messages_of, read_one_prompt
from gen.runtime.streams import Streams

_MORE = ("a", " a", "A", "1", " ", "\n", ".", "'s")  # texts that may follow: each may change the last tokens
_NEXT = ("A", "1")  # what the next message may say; the two begin differently


class Prefix:
    """A beginning of prompts that a model has read, and keeps until `release()` or the end of the `with` block.

    Attributes:
        token_ids: the tokens that are kept.
        bytes: how much memory they take; 0 if nothing is kept, because the model reads each prompt as a whole.
    """

    def __init__(
        self, token_ids: Sequence[int], bytes: int, pinned: tuple[PrefixTree, str | None, object] | None
    ) -> None:
        self.token_ids, self.bytes = list(token_ids), bytes
        self._pinned = None if pinned is None else (ref(pinned[0]), *pinned[1:])

    def __repr__(self) -> str:
        return f"Prefix({len(self.token_ids)} tokens, {self.bytes} bytes)"

    def release(self) -> None:
        """Stop keeping the prefix; a second call does nothing."""
        pinned, self._pinned, self.bytes = self._pinned, None, 0
        if pinned is not None and (tree := pinned[0]()) is not None:
            tree.unpin(self.token_ids, *pinned[1:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def prefix(
    model: Model,
    prompt: Prompt,
    *,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    cache_salt: str | None = None,
) -> Prefix:
    """Read a beginning of prompts once, and keep it: of later prompts that begin with it, only the rest is read.

    You do not pass it to calls and engines: they find it by its tokens. `Completion.cached_tokens` says how many tokens
    they found.

    Args:
        model: as for `gen.generate`.
        prompt: a text, a list of chat messages, or token ids. The last tokens of a text are left out if more text
            could change them; of a chat, everything is left out that depends on the next message.
        chat: whether to give a text to the tokenizer's chat template, as the user's message.
        chat_template_kwargs: as for `gen.generate`; give the same as for the prompts.
        cache_salt: only an engine's requests with the same salt use the prefix; with None, requests and calls without
            a salt.
    Returns:
        The prefix, which is kept until its `release()` or the end of its `with` block. It is also dropped when the
        model's weights or adapter change, and by `model.release()`; then make it again.
    Raises:
        ArgumentError: an argument cannot be used, the context leaves no room after the prompt, or it has images.
        ModelError: the model was changed so that gen can no longer run it, or the prefix does not fit into memory.
    Host sync: none; several at the first prefix of a model with recurrent layers.
    """
    check_usable(model)
    check_flag("chat", chat)
    check_salt(cache_salt)
    token_ids = _read_beginning(model, prompt, chat, chat_template_kwargs)
    if len(token_ids) >= model.context_length:
        raise ArgumentError(
            f"the prefix has {len(token_ids)} tokens; the model's context of {model.context_length} leaves no room "
            "after it. Give a shorter one."
        )
    tree = tree_of(model)
    if tree is None:
        return Prefix(token_ids, 0, None)
    try:
        return _kept(model, tree, token_ids, cache_salt)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ModelError(
            f"a prefix of {len(token_ids)} tokens does not fit into the memory of {model.placement.logits_device}: "
            f"{error} Release others, or give a shorter one."
        ) from error


def _kept(model: Model, tree: PrefixTree, token_ids: Sequence[int], salt: str | None) -> Prefix:
    """Read the part that is not kept yet, and pin the whole."""
    with Streams(model.placement).current():
        version, rows = version_of(model, rests_on(model)), new_rows(model, 1, len(token_ids))
        try:
            recurrent = rows if rows.recurrent else None
            reads_on = recurrent or rows.reads_places
            if version is None or not reads_on or not rows.saves:
                return Prefix(token_ids, 0, None)
            if recurrent:
                recurrent.going_on_costs()  # measured now, rather than when a prompt joins a batch
            count, kept = tree.find(token_ids, version, salt, pinned=False, states=bool(recurrent))
            load(rows, 0, kept, count)
            part = len(token_ids) if rows.whole_prompts else WHOLE
            for start in range(count, len(token_ids), part):
                rows.prefill(slice(0, 1), [token_ids[start : start + part]], [start])
            size, era = tree.add(
                token_ids,
                version,
                salt,
                lambda start, end: Columns.of(rows.save(0, start, end)),
                pin=True,
                states=None if recurrent is None else lambda: Columns.of(recurrent.save_states(0)),
            )
        finally:
            rows.give_back()
    return Prefix(token_ids, size, (tree, salt, era))


def _read_beginning(
    model: Model, prompt: Prompt, chat: bool, template_kwargs: Mapping[str, object] | None
) -> list[int]:
    """The tokens with which every prompt that continues this one begins."""
    prompt = as_lists(prompt)
    if chat:
        [prompt] = as_chats(model, [prompt])
    messages = messages_of(prompt)
    following: list[Prompt] = []
    if messages:
        role = "assistant" if messages[-1].get("role") in ("user", "tool") else "user"
        following = [[*messages, {"role": role, "content": said}] for said in _NEXT]
    elif isinstance(prompt, str):
        following = [prompt + more for more in ("", *_MORE)]
    found: list[int] | None = None
    for one in following or [prompt]:
        token_ids, illustrated = read_one_prompt(model, 0, one, (), template_kwargs=template_kwargs)
        if illustrated:
            raise ArgumentError("a prefix has no images: prompts that have any are read as a whole.")
        found = token_ids if found is None else found[: common(found, token_ids)]
    if not found:
        raise ArgumentError("no token of the prefix is the same whatever comes after it; give a longer one.")
    return found
