"""The protocol of samplers: a step on the device, and the call that Outlines' loop makes."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from gen.errors import ArgumentError, ResultError, check_number, show
from gen.samplers.penalties import Penalties

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Sampled = tuple[Tensor, Tensor, Tensor]
"""What a step gives: next_token_ids (rows, 1) int64, ancestors (rows,) int64, weights (rows,) floating."""


class Sampler(Protocol):
    """Chooses the next token of each row.

    Attributes:
        samples: how many sequences the sampler makes for each prompt.
        penalties: how the loop changes the logits before each step; None for no change.
    """

    @property
    def samples(self) -> int: ...
    @property
    def penalties(self) -> Penalties | None: ...

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Sampled:
        """Choose one token for each row, on `logits.device`, without a host sync.

        Args:
            logits: (rows, vocab), floating, any device; not modified. NaN counts as -inf.
            weights: (rows,), floating, on the logits' device: the log-probability of each row so far.
            keys: (rows,), int64, on the logits' device: the row's random key for this step.
        Returns:
            next_token_ids (rows, 1) int64; ancestors (rows,) int64, the row that each result continues; weights
            (rows,), the log-probability with the new token. A row in which no token can be chosen (a dead row) gives
            token 0 and weight -inf.
        """


def read_sampler(sampler: object) -> Sampler:
    """A sampler that the loop can use.

    Raises:
        ArgumentError: it lacks a part of the protocol, or is a class.
    """
    if isinstance(sampler, type) or not callable(getattr(sampler, "step", None)):
        raise ArgumentError(f"sampler must be a sampler such as gen.samplers.greedy(), got {show(sampler)}")
    name = type(sampler).__name__
    for attribute in ("samples", "penalties"):
        if not hasattr(sampler, attribute):
            raise ArgumentError(f"the sampler {name} has no {attribute}; see gen.samplers.Sampler for its protocol.")
    known: Sampler = sampler  # type: ignore[assignment]
    check_number(f"{name}.samples", known.samples, minimum=1, whole=True)
    if not isinstance(known.penalties, Penalties | None):
        raise ArgumentError(f"{name}.penalties must be a gen.samplers.Penalties or None, got {show(known.penalties)}")
    return known


def check_sampled(sampler: Sampler, sampled: object, logits: Tensor) -> None:
    """Raise a ResultError unless a sampler's results have the shapes, types and device that `Sampler.step` promises.

    Args:
        sampled: the results of `sampler.step`.
        logits: (rows, vocab), the logits that the step was given.
    """
    rows, device = len(logits), logits.device
    wanted = f"next_token_ids ({rows}, 1) int64, ancestors ({rows},) int64, weights ({rows},) floating, on {device}"
    results: list[Any] = list(sampled) if isinstance(sampled, tuple | list) else [sampled]
    if [_place(one) for one in results] == [((rows, 1), device), ((rows,), device), ((rows,), device)]:
        token_ids, ancestors, weights = results
        if token_ids.dtype == ancestors.dtype == torch.int64 and weights.is_floating_point():
            return
    got = ", ".join(f"{show(one)}{f' on {one.device}' if isinstance(one, Tensor) else ''}" for one in results[:4])
    raise ResultError(f"{type(sampler).__name__}.step must give {wanted}; it gave {len(results)} results: {got}")


def _place(value: object) -> tuple[tuple[int, ...], torch.device] | None:
    return (tuple(value.shape), value.device) if isinstance(value, Tensor) else None


def without_gradients(step: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """torch.no_grad() as a decorator; it costs nothing when gradients are off already, as they are in gen's loop."""

    @wraps(step)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not torch.is_grad_enabled():
            return step(*args, **kwargs)
        with torch.no_grad():
            return step(*args, **kwargs)

    return run


def step_with_generator(
    sampler: Sampler, logits: Tensor, sequence_weights: Tensor, rng: torch.Generator | None
) -> Sampled:
    """Run `sampler.step` for a loop that has a generator and no keys, as Outlines' loop does.

    Args:
        logits: (rows, vocab), floating, any device.
        sequence_weights: (rows,), floating or whole numbers, any device.
        rng: a generator on any device, which gives one 64-bit key for each row; None: the CPU's default generator.
    Returns:
        What `step` returns, on `sequence_weights.device`. Host sync: none if all are on one device; else for copies.
    Raises:
        ArgumentError: the sampler has penalties, which need the tokens so far.
    """
    if sampler.penalties is not None:
        raise ArgumentError(
            "penalties, bad words, n-grams and minimum lengths need the tokens so far, which gen's own loop has; make "
            "the sampler without them to call it in another loop."
        )
    source = torch.device("cpu") if rng is None else rng.device
    keys = torch.empty(len(logits), dtype=torch.int64, device=source).random_(-(2**63), None, generator=rng)
    weights = sequence_weights if sequence_weights.is_floating_point() else sequence_weights.float()
    sampled = sampler.step(logits, weights.to(logits.device), keys.to(logits.device))
    token_ids, ancestors, weights = (result.to(sequence_weights.device) for result in sampled)
    return token_ids, ancestors, weights
