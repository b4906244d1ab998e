"""Steps over long contexts that no model has read: caches full of random keys and values, and steps after them.

Example: a row of 4,096 columns. gen gets a prompt of 4,096 tokens. Its rows read only the last one, and draw the keys
and values of the others at random. A cache of transformers gets the same numbers. Then both make their steps.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig

import gen
from benchmarks.measuring import for_cache
from gen.loop.jobs import new_job
from gen.loop.options import Options
from gen.loop.runner import Runner
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.rows import TransformersRows
from gen.requests.request import Request

WARM = 24  # steps before any is timed: some shapes are recorded by then
_SEED = 0


class FilledRows(TransformersRows):
    """Rows that read only the last token of a prompt; the columns before it hold random numbers."""

    def prefill(
        self, rows: slice, prompts: Sequence[Sequence[int]], starts: Sequence[int] = (), *_: object, **__: object
    ) -> Tensor:
        logits, drawn = [], torch.Generator(self._position.device).manual_seed(_SEED)
        for row, prompt, start in zip(range(self.count)[rows], prompts, starts or [0] * len(prompts), strict=True):
            last = start + len(prompt) - 1
            logits.append(super().prefill(slice(row, row + 1), [prompt[-1:]], [last]))
            for keys_or_values in self.columns_of(row):
                keys_or_values[:, start:last].normal_(generator=drawn)
        return torch.cat(logits)

    def columns_of(self, row: int) -> Iterator[Tensor]:
        """Each layer's keys, then its values: (key_heads, columns, width)."""
        for state in self._states:
            for name in state.columns:
                yield state.row(name, row)

    def look_at(self, lengths: Sequence[int]) -> None:
        super().look_at(lengths)
        if lengths:
            assert isinstance(self._model, FilledModel)
            self._model.begun.append((time.thread_time(), sum(map(bool, lengths))))


class FilledModel(TransformersModel):
    """A Llama of random weights whose prompts are not read.

    Attributes:
        begun: when each step began, in CPU time of its thread, and how many texts it had.
    """

    begun: list[tuple[float, int]]

    def new_rows(self, count: int, length: int) -> FilledRows:
        return FilledRows(self, count, length)


def filled_model(model: TransformersModel) -> FilledModel:
    """The same model, but its prompts are not read."""
    made = FilledModel(model.hf_model, model.tokenizer._tokenizer)
    made.attention, made.begun = model.attention, []  # what the load has found out about its attention
    return made


@contextmanager
def our_steps(
    model: FilledModel, lengths: Sequence[int], steps: int
) -> Iterator[tuple[Callable[[], None], FilledRows]]:
    """The loop over one batch of rows of the given lengths, as `gen.generate` runs it: each call makes the next steps.

    Args:
        lengths: the longest first, as rows are.
    """
    requests = [
        Request(prompt_ids=[5] * length, sampler=gen.samplers.greedy(), seeds=(row,), limit=2**20)
        for row, length in enumerate(lengths)
    ]
    jobs = [new_job(model, request) for request in requests]
    with torch.inference_mode(), Runner(model, jobs, Options()) as runner:

        def run(count: int = steps) -> None:
            for _ in range(count):
                runner.advance()

        while not all(job.launched for job in jobs):
            runner.advance()
        run(WARM)
        rows = runner._steps.decoder.rows
        assert isinstance(rows, FilledRows)
        yield run, rows
        for job in jobs:
            job.cancelled = True


def their_steps(model: TransformersModel, rows: FilledRows, lengths: Sequence[int], steps: int) -> Callable[[], None]:
    """`transformers.generate`, greedy, over its dynamic cache with the columns of our rows, the last at the right."""
    longest, device = max(lengths), model.placement.input_device
    cache = DynamicCache(config=model.decoder_config)
    for number, state in enumerate(rows._states):
        made = []
        for name, columns in state.columns.items():
            one = columns.new_zeros((len(lengths), columns.shape[1], longest, columns.shape[3]))
            for row, length in enumerate(lengths):
                one[row, :, longest - length :] = state.row(name, row)[:, :length]
            made.append(one)
        cache.update(*made, number)
    token_ids = torch.full((len(lengths), longest + 1), 5, device=device)
    before = longest - torch.tensor(lengths, device=device)
    settings = GenerationConfig(max_new_tokens=steps, do_sample=False, pad_token_id=0, disable_compile=True)

    def run() -> None:
        nonlocal token_ids
        mask = torch.arange(token_ids.shape[1], device=device) >= before[:, None]
        model.hf_model.generation_config.eos_token_id = None  # otherwise it would stop although it is told not to
        made = model.hf_model.generate(token_ids, attention_mask=mask, **for_cache(cache), generation_config=settings)
        assert made.shape[1] == token_ids.shape[1] + steps
        token_ids = made

    return run


def engine_steps(model: FilledModel, lengths: Sequence[int], steps: int, rounds: int) -> list[float]:
    """Seconds of the engine's thread for `steps` steps, round by round, while all texts run."""
    model.begun.clear()
    with gen.Engine(model, rows=len(lengths)) as engine:
        prompts, limit = [[5] * length for length in lengths], 2 * WARM + rounds * steps
        streams = engine.submit_all(prompts, sampler=gen.samplers.greedy(), max_new_tokens=limit, eos_token_id=[])
        for stream in streams:
            stream.completion()
    begun = [when for when, texts in model.begun if texts == len(lengths)][WARM:]
    return [begun[(number + 1) * steps] - begun[number * steps] for number in range(rounds)]
