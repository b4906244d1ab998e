"""The private parts of torch that virtual GPUs need, and the error for a torch that lacks one.

Private parts may change with any version of torch. This file names all that virtual_gpus uses, and checks them before
the import of anything that needs them. A newer torch that still has them is accepted.
"""

from pkgutil import resolve_name

import torch

from virtual_gpus import DeviceError

TRIED_TORCH = "2.15"  # the newest version that the tests were run with

PARTS = (
    "torch:_C.DispatchKey",
    "torch:_C.DispatchKeySet",
    "torch:_C._DisableFuncTorch",
    "torch:_C._EnableTorchFunction",
    "torch:_C._ExcludeDispatchKeyGuard",
    "torch:_C._IncludeDispatchKeyGuard",
    "torch:_C._SetExcludeDispatchKeyGuard",
    "torch:_C._current_graph_task_id",
    "torch:_C._ensureCUDADeviceGuardSet",
    "torch:_C._functorch.get_unwrapped",
    "torch:_C._functorch.is_functorch_wrapped_tensor",
    "torch:_C._functorch.is_legacy_batchedtensor",
    "torch:_C._get_accelerator",
    "torch:_C._is_alias_of",
    "torch:_C._get_privateuse1_backend_name",
    "torch:_C._group_tensors_by_device_and_dtype",
    "torch:_C._nn._parse_to",
    "torch:_C._nn.pad_sequence",
    "torch:_C.DisableTorchFunctionSubclass",
    "torch:_C._DisableTorchDispatch",
    "torch:_C._disabled_torch_function_impl",
    "torch:_C._dispatch_has_kernel_for_dispatch_key",
    "torch:_C._get_function_stack_at",
    "torch:_C._is_torch_function_mode_enabled",
    "torch:_C._jit_resolve_packet",
    "torch:_C._len_torch_function_stack",
    "torch:_C._parse_dispatch_key",
    "torch:Tensor._nnz",
    "torch:_C._swap_tensor_impl",
    "torch:_C._to_dlpack",
    "torch:_GLOBAL_DEVICE_CONTEXT",
    "torch:_VF._pad_packed_sequence",
    "torch:_VF.meshgrid",
    "torch:_efficientzerotensor",
    "torch:_empty_affine_quantized",
    "torch:_empty_per_channel_affine_quantized",
    "torch:_nested_tensor_from_tensor_list",
    "torch:Tensor._make_subclass",
    "torch:default_generator._cdata",
    "torch:jit.RecursiveScriptModule._apply",
    "torch:library.Library._destroy",
    "torch:library._impls",
    "torch:ops.aten.add.Tensor._op",
    "torch:ops.aten.add.Tensor._op_dk",
    "torch:ops.aten.add.Tensor._overloadname",
    "torch:ops.aten.add.Tensor._schema",
    "torch:serialization._package_registry",
    "torch._C:DispatchKey",
    "torch._C:DispatchKeySet",
    "torch._library.custom_ops:OPDEFS",
    "torch._ops:HigherOrderOperator",
    "torch._ops:OpOverload.__call__",
    "torch._ops:OpOverloadPacket.__call__",
    "torch._subclasses:FakeTensor",
    "torch._utils:_rebuild_parameter",
    "torch._utils:_rebuild_parameter_with_state",
    "torch._utils:_rebuild_tensor",
    "torch.autograd.graph:_engine_run_backward",
    "torch.jit._builtins:_get_builtin_table",
    "torch.optim.optimizer:_foreach_supported_types",
    "torch.utils._device:DeviceContext",
    "torch.utils._device:_device_constructors",
    "torch.utils._foreach_utils:_foreach_supported_types",
    "torch.utils._python_dispatch:TorchDispatchMode",
    "torch.utils._pytree:tree_leaves",
    "torch.utils._pytree:tree_map",
    "torch.utils._pytree:tree_map_only",
)

# Parts that are slow to import, or belong to objects that do not exist yet: checked where they are needed.
LATE_PARTS = (
    "torch:TypedStorage._untyped_storage",
    "torch._decomp:decompositions_for_jvp",
    "torch._dynamo:OptimizedModule",
    "torch._library.custom_ops:CustomOpDef._backend_fns",
    "torch.distributed.distributed_c10d:ProcessGroup._device_types",
    "torch.distributed.distributed_c10d:ProcessGroup._register_backend",
    "torch.distributed.distributed_c10d:_world",
    "torch.jit:RecursiveScriptModule._buffers",
    "torch.jit:RecursiveScriptModule._c",
    "torch.jit:RecursiveScriptModule._parameters",
)


def check_torch() -> None:
    """Raise a DeviceError if this torch lacks a part that virtual GPUs need."""
    for part in PARTS:
        try:
            resolve_name(part)
        except (ImportError, AttributeError) as error:
            raise lacking(part.replace(":", ".")) from error


def lacking(part: str) -> DeviceError:
    """The error for a torch without `part`."""
    return DeviceError(
        f"virtual GPUs rest on private parts of torch and were tried up to torch {TRIED_TORCH}; this torch, "
        f"{torch.__version__}, lacks {part}. Install torch {TRIED_TORCH}, or test on real CUDA devices."
    )
