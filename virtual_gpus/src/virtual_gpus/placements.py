"""Placement fuzz: every way to cut a model over devices, which of them fail, and at which line.

    python -m virtual_gpus.placements package.module:make_model

A worked example: a model has the parts `embed`, `layers.0`, `layers.1` and `head`, in this order. Over two GPUs it can
be cut in three ways: after each part but the last. accelerate places the parts of each cut, as `device_map` does, and
the model runs forward, backward and, if it can, `generate`. It must not raise, and must give the numbers of the CPU.
"""

import argparse
import copy
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from tempfile import TemporaryDirectory
from traceback import walk_tb
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from virtual_gpus import ArgumentError, VirtualGpuError
from virtual_gpus.call_sites import is_internal, short_name
from virtual_gpus.emulator import virtual_gpus
from virtual_gpus.machine import active_machine

DEVICES = (
    ("cuda:1",), ("cuda:0", "cuda:1"), ("cuda:0", "cuda:1", "cuda:2"), ("cuda:0", "cpu"), ("cuda:0", "disk"),
)  # fmt: skip
MOST = 64  # placements over the same devices
CLOSE = 1e-5  # results may differ by this share of their spread: the CPU computes both, but adds in another order
_STORES = ("cpu", "disk")

MakeModel = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One way to cut a model.

    Attributes:
        places: the device of each part, by the part's name, in the model's order; "cpu" and "disk" are where accelerate
            keeps a part that the first GPU computes.
        late: whether the model has run on the CPU before it is placed, so that it keeps what its first run makes.
    """

    places: Mapping[str, str]
    late: bool = False

    def __str__(self) -> str:
        runs: list[tuple[str, list[str]]] = []
        for name, device in self.places.items():
            if not runs or runs[-1][0] != device:
                runs.append((device, []))
            runs[-1][1].append(name)
        shown = ", ".join(f"{names[0]}{f' to {names[-1]}' if names[1:] else ''} on {on}" for on, names in runs)
        return f"{shown}{', after a run on the CPU' if self.late else ''}"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong in one placement.

    Attributes:
        step: "place", "forward", "backward" or "generate"; if the forward fails, the others are not tried.
        where: "file:line in function", the innermost that is not torch's or accelerate's; empty for wrong numbers.
        said: the error, or how the numbers differ from the CPU's.
    """

    placement: Placement
    step: str
    where: str
    said: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `examine` has found.

    Attributes:
        placements: how many there were.
        steps: what ran in those that succeed.
    """

    model: str
    placements: int
    steps: tuple[str, ...]
    failures: tuple[Failure, ...]

    def by_line(self) -> dict[tuple[str, str], list[Failure]]:
        """The failures of each step and line, the most frequent first."""
        found: dict[tuple[str, str], list[Failure]] = {}
        for failure in self.failures:
            found.setdefault((failure.step, failure.where), []).append(failure)
        return dict(sorted(found.items(), key=lambda one: -len(one[1])))

    def __str__(self) -> str:
        bad = len({id(failure.placement) for failure in self.failures})
        lines = [f"{self.model}: {bad} of {self.placements} placements fail ({', '.join(self.steps)})"]
        for (step, where), failures in self.by_line().items():
            at = f" at {where}" if where else ""
            lines += [f"{step}{at}: in {len(failures)}, first with {failures[0].placement}"]
            lines += [f"    {line}" for line in failures[0].said.splitlines()]
        return "\n".join(lines)


def examine(make_model: MakeModel, devices: Sequence[Sequence[str]] = DEVICES, *, most: int = MOST) -> Report:
    """Run a model under every placement; an open `virtual_gpus` block is used, and lists that need more GPUs left out.

    Args:
        make_model: returns a module, or a module and the arguments of its forward: a tensor, a tuple or a dict, on the
            CPU. A model of transformers that reads tokens needs no arguments.
        devices: lists of devices; the model is cut over each in every way. "cpu" and "disk" stand for offloaded parts.
        most: with more cuts of one list than this, some are drawn.
    Raises:
        ArgumentError: accelerate is not installed, or the model does not run on the CPU either, or needs arguments.
    """
    if find_spec("accelerate") is None and any(len(names) > 1 for names in devices):
        raise ArgumentError("placements on several devices need accelerate: pip install accelerate")
    active = active_machine()
    named = {name for names in devices for name in names} - {*_STORES}
    gpus = active.gpus if active else max(int(name.partition(":")[2]) + 1 for name in named)
    with ExitStack() as stack:
        if active is None:
            stack.enter_context(virtual_gpus(gpus))
        torch.manual_seed(0)
        made = make_model()
        model, inputs = made if isinstance(made, tuple) else (made, None)
        model = model.eval()
        inputs = _token_inputs(model) if inputs is None else inputs
        plain, late = copy.deepcopy(model), copy.deepcopy(model)
        expected: dict[str, list[Tensor]] = {}
        for step, run in STEPS.items():
            try:
                expected[step] = _results(run, plain, inputs)
            except Exception as error:
                if step == "forward":
                    raise ArgumentError(f"{type(model).__name__} does not run on the CPU: {error!r}") from error
        _results(_forward, late, inputs)
        found = list(_placements(parts(model), devices, gpus, most))
        failures = [
            failure
            for placement in found
            for failure in _failures(late if placement.late else model, placement, inputs, expected)
        ]
    return Report(model=type(model).__name__, placements=len(found), steps=tuple(expected), failures=tuple(failures))


def parts(model: nn.Module) -> dict[str, str]:
    """The parts that a cut leaves whole, in the model's order: the layers of its outermost lists, what is beside the
    lists, and parameters of modules that are cut. Each comes with the part that it must stay with, mostly itself:
    weights that are tied are on one device, as accelerate has it.
    """
    whole = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    found = dict(_parts(model, "", whole))
    owners: dict[int, str] = {}
    stays: dict[str, str] = {}
    for name, part in found.items():
        tensors = part.parameters() if isinstance(part, nn.Module) else [part]
        first = [owners.setdefault(id(tensor), name) for tensor in tensors]
        stays[name] = next((stays[owner] for owner in first if owner != name), name)
    return stays


def _parts(module: nn.Module, name: str, whole: set[str]) -> Iterator[tuple[str, Any]]:
    lists = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    prefix = f"{name}." if name else ""
    for own, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        yield prefix + own, tensor
    for own, child in module.named_children():
        cut = any(isinstance(part, lists) for part in child.modules()) and type(child).__name__ not in whole
        if cut and not isinstance(module, lists):
            yield from _parts(child, prefix + own, whole)
        elif any(True for _ in (*child.parameters(), *child.buffers())):  # without tensors it is where its inputs are
            yield prefix + own, child


def _placements(
    stays: Mapping[str, str], devices: Sequence[Sequence[str]], gpus: int, most: int
) -> Iterator[Placement]:
    """Every cut, once; and of each list of GPUs the cut in the middle after a run on the CPU."""
    there = {*_STORES, *(f"cuda:{index}" for index in range(gpus))}
    names, seen = list(stays), set()
    for chosen in devices:
        if not there.issuperset(chosen):
            continue
        cuts = list(combinations(range(1, len(names)), len(chosen) - 1))
        if len(cuts) > most:
            cuts = sorted(random.Random(0).sample(cuts, most))
        of_list = []
        for cut in cuts:
            ends = [0, *cut, len(names)]
            at = {name: on for on, start, end in zip(chosen, ends, ends[1:], strict=False) for name in names[start:end]}
            places = {name: at[stays[name]] for name in names}
            if tuple(places.values()) not in seen:
                seen.add(tuple(places.values()))
                of_list.append(places)
                yield Placement(places=places)
        if of_list and not {*_STORES}.intersection(chosen):
            yield Placement(places=of_list[len(of_list) // 2], late=True)


def _failures(
    model: nn.Module, placement: Placement, inputs: Any, expected: Mapping[str, list[Tensor]]
) -> Iterator[Failure]:
    """What goes wrong in one placement; after a failure in placing there is nothing to run."""
    fail = partial(Failure, placement=placement)
    with TemporaryDirectory() as folder:
        try:
            placed, device = _placed(copy.deepcopy(model), placement.places, folder)
        except Exception as error:
            yield fail(step="place", where=_where(error), said=_said(error))
            return
        moved = tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, inputs)
        for step, wanted in expected.items():
            if step == "backward" and {*_STORES}.intersection(placement.places.values()):
                continue  # gradients of weights that are dropped after each forward
            try:
                different = _difference(_results(STEPS[step], placed, moved), wanted)
            except Exception as error:
                yield fail(step=step, where=_where(error), said=_said(error))
                if step == "forward":
                    return  # the other steps begin with the same
            else:
                if different:
                    yield fail(step=step, where="", said=different)


def _placed(model: nn.Module, places: Mapping[str, str], folder: str) -> tuple[nn.Module, str]:
    """The model with its parts on their devices, and the device of its inputs."""
    main = next(device for device in places.values() if device not in _STORES) if places else "cpu"
    if {*places.values()} == {main}:
        return model.to(main), main
    from accelerate import dispatch_model, utils  # type: ignore[import-untyped]

    vars(model)["_before"] = [one.data for one in model.parameters()]  # accelerate knows tied weights by addresses
    modules = dict(model.named_modules(remove_duplicate=False))
    kept = {name for name in places if name not in modules or not modules[name].state_dict()}
    places = {
        name: main if name in kept and device in _STORES else device for name, device in places.items()
    }  # accelerate has no hook for a tensor alone, and stores no part without weights
    for name, device in places.items():
        if name not in modules:
            utils.set_module_tensor_to_device(model, name, device)
    skipped = getattr(model, "_skip_keys_device_placement", None)
    with warnings.catch_warnings(), patch.object(logging.getLogger("accelerate.big_modeling"), "disabled", True):
        warnings.simplefilter("ignore")  # of parts that are no modules, and of offloaded ones
        placed: nn.Module = dispatch_model(model, dict(places), main, offload_dir=folder, skip_keys=skipped)
    return placed, main


def _called(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


@torch.no_grad()
def _forward(model: nn.Module, inputs: Any) -> Any:
    return _called(model, inputs)


def _backward(model: nn.Module, inputs: Any) -> Any:
    """The loss, which a model of transformers computes from labels, and the gradients."""
    model.zero_grad()
    if isinstance(inputs, dict) and "input_ids" in inputs and hasattr(model, "loss_function"):
        inputs = {**inputs, "labels": inputs["input_ids"]}
    out = _called(model, inputs)
    loss: Any = getattr(out, "loss", None)
    if loss is None:
        loss = sum(leaf.to("cpu").sum() for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and leaf.requires_grad)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _generate(model: Any, inputs: Any) -> Any:
    return model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)


STEPS: dict[str, Callable[[Any, Any], Any]] = {"forward": _forward, "backward": _backward, "generate": _generate}


def _results(run: Callable[[Any, Any], Any], model: nn.Module, inputs: Any) -> list[Tensor]:
    """The tensors of a step's result, on the CPU. A model may change the inputs, so it has copies."""
    torch.manual_seed(0)
    inputs = tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, inputs)
    return [leaf.detach().cpu() for leaf in tree_leaves(run(model, inputs)) if isinstance(leaf, Tensor)]


def _token_inputs(model: Any) -> dict[str, Tensor]:
    """Two texts of six tokens, of which the first has four; for a model of transformers."""
    if getattr(model, "main_input_name", "") != "input_ids":
        raise ArgumentError(
            f"{type(model).__name__} does not say what it reads: let the function return the model and the arguments "
            "of its forward, as in `return model, {'x': torch.ones(2, 4)}`"
        )
    config = model.config.get_text_config()
    ids = torch.randint(1, config.vocab_size, (2, 6), generator=torch.Generator().manual_seed(0), device="cpu")
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6], device="cpu")
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def _difference(found: list[Tensor], expected: list[Tensor]) -> str:
    """How the results differ from the CPU's; empty if they do not."""
    if [one.shape for one in found] != [one.shape for one in expected]:
        return f"{len(found)} tensors, of other shapes than the {len(expected)} of the CPU"
    doubles = [one.double() for one in expected]  # a single number has no spread but its size
    spreads = [float(one.max() - one.min()) if one.numel() > 1 else float(one.sum().abs()) for one in doubles]
    for number, (one, wanted, spread) in enumerate(zip(found, expected, spreads, strict=True)):
        if one.dtype != wanted.dtype:
            return f"tensor {number} is {one.dtype}, and {wanted.dtype} on the CPU"
        if torch.equal(one, wanted) or not one.numel():
            continue
        apart = (one.double() - wanted.double()).abs().nan_to_num(torch.inf).max().item()
        if not one.is_floating_point() or apart > CLOSE * max(spread, max(spreads) / 100):
            return f"tensor {number}, {tuple(one.shape)}, differs from the CPU's by up to {apart:.3g}"
    return ""


def _where(error: BaseException) -> str:
    """The innermost line of an error outside of torch, accelerate and this package."""
    lines = [
        f"{short_name(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
        for frame, line in walk_tb(error.__traceback__)
        if not is_internal(frame) and frame.f_globals.get("__name__", "").split(".")[0] != "accelerate"
    ]
    return lines[-1] if lines else ""


def _said(error: BaseException) -> str:
    """An error's own text, with its type if that is not one of this package's."""
    text = str(error).partition("\nNewer torch says")[0]
    return text if isinstance(error, VirtualGpuError) else f"{type(error).__name__}: {text}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, examine the model, and print what fails."""
    parser = argparse.ArgumentParser(prog="python -m virtual_gpus.placements")
    parser.add_argument("model", help="package.module:function, which returns the model, or it and its arguments")
    parser.add_argument(
        "--devices", action="append", metavar="LIST", help="cut over these, as cuda:0,cuda:1,disk; may be repeated"
    )
    parser.add_argument("--most", type=int, default=MOST, help=f"how many cuts of one list at most ({MOST})")
    given = parser.parse_args(arguments)
    devices = [tuple(names.split(",")) for names in given.devices] if given.devices else DEVICES
    module, _, function = given.model.partition(":")
    sys.path.insert(0, "")

    def make_model() -> Any:
        return getattr(import_module(module), function or "make_model")()

    report = examine(make_model, devices, most=given.most)
    print(report)
    return bool(report.failures)


if __name__ == "__main__":
    sys.exit(main())
