"""The decode loop: prefill, decode steps on the device, and texts from the tokens that come back."""

from collections.abc import Iterator, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from gen.devices import to_device
from gen.errors import ArgumentError, refuse_unknown
from gen.harvest import Harvest
from gen.models.base import DecodeState, Model
from gen.prompts import Prompt, Row, check_token_ids, is_batch, make_rows
from gen.samplers import MultinomialSampler, Sampler
from gen.samplers.random import row_keys
from gen.stopping import read_stops
from gen.texts import GrowingText


def generate(
    model: Model,
    prompt: Prompt | Sequence[Prompt],
    *,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: str | Sequence[str] | None = None,
    seed: int | Sequence[int] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    details: bool = False,
    **unknown: object,
) -> Any:
    """Continue a prompt, or each of a list of prompts.

    A text depends on its prompt and seed alone: it is the same in any batch and streamed (in float32; logits in
    bfloat16 themselves change with the batch). Equal prompts with equal seeds give equal texts.

    Args:
        model: from `gen.load` and its kin.
        prompt: a text, a list of chat messages ({"role": ..., "content": ...}) or a list of token ids; or a list of
            any of these. An empty text starts from the bos token.
        sampler: how tokens are chosen; None is `gen.samplers.multinomial()`. It has the sampling parameters.
        max_new_tokens: how many tokens at most for each text; the end of the context may come before.
        stop: strings that end a text and are left out of it, wherever the borders of tokens are.
        seed: one whole number below 2**63 for all prompts, or one for each; None draws one for each. Further samples
            of a prompt have seeds derived from its own.
        eos_token_id: what ends a text instead of the model's own ids; an empty list for nothing.
        chat: give a text as the user's message to the tokenizer's chat template (lists of messages always are).
        details: return a `Completion` in the place of each text.
    Returns:
        A str for a prompt, a list of str for a list; with `sampler.samples` above 1 a list in the place of each str.
    Raises:
        ArgumentError: an argument cannot be used; nothing has run.
        SamplingError: a row had no token left to choose.
    Host sync: none a token on CUDA; tokens are read one step late.
    """
    _refuse("generate", unknown)
    batch = is_batch(prompt)
    prompts: Any = prompt if batch else [prompt]
    sampler = _read_sampler(sampler)
    texts = _read_request(model, prompts, sampler, max_new_tokens, stop, seed, eos_token_id, chat)
    for _ in _decode(model, sampler, texts):
        pass
    results: list[Any] = [text.completion() if details else text.text for text in texts]
    if sampler.samples > 1:
        results = [results[first : first + sampler.samples] for first in range(0, len(results), sampler.samples)]
    return results if batch else results[0]


def stream(
    model: Model,
    prompt: Prompt,
    *,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    **unknown: object,
) -> Iterator[str]:
    """Continue one prompt piece by piece; the pieces joined are what `generate` returns for the same arguments.

    A piece never ends within a character, and text that may yet be part of a stop string waits until that is known.

    Args, Raises: as for `generate`. Arguments are checked at the call, before the first piece is asked for.
    Returns:
        An iterator of str, none of them empty.
    """
    _refuse("stream", unknown)
    if is_batch(prompt):
        raise ArgumentError("stream takes one prompt; use generate for a list.")
    sampler = _read_sampler(sampler)
    if sampler.samples != 1:
        raise ArgumentError(f"stream makes one text, the sampler makes {sampler.samples} a prompt; use generate.")
    texts = _read_request(model, [prompt], sampler, max_new_tokens, stop, seed, eos_token_id, chat)
    return (piece for pieces in _decode(model, sampler, texts) for piece in pieces if piece)


def _refuse(function: str, unknown: dict[str, object]) -> None:
    """Refuse unknown arguments; the sampling parameters have a place of their own."""
    for name in unknown:
        if name in signature(MultinomialSampler).parameters:
            raise ArgumentError(f"{name} belongs to the sampler: sampler=gen.samplers.multinomial({name}=...)")
    known = [
        name for name, parameter in signature(generate).parameters.items() if parameter.kind == Parameter.KEYWORD_ONLY
    ]
    refuse_unknown(function, unknown, known)


def _read_sampler(sampler: Sampler | None) -> Sampler:
    if sampler is None:
        return MultinomialSampler()
    if isinstance(sampler, type) or not hasattr(sampler, "step"):
        raise ArgumentError(f"sampler must be a sampler such as gen.samplers.greedy(), got {sampler!r}")
    return sampler


def _read_request(
    model: Model,
    prompts: Sequence[Prompt],
    sampler: Sampler,
    max_new_tokens: int,
    stop: str | Sequence[str] | None,
    seed: int | Sequence[int] | None,
    eos_token_id: int | Sequence[int] | None,
    chat: bool,
) -> list[GrowingText]:
    """Check every argument and make the texts to fill, the samples of a prompt side by side."""
    if not hasattr(model, "prefill"):
        raise ArgumentError(f"model must be a loaded model, as from gen.load('demo'), got {model!r}")
    stops = read_stops(stop)
    eos_token_ids = model.eos_token_ids
    if eos_token_id is not None:
        eos_token_ids = (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)
        check_token_ids(model, "eos_token_id", eos_token_ids)
    rows = make_rows(model, prompts, chat=chat, seed=seed, samples=sampler.samples, max_new_tokens=max_new_tokens)
    return [GrowingText(row, model, stops, eos_token_ids) for row in rows]


def _decode(model: Model, sampler: Sampler, texts: Sequence[GrowingText]) -> Iterator[list[str]]:
    """Run until every text has ended; yield each step's new pieces, one for each text."""
    steps = max(text.row.limit for text in texts)
    for token_ids, logprobs in decode_steps(model, sampler, [text.row for text in texts], steps):
        yield [text.push(*token) for text, token in zip(texts, zip(token_ids, logprobs, strict=True), strict=True)]
        if all(text.finish_reason for text in texts):
            return


@torch.inference_mode()
def decode_steps(
    model: Model, sampler: Sampler, rows: Sequence[Row], steps: int
) -> Iterator[tuple[list[int], list[float]]]:
    """The loop itself: prefill, then one decode step at a time, all state on the logits device.

    It does not stop by itself: what comes after a row's end is the caller's to drop.

    Args:
        rows: the samples of a prompt side by side; each prompt is read once.
        steps: how many tokens for each row; 0 runs nothing.
    Yields:
        Each step's token ids and logprobs, one for each row. Host sync: none for the step just launched.
    """
    if steps == 0:
        return
    device = model.placement.logits_device
    prompts = [row.prompt_ids for row in rows[:: sampler.samples]]
    logits, state = model.prefill(*_pad_left(prompts), steps)
    if sampler.samples > 1:
        logits = _fan_out(logits, state, sampler.samples)
    keys = row_keys(to_device(torch.tensor([row.seed for row in rows], device="cpu"), device), steps)
    start = torch.zeros(len(rows), dtype=torch.float32, device=device)
    vocabulary = min(model.vocab_size, model.tokenizer.vocab_size)
    harvest = Harvest(steps, len(rows), device)
    token_ids = torch.zeros((len(rows), 1), dtype=torch.int64, device=device)
    for step in range(steps):
        if step:
            logits = state.decode_step(token_ids)
        token_ids, _, logprobs = sampler.step(logits[:, :vocabulary], start, keys[step])
        harvest.push(step, token_ids, logprobs)
        if step >= harvest.lag:
            yield harvest.read(step - harvest.lag)
    for step in range(max(0, steps - harvest.lag), steps):
        yield harvest.read(step)


def _fan_out(logits: Tensor, state: DecodeState, samples: int) -> Tensor:
    """Give every prompt `samples` rows, side by side; return the logits of those rows."""
    ancestors = torch.arange(len(logits) * samples, device=logits.device) // samples
    state.reorder(ancestors)
    return logits.index_select(0, ancestors)


def _pad_left(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids (rows, width) int64 and their mask (rows, width) bool, on the CPU; padding is id 0, masked out."""
    width = max(map(len, prompts))
    token_ids = torch.zeros((len(prompts), width), dtype=torch.int64, device="cpu")
    mask = torch.zeros((len(prompts), width), dtype=torch.bool, device="cpu")
    for row, prompt in enumerate(prompts):
        token_ids[row, width - len(prompt) :] = torch.tensor(prompt, device="cpu")
        mask[row, width - len(prompt) :] = True
    return token_ids, mask
