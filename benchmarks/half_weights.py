"""What packing a float16 checkpoint on a CPU costs and gives, against the same checkpoint in float32.

    make real
    python -m benchmarks.half_weights --model models/SmolLM2-135M-Instruct

Times are CPU time of one thread, greedy; medians of rounds in which the two take turns, and ratios medians of each
round's ratio. A step's time is the difference of two calls' for the difference of their tokens. Bytes are those of all
weights, as they are kept.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt that is read")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = {"packed": gen.load(arguments.model, device="cpu")}
    models["float32"] = gen.load(arguments.model, device="cpu", dtype="float32")
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
        packed, plain = ([one[name] for one in rounds] for name in models)
        report["rows"].append(_row(what, 1e3 * spread(packed).median, 1e3 * spread(plain).median, ratio(packed, plain)))
    packed_mb, plain_mb = (_weights(model) / 1e6 for model in models.values())
    report["rows"].append(_row("weights, MB", packed_mb, plain_mb, packed_mb / plain_mb))
    print(json.dumps(report["machine"]), "\n")
    print(markdown_table(report["rows"]))
    if arguments.json:
        write_json(arguments.json, report)


def _row(what: str, packed: float, plain: float, share: float) -> dict[str, object]:
    return {"what": what, "packed": f"{packed:.1f}", "float32": f"{plain:.1f}", "ratio": f"{share:.2f}"}


def _step(model: TransformersModel, batch: int) -> float:
    """Seconds that a step takes."""

    def call(new_tokens: int) -> float:
        return _timed(
            lambda: gen.generate(model, some_prompts(batch), sampler=GREEDY, max_new_tokens=new_tokens, eos_token_id=[])
        )

    return (call(MANY) - call(FEW)) / (MANY - FEW)


def _prompt(model: TransformersModel, tokens: int) -> float:
    """Seconds until the first token."""
    token_ids = [1 + number % 1000 for number in range(tokens)]
    return _timed(lambda: gen.generate(model, token_ids, sampler=GREEDY, max_new_tokens=1))


def _timed(call: Callable[[], object]) -> float:
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def _weights(model: TransformersModel) -> int:
    """Bytes of a model's weights."""
    parts = [part for part in model.hf_model.modules() if isinstance(part, PackedLinear)]
    plain: int = sum(weight.nbytes for weight in model.hf_model.parameters())
    return plain + sum(part.nbytes for part in parts)


if __name__ == "__main__":
    main()
