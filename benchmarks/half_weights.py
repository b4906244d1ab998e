"""What it costs and gains to pack a float16 checkpoint on a CPU, compared with the same checkpoint in float32: as
`gen.load` runs it, and with linear layers as torch computes them.

    make real
    python -m benchmarks.half_weights --model models/SmolLM2-135M-Instruct

Times are CPU time of one thread, greedy; medians of rounds in which the three take turns, and ratios medians of each
round's ratio. A step's time is the difference in time of two calls, divided by the difference in tokens. A fresh
process says how much its resident set has grown after it has loaded the model, at most meanwhile, and after it has read
a prompt and made eight texts.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gen
from benchmarks.measuring import machine, markdown_table, ratio, spread, write_json
from benchmarks.programs import some_prompts
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.packed_weight import PackedWeight

GREEDY = gen.samplers.greedy()
FEW, MANY = 8, 56  # new tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a float16 checkpoint")
    parser.add_argument("--prompt", type=int, default=512, help="how many tokens the prompt has")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--grow", help=argparse.SUPPRESS)  # for the fresh process that this one starts
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.grow:
        print(json.dumps(_grow(arguments.model, arguments.grow)))
        return
    models = {"packed": gen.load(arguments.model, device="cpu")}
    for name, pack in (("float32", None), ("torch", False)):
        models[name] = gen.load(arguments.model, device="cpu", dtype="float32", pack=pack)
    report: dict[str, Any] = {"machine": machine(), "rows": []}
    measures: dict[str, Callable[[TransformersModel], float]] = {
        "a step, batch 1": lambda model: _step(model, 1),
        "a step, batch 8": lambda model: _step(model, 8),
        f"a prompt of {arguments.prompt} tokens": lambda model: _prompt(model, arguments.prompt),
    }
    for what, measure in measures.items():
        for model in models.values():
            measure(model)
        rounds = [{name: measure(model) for name, model in models.items()} for _ in range(arguments.rounds)]
        packed, plain, torchs = ([one[name] for one in rounds] for name in models)
        row = _row(what, 1e3 * spread(packed).median, 1e3 * spread(plain).median, ratio(packed, plain))
        row |= {"torch's layers": f"{1e3 * spread(torchs).median:.1f}", "ratio to them": f"{ratio(packed, torchs):.2f}"}
        report["rows"].append(row)
    report["rows"].append(_megabytes("weights, MB", [_weights(model) for model in models.values()]))
    grown = [_growth(arguments.model, name) for name in models]
    for what, sizes in zip(("loaded", "at most", "after texts"), zip(*grown, strict=True), strict=True):
        report["rows"].append(_megabytes(f"a fresh process, {what}, MB", sizes))
    print(json.dumps(report["machine"]), "\n")
    print(markdown_table(report["rows"]))
    if arguments.json:
        write_json(arguments.json, report)


def _row(what: str, packed: float, plain: float, share: float) -> dict[str, object]:
    row: dict[str, object] = {"what": what, "packed": f"{packed:.1f}", "float32": f"{plain:.1f}"}
    return row | {"ratio": f"{share:.2f}", "torch's layers": "", "ratio to them": ""}


def _megabytes(what: str, sizes: Sequence[int]) -> dict[str, object]:
    packed, plain, torchs = (size / 1e6 for size in sizes)
    row = _row(what, packed, plain, packed / plain)
    return row | {"torch's layers": f"{torchs:.1f}", "ratio to them": f"{packed / torchs:.2f}"}


def _step(model: TransformersModel, batch: int) -> float:
    """Seconds that a step takes."""

    def call(new_tokens: int) -> float:
        return _timed(
            lambda: gen.generate(model, some_prompts(batch), sampler=GREEDY, max_new_tokens=new_tokens, eos_token_id=[])
        )

    return (call(MANY) - call(FEW)) / (MANY - FEW)


def _prompt(model: TransformersModel, tokens: int) -> float:
    """Seconds until the first token."""
    token_ids = [(1 + 89 * number) % model.vocab_size for number in range(tokens)]  # from all over the embedding
    return _timed(lambda: gen.generate(model, token_ids, sampler=GREEDY, max_new_tokens=1))


def _timed(call: Callable[[], object]) -> float:
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


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
    command = [sys.executable, "-m", "benchmarks.half_weights", "--model", model, "--grow", name]
    sizes: list[int] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return sizes


def _grow(path: str, name: str) -> list[int]:
    """What the fresh process does. The demo model comes first, so that all libraries are loaded before the
    measurement."""
    gen.generate(gen.load("demo", device="cpu"), some_prompts(8), sampler=GREEDY, max_new_tokens=FEW)
    before = _resident()
    dtype, pack = None if name == "packed" else "float32", False if name == "torch" else None
    model = gen.load(path, device="cpu", dtype=dtype, pack=pack)
    loaded, peak = _resident(), 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _prompt(model, 512)
    gen.generate(model, some_prompts(8), sampler=GREEDY, max_new_tokens=MANY, eos_token_id=[])
    model.release()
    return [loaded - before, peak - before, _resident() - before]


if __name__ == "__main__":
    main()
