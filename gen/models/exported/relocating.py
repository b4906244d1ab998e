"""Moves an exported program to one device: its tensors, and every device that tracing wrote into its graph."""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_aggregate

from gen.errors import ModelError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_AUTOCAST = ("wrap_with_autocast", "_enter_autocast")


def relocate(program: "ExportedProgram", device: torch.device) -> GraphModule:
    """A module that computes what the program computes, all of it on one device.

    Parameters, buffers, constants and lifted literals are moved; those that share memory become one tensor again.
    Every device in the graph and its subgraphs becomes the given one: as an argument of a factory, a copy, a check or a
    custom operator, and as the device type of autocast. A bare "cuda" counts as a device, too.

    Args:
        program: stays as it is; tensors that are on the device already are shared with it.
        device: with an index if it is a GPU.
    Raises:
        ModelError: a tensor cannot be moved; the message names it. `run_on` finds the rest: operators without a kernel
            for the device, and devices that are written as texts.
    Source: torch.export.passes.move_to_device_pass does the first half of this, but it changes the given program,
        unties weights, and leaves autocast and positional devices of operators as they are.
    """
    module = program.module()  # new, except for tensors and subgraphs
    moved: dict[int, Any] = {}
    twins: dict[tuple[object, ...], Tensor] = {}
    stuck = []
    for name, value in _held(module):
        if isinstance(value, Tensor) and value.device.type != "meta" and not isinstance(value, FakeTensor):
            key = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
            moved[id(value)] = _move(value, device) if key not in twins else twins[key]
            twins[key] = moved[id(value)]
        elif isinstance(value, Tensor | torch.ScriptObject):
            stuck.append(f"{name}: {'a tensor without values' if isinstance(value, Tensor) else 'a script object'}")
    _own_subgraphs_(module, moved)
    for part in module.modules():
        for values in _values(part):
            values.update({key: moved[id(value)] for key, value in values.items() if id(value) in moved})
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                _readdress_(node, device)
            part.recompile()
    if stuck:
        raise ModelError(
            f"the program cannot be moved to {device}; {'; '.join(stuck)}. Export it again, with values for all."
        )
    return module


def run_on(module: GraphModule, device: torch.device, *args: Any, **kwargs: Any) -> Any:
    """Run a relocated module once, and check the device of each result.

    Raises:
        ModelError: a node fails, or gives a tensor on another device; the message names the node.
    """
    leaves = torch.utils._pytree.arg_tree_leaves(*args, **kwargs)
    return module._graph.process_outputs(_Watch(module, device).run(*leaves, enable_io_processing=False))


class _Watch(Interpreter):
    """Runs a graph node by node, and stops at the first result that is not on the device."""

    def __init__(self, module: GraphModule, device: torch.device) -> None:
        super().__init__(module)
        self._device = device

    def run_node(self, n: Node) -> Any:
        """Run a node; an error names it."""
        try:
            result = super().run_node(n)
        except Exception as error:  # operators fail with errors of every kind
            raise ModelError(
                f"node {n.name} ({n.target}) of the program fails on {self._device}: {error} If it has no "
                "kernel there, export the model without decompositions; let it take devices from its inputs."
            ) from error
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, Tensor) and value.device != self._device:
                raise ModelError(
                    f"node {n.name} ({n.target}) of the program gives a tensor on {value.device}, expected "
                    f"{self._device}: it has a device of its own. Let it take that of its inputs, and export again."
                )
        return result


def _held(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Parameters, buffers and attributes of a module and its parts, once for each place where they occur."""
    for prefix, part in module.named_modules():
        for values in _values(part):
            for name, value in values.items():
                yield f"{prefix}.{name}".lstrip("."), value


def _values(part: nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module keeps tensors."""
    return part._parameters, part._buffers, vars(part)


def _own_subgraphs_(module: nn.Module, moved: dict[int, Any]) -> None:
    """Replace subgraphs, such as the body of an autocast, by copies: the originals belong to the program."""
    for name, child in module.named_children():
        if isinstance(child, GraphModule):
            setattr(module, name, copy.deepcopy(child, dict(moved)))
        else:
            _own_subgraphs_(child, moved)


def _move(value: Tensor, device: torch.device) -> Tensor:
    if value.device == device:
        return value
    if isinstance(value, nn.Parameter):
        return nn.Parameter(value.detach().to(device), requires_grad=False)
    return value.detach().to(device)


def _readdress_(node: Node, device: torch.device) -> None:
    """Replace every device in a node by this one."""

    def leaf(value: Any) -> Any:
        return device if isinstance(value, torch.device) and value.type != "meta" else value

    args = list(map_aggregate(node.args, leaf))
    kwargs: dict[str, Any] = dict(map_aggregate(node.kwargs, leaf))
    if isinstance(node.target, OpOverload):
        for position, argument in enumerate(node.target._schema.arguments):
            if isinstance(argument.real_type, torch.DeviceObjType):  # given as a string, by a graph made by hand
                if position < len(args) and isinstance(args[position], str):
                    args[position] = device
                elif isinstance(kwargs.get(argument.name), str):
                    kwargs[argument.name] = device
    if node.op == "call_function" and getattr(node.target, "__name__", "") in _AUTOCAST:
        args[0] = device.type
    node.args, node.kwargs = tuple(args), kwargs
