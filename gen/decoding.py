"""The decode loop: prefill, decode steps on the device, and texts from the tokens that come back."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import torch

from gen.arguments import LARGEST, check_flag, read_whole
from gen.beams import beam_search
from gen.devices import to_device
from gen.errors import ArgumentError
from gen.harvest import Harvest
from gen.images import ImageLike, read_images
from gen.isolation import isolated
from gen.models.base import Model, RecommendsSampler
from gen.prefill import prefill
from gen.processing import Processing
from gen.prompts import AnyPrompt, Prompt, Prompts, Request, read_request, split_prompts
from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler, Sampler
from gen.samplers.base import check_sampled, read_sampler
from gen.samplers.random import row_keys
from gen.streaming import Stream
from gen.texts import Completion, GrowingText


class Options(TypedDict, total=False):
    """The arguments of `generate` that the type of its result does not depend on."""

    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None
    max_new_tokens: int
    stop: str | Sequence[str] | None
    seed: int | Sequence[int] | None
    eos_token_id: int | Sequence[int] | None
    chat: bool
    chat_template_kwargs: Mapping[str, object] | None
    num_return_sequences: int


One = GreedySampler | None  # samplers that make one text a prompt, whatever their settings
Result = str | Completion | list[str] | list[Completion] | list[str | list[str]] | list[Completion | list[Completion]]


@overload
def generate(
    model: Model, prompt: Prompt, *, sampler: One = ..., details: Literal[False] = ..., **options: Unpack[Options]
) -> str: ...
@overload
def generate(
    model: Model, prompt: Prompt, *, sampler: One = ..., details: Literal[True], **options: Unpack[Options]
) -> Completion: ...
@overload
def generate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    *,
    sampler: One = ...,
    details: Literal[False] = ...,
    **options: Unpack[Options],
) -> list[str]: ...
@overload
def generate(
    model: Model, prompt: Prompts[AnyPrompt], *, sampler: One = ..., details: Literal[True], **options: Unpack[Options]
) -> list[Completion]: ...
@overload
def generate(
    model: Model, prompt: Prompt, *, sampler: Sampler, details: Literal[False] = ..., **options: Unpack[Options]
) -> str | list[str]: ...
@overload
def generate(
    model: Model, prompt: Prompt, *, sampler: Sampler, details: Literal[True], **options: Unpack[Options]
) -> Completion | list[Completion]: ...
@overload
def generate(
    model: Model,
    prompt: Prompts[AnyPrompt],
    *,
    sampler: Sampler,
    details: Literal[False] = ...,
    **options: Unpack[Options],
) -> list[str | list[str]]: ...
@overload
def generate(
    model: Model, prompt: Prompts[AnyPrompt], *, sampler: Sampler, details: Literal[True], **options: Unpack[Options]
) -> list[Completion | list[Completion]]: ...
@overload
def generate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    *,
    sampler: Sampler | None = ...,
    details: bool,
    **options: Unpack[Options],
) -> Result: ...
def generate(
    model: Model,
    prompt: Prompt | Prompts[AnyPrompt],
    *,
    images: Sequence[ImageLike] | Sequence[Sequence[ImageLike]] | None = None,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: str | Sequence[str] | None = None,
    seed: int | Sequence[int] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    details: bool = False,
    num_return_sequences: int = 1,
) -> Result:
    """Continue a prompt, or each of a list of prompts.

    A text depends on its prompt and seed alone: it is the same in any batch and streamed (in float32; logits in
    bfloat16 themselves change with the batch). Equal prompts with equal seeds give equal texts.

    Args:
        model: from `gen.load` and its kin.
        prompt: a text, a list of chat messages ({"role": ..., "content": ...}) or a list of token ids; or a list of
            any of these. An empty text starts from the bos token. Token ids may also be an array or a tensor,
            (length,) for one prompt or (prompts, length) for a list. Where a whole number is wanted, one of numpy or a
            tensor of one will do.
        images: for a vision-language model, the prompt's images in the order of their places in it, each a PIL image,
            a uint8 array (height, width, 3) or a path; for a list of prompts a list for each. In messages an image may
            be part of the content instead: {"type": "image", "image": picture}, or with its "path" or "url" (a file's).
        sampler: how tokens are chosen; it has the sampling parameters. None is what the checkpoint's generation config
            recommends, and `gen.samplers.multinomial()`, at temperature 1, where that recommends nothing.
        max_new_tokens: how many tokens at most for each text; the end of the context may come before.
        stop: strings that end a text and are left out of it, wherever the borders of tokens are. Special tokens have no
            text; those that a stop string has in it, such as "<|im_end|>", are written out where it is looked for.
        seed: one whole number below 2**63 for all prompts, or one for each; None draws one for each. Further samples
            of a prompt have seeds derived from its own.
        eos_token_id: what ends a text instead of the model's own ids; an empty list for nothing.
        chat: give a text as the user's message to the tokenizer's chat template (lists of messages always are). Where
            the last message is the assistant's, the text goes on with it.
        chat_template_kwargs: what the chat template takes beside the messages, such as {"tools": [...]} or
            {"enable_thinking": False}; see `apply_chat_template` of transformers.
        details: return a `Completion` in the place of each text.
        num_return_sequences: how many of a beam search's texts to return for each prompt, best first.
    Returns:
        A str for a prompt, a list of str for a list. Where a prompt has several texts (a multinomial sampler with
        samples, num_return_sequences above 1) a list of them stands in the place of the str.
    Raises:
        ArgumentError: an argument cannot be used; nothing has run.
        SamplingError: a row had no token left to choose.
        ModelError: the checkpoint recommends what no sampler takes.
    What stands around the call changes no text: autocast is off while gen computes, and the default device is not used.
    Host sync: none a token on CUDA; tokens are read one step late. One for each argument that is a tensor on CUDA.
    """
    prompts, batch = split_prompts(prompt)
    sampler = _choose_sampler(model, sampler)
    check_flag("details", details)
    search = isinstance(sampler, BeamSearchSampler)
    most = sampler.samples if search else LARGEST
    returned = read_whole("num_return_sequences", num_return_sequences, minimum=1, maximum=most)
    if returned != 1 and not search:
        raise ArgumentError("num_return_sequences is for beam search; multinomial(samples=...) draws several texts.")
    request = read_request(
        model,
        prompts,
        texts=1 if search else sampler.samples,
        max_new_tokens=max_new_tokens,
        images=read_images(images, len(prompts) if batch else None),
        stop=stop,
        seed=seed,
        eos_token_id=eos_token_id,
        chat=chat,
        processors=sampler.processors,
        template_kwargs=chat_template_kwargs,
    )
    if isinstance(sampler, BeamSearchSampler):
        groups = [group[:returned] for group in _search(model, sampler, request)]
        several = returned > 1
    else:
        groups = _sample(model, sampler, request)
        several = sampler.samples > 1
    results: list[Any] = [[one if details else one.text for one in group] for group in groups]
    if not several:
        results = [group[0] for group in results]
    return results if batch else results[0]


def stream(
    model: Model,
    prompt: Prompt,
    *,
    images: Sequence[ImageLike] | None = None,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Stream:
    """Continue one prompt piece by piece; the pieces joined are what `generate` returns for the same arguments.

    A piece never ends within a character, and text that may yet be part of a stop string waits until that is known.

    Args, Raises: as for `generate`. Arguments are checked at the call, before the first piece is asked for.
    Returns:
        An iterator of str, none of them empty, whose `completion()` is at its end what `generate` returns with details.
    """
    prompts, batch = split_prompts(prompt)
    if batch:
        raise ArgumentError("stream takes one prompt; use generate for a list.")
    sampler = _choose_sampler(model, sampler)
    if sampler.samples != 1:
        raise ArgumentError(f"stream makes one text, the sampler makes {sampler.samples} a prompt; use generate.")
    request = read_request(
        model,
        prompts,
        texts=1,
        max_new_tokens=max_new_tokens,
        images=read_images(images, None),
        stop=stop,
        seed=seed,
        eos_token_id=eos_token_id,
        chat=chat,
        processors=sampler.processors,
        template_kwargs=chat_template_kwargs,
    )
    text = GrowingText(request.rows[0], request, model.tokenizer)
    return Stream(_decode(model, sampler, request, [text]), text)


def _choose_sampler(model: Model, sampler: Sampler | None) -> Sampler:
    if sampler is None:
        return model.recommended_sampler if isinstance(model, RecommendsSampler) else MultinomialSampler()
    return read_sampler(sampler)


def _sample(model: Model, sampler: Sampler, request: Request) -> list[list[Completion]]:
    """Each prompt's completions, drawn token by token."""
    texts = [GrowingText(row, request, model.tokenizer) for row in request.rows]
    for _ in _decode(model, sampler, request, texts):
        pass
    completions = [text.completion() for text in texts]
    return [completions[first : first + request.texts] for first in range(0, len(texts), request.texts)]


def _search(model: Model, sampler: BeamSearchSampler, request: Request) -> list[list[Completion]]:
    """Each prompt's completions by beam search, best first."""
    if request.steps == 0:
        return _sample(model, sampler, request)
    groups = []
    for row, hypotheses in zip(request.rows, beam_search(model, sampler, request), strict=True):
        group = []
        for hypothesis in hypotheses:
            text = GrowingText(row, request, model.tokenizer)
            for token in zip(hypothesis.token_ids, hypothesis.logprobs, strict=True):
                text.push(*token)
            group.append(text.completion(hypothesis.score))
        groups.append(group)
    return groups


def _decode(model: Model, sampler: Sampler, request: Request, texts: Sequence[GrowingText]) -> Generator[list[str]]:
    """Run until every text has ended; yield each step's new pieces, one for each text."""
    for step in decode_steps(model, sampler, request):
        yield [text.push(token_id, logprob) for text, token_id, logprob in zip(texts, *step, strict=True)]
        if all(text.finish_reason for text in texts):
            return


@isolated
@torch.inference_mode()
def decode_steps(model: Model, sampler: Sampler, request: Request) -> Iterator[tuple[list[int], list[float]]]:
    """The loop itself: prefill, then one decode step at a time, all state on the logits device.

    It does not stop by itself: what comes after a row's end is the caller's to drop.

    Yields:
        Each step's token ids and logprobs, one for each row. Host sync: none for the step just launched.
    """
    steps = request.steps
    if steps == 0:
        return
    device = model.placement.logits_device
    logits, state = prefill(model, request.prompts, request.texts, steps, request.inputs)
    seeds = torch.tensor([row.seed for row in request.rows], dtype=torch.int64, device="cpu")
    keys = row_keys(to_device(seeds, device), steps)
    start = torch.zeros(len(seeds), dtype=torch.float32, device=device)
    processing = sampler.processors and Processing(model, sampler.processors, request, request.texts)
    vocabulary = min(model.vocab_size, model.tokenizer.vocab_size)
    token_ids = torch.zeros((len(seeds), 1), dtype=torch.int64, device=device)
    harvest = Harvest(steps, token_ids.squeeze(1), start)
    for step in range(steps):
        if step:
            logits = state.decode_step(token_ids)
        logits = logits[:, :vocabulary]
        if processing:
            logits = processing(logits)
        sampled = sampler.step(logits, start, keys[step])
        if step == 0:
            check_sampled(sampler, sampled, logits)
        token_ids, _, logprobs = sampled
        if processing:
            processing.append_(token_ids)
        harvest.push(step, token_ids.squeeze(1), logprobs)
        if step >= harvest.lag:
            yield harvest.read(step - harvest.lag)
    for step in range(max(0, steps - harvest.lag), steps):
        yield harvest.read(step)
