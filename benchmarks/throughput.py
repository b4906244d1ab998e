"""How fast gen decodes on each device, against transformers.generate and a bare forward, and whether tokens agree.

    python -m benchmarks.throughput --devices cuda:0 cuda:1 --model demo --batch 1 8 32 --new-tokens 128

All cases of a batch size run in turn, round by round; times are medians over rounds, ratios medians of each round's
ratio. "gen" is `gen.generate` (drawing, log-probabilities and text included), "transformers" is its `generate` drawing
from the same distribution, "bare" only reads the prompts and runs decode steps.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gen
from benchmarks.measuring import interleave, machine, markdown_table, ratio, spread
from benchmarks.random_model import save_random_model
from gen.devices import available_devices, resolve_device
from gen.errors import DeviceError
from gen.loop.places import view_bucket
from gen.models.transformers import TransformersModel

PROMPTS = ["Once upon a time", "One morning", "Describe Ada as JSON.\n", "There was a small house by the river, and"]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    devices = _existing(arguments.devices)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.vocab:
            save_random_model(Path(folder), arguments.vocab)
        path = folder if arguments.vocab else arguments.model
        models = {str(device): gen.load(path, device=device, dtype=arguments.dtype) for device in devices}
    report: dict[str, Any] = {"machine": machine(), "arguments": _described(arguments), "rows": [], "same_tokens": {}}
    for batch in arguments.batch:
        prompts = [PROMPTS[row % len(PROMPTS)] for row in range(batch)]
        report["rows"] += _measure(models, prompts, arguments.new_tokens, arguments.rounds)
        report["same_tokens"][str(batch)] = _same_tokens(models, prompts, arguments.new_tokens)
    print(json.dumps(report["machine"]), "\n")
    print(markdown_table(report["rows"]), "\n")
    for batch, share in report["same_tokens"].items():
        told = "one device only" if share is None else f"{share:.1%} of texts equal on all devices"
        print(f"batch {batch}, same seed: {told}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.plot:
        _plot(report["rows"], arguments.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=["cpu"], help="as cuda:0 cuda:1; the first is the yardstick")
    parser.add_argument("--model", default="demo", help='a directory, a Hub id, or "demo"')
    parser.add_argument(
        "--vocab", type=int, help="not --model, but a small Llama of random weights with so many tokens"
    )
    parser.add_argument("--dtype", help="of the weights; default: the checkpoint's")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--plot", type=Path, help="draw tokens per second there, as PNG")
    return parser.parse_args()


def _described(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(arguments).items() if name not in ("json", "plot")}


def _existing(names: list[str]) -> list[torch.device]:
    """The devices that exist; the CPU if none does. What is missing is said."""
    devices = []
    for name in names:
        try:
            devices.append(resolve_device(name))
        except DeviceError as error:
            print(f"left out: {error}", file=sys.stderr)
    return list(dict.fromkeys(devices)) or available_devices()[:1]


def _measure(
    models: dict[str, TransformersModel], prompts: list[str], new_tokens: int, rounds: int
) -> list[dict[str, object]]:
    """A row for each device and program."""
    cases: dict[str, Callable[[], object]] = {}
    for device, model in models.items():
        cases[f"gen {device}"] = lambda model=model: _ours(model, prompts, new_tokens)  # type: ignore[misc]
        cases[f"transformers {device}"] = _transformers(model, prompts, new_tokens)
        cases[f"bare {device}"] = _bare(model, prompts, new_tokens)
    with torch.inference_mode():
        seconds = interleave(cases, rounds)
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


def _ours(model: TransformersModel, prompts: list[str], new_tokens: int) -> list[gen.Completion]:
    completions: list[gen.Completion] = gen.generate(
        model, prompts, max_new_tokens=new_tokens, seed=list(range(len(prompts))), eos_token_id=[], details=True
    )
    return completions


def padded(model: TransformersModel, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, (rows, width), padded on the left, on the CPU."""
    encoded = [model.tokenizer.encode(prompt) for prompt in prompts]
    width = max(map(len, encoded))
    token_ids = torch.tensor([[0] * (width - len(ids)) + ids for ids in encoded])
    mask = torch.tensor([[False] * (width - len(ids)) + [True] * len(ids) for ids in encoded])
    return token_ids, mask


def _transformers(model: TransformersModel, prompts: list[str], new_tokens: int) -> Callable[[], object]:
    from transformers import GenerationConfig

    device = model.placement.input_device
    token_ids, mask = (tensor.to(device) for tensor in padded(model, prompts))
    config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=new_tokens, pad_token_id=0)

    def run() -> list[list[int]]:
        torch.manual_seed(0)
        output = model.hf_model.generate(token_ids, attention_mask=mask, generation_config=config)
        rows: list[list[int]] = output.tolist()
        assert len(rows[0]) == token_ids.shape[1] + new_tokens, "transformers stopped early"
        return rows

    return run


def _bare(model: TransformersModel, prompts: list[str], new_tokens: int) -> Callable[[], object]:
    encoded = [model.tokenizer.encode(prompt) for prompt in prompts]
    width = max(map(len, encoded))

    def run() -> float:
        rows = model.new_rows(len(prompts), width + new_tokens)
        logits = rows.fill(slice(0, len(prompts)), encoded)
        constant = torch.full((len(prompts), 1), 5, dtype=torch.int64, device=model.placement.logits_device)
        for step in range(new_tokens - 1):
            logits = rows.step(constant, view_bucket(width + step + 1))
        return float(logits[0, 0])  # the device has to be done

    return run


def _same_tokens(models: dict[str, TransformersModel], prompts: list[str], new_tokens: int) -> float | None:
    """The share of prompts whose tokens are equal on all devices; None with a single one."""
    if len(models) < 2:
        return None
    by_device = [[c.token_ids for c in _ours(model, prompts, new_tokens)] for model in models.values()]
    equal = [all(other == first for other in others) for first, *others in zip(*by_device, strict=True)]
    return sum(equal) / len(equal)


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
