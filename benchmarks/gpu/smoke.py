"""The first minute: do texts agree, does a bad capture leave nothing behind, does memory stay, how many captures."""

import gc
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

import gen
from benchmarks.gpu.reporting import Given, read
from benchmarks.programs import PROMPTS
from gen.loop.replay import cuda_graphs, recorded

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"sampler": gen.samplers.greedy()},
    "temperature": {"sampler": gen.samplers.multinomial(temperature=0.8)},
    "cuts": {"sampler": gen.samplers.multinomial(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01)},
    "samples": {"sampler": gen.samplers.multinomial(2)},
    "beams": {"sampler": gen.samplers.beam_search(3)},
    "penalised": {"sampler": gen.samplers.multinomial(repetition_penalty=1.2, no_repeat_ngram_size=3)},
    "typed": {"output_type": gen.regex("[a-z ]{10,40}"), "sampler": gen.samplers.greedy()},
    "top tokens": {"sampler": gen.samplers.greedy(), "top_logprobs": 3},
}


def main() -> int:
    given = read(__doc__)
    report, new_tokens = given.report, 12 if given.small else 40
    report.add("versions", lambda: versions(given.device))
    model, on_cpu = gen.load("demo", device=given.device), gen.load("demo", device="cpu")
    for name in ["greedy", "beams"] if given.small else KINDS:
        report.add(f"texts: {name}", lambda name=name: texts(model, on_cpu, name, new_tokens))  # type: ignore[misc]
    report.add("captures a call", lambda: captures(model, new_tokens))
    report.add("recovery", lambda: recovery(given, new_tokens))
    report.add("memory", lambda: memory(model, given.device, 4 if given.small else 50))
    return report.failed


def versions(device: torch.device) -> dict[str, object]:
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver(),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "device": torch.cuda.get_device_name(device),
        "capability": torch.cuda.get_device_capability(device),
        "bytes": torch.cuda.mem_get_info(device)[1],
    }


def driver() -> str | None:
    """The driver's version, if its own tool tells it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.partition("\n")[0]


def made(model: Any, name: str, new_tokens: int, **options: Any) -> Any:
    """The token ids of each text."""
    arguments = dict(KINDS[name])
    output_type = arguments.pop("output_type", None)
    if output_type is None:
        arguments["eos_token_id"] = []
    else:
        arguments["shorten"] = True
    found: Any = gen.generate(
        model, PROMPTS[:3], output_type, max_new_tokens=new_tokens, seed=5, details=True, **arguments, **options
    )
    return [[one.token_ids for one in texts] if isinstance(texts, list) else texts.token_ids for texts in found]


def texts(model: Any, on_cpu: Any, name: str, new_tokens: int) -> str:
    """Whether texts are the same with graphs (replayed ones too), without graphs, and on the CPU."""
    eager = made(model, name, new_tokens, cuda_graph=False)
    for turn in ("captured", "replayed"):
        if made(model, name, new_tokens) != eager:
            raise AssertionError(f"other texts with graphs that were {turn} than without")
    if made(on_cpu, name, new_tokens) != eager:
        raise AssertionError("other texts on the GPU than on the CPU")
    return "equal"


def captures(model: Any, new_tokens: int) -> list[int]:
    """How many captures each of three equal calls makes."""
    model.release()
    counts = []
    for _ in range(3):
        with counted() as tried:
            made(model, "greedy", new_tokens)
        counts.append(len(tried))
    if not counts[0] or counts[-1]:
        raise AssertionError(f"captures of three equal calls: {counts}")
    return counts


@contextmanager
def counted() -> Iterator[list[str]]:
    """In the block, the result of each capture is appended to the list."""
    capture, outcomes = cuda_graphs.capture, list[str]()

    def counting(*arguments: Any) -> Any:
        try:
            graph = capture(*arguments)
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")
            raise
        outcomes.append("captured")
        return graph

    with patch.object(recorded, "capture", counting):
        yield outcomes


class _BreaksCaptures(torch.nn.Module):
    """An activation that does what CUDA refuses in a capture."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return torch.nn.functional.silu(x)


def recovery(given: Given, new_tokens: int) -> dict[str, object]:
    """After CUDA has refused a capture, torch still draws, pins memory and captures, and texts are the same."""
    model: Any = gen.load("demo", device=given.device, replay=True)  # steps with a module of this file are captured too
    eager = made(model, "greedy", new_tokens, cuda_graph=False)
    layer = model.hf_model.model.layers[0].mlp
    own, layer.act_fn = layer.act_fn, _BreaksCaptures()
    with counted() as outcomes:
        same = made(model, "greedy", new_tokens) == eager
    checks: dict[str, Callable[[], bool]] = {
        "the capture failed": lambda: bool(outcomes) and "captured" not in outcomes,
        "texts": lambda: same,
        "torch.rand": lambda: torch.rand(3, device=given.device).shape == (3,),
        "pin_memory": lambda: torch.ones(3).pin_memory().to(given.device, non_blocking=True).sum().item() == 3,
    }
    for name, check in checks.items():
        if not check():
            raise AssertionError(f"after a bad capture, {outcomes}: {name}")
    layer.act_fn = own
    return {"refused": outcomes, "captures of three calls after it": captures(model, new_tokens)}


def memory(model: Any, device: torch.device, calls: int) -> dict[str, object]:
    """Megabytes allocated and reserved after each of some mixed calls, without garbage collection."""
    source, after = random.Random(0), list[tuple[float, float]]()
    gc.collect()
    gc.disable()
    try:
        for _ in range(calls):
            sampler = source.choice([KINDS["greedy"], KINDS["cuts"], KINDS["beams"]])["sampler"]
            prompts = source.choices(PROMPTS, k=source.choice([1, 2, 5]))
            gen.generate(model, prompts, sampler=sampler, max_new_tokens=source.choice([4, 12, 20]), seed=1)
            parts = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
            after.append((round(parts[0] / 1e6, 1), round(parts[1] / 1e6, 1)))
    finally:
        gc.enable()
    return {"most": max(after), "last": after[-1], "after each call": after}


if __name__ == "__main__":
    sys.exit(main())
