"""How fast gen decodes on each device, against transformers.generate and a bare forward, and whether tokens agree.

    python -m benchmarks.throughput --devices cuda:0 cuda:1 --model demo --batch 1 8 32 --new-tokens 128

All cases of a batch size run in turn, round by round; times are medians over rounds, ratios medians of each round's
ratio. On a CPU with one thread they are CPU time of the thread, else wall time. "gen" is `gen.generate` (drawing,
log-probabilities and text included), "transformers" is its `generate` drawing from the same distribution, "bare" only
reads the prompts and runs decode steps. Last come many prompts of 2 to 60 tokens, greedy, each with its own limit of 8
to 320 new tokens: gen in one call, transformers in fixed batches of 32 that run until their longest text ends. With
--job only a job of `gen batch` is measured, on each device alone and on all of them: tokens/s, and rows that differ.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.batch_devices import measure_job
from benchmarks.measuring import clock_for, interleave, machine, markdown_table, ratio, spread, write_json
from benchmarks.programs import Program, bare, ours, pad_left, some_prompts, theirs
from benchmarks.random_model import save_random_model
from gen.devices import available_devices, resolve_device
from gen.errors import DeviceError
from gen.models.transformers.model import TransformersModel

SAMPLED, GREEDY = gen.samplers.multinomial(), gen.samplers.greedy()
SHORTEST, LONGEST = 8, 320  # new tokens, where limits differ
FIXED = 32  # how many rows transformers has at a time, where limits differ


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.job:
        rows = measure_job(arguments.model, arguments.devices, arguments.prompts, arguments.new_tokens)
        print(json.dumps(machine()), "\n")
        print(markdown_table(rows))
        if arguments.json:
            write_json(arguments.json, {"machine": machine(), "arguments": _described(arguments), "rows": rows})
        return
    devices = _existing(arguments.devices)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.vocab:
            save_random_model(Path(folder), arguments.vocab)
        path = folder if arguments.vocab else arguments.model
        models = {str(device): gen.load(path, device=device, dtype=arguments.dtype) for device in devices}
    report: dict[str, Any] = {"machine": machine(), "arguments": _described(arguments), "rows": [], "same_tokens": {}}
    for batch in arguments.batch:
        prompts = some_prompts(batch)
        report["rows"] += _measure(models, prompts, arguments)
        report["same_tokens"][str(batch)] = _same_tokens(models, prompts, arguments.new_tokens)
    report["mixed"] = _measure_mixed(models, arguments) if arguments.prompts else []
    print(json.dumps(report["machine"]), "\n")
    for rows in filter(None, (report["rows"], report["mixed"])):
        print(markdown_table(rows), "\n")
    for batch, share in report["same_tokens"].items():
        told = "one device only" if share is None else f"{share:.1%} of texts equal on all devices"
        print(f"batch {batch}, same seed: {told}")
    if arguments.json:
        write_json(arguments.json, report)
    if arguments.plot:
        _plot(report["rows"], arguments.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--devices", nargs="+", default=["cpu"], help="such as cuda:0 cuda:1; others are compared to the first"
    )
    parser.add_argument("--model", default="demo", help='a directory, a Hub id, or "demo"')
    parser.add_argument(
        "--vocab", type=int, help="instead of --model, a small Llama of random weights with this many tokens"
    )
    parser.add_argument("--dtype", help="the dtype of the weights; default: the checkpoint's")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32], help="batch sizes; none: only --prompts")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=200, help="how many prompts with a limit each; 0 for none")
    parser.add_argument("--job", action="store_true", help="measure a job of `gen batch` on each device and on all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="torch's threads on the CPU")
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--plot", type=Path, help="draw tokens per second there, as PNG")
    return parser.parse_args()


def _described(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(arguments).items() if name not in ("json", "plot")}


def _existing(names: list[str]) -> list[torch.device]:
    """The devices that exist, or the CPU if none does; prints those that are missing."""
    devices = []
    for name in names:
        try:
            devices.append(resolve_device(name))
        except DeviceError as error:
            print(f"left out: {error}", file=sys.stderr)
    return list(dict.fromkeys(devices)) or available_devices()[:1]


def _measure(
    models: dict[str, TransformersModel], prompts: list[str], arguments: argparse.Namespace
) -> list[dict[str, object]]:
    """A row for each device and program."""
    cases: dict[str, Program] = {}
    new_tokens = arguments.new_tokens
    for device, model in models.items():
        cases[f"gen {device}"] = ours(model, prompts, SAMPLED, new_tokens)
        cases[f"transformers {device}"] = theirs(model, prompts, new_tokens, do_sample=True, top_k=0)
        cases[f"bare {device}"] = bare(model, prompts, new_tokens)
    seconds = interleave(cases, arguments.rounds, clock=clock_for(next(iter(models)), arguments.threads))
    first = next(iter(models))
    rows: list[dict[str, object]] = []
    for name, times in seconds.items():
        program, device = name.split(" ")
        measured = spread([1000 * time / new_tokens for time in times])
        rows.append(
            {
                "batch": len(prompts),
                "program": program,
                "device": device,
                "tokens/s": round(1000 * len(prompts) / measured.median),
                "ms/step": round(measured.median, 3),
                "from": round(measured.fastest, 3),
                "to": round(measured.slowest, 3),
                f"time / {first}": round(ratio(times, seconds[f"{program} {first}"]), 3),
                "time / transformers": round(ratio(times, seconds[f"transformers {device}"]), 3),
                "time / bare": round(ratio(times, seconds[f"bare {device}"]), 3),
            }
        )
    return rows


def _measure_mixed(models: dict[str, TransformersModel], arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Prompts with a limit each: a row for each device and program."""
    draw = random.Random(1)
    vocabulary = min(model.tokenizer.vocab_size for model in models.values())
    prompts = [[draw.randrange(10, vocabulary) for _ in range(draw.randint(2, 60))] for _ in range(arguments.prompts)]
    limits = [int(SHORTEST * (LONGEST / SHORTEST) ** draw.random()) for _ in prompts]
    cases: dict[str, Program] = {}
    made: dict[str, list[list[int]]] = {}
    for device, model in models.items():
        for program, run in (("gen", _in_one_call), ("transformers", _in_fixed_batches)):
            cases[f"{program} {device}"] = _kept(f"{program} {device}", run, model, prompts, limits, made)
    seconds = interleave(cases, arguments.rounds, clock=clock_for(next(iter(models)), arguments.threads))
    rows: list[dict[str, object]] = []
    for name, times in seconds.items():
        program, device = name.split(" ")
        measured = spread(times)
        peer = f"transformers {device}"
        rows.append(
            {
                "prompts": len(prompts),
                "new tokens": sum(limits),
                "program": program,
                "device": device,
                "tokens/s": round(sum(limits) / measured.median),
                "s": round(measured.median, 2),
                "from": round(measured.fastest, 2),
                "to": round(measured.slowest, 2),
                "time / transformers": round(ratio(times, seconds[peer]), 3),
                "same texts": sum(mine == other for mine, other in zip(made[name], made[peer], strict=True)),
            }
        )
    return rows


def _kept(
    name: str, run: Any, model: TransformersModel, prompts: list[list[int]], limits: list[int], made: dict[str, Any]
) -> Program:
    """A case that keeps its texts."""

    def case() -> None:
        made[name] = run(model, prompts, limits)

    return case


def _in_one_call(model: TransformersModel, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
    found = gen.generate(model, prompts, sampler=GREEDY, max_new_tokens=limits, eos_token_id=[], details=True)
    return [completion.token_ids for completion in found]


def _in_fixed_batches(model: TransformersModel, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
    from transformers import GenerationConfig

    model.hf_model.generation_config.eos_token_id = None
    device, made = model.placement.input_device, []
    for first in range(0, len(prompts), FIXED):
        here = slice(first, first + FIXED)
        token_ids, mask = (tensor.to(device) for tensor in pad_left(prompts[here]))
        config = GenerationConfig(do_sample=False, max_new_tokens=max(limits[here]), pad_token_id=0)
        rows = model.hf_model.generate(token_ids, attention_mask=mask, generation_config=config).tolist()
        width = token_ids.shape[1]
        made += [row[width : width + limit] for row, limit in zip(rows, limits[here], strict=True)]
    return made


def _same_tokens(models: dict[str, TransformersModel], prompts: list[str], new_tokens: int) -> float | None:
    """The share of prompts whose tokens are equal on all devices; None with a single one."""
    if len(models) < 2:
        return None
    by_device = [_sampled(model, prompts, new_tokens) for model in models.values()]
    equal = [all(other == first for other in others) for first, *others in zip(*by_device, strict=True)]
    return sum(equal) / len(equal)


def _sampled(model: TransformersModel, prompts: list[str], new_tokens: int) -> list[list[int]]:
    found: Any = gen.generate(
        model,
        prompts,
        sampler=SAMPLED,
        max_new_tokens=new_tokens,
        seed=list(range(len(prompts))),
        eos_token_id=[],
        details=True,
    )
    return [completion.token_ids for completion in found]


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name in dict.fromkeys((row["program"], row["device"]) for row in rows):
        own = [row for row in rows if (row["program"], row["device"]) == name]
        axes.plot([row["batch"] for row in own], [row["tokens/s"] for row in own], marker="o", label=" on ".join(name))
    axes.set(xlabel="batch", ylabel="tokens per second", xscale="log", yscale="log")
    axes.set_xticks(sorted({row["batch"] for row in rows}), sorted({str(row["batch"]) for row in rows}, key=int))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
