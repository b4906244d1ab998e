"""gen's draws and output types inside transformers' generate, as logits processors that add no host sync."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gen.arguments import as_lists, read_token_ids, read_whole
from gen.constraints.constraint import Constraint
from gen.devices import to_device
from gen.errors import ArgumentError, show
from gen.requests.request import Request
from gen.samplers import GreedySampler, MultinomialSampler, Sampler
from gen.samplers.backends.random import draw_seed, row_keys, sample_seed
from gen.stages.device_constraints import DeviceConstraints


class SamplerProcessor:
    """Makes `generate(do_sample=False)` of transformers give the tokens that `gen.generate` gives.

    Every token but the chosen one is masked, so greedy decoding takes that token; it is not for beams. Use a processor
    in one call of generate, or call `reset` before the next call. Penalties, bans and guidance that you give to
    generate come before it. What generate puts behind it has no effect, as watermarks and cuts such as typical_p: put
    those processors of transformers in front of it in the list.

        processor = SamplerProcessor(gen.samplers.multinomial(temperature=0.8), seed=7, vocab_size=len(tokenizer))
        model.generate(**inputs, do_sample=False, logits_processor=[processor])

    Args:
        sampler: greedy or multinomial, without penalties: give those to transformers. With `samples`, each prompt must
            have that many rows, side by side.
        seed: one for all prompts, or one for each; None draws a seed, which you find in `seeds`.
        vocab_size: how many ids the tokenizer has, if the model's logits are wider; None for all logits.
    Attributes:
        seeds: one for all prompts, or one for each.
    Raises:
        ArgumentError: it is another sampler, or a seed is no whole number; at the first token, the number of rows does
            not fit the seeds and samples.
    """

    def __init__(
        self, sampler: Sampler, *, seed: int | Sequence[int] | None = None, vocab_size: int | None = None
    ) -> None:
        if type(sampler) not in (GreedySampler, MultinomialSampler):
            raise ArgumentError(
                "SamplerProcessor takes a greedy or multinomial sampler of gen.samplers, "
                f"got {show(sampler)}; beams are transformers' own: generate(num_beams=...)."
            )
        if sampler.penalties is not None:
            raise ArgumentError(
                "penalties, bad words, n-grams and minimum lengths are transformers' own inside of its generate: give "
                "them there, and a sampler without them here."
            )
        given = as_lists(draw_seed() if seed is None else seed)
        given = given if isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray) else [given]
        self.seeds = [read_whole("seed", one) for one in given]
        self._sampler = sampler
        self._vocab_size = None if vocab_size is None else read_whole("vocab_size", vocab_size, minimum=1)
        self.reset()

    def reset(self) -> None:
        """Start again: the next call is for the first token."""
        self._step = 0
        self._shape: torch.Size | None = None  # of the input_ids of the call before
        self._weights: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The logits with -inf everywhere but at the token that gen draws.

        Args:
            input_ids: (rows, tokens); only the shape is used.
            scores: (rows, vocab), floating, any device; not modified.
        Returns:
            (rows, vocab), of the dtype and on the device of scores. Host sync: none.
        Raises:
            ArgumentError: these are not the texts of the call before with one more token.
        """
        _check_grown(self, self._shape, input_ids)
        self._shape = input_ids.shape
        if self._weights is None:
            self._row_seeds = to_device(torch.tensor(self._seeds_of(len(scores)), device="cpu"), scores.device)
            self._weights = torch.zeros(len(scores), dtype=torch.float32, device=scores.device)
        logits = scores[:, : self._vocab_size]
        [keys] = row_keys(self._row_seeds, 1, first=self._step)
        token_ids, _, _ = self._sampler.step(logits, self._weights, keys)
        self._step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, token_ids, 0.0)

    def _seeds_of(self, rows: int) -> list[int]:
        """The seed of each row."""
        samples = self._sampler.samples
        prompts = rows // samples
        if rows % samples or len(self.seeds) not in (1, prompts):
            raise ArgumentError(
                f"generate has {rows} rows; SamplerProcessor has {len(self.seeds)} seeds for prompts of {samples} rows."
            )
        seeds = self.seeds * (prompts if len(self.seeds) == 1 else 1)
        return [sample_seed(seed, sample) for seed in seeds for sample in range(samples)]


class ConstraintProcessor:
    """Constrains the texts of transformers' generate, sampled, greedy or by beams, to an output type of gen.

    States and masks are on the device. Beams are followed: comparing token ids there shows which row each row
    continues. Use a processor in one call of generate, or call `reset` before the next call.

        constraint = gen.compile(model, gen.regex("[0-9]{3}-[ab]"))
        processor = ConstraintProcessor(constraint, max_new_tokens=20, eos_token_id=tokenizer.eos_token_id)
        hf_model.generate(**inputs, max_new_tokens=20, logits_processor=[processor])

    A text is always whole. generate draws each token only once, so when few tokens are left, only tokens that surely
    leave room for an end may come. `squeezed` tells which texts this has changed; reading it on the host is a sync.

    Args:
        constraint: from `gen.compile`, on the device engine.
        max_new_tokens: what you give to generate: a text is whole by then.
        eos_token_id: the tokens that end a text for generate.
    Attributes:
        squeezed: (rows,) bool, on the device of the scores: whether the limit has ruled out a token of the row's text.
            A higher limit may give such a row another text; so it may for a text that ends without an eos and could go
            on. None before the first call.
    Raises:
        ArgumentError: the constraint is on the host engine, or needs more tokens, or another argument cannot be used.
    """

    def __init__(self, constraint: Constraint, *, max_new_tokens: int, eos_token_id: int | Sequence[int]) -> None:
        if not isinstance(constraint, Constraint):
            raise ArgumentError(f"ConstraintProcessor takes what gen.compile makes, got {show(constraint)}")
        if constraint.automaton is None or constraint.least_tokens is None:
            raise ArgumentError(
                f"this output type needs the host at each token ({constraint.reason}), which transformers' generate "
                "cannot wait for in a logits processor; use gen.generate."
            )
        limit = read_whole("max_new_tokens", max_new_tokens, minimum=1)
        if limit < constraint.least_tokens:
            raise ArgumentError(f"a whole text takes {constraint.least_tokens} tokens, got max_new_tokens={limit}")
        ends = read_token_ids("eos_token_id", eos_token_id, constraint.vocabulary.size)
        if not ends:
            raise ArgumentError("eos_token_id must name a token: without one generate would go on after a whole text.")
        self._request = Request(
            prompt_ids=[0],
            sampler=GreedySampler(),
            seeds=(0,),
            limit=limit,
            eos_token_ids=tuple(ends),
            constraint=constraint,
        )
        self._vocab_size, self._ends = constraint.vocabulary.size, list(ends)
        self.reset()

    def reset(self) -> None:
        """Start again: the next call is for the first token."""
        self._stage: DeviceConstraints | None = None
        self._ids: Tensor | None = None  # the input_ids of the call before
        self.squeezed: Tensor | None = None
        self._step = 0

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The logits with -inf for tokens that may not follow.

        Args:
            input_ids: (rows, tokens), int64, on the device of scores: prompts and texts so far.
            scores: (rows, vocab), floating; not modified.
        Returns:
            (rows, vocab), of the dtype and on the device of scores. Host sync: none on a GPU, except at the first call
            with a constraint that is new to this device.
        Raises:
            ArgumentError: these are not the texts of the call before with one more token.
        """
        _check_grown(self, None if self._ids is None else self._ids.shape, input_ids)
        rows, here = len(input_ids), slice(0, len(input_ids))
        if self._stage is None or self._ids is None or self.squeezed is None:
            self.squeezed = torch.zeros(rows, dtype=torch.bool, device=scores.device)
            self._stage = DeviceConstraints(rows, scores.device)
            self._stage.begin()
            self._stage.admit(here, [self._request] * rows, [[0]] * rows)
            self._ended = torch.zeros((rows, 1), dtype=torch.bool, device=scores.device)
            self._eos = to_device(torch.tensor(self._ends, device="cpu"), scores.device)
        else:
            same = (input_ids[:, None, :-1] == self._ids).all(-1)  # rows with the same tokens are in the same state
            ancestors = same.to(torch.int32).argmax(1)
            self._stage.advance(here, input_ids[:, -1:], ancestors)
            ends_now = (input_ids[:, -1:] == self._eos).any(1, keepdim=True)
            self._ended = self._ended.index_select(0, ancestors) | ends_now
            self.squeezed = self.squeezed.index_select(0, ancestors)
        self._ids = input_ids
        self._stage.prepare(here)
        generated = torch.full((rows, 1), self._step, dtype=torch.int64, device=scores.device)
        own = scores[:, : self._vocab_size].to(torch.float32, copy=True)
        masked = self._stage(own, here, input_ids, generated, generated)
        if self._request.short(self._step):
            masked, took = self._stage.room(masked, here, generated, self.squeezed).took(masked)
            self.squeezed = self.squeezed | (took & ~self._ended.squeeze(1))
        self._step += 1
        held = torch.full_like(scores, -torch.inf)
        only_eos = held.index_fill(1, self._eos, 0.0)  # for rows that generate continues after an eos of ours
        held[:, : self._vocab_size] = masked
        return torch.where(self._ended, only_eos, held)


def _check_grown(processor: object, before: torch.Size | None, input_ids: Tensor) -> None:
    """Raise an ArgumentError if a processor is used in a second call of generate."""
    if before is not None and input_ids.shape != (before[0], before[1] + 1):
        raise ArgumentError(
            f"{type(processor).__name__} follows the texts of one call of generate: after input_ids {tuple(before)} it "
            f"takes {(before[0], before[1] + 1)}, got {tuple(input_ids.shape)}; call reset() before the next call."
        )
