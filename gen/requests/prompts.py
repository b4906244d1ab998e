"""Reads prompts: texts, token ids, arrays and conversations as token ids, with their images."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from gen.arguments import Array, as_lists, check_text, is_whole, read_token_ids
from gen.errors import ArgumentError, ContextError, GenError, in_python, kept_in, setting, show
from gen.models.base import Model
from gen.requests.chats import chat_text
from gen.requests.images import Illustrated, take_images
from gen.tokens.tokenizers import Message, Tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image

Prompt = str | Sequence[int] | Sequence[Message] | Array
AnyPrompt = TypeVar("AnyPrompt", bound=Prompt)
Prompts = list[AnyPrompt] | tuple[AnyPrompt, ...]  # not Sequence: a str is one too


def split_prompts(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts of a call, and whether they came as a list; a list of token ids or of messages is one prompt, and an
    empty list is a list of no prompts.

    Arrays and tensors become lists here: (length,) is one prompt, (prompts, length) is a list of prompts. Host sync:
    one for each tensor that is on a device.

    Raises:
        ArgumentError: `prompt` is neither a prompt nor a list of prompts.
    """
    given = as_lists(prompt)
    if isinstance(given, str):
        return [given], False
    if not _is_list(given):
        raise _no_prompt(given)
    if given and (isinstance(given[0], Mapping) or is_whole(given[0])):
        return [given], False
    return [as_lists(one) for one in given], True


def messages_of(prompt: Prompt) -> list[Message]:
    """The messages of a conversation; an empty list for any other prompt."""
    if not _is_list(prompt):
        return []
    messages = [part for part in prompt if isinstance(part, Mapping)]
    return messages if len(messages) == len(prompt) else []


def continues_message(prompt: Prompt, template_kwargs: Mapping[str, object] | None) -> bool:
    """Whether a text continues the last message of a chat."""
    last = next(reversed(messages_of(prompt)), {})
    return last.get("role") == "assistant" and bool((template_kwargs or {}).get("continue_final_message", True))


def begun_message(prompt: Prompt, template_kwargs: Mapping[str, object] | None) -> str:
    """What the assistant's message has that a text continues; "" where it begins a message."""
    content = messages_of(prompt)[-1].get("content") if continues_message(prompt, template_kwargs) else None
    if isinstance(content, list | tuple):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def as_chats(
    model: Model,
    prompts: Sequence[Prompt],
    images: Sequence[Sequence["Image"]] | None = None,
    failed: dict[int, GenError] | None = None,
) -> list[Prompt]:
    """The prompts of a call with chat=True: each text becomes the user's message, behind the images that come with it.

    Equal objects stay equal, so that they are encoded once.

    Args:
        failed: receives the errors of single prompts; None raises the first error.
    Raises:
        ArgumentError: a prompt is token ids, which no template takes.
    """
    for number, one in enumerate(prompts):
        with kept_in(failed, number):
            if _is_list(one) and any(map(is_whole, one)):
                raise ArgumentError(
                    f"chat=True puts texts into the chat template, and prompt {number} is token ids; give it as a text "
                    "or as a list of messages, or leave chat out."
                )

    def chat(prompt: Prompt, count: int) -> Prompt:
        if not isinstance(prompt, str):
            return prompt
        parts = [*({"type": "image"} for _ in range(count)), {"type": "text", "text": prompt}]
        return [{"role": "user", "content": parts if model.reads_images else prompt}]

    counts = [0] * len(prompts) if images is None else map(len, images)
    found: dict[tuple[int, int], Prompt] = {}
    return [found.setdefault((id(one), count), chat(one, count)) for one, count in zip(prompts, counts, strict=True)]


def without_old_turns(
    messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool], attempt: int = 1
) -> Sequence[Message]:
    """A chat without its oldest turns, as few of them as must go. A turn is a user's message with all answers to it;
    the system message and the last turn stay, even if they do not fit.

    Args:
        attempt: which answer comes next; the last turn has those before it, and what the user has said of each.
    """
    asked = ("system", "developer")
    head = next((place for place, one in enumerate(messages) if one.get("role") not in asked), len(messages))
    users = [place for place, one in enumerate(messages) if one.get("role") == "user"]
    begins = {head, *users[: len(users) - attempt + 1]}
    cuts = [[*messages[:head], *messages[place:]] for place in sorted(begins)]
    return cuts[min(bisect_left(cuts, True, key=fits), len(cuts) - 1)]


def text_of(
    tokenizer: Tokenizer, prompt: Prompt, template_kwargs: Mapping[str, object] | None
) -> tuple[str, Callable[[str], list[int]]] | None:
    """A prompt's text, which the chat template writes for a chat, and how it is encoded; None for any other prompt.

    Raises:
        ArgumentError: a chat has no template, or the template refuses it.
    """
    if messages := messages_of(prompt):
        return chat_text(tokenizer, messages, template_kwargs), tokenizer.encode_plain
    return (prompt, tokenizer.encode) if isinstance(prompt, str) else None


def vocabulary(model: Model) -> int:
    """How many ids are tokens; the logits of ids that the tokenizer does not have are masked."""
    return min(model.vocab_size, model.tokenizer.vocab_size)


def ends_of(model: Model) -> tuple[int, ...]:
    """The ids that end the model's texts, without those that are no tokens of its tokenizer, which a model may name."""
    return tuple(token_id for token_id in model.eos_token_ids if token_id < vocabulary(model))


def _check_texts(prompt: Prompt) -> None:
    """Raise an ArgumentError for a lone surrogate in a prompt's text, or in one of its messages."""
    if isinstance(prompt, str):
        check_text("the text", prompt)
    for number, message in enumerate(messages_of(prompt)):
        for text in _texts(message):
            check_text(f"message {number}", text)


def _texts(value: object) -> Iterator[str]:
    """All strings in a message, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _is_list(prompt: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray | memoryview)


def _no_prompt(given: object) -> ArgumentError:
    """The error for an object that is no prompt; the error says what to write instead."""
    hint = ""
    if given is None:
        hint = '; give "" to start from the bos token'
    elif isinstance(given, bytes | bytearray | memoryview):
        hint = "; decode bytes first, as prompt.decode()"
    elif isinstance(given, Mapping):
        hint = '; give its "input_ids"' if "input_ids" in given else "; put a single message into a list: [message]"
    elif isinstance(given, PathLike):
        hint = "; read a file first, as path.read_text()"
    elif hasattr(given, "dtype"):
        hint = "; an array or tensor has whole numbers, in one or two dimensions; give texts as .tolist()"
    elif any(hasattr(type(one), "model_dump") for one in (given if _is_list(given) else [given])):
        hint = "; give messages as dicts, as message.model_dump()"
    elif isinstance(given, Iterable) and not isinstance(given, Sequence):
        hint = "; make a list of it, as list(prompts)"
    return ArgumentError(
        f"a prompt is a text, a list of messages or of token ids, or a list of those; got {show(given)}{hint}."
    )


def read_one_prompt(
    model: Model,
    number: int,
    prompt: Prompt,
    images: Sequence["Image"],
    *,
    template_kwargs: Mapping[str, object] | None,
    local_files: bool = True,
    most: int | None = None,
) -> tuple[list[int], Illustrated | None]:
    """One prompt's token ids, and what the model has made of its images; None without images.

    Args:
        local_files: whether images in its messages may be paths and file: URLs.
        most: how many tokens it may have; a text that must have more is not encoded, which may take long. None for any
            number.
    Raises:
        ContextError: a text must have more than `most` tokens.
        ArgumentError: the prompt is empty and there is no bos token, a chat has no template, an id is outside the
            vocabulary, token ids come with images, or the prompt does not have one place for each image.
    """
    _check_template_kwargs(number, prompt, template_kwargs)
    prompt, images = _place_images(number, prompt, images, readable=model.reads_images, local_files=local_files)
    _check_texts(prompt)
    if images and not model.reads_images:
        raise ArgumentError("this model reads no images; load a vision-language model, or leave images out.")
    written, illustrated = text_of(model.tokenizer, prompt, template_kwargs), None
    if written is None:
        if images:
            raise ArgumentError("a prompt of token ids takes no images; give the prompt as a text or as messages.")
        if not _is_list(prompt) or not prompt or not all(map(is_whole, prompt)):
            raise _no_prompt(prompt)
        return read_token_ids("the prompt", prompt, vocabulary(model)), None
    text, encode = written
    is_chat = not isinstance(prompt, str)
    if most is not None and not images and (least := model.tokenizer.least_tokens(text, most)):
        raise no_room(number, f"at least {least}", most, prompt, whole=False)
    if model.reads_images:
        token_ids, inputs = model.encode(text, images, add_special_tokens=not is_chat)
        if images:
            illustrated = Illustrated(text=text, images=images, add_special_tokens=not is_chat, inputs=inputs)
    else:
        token_ids = encode(text)
    if not token_ids:
        raise ArgumentError("the chat template writes no text for these messages; give another, or the prompt as text.")
    return token_ids, illustrated


def no_room(number: int, tokens: int | str, context_length: int, prompt: Prompt, *, whole: bool) -> ContextError:
    """The error for a prompt after which the context has no room for a new token, with what would cut it.

    Args:
        whole: whether nothing cuts it, as with images.
    """
    messages, advice = messages_of(prompt), ""
    if not whole and not messages:
        advice = in_python('; gen.generate(truncate="left") keeps its end')
    elif not whole and sum(one.get("role") == "user" for one in messages) > 1:
        advice = in_python('; gen.generate(truncate="turns") leaves out old turns')
    return ContextError(
        f"prompt {number} has {tokens} tokens; the model's context of {context_length} leaves no room for a new one. "
        f"Shorten the prompt{advice}."
    )


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
            f"than the model's context of {context_length}. Shorten it yourself, or give less "
            f"{setting('max_new_tokens')}."
        )
    begin = [token_ids[0]] if token_ids[0] == bos_token_id else []
    if kept <= len(begin):
        raise ArgumentError(
            f"{setting('max_new_tokens')} is {new_tokens}, and the model's context of {context_length} leaves no room "
            "for a prompt beside them; give less."
        )
    return [*begin, *token_ids[len(token_ids) - kept + len(begin) :]]


def _check_template_kwargs(number: int, prompt: Prompt, given: Mapping[str, object] | None) -> None:
    """Refuse chat_template_kwargs for a prompt that is no chat."""
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ArgumentError(
            f'chat_template_kwargs must be a mapping of names, as {{"enable_thinking": False}}, got {show(given)}'
        )
    if given and not messages_of(prompt):
        raise ArgumentError(
            f"chat_template_kwargs are for chats, and prompt {number} is none; give chat=True with a text, or give the "
            "prompt as a list of messages."
        )


def _place_images(
    number: int, prompt: Prompt, images: Sequence["Image"], *, readable: bool, local_files: bool
) -> tuple[Prompt, Sequence["Image"]]:
    """The prompt without its images, see `take_images`, and the images, which came in images= or in its messages."""
    messages, found = take_images(messages_of(prompt), readable=readable, local_files=local_files)
    if found and images:
        raise ArgumentError(f"prompt {number} has images in its messages and in images=; give all in one place.")
    return (messages, found) if found else (prompt, images)
