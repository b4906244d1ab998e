"""How long a model's linear layers take as torch computes them, and packed, with different numbers of rows.

    python -m benchmarks.packed_layers
    python -m benchmarks.packed_layers --dtype bfloat16

The weights are random and of SmolLM2-135M's shapes, 540 MB in float32, so that they are read from memory. The programs
take turns in rounds; times are CPU time of one thread, or wall time with more. float16 weights are compared with
float32 ones. Run it to see what your CPU would gain from `gen.load(..., pack=True)`; by default `gen` packs only where
`gen/models/transformers/packed_linear.py` says that it is faster.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.measuring import clock_for, interleave, machine, markdown_table, ratio, spread, write_json
from gen.models.transformers.cpu_layouts import Layout, layout_of, multiply

LAYER = [(576, 576)] * 2 + [(192, 576)] * 2 + [(1536, 576)] * 2 + [(576, 1536)]  # outputs, inputs
LAYERS, VOCABULARY, HIDDEN = 30, 49152, 576


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 512], help="numbers of rows")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    weights = [torch.randn(shape).to(dtype) for shape in [*LAYER * LAYERS, (VOCABULARY, HIDDEN)]]
    packed = [layout_of(weight) for weight in weights]
    weights = [weight.to(packed[0].dtype) for weight in weights]
    clock, rows = clock_for("cpu", arguments.threads), []
    for count in arguments.batch:
        given = {width: torch.randn(count, width).to(packed[0].dtype) for _, width in LAYER}
        cases = {"packed": _run(multiply, packed, given), "torch": _run(linear, weights, given)}
        seconds = interleave(cases, arguments.rounds, clock=clock)
        milliseconds = {name: f"{1e3 * spread(times).median:.1f}" for name, times in seconds.items()}
        rows.append({"rows": count, **milliseconds, "ratio": f"{ratio(seconds['packed'], seconds['torch']):.2f}"})
        print(rows[-1], flush=True)
    report: dict[str, Any] = {"machine": machine(), "dtype": arguments.dtype, "rounds": arguments.rounds, "rows": rows}
    print(json.dumps(report["machine"]), "\n")
    print(markdown_table(rows))
    if arguments.json:
        write_json(arguments.json, report)


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
