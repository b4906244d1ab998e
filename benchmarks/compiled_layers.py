"""How fast gen's decode steps are with decoder layers compiled by torch.compile: an experiment that led to no option.

    OMP_NUM_THREADS=1 python -m benchmarks.compiled_layers --json compiled-layers.json

The same step of a random Llama of 135 million parameters in float32 runs as it is, as gen records it, and with each
decoder layer compiled (inductor, which needs a C++ compiler). Recording refuses compiled layers: torch functions do not
show what they call.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from benchmarks.measuring import clock_for, interleave, machine, write_json
from benchmarks.random_model import random_model
from gen.loop.replay.recording import record
from gen.runtime.isolation import own_settings

VOCABULARY, COLUMNS = 49_152, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["tiny", "135m"], default="135m")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the report there")
    given = parser.parse_args()
    rows = [measure(given.shape, batch, given.rounds) for batch in given.batch]
    for row in rows:
        print(row)
    if given.json:
        write_json(given.json, {"machine": machine(), "rows": rows})


def measure(shape: str, batch: int, rounds: int) -> dict[str, object]:
    """Milliseconds of a step, and how far logits are from those of the layers as they are."""
    plain, compiled = (Steps(shape, batch) for _ in range(2))
    torch.compiler.reset()
    for layer in compiled.model.hf_model.model.layers:
        layer.compile(dynamic=False)
    # each layer asks the cache by its own number, so each is compiled by itself
    limits = torch._dynamo.config.patch(recompile_limit=100, accumulated_recompile_limit=1000)
    with limits, own_settings(), torch.inference_mode():
        wanted, begin = plain.step(), time.perf_counter()
        found, took = compiled.step(), time.perf_counter() - begin
        recorded = record(plain.step)
        cases: dict[str, Callable[[], object]] = {
            "as it is": plain.step, "recorded": recorded, "layers compiled": compiled.step,
        }  # fmt: skip
        seconds = interleave(cases, rounds, clock=clock_for("cpu", torch.get_num_threads()))
    made: dict[str, object] = {"shape": shape, "batch": batch, "columns": COLUMNS}
    made |= {f"ms, {name}": round(1000 * median(times), 3) for name, times in seconds.items()}
    ratios = [one / other for one, other in zip(seconds["layers compiled"], seconds["recorded"], strict=True)]
    made["compiled / recorded"] = round(median(ratios), 3)
    return made | {"seconds to compile": round(took, 1), "largest difference": float((found - wanted).abs().max())}


class Steps:
    """The steps of a model's rows; each step looks at all columns."""

    def __init__(self, shape: str, batch: int) -> None:
        self.model = random_model(VOCABULARY, "tiny" if shape == "tiny" else "135m")
        with own_settings(), torch.inference_mode():
            self.rows = self.model.new_rows(batch, COLUMNS)
            self.rows.fill(slice(0, batch), [[*range(3, 3 + COLUMNS // 2)]] * batch)
        self.token_ids = torch.full((batch, 1), 7)

    def step(self) -> torch.Tensor:
        return self.rows.step(self.token_ids, COLUMNS)


if __name__ == "__main__":
    main()
