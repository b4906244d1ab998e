"""Reads where a transformers model is: on one device, or spread by accelerate."""

from collections.abc import Iterator
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gen.devices import Placement, current
from gen.errors import ModelError
from gen.models.peer_copies import check_peer_copies
from gen.models.transformers.packed_linear import packed_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def read_placement(model: "PreTrainedModel") -> Placement:
    """Record the model's devices; a sharded one runs one forward of one token to learn where its logits come out.

    Raises:
        ModelError: weights are on the meta device and nothing will load them.
        DeviceError: copies between its GPUs come out wrong.
    """
    input_device = runs_on(model.get_input_embeddings())
    layer_devices = tuple(runs_on(layer) for layer in _layers(model))
    of_parameters = (parameter.device for parameter in model.parameters())
    devices = dict.fromkeys((input_device, *layer_devices, *of_parameters))
    check_peer_copies(devices)
    logits_device = input_device if len(devices) == 1 else _probe(model, input_device)
    return Placement(
        input_device=input_device,
        logits_device=logits_device,
        layer_devices=layer_devices,
        vision_device=runs_on(vision) if (vision := _vision_part(model)) is not None else None,
        **dtypes_of(model),
        offloaded=any(getattr(hook, "offload", False) for module in model.modules() for hook in _hooks(module)),
    )


def dtypes_of(model: "PreTrainedModel") -> dict[str, Any]:
    """The dtypes that the model has now, as a `Placement` names them."""
    packed = packed_dtype(model)
    return {"dtype": torch.float32 if packed else model.dtype, "packed_dtype": packed}


def embedding_rows(model: "PreTrainedModel") -> int:
    """How many token ids the model's embedding has a vector for.

    Raises:
        ModelError: it has no embedding of tokens.
    """
    try:
        weight: Tensor = model.get_input_embeddings().weight
        return len(weight)
    except (AttributeError, NotImplementedError) as error:
        raise ModelError(f"{type(model).__name__} has no embedding of tokens, so it reads no texts.") from error


def _layers(model: "PreTrainedModel") -> list[nn.Module]:
    """The decoder layers: the decoder's first list of as many modules as the config has layers."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = (
        module for module in model.get_decoder().modules() if isinstance(module, nn.ModuleList) and len(module) == count
    )
    return list(next(lists, []))


def _vision_part(model: "PreTrainedModel") -> nn.Module | None:
    """The module that reads the images, found by transformers' own method."""
    if "pixel_values" not in signature(model.forward).parameters:
        return None
    part = model.get_encoder(modality="image")
    return part if isinstance(part, nn.Module) and part is not model else None


def runs_on(module: nn.Module) -> torch.device:
    """The device that computes with the module's weights; accelerate's hooks may store them elsewhere."""
    for part in module.modules():
        if (hooked := execution_device(part)) is not None:
            return hooked
    device = next(module.parameters()).device
    if device.type == "meta":
        raise ModelError("the model's weights are on the meta device; load them first, or give device_map='auto'.")
    return device


def execution_device(module: nn.Module) -> torch.device | None:
    """The device that the module's own hooks name; None if they name none."""
    named = (getattr(hook, "execution_device", None) for hook in _hooks(module))
    device = next((device for device in named if device is not None), None)
    if device is None:
        return None
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def _hooks(module: nn.Module) -> Iterator[Any]:
    """The module's accelerate hooks, one by one."""
    hook = getattr(module, "_hf_hook", None)
    if hook is not None:
        yield from getattr(hook, "hooks", (hook,))


@torch.inference_mode(False)
@torch.no_grad()
def _probe(model: "PreTrainedModel", input_device: torch.device) -> torch.device:
    token_ids = torch.zeros((1, 1), dtype=torch.int64, device=input_device)
    with current(input_device):
        device: torch.device = model(input_ids=token_ids, use_cache=False).logits.device
    return device
