"""Loading models in Hugging Face format: which class, which device, and what is missing."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gen.arguments import check_flag
from gen.devices import resolve_device
from gen.errors import ArgumentError, ModelError, show, show_path
from gen.hints import LOADING, explains_unknown
from gen.models.checkpoints import DEMO, MISTRAL, check_folder, find_asked, is_exl3, means_file
from gen.models.checks import check_hf_model, check_hf_tokenizer, one_at_a_time, read_dtype
from gen.models.transformers.model import TransformersModel
from gen.models.transformers.packed_linear import is_on_cpu, suit_cpu_
from gen.models.transformers.peft_adapters import find_adapter
from gen.models.transformers.probing import probe_model
from gen.models.transformers.vision import VisionModel, reads_images
from gen.runtime.isolation import isolated

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
    from transformers.utils.quantization_config import QuantizationConfigMixin


@explains_unknown(LOADING)
@one_at_a_time
@isolated
@torch.inference_mode(False)
def load(
    path_or_hub_id: str | Path,
    *,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
    quantization_config: "QuantizationConfigMixin | dict[str, Any] | None" = None,
    context_length: int | None = None,
    replay: bool = False,
    probe: bool = True,
    pack: bool | None = None,
) -> TransformersModel:
    """Load a language model in Hugging Face format, or a GGUF file, onto the device that you ask for.

    A vision-language checkpoint is recognised by its config, and loaded with its processor. A PEFT adapter is loaded
    onto its base model, which its config names; that needs peft. An EXL3 checkpoint gives what
    `gen.from_exllamav3(path, device=, context_length=)` gives. A GGUF file is dequantised, which needs
    `pip install 'gen-torch[gguf]'`; see `gen.models.gguf.reading.read_gguf`.

    Args:
        path_or_hub_id: a directory, a GGUF file, a Hub id such as "organisation/name", or "demo", the small model of
            this package.
        device: where the whole model goes; None is the caller's current CUDA device if there is one, else the CPU.
        dtype: of the weights, as "bfloat16" or torch.bfloat16; None is the checkpoint's; float32 for "demo" and
            for a GGUF file with quantised weights. On a CPU a float16 checkpoint computes in float32; with "float32" or
            "float16", weights and computation have that type.
        device_map: how accelerate spreads the model over several devices, as "auto" or a dict; instead of `device`.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: whether code that comes with the model may run; with a GGUF file comes none.
        attn_implementation: "sdpa" or "eager"; None is the model's own choice.
        quantization_config: how to quantise the weights, as transformers.BitsAndBytesConfig(load_in_4bit=True); its
            package is yours to install. None is the checkpoint's own way.
        context_length: how many tokens a text may have, prompt and new ones, as for `from_transformers`.
        replay: for a model with code of its own, see `from_transformers`.
        probe: see `from_transformers`; an EXL3 checkpoint is not probed.
        pack: whether the linear layers of a model on a CPU are packed: their weights are brought into a layout that it
            reads faster, and cannot be changed any more. None packs where that is faster on this kind of CPU, but no
            adapters; see docs/guides/devices.md.
    Raises:
        DeviceError: the device does not exist.
        ModelError: there is no such model, its files are not whole or not in this format, or it cannot be used (see
            `from_transformers`). A name that is no directory costs at most one request to the Hub, without retries.
        ArgumentError: arguments that contradict each other, an unknown dtype, or a context_length that the checkpoint's
            config does not allow.
    """
    if device is not None and device_map is not None:
        raise ArgumentError("give device for one device or device_map for several, not both.")
    check_flag("trust_remote_code", trust_remote_code)
    check_flag("replay", replay)
    check_flag("probe", probe)
    if pack is not None:
        check_flag("pack", pack)
    if not isinstance(quantization_config, Mapping | None) and not hasattr(quantization_config, "quant_method"):
        raise ArgumentError(
            "quantization_config must be one of transformers', as transformers.BitsAndBytesConfig(load_in_8bit=True) "
            f"or its dict, got {show(quantization_config)}"
        )
    target = resolve_device(device) if device_map is None else None
    weights_dtype = read_dtype(dtype)
    if means_file(path_or_hub_id):
        from gen.models.gguf.reading import read_gguf

        if revision is not None or quantization_config is not None:
            raise ArgumentError(
                "revision and quantization_config are for checkpoints in Hugging Face format; "
                f"{show_path(path_or_hub_id)} is one file."
            )
        gguf_model, gguf_tokenizer = read_gguf(
            path_or_hub_id, device=target, dtype=dtype, device_map=device_map, attn_implementation=attn_implementation
        )
        _keep_logits_(gguf_model)
        _suit_(gguf_model, pack, dtype)
        return _take(gguf_model, gguf_tokenizer, context_length, replay, probe, own=True)
    source = find_asked(path_or_hub_id, revision)
    if dtype is None and source.name == str(DEMO):
        weights_dtype = torch.float32
    adapter = find_adapter(source)
    base = adapter.base if adapter else source
    if is_exl3(base):
        asked = (dtype, device_map, attn_implementation, quantization_config, pack, adapter)
        if trust_remote_code or replay or any(one is not None for one in asked):
            raise ArgumentError(
                f"{show_path(base.name)} is an EXL3 checkpoint, which exllamav3 runs by itself: leave out dtype, "
                "device_map, trust_remote_code, attn_implementation, quantization_config, replay, pack and adapters."
            )
        from gen.models.exllama.exllamav3 import from_exllamav3

        return from_exllamav3(base.download(), device=target, context_length=context_length)  # type: ignore[return-value]
    if base.folder:
        check_folder(base.folder)

    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoProcessor,
        AutoTokenizer,
    )
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    options = {"trust_remote_code": trust_remote_code, **base.options}
    quantization = {} if quantization_config is None else {"quantization_config": quantization_config}
    try:
        vision = type(AutoConfig.from_pretrained(base.name, **options)) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        texts = adapter.texts(vision) if adapter else base
        tokenizer = (AutoProcessor if vision else AutoTokenizer).from_pretrained(
            texts.name, trust_remote_code=trust_remote_code, **texts.options, **({} if vision else MISTRAL)
        )
        if vision and adapter and texts != (own := adapter.texts(False)):  # it has a tokenizer and no processor
            tokenizer.tokenizer = AutoTokenizer.from_pretrained(
                own.name, trust_remote_code=trust_remote_code, **own.options, **MISTRAL
            )
        model, report = (AutoModelForImageTextToText if vision else AutoModelForCausalLM).from_pretrained(
            base.name,
            dtype=weights_dtype,
            device_map=device_map if target is None else {"": target},
            attn_implementation=attn_implementation,
            output_loading_info=True,
            **quantization,
            **options,
        )
        _keep_logits_(model)
        if adapter:
            model = adapter.put_on(model, tokenizer)
    except Exception as error:  # configs, weights, remote code and hubs fail with errors of every kind
        raise ModelError(f"cannot load {show_path(path_or_hub_id)}: {error}") from error
    if missing := sorted(report["missing_keys"]):
        names = ", ".join(missing[:3])
        raise ModelError(f"{show_path(base.name)} lacks {len(missing)} weights of a language model, such as {names}.")
    _suit_(model, False if adapter and pack is None else pack, dtype)
    return _take(model.eval(), tokenizer, context_length, replay, probe, own=True)


def _suit_(model: "PreTrainedModel", pack: bool | None, dtype: object) -> None:
    """Pack a model on a CPU if that is asked for or faster, and let a float16 model compute in float32."""
    if is_on_cpu(model):
        suit_cpu_(model, pack=pack, widen=dtype is None)
    elif pack:
        raise ArgumentError(
            f"pack=True is for models that are on the CPU as a whole, and not quantised; {type(model).__name__} is not"
        )


def _keep_logits_(model: "PreTrainedModel") -> None:
    """Leave the logits of a sharded model where the head is: sampling runs there."""
    if (hook := getattr(model, "_hf_hook", None)) is not None:
        hook.io_same_device = False


@explains_unknown(LOADING)
@isolated
def from_transformers(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | ProcessorMixin" = None,
    *,
    context_length: int | None = None,
    replay: bool = False,
    probe: bool = True,
    pack: bool = False,
) -> TransformersModel:
    """Use a model and tokenizer that are loaded already; neither is changed or moved, with two exceptions: see
    context_length and pack.

    Args:
        model: a decoder language model, or a vision-language model.
        tokenizer: the model's own; for a vision-language model its processor.
        context_length: how many tokens a text may have, prompt and new ones. None is what the config says; for a model
            with short and long factors (longrope: Phi-3, Phi-4-mini), how many the short ones serve. With more, all
            texts get the long factors, short texts too, as in vLLM; a model that scales its frequencies by the length
            of the text (dynamic) gets those for texts of context_length tokens. Then the model itself is set so, for
            all its forwards; save_pretrained saves it as it was.
        replay: whether steps are recorded, and columns kept from call to call, even if the forward runs code that is
            not of torch, transformers, accelerate, peft, gen, or a library that transformers takes layers from. You say
            with it that this code reads no global variables, context variables, files or clocks that change, without
            `release()` after it. See docs/inside/recorded_steps.md.
        probe: run two short prompts as a batch and compare with the model's own forward of each alone (see
            `gen.models.transformers.probing`); a model with offloaded weights is not probed, and the log says so.
        pack: whether to pack the linear layers of your model, which must be on the CPU; see `load`. False runs them as
            torch does.
    Raises:
        ArgumentError: something else came as a model or tokenizer, a context_length that the config does not allow, or
            a model to pack that is not on the CPU.
        ModelError: it is not a decoder language model, is in training mode with dropout that acts, cannot use a static
            cache, fails or differs in the probe, or its tokenizer or processor does not fit.
    """
    check_hf_model("from_transformers", model, tokenizer, load="gen.load")
    check_hf_tokenizer("from_transformers", tokenizer, processor=True, model=model)
    check_flag("replay", replay)
    check_flag("probe", probe)
    check_flag("pack", pack)
    if pack:
        _suit_(model, pack, None)
    return _take(model, tokenizer, context_length, replay, probe, own=False)


def _take(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | ProcessorMixin",
    context_length: int | None,
    replay: bool,
    probe: bool,
    *,
    own: bool,
) -> TransformersModel:
    """The adapter for a model that reads only texts, or images too, after it was probed.

    Args:
        own: whether nobody but gen has the model.
    """
    processor = None if hasattr(tokenizer, "get_vocab") else tokenizer  # some tokenizers have a tokenizer too
    name, reads = type(model).__name__, reads_images(model)
    if processor is not None and not reads:
        raise ModelError(f"{name} reads no images; give processor.tokenizer instead of the processor.")
    if reads and not hasattr(processor, "image_processor"):
        raise ModelError(
            f"{name} reads images, which {type(tokenizer).__name__} cannot prepare; give the model's processor, as "
            "AutoProcessor.from_pretrained loads it."
        )
    taken = (VisionModel if reads else TransformersModel)(model, tokenizer, context_length, own=own)
    if probe:
        probe_model(taken)
    taken.replay = replay
    return taken
