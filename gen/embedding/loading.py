"""Loading encoders in Hugging Face format, and folders of sentence-transformers."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gen.arguments import check_flag
from gen.devices import resolve_device
from gen.embedding.encoder import Encoder
from gen.embedding.sentence_folders import read_recipe
from gen.errors import ModelError, show_path
from gen.hints import LOADING, explains_unknown
from gen.models.checkpoints import MISTRAL, check_folder, find_asked
from gen.models.checks import check_hf_model, check_hf_tokenizer, one_at_a_time, read_dtype
from gen.runtime.isolation import isolated

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@explains_unknown(LOADING)
@one_at_a_time
@isolated
@torch.inference_mode(False)
def load_encoder(
    path_or_hub_id: str | Path,
    *,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> Encoder:
    """Load an encoder model in Hugging Face format for `gen.embed`.

    From a sentence-transformers folder, gen reads everything that decides what a vector is: the longest text, pooling,
    layers after it, normalising, its width, prompts and lower case. That needs `pip install 'gen-torch[embed]'`.

    Args:
        path_or_hub_id: a directory or a Hub id such as "organisation/name".
        device: where the whole model goes; None is the caller's current CUDA device if there is one, else the CPU.
            It is resolved now: later calls use this device and no other, from any thread.
        dtype: of the weights, as "float16" or torch.float16; None is the checkpoint's.
        revision: branch, tag or commit on the Hub.
        trust_remote_code: whether code that comes with the model may run.
        attn_implementation: "sdpa" or "eager"; None is the model's own choice.
    Raises:
        DeviceError: the device does not exist.
        ModelError: there is no such model, its files are not whole, it is no encoder (see
            `from_transformers_encoder`), its folder asks for something that gen cannot do, or needs
            sentence-transformers, which is not installed.
        ArgumentError: an unknown dtype.
    """
    check_flag("trust_remote_code", trust_remote_code)
    target = resolve_device(device)
    weights_dtype = read_dtype(dtype)
    source = find_asked(path_or_hub_id, revision)
    recipe = read_recipe(source)
    if source.folder:
        check_folder(source.folder / recipe.subfolder)

    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

    options = {"trust_remote_code": trust_remote_code, "subfolder": recipe.subfolder, **source.options}
    try:
        # of an encoder with a decoder, such as T5, load only the encoder
        known = type(AutoConfig.from_pretrained(source.name, **options)) in MODEL_FOR_TEXT_ENCODING_MAPPING
        tokenizer = AutoTokenizer.from_pretrained(source.name, **options, **MISTRAL)
        model, report = (AutoModelForTextEncoding if known else AutoModel).from_pretrained(
            source.name,
            dtype=weights_dtype,
            device_map={"": target},
            attn_implementation=attn_implementation,
            output_loading_info=True,
            **options,
        )
    except Exception as error:  # configs, weights, remote code and hubs fail with errors of every kind
        raise ModelError(f"cannot load {show_path(path_or_hub_id)}: {error}") from error
    # checkpoints with other heads lack BERT's pooler, whose result gen does not use
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith("pooler.")):
        names = ", ".join(missing[:3])
        raise ModelError(f"{show_path(path_or_hub_id)} lacks {len(missing)} weights of an encoder, such as {names}.")
    return Encoder(model.eval(), tokenizer, recipe)


@isolated
def from_transformers_encoder(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase" = None,
) -> Encoder:
    """Use an encoder model and tokenizer that are loaded already; neither is changed or moved.

    Raises:
        ArgumentError: something else came as a model or tokenizer.
        ModelError: it is no encoder without a head, is in training mode, or is on several devices.
    """
    check_hf_model("from_transformers_encoder", model, tokenizer, load="gen.load_encoder")
    check_hf_tokenizer("from_transformers_encoder", tokenizer, model=model)
    return Encoder(model, tokenizer)
