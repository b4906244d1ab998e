"""What to write instead of an argument of transformers' `from_pretrained`, or of another loader, which gen lacks."""

from collections.abc import Iterator, Mapping
from typing import Any

from gen.errors import show

_BY_HAND = "nothing of the kind; load the model with transformers, then give gen.from_transformers(model, tokenizer)"
_CONFIG = "quantization_config=transformers.BitsAndBytesConfig({}={})"
_INSTEAD = {
    ("torch_dtype",): "dtype={}",
    ("load_in_8bit", "load_in_4bit"): _CONFIG,
    ("device_maps", "parallelize", "tensor_parallel_size", "tp_plan"): 'device_map="auto"',
    ("max_memory", "offload_folder", "offload_state_dict", "config", "state_dict", "subfolder", "variant"): _BY_HAND,
    ("model_kwargs", "tokenizer_kwargs", "model_class", "use_safetensors", "ignore_mismatched_sizes"): _BY_HAND,
    ("tokenizer", "processor"): "gen.from_transformers(model, tokenizer) where they are loaded already",
    ("gguf_file", "filename"): "the path of the file as the first argument",
    ("use_flash_attention_2",): 'attn_implementation="flash_attention_2"',
    ("token", "use_auth_token"): "it into the environment variable HF_TOKEN",
    ("cache_dir",): "it into the environment variable HF_HOME",
    ("local_files_only",): "HF_HUB_OFFLINE=1 into the environment",
    ("low_cpu_mem_usage", "use_fast", "torchscript", "return_dict"): "nothing; gen sees to it",
    ("max_model_len", "max_seq_len", "n_ctx", "max_position_embeddings"): "context_length={}",
    ("gpu_memory_utilization",): "max_batch_tokens=... in gen.generate",
    ("n_gpu_layers",): 'device="cuda:0"',
    ("quantization", "quantize"): "quantization_config=..., one of transformers'",
    (
        "adapter",
        "lora",
        "peft_model_id",
    ): "the adapter's directory as the first argument; its config names the base model",
}


def loading_advice(unknown: Mapping[str, Any]) -> Iterator[str]:
    """What to write instead of arguments that gen's loading functions do not have."""
    for names, text in _INSTEAD.items():
        for name in [name for name in names if name in unknown]:
            values = (name, show(unknown[name], 40)) if text is _CONFIG else (show(unknown[name], 40),)
            yield text.format(*values)
