"""Probes a model once, when gen takes it over: two short prompts as a batch show whether gen would run it wrongly.

The prompts have unequal lengths. gen reads them like any batch, then makes two steps, and moves rows before each step
as samples and beams do; at last it fills a row anew. The logits after the prompts and after each step are compared with
those of the model's own forward over each prompt and its new tokens alone, without cache, padding or mask. If weights
are quantised, activations may be rounded by what else is in the batch: then the logits are compared with those of the
model's forward over the padded batch.

A difference is the root mean square over the vocabulary, in units of the logits' standard deviation: unequal texts
differ by about 1.4, rounding alone by 1e-6 in float32 and 0.01 in bfloat16. Rounding may also send a token to another
expert of a mixture, so that a model is refused only if it differs with each of three pairs of prompts.

At last, two steps read several tokens of each row and forget the last ones. If the logits differ here, the model is not
refused, but its steps read one token of a row. If they differ by more than rounding in float32, but are tolerated, a
text depends on which steps read several.
"""

import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import ref

import torch
from torch import Tensor, nn

from gen.devices import current, to_device
from gen.errors import GenError, ModelError
from gen.models.transformers.wrappers import innermost
from gen.runtime.isolation import multiplies_whole

if TYPE_CHECKING:
    from gen.models.transformers.model import TransformersModel

TOLERANCE = {torch.float64: 0.01, torch.float32: 0.01, torch.float16: 0.05, torch.bfloat16: 0.2}
LENGTHS = (7, 3)
STEPS = 2
_WIDE = 4  # tokens of a row in a step
TRIES = 3
_ROUNDING = 0.2  # of the tolerance: more than the effect of rounding, less than that of lost states
_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly

logger = logging.getLogger("gen")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest difference of one try: which prompt, after how many new tokens, and how much."""

    prompt: int
    step: int
    size: float


def probe_model(model: "TransformersModel") -> None:
    """Raise unless gen gives the logits that the model's own forward gives; models with offloaded weights always pass.

    The model, torch's random numbers and torch's other settings stay as they are.

    Raises:
        ModelError: the logits differ, or a forward fails; the message says where and by how much.
    Host sync: several; this is at load.
    """
    model.goes_wide = False
    name = type(innermost(model.hf_model)).__name__
    if model.placement.offloaded:
        logger.warning("%s has offloaded weights and is not probed: gen cannot tell whether its texts are right", name)
        return
    tolerance, weights = tolerance_of(model.hf_model)
    alone = not _quantised(model.hf_model)
    try:
        with undisturbed(model.hf_model, model.placement.devices):
            for attempt in range(TRIES):
                prompts, continuations = _texts(model, attempt)
                found = _logits_of_gen(model, prompts, continuations)
                expected = (_logits_alone if alone else _logits_padded)(model, prompts, continuations)
                worst = _largest(found, expected)
                if worst.size <= tolerance:
                    logger.info("attention of %s: %s", name, model.told_attention)
                    _probe_wide(model, prompts, continuations, expected, tolerance)
                    return
    except GenError:
        raise
    except Exception as error:  # the forwards of models fail with errors of every kind
        raise ModelError(f"gen cannot run {name}: {type(error).__name__}: {error}".rstrip(": ")) from error
    oracle = "that prompt alone" if alone else "the same batch"
    how = (
        f"differ from its own forward of {oracle} by {worst.size:.2g} of their spread, more than the {tolerance:g} "
        f"that {weights} may"
    )
    if not math.isfinite(worst.size):
        how = f"are not finite where those of its own forward of {oracle} are, or the other way round"
    raise ModelError(
        f"gen would run {name} wrongly: its logits for row {worst.prompt} of a batch of prompts of "
        f"{' and '.join(str(len(prompt)) for prompt in prompts)} tokens, after {worst.step} new tokens, {how}. "
        "Use transformers' generate; probe=False takes it all the same."
    )


def reads_on(model: "TransformersModel") -> bool:
    """Whether the model's own forward of several tokens goes on from the recurrent states of those before them.

    Host sync: several; computed once for a model.
    """
    from transformers import DynamicCache

    device, most = model.placement.input_device, _ROUNDING * tolerance_of(model.hf_model)[0]
    with undisturbed(model.hf_model, model.placement.devices):
        for attempt in range(TRIES):
            first, second = _texts(model, attempt)[0]
            logits = []
            for pieces in ([first + second], [first, second]):
                cache, read = DynamicCache(config=model.decoder_config), 0
                for piece in pieces:
                    positions = torch.arange(read, read + len(piece), device=device).unsqueeze(0)
                    last = model.forward(torch.tensor([piece], device=device), positions, None, cache)
                    read += len(piece)
                logits.append(last)
            if distance(logits[1], logits[0]) <= most:
                return True
    return False


def _probe_wide(
    model: "TransformersModel",
    prompts: list[list[int]],
    continuations: list[list[int]],
    expected: dict[tuple[int, int], Tensor],
    tolerance: float,
) -> None:
    """Test whether a step may read several tokens of each row and forget some; if not, no step will."""
    try:
        model.goes_wide = True
        if len(continuations[0]) < STEPS or model.new_rows(1, 1).widest < _WIDE:
            model.goes_wide = False
            return
        worst = model.wide_difference = _largest(_wide_logits(model, prompts, continuations), expected).size
        problem = "" if worst <= tolerance else f"its logits differ by {worst:.2g} of their spread"
    except Exception as error:  # as with the forwards above
        problem = f"{type(error).__name__}: {error}"
    if problem:
        model.goes_wide = False
        logger.info("%s reads one token of a row in a step: with several %s", type(innermost(model.hf_model)), problem)


def _wide_logits(
    model: "TransformersModel", prompts: list[list[int]], continuations: list[list[int]]
) -> list[tuple[int, int, Tensor]]:
    """Like `_logits_of_gen`, for steps that read several tokens per row and forget the last ones, and for a step after.

    The first step is forgotten as a whole. Of the second step, one token counts in one row, and two in the other.
    """
    length = max(map(len, prompts)) + 3 * _WIDE
    rows = model.new_rows(len(prompts), length)
    rows.prefill(slice(0, len(prompts)), prompts)
    found: list[tuple[int, int, Tensor]] = []
    feeds = [[new + [prompt[0]] * (_WIDE - STEPS) for prompt, new in zip(prompts, continuations, strict=True)]]
    feeds.append([[new[0], *([prompt[0]] * (_WIDE - 1))] for prompt, new in zip(prompts, continuations, strict=True)])
    feeds[1][1] = feeds[0][1]
    for feed, right in zip(feeds, ((2, 2), (1, 2)), strict=True):
        logits = rows.verify(to_device(torch.tensor(feed, device="cpu"), model.placement.logits_device), length)
        found += [(row, place + 1, logits[row, place].cpu()) for row in range(2) for place in range(right[row])]
    rows.commit(to_device(torch.tensor([1, 2], device="cpu"), model.placement.logits_device))
    newest = [[continuations[0][1]], [continuations[1][1]]]
    logits = rows.step(to_device(torch.tensor(newest, device="cpu"), model.placement.logits_device), length)
    return [*found, (0, 2, logits[0].cpu())]


def tolerance_of(model: nn.Module) -> tuple[float, str]:
    """How much logits may differ, and for which weights: the coarsest type that the model has, or quantised."""
    if _quantised(model):  # its activations are rounded too
        return max(TOLERANCE.values()), "quantised weights"
    dtypes = {parameter.dtype for parameter in model.parameters()} & TOLERANCE.keys()
    dtype = max(dtypes or {torch.float32}, key=TOLERANCE.__getitem__)
    if dtype == torch.float32 and not multiplies_whole():
        return TOLERANCE[torch.float16], "TensorFloat-32"  # as precise as float16
    return TOLERANCE[dtype], str(dtype).removeprefix("torch.")


def distance(found: Tensor, expected: Tensor) -> float:
    """The root mean square difference of two tensors, in units of the standard deviation of the second.

    A number that stands for infinity, such as the lowest one of a type, counts as infinity, and must be in both.
    """
    found, expected = found.double(), expected.double()
    size = expected[expected.isfinite()].abs()
    limit = 1e4 * float(size.median()) if size.any() else torch.finfo(torch.float64).max
    usual = expected.abs() <= limit
    if not torch.equal(usual, found.abs() <= 2 * limit):
        return math.inf
    error = (found - expected)[usual].square().mean().sqrt()
    return float(error / expected[usual].std(correction=0)) if error > 0 else 0.0


@contextmanager
def undisturbed(model: nn.Module, devices: Sequence[torch.device]) -> Iterator[None]:
    """Run a model without a trace: restore random numbers, and attributes that its forward sets on its modules.

    Weights that a first forward puts into another layout, as gptqmodel's, stay so, with the attributes that say it.
    Compiled models run uncompiled: the probe does not test the compiler.
    """
    before = [(module, dict(vars(module)), [*map(ref, _own_tensors(module))]) for module in model.modules()]
    cuda = [device.index for device in devices if device.type == "cuda"]
    with ExitStack() as contexts:
        contexts.enter_context(torch.random.fork_rng(devices=cuda))
        if "torch._dynamo" in sys.modules:
            contexts.enter_context(torch.compiler.set_stance("force_eager"))
        # in inference mode, nobody could train with weights that a first forward lays out anew
        contexts.enter_context(torch.inference_mode(False))
        contexts.enter_context(torch.no_grad())
        contexts.enter_context(current(devices[-1]))
        try:
            yield
        finally:
            for module, attributes, tensors in before:
                if [id(one()) for one in tensors] != [*map(id, _own_tensors(module))]:
                    continue
                now = vars(module)
                for attribute in now.keys() - attributes.keys():
                    del now[attribute]
                now.update(attributes)


def _own_tensors(module: nn.Module) -> list[Tensor]:
    return [one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]


def _texts(model: "TransformersModel", attempt: int) -> tuple[list[list[int]], list[list[int]]]:
    """Two prompts that fit into the context, and the tokens that continue each; special ones only if all tokens are."""
    longest = max(1, min(LENGTHS[0], model.context_length - STEPS))
    shorter = max(1, min(LENGTHS[1], longest - 1))
    steps = min(STEPS, model.context_length - longest)
    wanted = longest + shorter + 2 * steps
    known = min(model.vocab_size, model.tokenizer.vocab_size)
    spread = [
        int(known * (number * _GOLDEN % 1)) for number in range(1 + attempt * wanted, 1 + (attempt + 10) * wanted)
    ]
    usable = [token_id for token_id in spread if token_id not in model.tokenizer.added_ids] or spread
    ids = (usable * wanted)[:wanted]
    prompts = [ids[:longest], ids[longest : longest + shorter]]
    rest = ids[longest + shorter :]
    return prompts, [rest[:steps], rest[steps:]]


def _logits_of_gen(
    model: "TransformersModel", prompts: list[list[int]], continuations: list[list[int]]
) -> list[tuple[int, int, Tensor]]:
    """(prompt, new tokens, logits (vocab,)) for each row after the prompts, after each step, and of a row refilled."""
    longest = max(len(prompt) + len(new) for prompt, new in zip(prompts, continuations, strict=True)) + 1
    rows = model.new_rows(len(prompts) + 1, longest)
    logits = rows.prefill(slice(0, len(prompts)), prompts)
    told = list(range(len(prompts)))  # which prompt each row has
    found = [(prompt, 0, one.cpu()) for prompt, one in zip(told, logits, strict=True)]
    for step in range(len(continuations[0])):
        rows.reorder(torch.arange(len(told), device=logits.device).flip(0), longest)
        told.reverse()
        if step == 0 and rows.refillable:
            rows.copy(0, slice(len(told), len(told) + 1), longest)
            told.append(told[0])
        token_ids = torch.tensor([[continuations[prompt][step]] for prompt in told], device=logits.device)
        logits = rows.step(token_ids, longest)
        found += [(prompt, step + 1, one.cpu()) for prompt, one in zip(told, logits, strict=True)]
    if rows.refillable:
        found.append((0, 0, rows.prefill(slice(1, 2), prompts[:1])[0].cpu()))
    return found


def _logits_alone(
    model: "TransformersModel", prompts: list[list[int]], continuations: list[list[int]]
) -> dict[tuple[int, int], Tensor]:
    """The same logits by (prompt, new tokens), from one forward for each prompt and its continuation."""
    expected: dict[tuple[int, int], Tensor] = {}
    for row, (prompt, new) in enumerate(zip(prompts, continuations, strict=True)):
        token_ids = torch.tensor([prompt + new], device=model.placement.input_device)
        logits = model.hf_model(input_ids=token_ids, use_cache=False, return_dict=True).logits[0]
        expected |= {(row, step): logits[len(prompt) - 1 + step].cpu() for step in range(len(new) + 1)}
    return expected


def _logits_padded(
    model: "TransformersModel", prompts: list[list[int]], continuations: list[list[int]]
) -> dict[tuple[int, int], Tensor]:
    """The same from one forward of both, padded on the same side and with the same tokens as gen pads them."""
    device = model.placement.input_device
    texts = [prompt + new for prompt, new in zip(prompts, continuations, strict=True)]
    width, left = max(map(len, texts)), model.pads_left
    padded, masks = [], []
    for text in texts:
        missing = width - len(text)
        padded.append([text[0]] * missing + text if left else text + [text[-1]] * missing)
        seen, hidden = [True] * len(text), [False] * missing
        masks.append(hidden + seen if left else seen + hidden)
    mask = torch.tensor(masks, device="cpu")
    inputs = {"input_ids": torch.tensor(padded, device="cpu"), "attention_mask": mask.to(torch.int64)}
    if model.takes("position_ids"):
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    placed = {name: to_device(value, device) for name, value in inputs.items()}
    logits = model.hf_model(**placed, use_cache=False, return_dict=True).logits
    return {
        (row, step): logits[row, (width - len(text) if left else 0) + len(prompt) - 1 + step].cpu()
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
        for step in range(len(text) - len(prompt) + 1)
    }


def _largest(found: list[tuple[int, int, Tensor]], expected: dict[tuple[int, int], Tensor]) -> Difference:
    differences = [
        Difference(prompt=prompt, step=step, size=distance(logits, expected[prompt, step]))
        for prompt, step, logits in found
    ]
    return max(differences, key=lambda difference: difference.size)


def _quantised(model: nn.Module) -> bool:
    """Whether some weights are stored in fewer than 16 bits, or transformers says so."""
    return bool(getattr(innermost(model), "is_quantized", False)) or any(
        not parameter.is_floating_point() or parameter.element_size() < 2 for parameter in model.parameters()
    )
