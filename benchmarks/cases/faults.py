"""`gen` under faults that machines do not tell of: does it raise, or write the right text? It must never write another.

Each call is drawn at random: a fault of `virtual_gpus.faults`, a way to spread a small Llama over two or three virtual
GPUs and the host, a sampler, prompts and a length. The fault is there from the moment the model is loaded; a missing
wait comes with the check of streams. The oracle is the same call on the plain CPU.

Verdicts: raised; right, though the fault has happened; untouched (right, and the fault did not happen); wrong.
"""

import copy
import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from accelerate import dispatch_model  # type: ignore[import-untyped]
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import gen
from benchmarks.architectures.tiny_models import randomize_, tokenizer
from virtual_gpus import virtual_gpus
from virtual_gpus.faults import FailedAllocation, Fault, MissingWait, PartialCopy, Placeholder

LAYERS = 3
PLACES: tuple[tuple[int | str, ...], ...] = ((0, 0, 1), (0, 1, 1), (1, 0, 1), (0, 1, 2), (2, 0, 1), (0, 0, "cpu"))
SAMPLERS: dict[str, gen.samplers.Sampler] = {
    "greedy": gen.samplers.greedy(),
    "multinomial": gen.samplers.multinomial(temperature=0.9, top_k=20),
    "several": gen.samplers.multinomial(samples=2),
    "beams": gen.samplers.beam_search(2),
    "penalised": gen.samplers.greedy(repetition_penalty=1.3),
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of `gen.generate` under a fault.

    Attributes:
        places: the device of each layer; the embedding is with the first one, the head with the last.
    """

    fault: Fault
    places: tuple[int | str, ...]
    sampler: str
    prompts: tuple[str, ...]
    new_tokens: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a call.

    Attributes:
        verdict: "raised", "right", "untouched" or "wrong".
        said: the error's type and first line; for a wrong text, both texts.
    """

    call: Call
    verdict: str
    said: str = ""


def calls(count: int, seed: int) -> Iterator[Call]:
    """So many calls, drawn at random; the first ones of more are those of fewer."""
    drawn = random.Random(seed)
    for _ in range(count):
        yield Call(
            fault=_fault(drawn),
            places=drawn.choice(PLACES),
            sampler=drawn.choice(list(SAMPLERS)),
            prompts=tuple(
                "".join(drawn.choices("abcdefgh", k=drawn.randint(1, 12))) for _ in range(drawn.randint(1, 3))
            ),
            new_tokens=drawn.randint(1, 5),
            seed=drawn.randrange(2**31),
        )


def _fault(drawn: random.Random) -> Fault:
    gpus = [None, 0, 1, 2]
    kind = drawn.choice(["copy", "copy", "chain", "large", "busy", "allocation", "placeholder", "wait"])
    if kind == "allocation":
        return FailedAllocation(number=drawn.randint(1, 600), gpu=drawn.choice(gpus))
    if kind == "placeholder":
        return Placeholder(number=drawn.randint(1, 60))
    if kind == "wait":
        return MissingWait(number=drawn.randint(1, 12))
    return PartialCopy(
        source=drawn.choice(gpus),
        target=drawn.choice(gpus),
        chain=kind == "chain",
        at_least=2 ** drawn.randint(4, 25) if kind == "large" else 0,
        busy=drawn.randint(1, 200) if kind == "busy" else 0,
        part=drawn.choice([0.0, 0.5, 0.99]),
    )


def tiny_llama() -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    randomize_(model, 0)
    return model.eval()


def examine(call: Call, model: PreTrainedModel) -> Outcome:
    """Make a call under its fault, and compare."""
    expected = _texts(call, gen.from_transformers(copy.deepcopy(model), tokenizer(), probe=False))
    on_gpus = [place for place in call.places if place != "cpu"]
    device_map = {f"model.layers.{number}": place for number, place in enumerate(call.places)}
    device_map |= {"model.embed_tokens": call.places[0], "model.rotary_emb": call.places[0]}
    device_map |= {"model.norm": on_gpus[-1], "lm_head": on_gpus[-1]}
    check_streams = isinstance(call.fault, MissingWait)
    try:
        with virtual_gpus(3, check_streams=check_streams, faults=[call.fault]):
            spread = dispatch_model(copy.deepcopy(model), device_map, main_device=on_gpus[0])
            texts = _texts(call, gen.from_transformers(spread, tokenizer(), probe=False))
    except Exception as error:
        return Outcome(call=call, verdict="raised", said=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    if texts != expected:
        return Outcome(call=call, verdict="wrong", said=f"{texts!r} instead of {expected!r}")
    return Outcome(call=call, verdict="right" if call.fault.happened else "untouched")


def _texts(call: Call, model: Any) -> Any:
    prompts, sampler = list(call.prompts), SAMPLERS[call.sampler]
    return gen.generate(model, prompts, sampler=sampler, seed=call.seed, max_new_tokens=call.new_tokens)


def checker(given: Namespace) -> Callable[[int], tuple[Counter[str], list[Outcome]]]:
    """What became of the first call of each seed, by the kind of its fault."""
    model = tiny_llama()

    def check(seed: int) -> tuple[Counter[str], list[Outcome]]:
        [outcome] = [examine(call, model) for call in calls(1, seed)]
        counts = Counter({f"{type(outcome.call.fault).__name__}: {outcome.verdict}": 1})
        return counts, [outcome] if outcome.verdict == "wrong" else []

    return check
