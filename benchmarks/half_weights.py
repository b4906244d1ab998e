"""What it costs and gains to pack a float16 checkpoint on a CPU, compared with the same checkpoint in float32: as
`gen.load` runs it, and with linear layers as torch computes them.

    make real
    python -m benchmarks.half_weights --model models/SmolLM2-135M-Instruct

Times are CPU time of one thread, greedy; medians of rounds in which the three take turns, and ratios medians of each
round's ratio. A step's time is the difference in time of two calls, divided by the difference in tokens. A fresh
process says how much its resident set has grown after it has loaded the model, at most meanwhile, and after it has read
a prompt and made eight texts.
"""

import resource
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import torch
from torch import Tensor

import gen
from benchmarks.measuring import REAL, interleave, publish, ratio, read_arguments
from benchmarks.programs import ours, some_prompts
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.packed_weight import PackedWeight

GREEDY = gen.samplers.greedy()
KEPT: dict[str, dict[str, Any]] = {
    "packed": {},
    "float32": {"dtype": "float32"},
    "torch": {"dtype": "float32", "pack": False},
}
FEW, MANY = 8, 56  # new tokens


def main() -> None:
    given = read_arguments(__doc__, model=(str(REAL), "a float16 checkpoint"), prompt=(512, "its tokens"), rounds=5)
    models = {name: gen.load(given.model, device="cpu", **how) for name, how in KEPT.items()}
    rows = []
    for batch in (1, 8):
        keys = [(name, tokens) for name in models for tokens in (FEW, MANY)]
        calls = {(name, tokens): ours(models[name], some_prompts(batch), GREEDY, tokens) for name, tokens in keys}
        taken = interleave(calls, given.rounds, clock=thread_time)
        pairs = [zip(taken[name, FEW], taken[name, MANY], strict=True) for name in models]
        steps = [[(many - few) / (MANY - FEW) for few, many in some] for some in pairs]
        rows.append(_milliseconds(f"a step, batch {batch}", steps))
    reading = {name: partial(_read_prompt, model, given.prompt) for name, model in models.items()}
    seconds = interleave(reading, given.rounds, clock=thread_time)
    rows.append(_milliseconds(f"a prompt of {given.prompt} tokens", [*seconds.values()]))
    rows.append(_megabytes("weights, MB", [_weights(model) for model in models.values()]))
    grown = [_growth(given.model, name) for name in models]
    for what, sizes in zip(("loaded", "at most", "after texts"), zip(*grown, strict=True), strict=True):
        rows.append(_megabytes(f"a fresh process, {what}, MB", sizes))
    publish(given, rows=rows)


def _row(what: str, numbers: Sequence[float], share: float, share_of_torchs: float) -> dict[str, object]:
    packed, plain, torchs = (f"{number:.1f}" for number in numbers)
    row: dict[str, object] = {"what": what, "packed": packed, "float32": plain, "ratio": f"{share:.2f}"}
    return row | {"torch's layers": torchs, "ratio to them": f"{share_of_torchs:.2f}"}


def _milliseconds(what: str, seconds: Sequence[Sequence[float]]) -> dict[str, object]:
    packed, plain, torchs = seconds
    return _row(what, [1e3 * median(one) for one in seconds], ratio(packed, plain), ratio(packed, torchs))


def _megabytes(what: str, sizes: Sequence[int]) -> dict[str, object]:
    packed, plain, torchs = (size / 1e6 for size in sizes)
    return _row(what, (packed, plain, torchs), packed / plain, packed / torchs)


def _read_prompt(model: TransformersModel, tokens: int) -> None:
    """Make the first token."""
    token_ids = [(1 + 89 * number) % model.vocab_size for number in range(tokens)]  # from all over the embedding
    gen.generate(model, token_ids, sampler=GREEDY, max_new_tokens=1)


def _weights(model: TransformersModel) -> int:
    """Bytes of a model's weights."""
    return sum(_size(weight) for weight in model.hf_model.parameters())


def _size(weight: Tensor) -> int:
    if not isinstance(weight, PackedWeight):
        return weight.nbytes
    return sum(part.nbytes for part in (weight.packed, weight.rows) if part is not None)


def _resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _growth(model: str, name: str) -> list[int]:
    """By how many bytes a fresh process has grown after it has loaded a model, at most meanwhile, and after texts."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_grow, model, name).result()


def _grow(path: str, name: str) -> list[int]:
    """What the fresh process does. The demo model comes first, so that all libraries are loaded before the
    measurement."""
    torch.set_num_threads(1)
    gen.generate(gen.load("demo", device="cpu"), some_prompts(8), sampler=GREEDY, max_new_tokens=FEW)
    before = _resident()
    model = gen.load(path, device="cpu", **KEPT[name])
    loaded, peak = _resident(), 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _read_prompt(model, 512)
    gen.generate(model, some_prompts(8), sampler=GREEDY, max_new_tokens=MANY, eos_token_id=[])
    model.release()
    return [loaded - before, peak - before, _resident() - before]


if __name__ == "__main__":
    main()
