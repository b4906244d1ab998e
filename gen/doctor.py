"""Examines a loaded model: what is on which device, and where the host waits for each token."""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gen.api import generate
from gen.devices import Placement
from gen.embedding.embed import embed
from gen.embedding.encoder import Encoder
from gen.embedding.loading import load_encoder
from gen.errors import ArgumentError, DeviceError, ModelError, show_path
from gen.models.base import Model
from gen.models.checkpoints import load_tokenizer
from gen.models.checks import new_rows
from gen.models.exllama.exllamav2 import from_exllamav2
from gen.models.exllama.exllamav3 import from_exllamav3
from gen.models.exported.program import from_exported
from gen.models.loading import load
from gen.models.misplaced import describe, misplaced_weights
from gen.runtime.isolation import isolated
from gen.samplers import Sampler, beam_search, greedy, multinomial

try:
    from virtual_gpus import SyncReport, VirtualGpuError, no_host_sync, virtual_gpus
    from virtual_gpus.machine import gpu_count
except ImportError as error:
    if error.name != "virtual_gpus":
        raise
    raise ModelError("gen.doctor needs virtual-gpus: pip install 'gen-torch[doctor]', or ./virtual_gpus") from error

PROMPTS = ["Once upon a time", "One"]
SHORT, LONG = 4, 12  # new tokens of two calls; the difference of their syncs gives the syncs of a token


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The host syncs of one sampler.

    Attributes:
        per_token: how often the host waits for each token.
        per_call: how often in a call of LONG tokens.
        lines: how often each line waits for each token; a line is shown as "op at file:line in function".
    """

    per_token: float
    per_call: int
    lines: Mapping[str, float]


@dataclass(kw_only=True)
class Diagnosis:
    """What `examine` found.

    Attributes:
        placement: the model's own record.
        virtual: how many virtual GPUs it ran on; 0 for real devices.
        waits: the host syncs with each sampler; empty if there is no CUDA device to show them.
        problems: a sentence for each problem; empty if all is well.
        notes: a sentence for each thing that could not be examined.
    """

    placement: Placement
    virtual: int = 0
    waits: dict[str, Waits] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis in types that JSON has."""
        placement = self.placement
        return {
            "clean": not self.problems,
            "problems": self.problems,
            "notes": self.notes,
            "virtual_gpus": self.virtual,
            "placement": {
                "input_device": str(placement.input_device),
                "vision_device": str(placement.vision_device) if placement.vision_device else None,
                "logits_device": str(placement.logits_device),
                "layer_devices": [str(device) for device in placement.layer_devices],
                "dtype": str(placement.dtype).removeprefix("torch."),
                "packed_dtype": str(placement.packed_dtype).removeprefix("torch.") if placement.packed_dtype else None,
                "offloaded": placement.offloaded,
            },
            "syncs": {name: vars(waits) for name, waits in self.waits.items()},
        }

    def __str__(self) -> str:
        placement = self.placement
        vision = f", vision {placement.vision_device}" if placement.vision_device else ""
        layers = ", ".join(map(str, dict.fromkeys(placement.layer_devices))) or "unknown"
        lines = [
            "ran on      " + (f"{self.virtual} virtual GPUs" if self.virtual else "the devices of this machine"),
            f"placement   {placement}",
            f"            input {placement.input_device}{vision}, logits {placement.logits_device}, layers {layers}",
        ]
        for name, waits in self.waits.items():
            syncs = f"{waits.per_token:g} host syncs a token, {waits.per_call} in a call of {LONG} tokens"
            lines.append(f"{name}: {syncs}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines + ([f"PROBLEM: {problem}" for problem in self.problems] or ["no problems"]))


def diagnose(
    path_or_hub_id: str | Path,
    *,
    device: str | None = None,
    device_map: str | None = None,
    virtual: int | None = None,
    encoder: bool = False,
    tokenizer: str | Path | None = None,
    exllama: int | None = None,
) -> Diagnosis:
    """Load a model and examine it.

    Args:
        path_or_hub_id: as for `gen.load`; with `encoder` as for `gen.load_encoder`; with `tokenizer` a file of
            torch.export.save.
        device: where the model goes; None is the last virtual GPU, or without virtual GPUs the current device.
        device_map: as for `gen.load`, instead of `device`.
        virtual: on how many virtual GPUs to run; 0 is the devices of this machine. None is 0 if the machine has a CUDA
            device, else 2.
        encoder: whether the model is an encoder, for `gen.embed`.
        tokenizer: the tokenizer of an exported program: a directory or Hub id.
        exllama: 2 or 3 to load it with `gen.from_exllamav2` or `gen.from_exllamav3`.
    Raises: as the function that loads the model.
    """
    if device_map and (encoder or tokenizer or exllama):
        raise ArgumentError("device_map is for models that gen.load loads; give device instead.")
    if sum(map(bool, (encoder, tokenizer, exllama))) > 1:
        raise ArgumentError("encoder, tokenizer and exllama are for different kinds of models; give one of them.")
    if Path(path_or_hub_id).suffix == ".pt2" and not tokenizer:
        raise ArgumentError(
            f"{show_path(path_or_hub_id)} is a program of torch.export, which has no tokenizer; give one, as with "
            "--tokenizer."
        )
    if virtual is None:
        virtual = 0 if torch.cuda.is_available() else 2
    try:
        with ExitStack() as contexts:
            if virtual:
                contexts.enter_context(virtual_gpus(virtual))
                device = device or (None if device_map else f"cuda:{virtual - 1}")
            if encoder:
                return examine(load_encoder(path_or_hub_id, device=device))
            if tokenizer:
                return examine(from_exported(path_or_hub_id, load_tokenizer(tokenizer), device=device))
            if exllama:
                loading = from_exllamav2 if exllama == 2 else from_exllamav3
                return examine(loading(path_or_hub_id, device=device))
            return examine(load(path_or_hub_id, device=device, device_map=device_map))
    except VirtualGpuError as error:
        raise (ArgumentError if isinstance(error, ValueError) else DeviceError)(str(error)) from error


def examine(model: Model | Encoder) -> Diagnosis:
    """Look where a model's tensors are, run it with each sampler, and count where the host waits.

    An encoder is run once, and its waits are not counted: it has no tokens to wait for. Without a CUDA device, real or
    virtual, no waits are counted either. Weights are examined if the model has a module `hf_model` or `module`, or
    shows its weights itself (`gen.models.base.Model.weights`).
    """
    diagnosis = Diagnosis(placement=model.placement, virtual=gpu_count())
    module = getattr(model, "module", None) or getattr(model, "hf_model", None)
    if isinstance(module, nn.Module):
        diagnosis.problems += misplaced_weights(module, model.placement)
    elif isinstance(model, Model) and (weights := model.weights()) is not None:
        diagnosis.problems += [
            f"{name} {describe(tensor)} is on {tensor.device}, but is used on {device}"
            for name, tensor, device in chain(weights, model.working_memory())
            if tensor.device != device
        ]
    else:
        diagnosis.notes.append(f"{type(model).__name__} has no hf_model: its weights cannot be looked at")
    try:
        if isinstance(model, Encoder):
            embed(model, PROMPTS)
            return diagnosis
        diagnosis.problems += _misplaced_state(model)
        samplers: dict[str, Sampler] = {
            "greedy": greedy(),
            "multinomial": multinomial(),
            "multinomial, filtered": multinomial(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
            "beam search": beam_search(2),
        }
        if not torch.cuda.is_available():
            diagnosis.notes.append("without a CUDA device no host sync can show; virtual GPUs would show them")
            for sampler in samplers.values():
                _run(model, sampler, LONG)
            return diagnosis
        _run(model, greedy(), 1)  # the first call also sees how much memory a token takes
        for name, sampler in samplers.items():
            diagnosis.waits[name] = _waits(_count(model, sampler, SHORT), _count(model, sampler, LONG))
    except RuntimeError as error:  # CUDA and virtual GPUs raise such errors
        diagnosis.problems.append(f"it does not run: {error}")
    for name, waits in diagnosis.waits.items():
        diagnosis.problems += [
            f"with {name} the host waits {times:g} x a token: {line}" for line, times in waits.lines.items()
        ]
    return diagnosis


@isolated
@torch.inference_mode()
def _misplaced_state(model: Model) -> list[str]:
    """Run a prefill and one step, without the decode loop, and list tensors of the rows that are on a wrong device."""
    placement = model.placement
    rows = new_rows(model, 1, 4)
    first = rows.prefill(slice(0, 1), [[0, 0]])
    logits = rows.step(first.argmax(-1, keepdim=True), 4)
    parts = [("the logits", logits, placement.logits_device), *rows.parts()]
    return [
        f"{what} {describe(tensor)} is on {tensor.device}, expected {device}"
        for what, tensor, device in parts
        if tensor.device != device
    ]


def _count(model: Model, sampler: Sampler, new_tokens: int) -> SyncReport:
    with no_host_sync(count=True) as report:
        _run(model, sampler, new_tokens)
    return report


def _run(model: Model, sampler: Sampler, new_tokens: int) -> None:
    generate(model, PROMPTS, sampler=sampler, max_new_tokens=new_tokens, seed=0, eos_token_id=[])


def _waits(short: SyncReport, long: SyncReport) -> Waits:
    """The waits that only the longer call has, divided by the number of tokens that it has more."""
    tokens = LONG - SHORT
    more = Counter(long.by_line)
    more.subtract(short.by_line)
    lines = {line: count / tokens for line, count in more.items() if count > 0}
    return Waits(per_token=sum(lines.values()), per_call=long.count, lines=lines)
