"""What the emulator must know about an operator, read once from its schema and torch's own tables."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from virtual_gpus.machine import BACKENDS
from virtual_gpus.rules.missing_kernels import Check, Run, check_of, stand_in
from virtual_gpus.rules.waiting_operators import Arguments, sync_test
from virtual_gpus.torch_parts import lacking


@cache
def without_device_check() -> frozenset[str]:
    """The names, such as "add.Tensor", of the operators that torch marks `device_check: NoCheck`.

    Their kernels check devices themselves: on CUDA, those over a TensorIterator take 0-dim CPU tensors. All other
    operators refuse any CPU tensor. The file is read line by line, since parsing it as YAML takes seconds.

    Raises:
        DeviceError: this torch does not ship the file.
    """
    try:
        import torchgen  # type: ignore[import-untyped]
    except ImportError as error:
        raise lacking("torchgen, which torch's wheels contain") from error
    path = Path(torchgen.__path__[0], "packaged", "ATen", "native", "native_functions.yaml")
    if not path.is_file():
        raise lacking(f"the table of its operators at {path}")
    names = set()
    name = ""
    for line in path.read_text().splitlines():
        if found := re.match(r"- func: ([\w.]+)\(", line):
            name = found[1]
        elif line.lstrip().startswith("device_check: NoCheck"):
            names.add(name)
    return frozenset(names)


class Kind(Enum):
    """How an operator is run."""

    KERNEL = auto()  # one computation on one device
    COPY = auto()  # Tensor.copy_, between any two devices
    FOREACH = auto()  # one operator on each tensor of lists
    PYTHON = auto()  # a user's kernel in Python
    COMPOSITE = auto()  # a composition of other operators, which are checked one by one


@dataclass(frozen=True, kw_only=True)
class OpRule:
    """One operator, as the emulator sees it.

    Attributes:
        name: as "add.Tensor".
        shown: its name in a report of host syncs.
        arguments: the names of its arguments, in order.
        written: the arguments that it changes in place.
        outputs: those of them that are only written, as `out`.
        cpu_scalars: the arguments that may be 0-dim CPU tensors beside CUDA ones.
        copied_scalars: whether such a scalar is first copied to the device; the host waits for the copy.
        read_by_host: the arguments that the host reads with item(), so that they may be on any device.
        cpu_indices: the argument whose CPU tensors are first copied to the device; the host waits for the copy.
        host_arguments: the arguments that the host needs, so that they are CPU tensors on CUDA, too.
        host_results: the positions of results that are on the CPU.
        view: whether the result shares memory with an argument.
        launches: whether it gives the device something to do.
        seeded: whether it draws random numbers; attention does only if it drops out.
        generator: whether it takes a generator.
        sync: tells from its arguments whether the host waits; None if it never does.
        check: raises for arguments that CUDA has no kernel for; None if there are none.
        func: the operator itself.
        run: computes it on the CPU: the operator itself, or a stand-in if the CPU lacks a kernel.
    """

    name: str
    shown: str
    kind: Kind
    arguments: tuple[str, ...]
    written: frozenset[str]
    outputs: frozenset[str]
    cpu_scalars: frozenset[str]
    copied_scalars: bool
    read_by_host: frozenset[str]
    cpu_indices: str | None
    host_arguments: frozenset[str]
    host_results: frozenset[int]
    view: bool
    launches: bool
    seeded: bool
    generator: bool
    sync: Callable[[Arguments], bool] | None
    check: Check | None
    func: OpOverload
    run: Run

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments of a call by name."""
        return {**dict(zip(self.arguments, args, strict=False)), **kwargs}

    def tensors(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str, Tensor]]:
        """Every tensor of a call: its argument's name, a label as "indices[0]", and itself."""
        for name, value in self.named(args, kwargs).items():
            if isinstance(value, Tensor):
                yield name, name, value
            elif isinstance(value, list | tuple):
                for position, item in enumerate(value):
                    if isinstance(item, Tensor):
                        yield name, f"{name}[{position}]", item


_rules: dict[int, OpRule] = {}  # by the identity of an operator, which its rule keeps: its own hash takes longer

# Compositions that may be run in one piece: all their tensors must be on one device, the host never waits, and either
# every call gives a view, or none does.
_IN_ONE_PIECE = {
    "linear", "matmul", "softmax.int", "log_softmax.int", "scaled_dot_product_attention", "layer_norm", "rms_norm",
    "chunk", "narrow", "unflatten.int", "movedim.int", "square", "max_pool2d", "conv1d", "conv2d",
}  # fmt: skip

# Operators that use a TensorIterator, or call one that does, with a rule of their own for scalars. Some kernels on CUDA
# take none, though the iterator would (cuda/BinaryMiscOpsKernels.cu, Loss.cu, Lerp.cu); some operators are compositions
# that are not checked themselves (Loss.cpp, TensorCompare.cpp, BinaryOps.cpp).
_CPU_SCALARS: dict[str, set[str]] = {
    "masked_fill": {"value"},
    "masked_fill_": {"value"},
    "index_fill": {"value"},
    "index_fill_": {"value"},
    "index_put": {"values"},
    "index_put_": {"values"},
    "_index_put_impl_": {"values"},
    "index": set(),
    **{name: {"tensor2"} for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_")},  # cuda/PointwiseOpsKernel.cu
    **{name: {"weight"} for name in ("lerp", "lerp_")},
    **{name: set() for name in ("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "binomial")},
    "binary_cross_entropy_with_logits": {"self", "weight", "pos_weight"},
}
_UNCHECKED: dict[str, set[str]] = {  # compositions without a mark
    "fill": {"value"},
    "soft_margin_loss": {"target"},
    "ldexp": {"self", "other"},
    "ldexp_": {"other"},
    "allclose": {"self", "other"},
}

# Arguments that must be on the host even on CUDA: aten/src/ATen/native/PackedSequence.cpp, RNN.cpp, cuda/LossCTC.cu.
_ON_THE_HOST = {
    "_pack_padded_sequence": {"lengths"},
    "_pack_padded_sequence_backward": {"batch_sizes"},
    "_pad_packed_sequence": {"batch_sizes"},
    "_cudnn_rnn": {"batch_sizes"},
    "lstm": {"batch_sizes"},
    "gru": {"batch_sizes"},
    "rnn_tanh": {"batch_sizes"},
    "rnn_relu": {"batch_sizes"},
    "ctc_loss": {"input_lengths", "target_lengths"},
    "_ctc_loss": {"input_lengths", "target_lengths"},
    "_ctc_loss_backward": {"input_lengths", "target_lengths"},
    **{f"_foreach_{name}": {"scalars"} for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_")},
}
_HOST_RESULTS = {"_pack_padded_sequence": {1}, "_pad_packed_sequence": {1}}

_READ_VALUE = ("masked_fill", "masked_fill_", "index_fill", "index_fill_", "fill_", "fill")


def rule_of(func: OpOverload) -> OpRule:
    """The rule of an operator; read at its first use."""
    rule = _rules.get(id(func))
    if rule is None:
        rule = _rules[id(func)] = _read(func)
    return rule


def _read(func: OpOverload) -> OpRule:
    schema = func._schema
    base = schema.name.removeprefix("aten::")
    name = f"{base}.{schema.overload_name}" if schema.overload_name else base
    arguments = tuple(argument.name for argument in schema.arguments)
    written = frozenset(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    scalars = _UNCHECKED.get(base, set())
    if name in without_device_check():
        scalars = _CPU_SCALARS.get(base, set(arguments)) - written
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    return OpRule(
        name=name,
        shown="item, bool, int or float" if base == "_local_scalar_dense" else name,
        kind=_kind(func, name),
        arguments=arguments,
        written=written,
        outputs=frozenset(a.name for a in schema.arguments if a.is_out),
        cpu_scalars=frozenset(scalars),
        copied_scalars=base in ("where", "index_put", "index_put_", "_index_put_impl_"),
        read_by_host=frozenset({"value"} if base in _READ_VALUE else ()),
        cpu_indices="indices" if base in ("index", "index_put", "index_put_", "_index_put_impl_") else None,
        host_arguments=frozenset(_ON_THE_HOST.get(base, ())),
        host_results=frozenset(_HOST_RESULTS.get(base, ())),
        view=view,
        launches=not view and "empty" not in base and base != "_local_scalar_dense",
        seeded=torch.Tag.nondeterministic_seeded in func.tags,
        generator="generator" in arguments,
        sync=sync_test(name),
        check=check_of(name),
        func=func,
        run=stand_in(name, func._op),
    )


def python_kernel(func: OpOverload) -> bool:
    """Whether torch.library was given a kernel of an operator from Python."""
    if func.namespace in ("aten", "prim", "prims"):
        return False
    overload = f".{func._schema.overload_name}" if func._schema.overload_name else ""
    name = func._schema.name.replace("::", "/") + overload
    keys = (*BACKENDS.values(), "CPU", "CompositeExplicitAutograd")
    return any(f"{name}/{key}" in torch.library._impls for key in keys)


def _kind(func: OpOverload, name: str) -> Kind:
    if name == "copy_":
        return Kind.COPY
    if name.startswith("_foreach_"):
        return Kind.FOREACH
    if python_kernel(func):
        return Kind.PYTHON
    qualified: str = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd")
    return Kind.COMPOSITE if composite and name not in _IN_ONE_PIECE else Kind.KERNEL
