"""How long a model's linear layers take in torch, and in gen, with copies of the weights and without.

    python -m benchmarks.products
    python -m benchmarks.products --dtype bfloat16

The weights are random and of SmolLM2-135M's shapes, 540 MB in float32, so that they are read from memory. The programs
take turns in rounds; times are CPU time of one thread, or wall time with more. Run it to see what your CPU would gain;
`gen` itself computes so only where `gen/models/transformers/products.py` says that it is faster.
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
from gen.models.transformers.products import product
from gen.models.transformers.weight_copies import WeightCopies

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
    same = [weight.detach() for weight in weights]  # without copies
    copies = WeightCopies(weights)
    clock, rows = clock_for("cpu", arguments.threads), []
    for count in arguments.batch:
        given = {width: torch.randn(count, width).to(dtype) for _, width in LAYER}

        def run(
            multiply: Callable[[Tensor, Tensor], Tensor], weights: list[Tensor], given: dict[int, Tensor] = given
        ) -> Callable[[], None]:
            def all_layers() -> None:
                for weight in weights:
                    multiply(given[weight.shape[1]], weight)

            return all_layers

        cases = {"gen": run(product, weights), "without copies": run(product, same), "torch": run(linear, same)}
        seconds = interleave(cases, arguments.rounds, clock=clock)
        milliseconds = {name: f"{1e3 * spread(times).median:.1f}" for name, times in seconds.items()}
        rows.append({"rows": count, **milliseconds, "ratio": f"{ratio(seconds['gen'], seconds['torch']):.2f}"})
        print(rows[-1], flush=True)
    del copies
    report: dict[str, Any] = {"machine": machine(), "dtype": arguments.dtype, "rounds": arguments.rounds, "rows": rows}
    print(json.dumps(report["machine"]), "\n")
    print(markdown_table(rows))
    if arguments.json:
        write_json(arguments.json, report)


if __name__ == "__main__":
    main()
