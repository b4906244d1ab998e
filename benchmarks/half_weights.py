"""What it costs and gains to pack a float16 checkpoint on a CPU, compared with the same checkpoint in float32: as gen
runs it, and with linear layers as torch computes them, without copies of weights.

    make real
    python -m benchmarks.half_weights --model models/SmolLM2-135M-Instruct

Times are CPU time of one thread, greedy; medians of rounds in which the three take turns, and ratios medians of each
round's ratio. A step's time is the difference in time of two calls, divided by the difference in tokens. The memory of
the weights is counted after the rounds, whose prompt has 512 tokens from all over the vocabulary: first the process's
own memory, then with the mapped parts of an embedding that stays in its file. A fresh process says how much its
resident set has grown after it has loaded the model, and after it has read that prompt and made eight texts.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import gen
from benchmarks.measuring import machine, markdown_table, ratio, spread, write_json
from benchmarks.programs import some_prompts
from gen.models.transformers.half_weights import PackedLinear
from gen.models.transformers.model import TransformersModel

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
    models |= {name: gen.load(arguments.model, device="cpu", dtype="float32") for name in ("float32", "torch")}
    models["torch"].has_products = False
    models["torch"].release()
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
    folder = str(Path(arguments.model).resolve())
    own, read = zip(*(_weights(models[name], folder) for name in ("packed", "float32")), strict=True)
    report["rows"].append(_megabytes("weights in memory of its own, MB", *own))
    report["rows"].append(_megabytes("with what was read of the file, MB", *map(sum, zip(own, read, strict=True))))
    grown = [_growth(arguments.model, dtype) for dtype in ("packed", "float32")]
    for what, sizes in zip(("loaded", "after texts"), zip(*grown, strict=True), strict=True):
        report["rows"].append(_megabytes(f"a fresh process, {what}, MB", *sizes))
    print(json.dumps(report["machine"]), "\n")
    print(markdown_table(report["rows"]))
    if arguments.json:
        write_json(arguments.json, report)


def _row(what: str, packed: float, plain: float, share: float) -> dict[str, object]:
    row: dict[str, object] = {"what": what, "packed": f"{packed:.1f}", "float32": f"{plain:.1f}"}
    return row | {"ratio": f"{share:.2f}", "torch's layers": "", "ratio to them": ""}


def _megabytes(what: str, packed: int, plain: int) -> dict[str, object]:
    return _row(what, packed / 1e6, plain / 1e6, packed / plain)


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


def _weights(model: TransformersModel, folder: str) -> tuple[int, int]:
    """Bytes of a model's weights in the process's own memory, and the mapped bytes of weights in a file."""
    files = [region for region in _regions() if region.path.startswith(folder)]
    size, read = sum(part.nbytes for part in model.hf_model.modules() if isinstance(part, PackedLinear)), 0
    for weight in model.hf_model.parameters():
        mapped = [region for region in files if region.begin <= weight.data_ptr() < region.end]
        read, size = (read + mapped[0].resident, size) if mapped else (read, size + weight.nbytes)
    return size, read


class _Region(NamedTuple):
    """A region of /proc/self/smaps: its addresses, its file or "", and how many of its bytes are in memory."""

    begin: int
    end: int
    path: str
    resident: int


def _regions() -> Iterator[_Region]:
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0]:
            begin, end = (int(limit, 16) for limit in fields[0].split("-"))
            path = " ".join(fields[5:])
        elif fields[0] == "Rss:":
            yield _Region(begin, end, path, 1024 * int(fields[1]))


def _growth(model: str, dtype: str) -> tuple[int, int]:
    """By how many bytes a fresh process has grown after it has loaded a model, and after it has made texts."""
    command = [sys.executable, "-m", "benchmarks.half_weights", "--model", model, "--grow", dtype]
    loaded, used = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return loaded, used


def _grow(path: str, dtype: str) -> tuple[int, int]:
    """What the fresh process does. The demo model comes first, so that all libraries are loaded before the
    measurement."""
    gen.generate(gen.load("demo", device="cpu"), some_prompts(8), sampler=GREEDY, max_new_tokens=FEW)
    before = sum(region.resident for region in _regions())
    model = gen.load(path, device="cpu", dtype=None if dtype == "packed" else dtype)
    loaded = sum(region.resident for region in _regions())
    _prompt(model, 512)
    gen.generate(model, some_prompts(8), sampler=GREEDY, max_new_tokens=MANY, eos_token_id=[])
    model.release()
    return loaded - before, sum(region.resident for region in _regions()) - before


if __name__ == "__main__":
    main()
