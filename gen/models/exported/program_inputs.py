"""What an exported language model takes: its arguments, and the sizes of batch and length that they may have."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils import _pytree as pytree

from gen.errors import ModelError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

KNOWN = ("input_ids", "attention_mask", "position_ids")
HOW = "Export a model that takes input_ids and, if it must, attention_mask and position_ids, each (batch, length)."


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes that a dimension may have, from low to high; low equals high if it is fixed."""

    low: int
    high: int

    def nearest(self, size: int) -> int:
        """The possible size that is nearest to the wanted one."""
        return min(max(size, self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class ProgramInputs:
    """The arguments of a program, in its order.

    Attributes:
        names: of KNOWN for a tensor, None for a constant.
        values: a tensor's dtype, or a constant's value.
        rows: for each tensor, whether it has a row for each text; False if it has one row for all.
        spec: how the arguments are grouped.
        batches: sizes of the batch.
        widths: lengths of the texts.
    """

    names: tuple[str | None, ...]
    values: tuple[Any, ...]
    rows: tuple[bool, ...]
    spec: Any
    batches: Sizes
    widths: Sizes

    @classmethod
    def read(cls, program: "ExportedProgram") -> "ProgramInputs":
        """Read them from a program's signature.

        Raises:
            ModelError: it takes other arguments than a language model without a cache, or keeps state.
        """
        from torch.export.graph_signature import ConstantArgument, InputKind

        signature = program.graph_signature
        if changed := list(dict.fromkeys(_changed(program))):
            raise ModelError(
                f"the program changes {', '.join(changed)} at each call, as a cache of its own: one text would change "
                "another. Export the model with use_cache=False."
            )
        _check_inference(program)
        arguments = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
        tensors = {
            node.name: node.meta["val"]
            for node in program.graph.nodes
            if node.op == "placeholder" and isinstance(node.meta.get("val"), Tensor)
        }
        found = [argument.name for argument in arguments if argument.name in tensors]
        names: dict[str, str] = {name: name for name in found}
        if len(found) == 1:
            names = {found[0]: "input_ids"}  # under any name
        unknown = [f"{name} {tuple(tensors[name].shape)}" for name, known in names.items() if known not in KNOWN]
        unknown += [
            argument.name
            for argument in arguments
            if argument.name not in tensors and not isinstance(argument, ConstantArgument)
        ]
        if unknown or "input_ids" not in names.values():
            raise ModelError(f"the program takes {', '.join(unknown) or 'no input_ids'}. {HOW}")
        main = tensors[next(name for name, known in names.items() if known == "input_ids")]
        for name in found:
            _check_shape(name, tensors[name], main)
        if main.dtype not in (torch.int64, torch.int32):
            raise ModelError(f"the program's input_ids are {main.dtype}, expected int64 or int32. {HOW}")
        batches, widths = (_sizes(size, program, tuple(main.shape)) for size in main.shape)
        if widths.high < 2:
            raise ModelError(
                f"the program takes input_ids {tuple(main.shape)}, one token at a time, without a cache to remember "
                "those before. Export it with a dynamic length, or with a fixed one that holds prompt and text."
            )
        return cls(
            names=tuple(names.get(argument.name) for argument in arguments),
            values=tuple(
                tensors[argument.name].dtype if argument.name in tensors else getattr(argument, "value", None)
                for argument in arguments
            ),
            rows=tuple(
                argument.name in tensors and _same(tensors[argument.name].shape[0], main.shape[0])
                for argument in arguments
            ),
            spec=program.call_spec.in_spec,
            batches=batches,
            widths=widths,
        )

    def arguments(self, token_ids: Tensor, lengths: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the program with.

        Args:
            token_ids: (rows, width) int64, padded on the right.
            lengths: (rows,) int64.
        """
        columns = torch.arange(token_ids.shape[1], device=token_ids.device).expand_as(token_ids)
        tensors = {
            "input_ids": token_ids,
            "attention_mask": columns < lengths.unsqueeze(1),
            "position_ids": columns,
        }
        flat = [
            value if name is None else (tensors[name] if each else tensors[name][:1]).to(value).contiguous()
            for name, value, each in zip(self.names, self.values, self.rows, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(flat, self.spec)
        return tuple(args), dict(kwargs)


def _changed(program: "ExportedProgram") -> Iterator[str]:
    """The names of the buffers and arguments that the program writes to."""
    signature = program.graph_signature
    yield from (*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values())
    names = {getattr(spec.arg, "name", ""): spec.target for spec in signature.input_specs}
    for node in program.graph.nodes:  # a graph without decompositions still has in-place operators
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
                    owner = _owner(value)
                    if owner.op == "placeholder":
                        yield names.get(owner.name) or owner.name


def _owner(node: Node) -> Node:
    """The node whose memory this one is a view of."""
    while isinstance(node.target, OpOverload) and node.target._schema.returns[0].alias_info is not None:
        source = node.args[0]
        if node.target._opname in ("to", "contiguous", "reshape", "flatten") or not isinstance(source, Node):
            break  # copies, as a rule
        node = source
    return node


def _check_inference(program: "ExportedProgram") -> None:
    """Refuse dropout, which is in the graph of a model that was in training mode."""
    for node in program.graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        given = dict(zip((argument.name for argument in node.target._schema.arguments), node.args, strict=False))
        given |= node.kwargs
        in_training = "dropout" in node.target._opname and given.get("train") and given.get("p")
        if in_training or given.get("dropout_p"):
            raise ModelError(
                f"the program drops out at random, at {node.name} ({node.target}): the model was in training mode. "
                "Call model.eval() before the export."
            )


def _check_shape(name: str, tensor: Tensor, main: Tensor) -> None:
    """Raise unless an argument has the shape of input_ids; position_ids may have one row for all texts."""
    shape = tensor.shape
    one_row = name == "position_ids" and len(shape) == 2 and isinstance(shape[0], int) and shape[0] == 1
    if len(shape) != 2 or not _same(shape[1], main.shape[-1]) or not (one_row or _same(shape[0], main.shape[0])):
        raise ModelError(f"the program takes {name} {tuple(shape)}, expected (batch, length). {HOW}")


def _same(one: Any, other: Any) -> bool:
    """Whether two sizes are written alike; to compare dynamic sizes themselves would bind them."""
    return str(one) == str(other)


def _sizes(size: Any, program: "ExportedProgram", shape: tuple[Any, ...]) -> Sizes:
    if isinstance(size, int):
        return Sizes(low=size, high=size)
    expression = size.node.expr
    limits = program.range_constraints.get(expression)
    if limits is None or not expression.is_symbol:
        raise ModelError(
            f"the program takes input_ids {shape}, whose size {size} depends on another one. Export it with dimensions "
            "that are fixed or simply dynamic, as torch.export.Dim('length', min=1, max=2048)."
        )
    return Sizes(low=max(1, int(limits.lower)), high=_bound(limits.upper))


def _bound(limit: Any) -> int:
    """A limit as a number; sys.maxsize where there is none."""
    try:
        return min(int(limit), sys.maxsize)
    except (TypeError, ValueError, OverflowError, AttributeError):  # torch's own infinity, which differs by version
        return sys.maxsize
