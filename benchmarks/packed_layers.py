"""How long a model's linear layers take as torch computes them, and packed, with different numbers of rows.

    python -m benchmarks.packed_layers
    python -m benchmarks.packed_layers --dtype bfloat16

The weights are random and of SmolLM2-135M's shapes, 540 MB in float32, so that they are read from memory. The programs
take turns in rounds; times are CPU time of one thread, or wall time with more. float16 weights are compared with
float32 ones. Run it to see what your CPU would gain from `gen.load(..., pack=True)`; by default `gen` packs only where
`gen/models/transformers/packed_linear.py` says that it is faster.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.measuring import clock_for, interleave, publish, ratio, read_arguments
from gen.models.transformers.cpu_layouts import Layout, layout_of, multiply

LAYER = [(576, 576)] * 2 + [(192, 576)] * 2 + [(1536, 576)] * 2 + [(576, 1536)]  # outputs, inputs
LAYERS, VOCABULARY, HIDDEN = 30, 49152, 576


@torch.inference_mode()
def main() -> None:
    given = read_arguments(
        __doc__, batch=([1, 2, 4, 8, 16, 64, 512], "numbers of rows"), dtype="float32", rounds=7, threads=1
    )
    dtype = getattr(torch, given.dtype)
    weights = [torch.randn(shape).to(dtype) for shape in [*LAYER * LAYERS, (VOCABULARY, HIDDEN)]]
    packed = [layout_of(weight) for weight in weights]
    weights = [weight.to(packed[0].dtype) for weight in weights]
    rows = []
    for count in given.batch:
        inputs = {width: torch.randn(count, width).to(packed[0].dtype) for _, width in LAYER}
        cases = {"packed": _run(multiply, packed, inputs), "torch": _run(linear, weights, inputs)}
        seconds = interleave(cases, given.rounds, clock=clock_for("cpu", given.threads))
        milliseconds = {name: f"{1e3 * median(times):.1f}" for name, times in seconds.items()}
        rows.append({"rows": count, **milliseconds, "ratio": f"{ratio(seconds['packed'], seconds['torch']):.2f}"})
    publish(given, dtype=given.dtype, rounds=given.rounds, rows=rows)


def _run(
    product: Callable[[Tensor, Any, Tensor | None], Tensor],
    weights: list[Layout] | list[Tensor],
    given: dict[int, Tensor],
) -> Callable[[], None]:
    def all_layers() -> None:
        for weight in weights:
            product(given[weight.shape[1]], weight, None)

    return all_layers


if __name__ == "__main__":
    main()
