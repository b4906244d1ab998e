"""How fast gen decodes a real model, against transformers.generate and llama.cpp.

    make real
    python -m benchmarks.real --batch 1 8 --new-tokens 64

All programs continue the same prompts greedily, eos ignored; they run in turn, round by round. Times are medians over
rounds, ratios medians of each round's ratio. "cpu s" is the CPU time of the thread that calls, which other load on the
machine disturbs less than wall time; with one thread it covers all work. llama.cpp runs the quantised file itself, one
text at a time, on one thread of its own, if llama-cpp-python is installed.
"""

import argparse
import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.measuring import machine, markdown_table, ratio, spread, write_json
from benchmarks.programs import ours, theirs
from gen.models.transformers.model import TransformersModel

MODELS = Path(__file__).parents[1] / "models"
PROMPTS = [
    "What is the capital of France, and what is it known for?",
    "Write a short story about a bee.",
    "Explain why the sky is blue.",
    "Name three colours.",
]
Clocks = dict[str, list[float]]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    models = {dtype: gen.load(arguments.model, device=arguments.device, dtype=dtype) for dtype in arguments.dtype}
    rows: list[dict[str, object]] = []
    for batch in arguments.batch:
        prompts = [PROMPTS[row % len(PROMPTS)] for row in range(batch)]
        cases: dict[str, Callable[[], object]] = {}
        for dtype, model in models.items():
            cases[f"gen {dtype}"] = ours(model, prompts, gen.samplers.greedy(), arguments.new_tokens)
            for cache in ("dynamic", "static"):
                how: dict[str, Any] = {"cache_implementation": cache} if cache == "static" else {}
                cases[f"transformers {cache} {dtype}"] = theirs(
                    model, prompts, arguments.new_tokens, do_sample=False, **how
                )
        if batch == 1 and (llama := _llama(arguments.gguf, models, prompts[0], arguments)):
            cases["llama.cpp Q4_1"] = llama
        wall, cpu = _interleave(cases, arguments.rounds)
        rows += _rows(batch, wall, cpu, arguments.new_tokens, f"transformers dynamic {arguments.dtype[0]}")
    described = {"machine": machine(), "arguments": _described(arguments), "rows": rows}
    print(json.dumps(described["machine"]), "\n")
    print(markdown_table(rows))
    if arguments.json:
        write_json(arguments.json, described)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(MODELS / "SmolLM2-135M-Instruct"), help="a folder, or a GGUF file")
    parser.add_argument(
        "--gguf", type=Path, default=MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf", help="llama.cpp's file"
    )
    parser.add_argument("--device", help="such as cuda:1; default: the current CUDA device, else cpu")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], help="others are compared to the first")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads on the CPU")
    parser.add_argument("--json", type=Path, help="write the report there")
    return parser.parse_args()


def _described(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments, without names of a person's folders."""
    paths = {"model": Path(arguments.model).name, "gguf": arguments.gguf.name}
    return {name: value for name, value in (vars(arguments) | paths).items() if name != "json"}


def _llama(
    file: Path, models: dict[str, TransformersModel], prompt: str, arguments: argparse.Namespace
) -> Callable[[], object] | None:
    """llama.cpp's greedy decoding of the same token ids; if it cannot run, None and a line that says why."""
    if find_spec("llama_cpp") is None or not file.is_file():
        print(f"left out: llama.cpp, which needs the package llama-cpp-python and {file}")
        return None
    from llama_cpp import Llama

    llama = Llama(str(file), n_ctx=512, n_threads=arguments.threads, n_threads_batch=arguments.threads, verbose=False)
    token_ids = next(iter(models.values())).tokenizer.encode(prompt)

    def run() -> None:
        llama.reset()
        made = llama.generate(token_ids, temp=0.0, reset=True)
        for _ in range(arguments.new_tokens):
            next(made)

    return run


def _interleave(cases: dict[str, Callable[[], object]], rounds: int) -> tuple[Clocks, Clocks]:
    """Wall and CPU seconds of every case in every round; one more round before them warms up."""
    wall: Clocks = {name: [] for name in cases}
    cpu: Clocks = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            case()
            if number:
                wall[name].append(time.perf_counter() - begin)
                cpu[name].append(time.thread_time() - begin_cpu)
    return wall, cpu


def _rows(batch: int, wall: Clocks, cpu: Clocks, new_tokens: int, peer: str) -> list[dict[str, Any]]:
    rows = []
    for name, seconds in wall.items():
        clock, thread = spread(seconds), spread(cpu[name])
        rows.append(
            {
                "batch": batch,
                "program": name,
                "tokens/s": round(batch * new_tokens / clock.median, 1),
                "wall s": round(clock.median, 3),
                "from": round(clock.fastest, 3),
                "to": round(clock.slowest, 3),
                "cpu s": round(thread.median, 3),
                "tokens/cpu s": round(batch * new_tokens / thread.median, 1),
                f"wall / {peer}": round(ratio(seconds, wall[peer]), 3),
                f"cpu / {peer}": round(ratio(cpu[name], cpu[peer]), 3),
            }
        )
    return rows


if __name__ == "__main__":
    main()
