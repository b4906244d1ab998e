"""Whether a choice of a token was so close that rounding could have changed it: a near-tie.

Example: the best two logits of a greedy choice are 3.00001 and 3.00000. A step that adds its sums in another order may
find the second one larger. A draw is a race, first of blocks and then of the tokens of one block: there the best two
scores of either race count. It also counts how close a cut is to keeping one token more or one fewer.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import gen
from gen.loop.searches.drawing import Drawing
from gen.samplers import MultinomialSampler, Sampler
from gen.samplers.backends.blocks import BLOCK
from gen.samplers.backends.random import log_uniform, row_keys, weyl

LIMITS = {"token": 1e-4, "block": 1e-4, "top-k": 1e-4, "top-p": 1e-5, "min-p": 1e-5}
"""The largest gaps of a near-tie: of scores, of logits, and of shares of the mass."""


def gaps(logits: Tensor, key: Tensor | None, sampler: Sampler) -> dict[str, float]:
    """How far away another choice was.

    Args:
        logits: (vocab,), what was chosen from.
        key: (1,), int64; None for a greedy choice.
        sampler: what chose.
    Returns:
        The gaps for those entries of `LIMITS` that took part in the choice; a cut that is not close to another has
        none.
    """
    values = logits.double().nan_to_num(nan=-math.inf)
    if key is None or not isinstance(sampler, MultinomialSampler) or sampler.temperature == 0:
        return {"token": _best_two(values)}
    values, found = values / (1.0 if sampler.temperature is None else float(sampler.temperature)), dict[str, float]()
    ranked, order = values.sort(descending=True, stable=True)
    mass = (ranked - ranked[0]).exp()
    if sampler.top_k is not None and sampler.top_k < len(ranked):
        least, first_left_out = ranked[int(sampler.top_k) - 1 : int(sampler.top_k) + 1]
        found["top-k"] = float(least - first_left_out)  # 0 of equals, which are all kept
        mass *= ranked >= least
    if sampler.top_p is not None and sampler.top_p < 1:
        reached = mass.cumsum(0)
        share = (reached - mass) / reached[-1] - float(sampler.top_p)
        found["top-p"] = float(share[mass > 0].abs().min())
        mass *= share < 0
    if sampler.min_p is not None and sampler.min_p > 0:
        found["min-p"] = float((mass[mass > 0] - float(sampler.min_p)).abs().min())
        mass *= mass >= float(sampler.min_p)
    left = torch.zeros_like(mass).scatter_(0, order, mass)
    blocks = pad(left, (0, -len(left) % BLOCK)).view(-1, BLOCK)
    noise = (-log_uniform(key, weyl(torch.arange(BLOCK + len(blocks))))).log()
    scores = blocks.sum(1).log() - noise[BLOCK:]
    found["block"] = _best_two(scores)
    found["token"] = _best_two(blocks[scores.argmax()].log() - noise[:BLOCK])
    return found


def near_ties(found: dict[str, float]) -> list[str]:
    """The names of the gaps that are small enough for a near-tie."""
    return [name for name, gap in found.items() if gap <= LIMITS[name]]


def gaps_of_text(
    model: Any, prompt: str, output_type: Any, settings: dict[str, Any], place: int, expected: list[int]
) -> list[dict[str, float]]:
    """The gaps at one token of a text. The text is made again, alone and with plain steps.

    If the limit takes part in the choice, there are two: among all tokens that may be chosen, and among those that fit.

    Args:
        settings: of `gen.generate` for one prompt; `seed` is the text's own.
        place: which token.
        expected: the text's tokens before that one.
    Returns:
        Nothing if the text made alone differs before that token.
    """
    sampler = settings["sampler"]
    if isinstance(sampler, MultinomialSampler):
        sampler = replace(sampler, samples=1)
    given = {**settings, "sampler": sampler, "speculate": False, "replay": False, "details": True}
    with choices() as seen:
        made: Any = gen.generate(model, prompt, output_type, **given)
    if made.token_ids[:place] != expected or len(seen) <= place:
        return []
    key = row_keys(torch.tensor([settings["seed"]]), place + 1)[place]
    return [gaps(logits, key, sampler) for logits in seen[place]]


@contextmanager
def choices() -> Iterator[list[list[Tensor]]]:
    """In the block, collect the tensors that each choice is made from, for a text that runs alone and unrecorded."""
    seen: list[list[Tensor]] = []
    pick = Drawing.pick

    def noting(self: Drawing, given: Any) -> tuple[Tensor, Tensor]:
        seen.append([given.logits[0].clone()])
        if (room := given.room) is not None:
            logits, narrowed = given.logits.clone(), room.narrow(None)
            given = given._replace(logits=logits, room=replace(room, narrow=lambda wanted: narrowed))
            seen[-1].append(narrowed[0].clone())
        return pick(self, given)

    Drawing.pick = noting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Drawing.pick = pick  # type: ignore[method-assign]


def _best_two(scores: Tensor) -> float:
    best = scores.topk(2).values
    return float(best[0] - best[1]) if best[1] > -math.inf else math.inf
