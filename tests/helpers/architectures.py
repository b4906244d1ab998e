"""The architectures that are tested, each with the settings of a tiny model."""

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SMALL: dict[str, object] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
_GEMMA3_LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]
_DEEPSEEK: dict[str, object] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_OPT: dict[str, object] = {"ffn_dim": 64, "word_embed_proj_dim": 32}

SHAPES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", SMALL),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 8}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "opt": ("OPT", {k: v for k, v in SMALL.items() if k not in ("intermediate_size", "num_key_value_heads")} | _OPT),
    "gemma3": (
        "Gemma3Text",
        SMALL | {"head_dim": 8, "sliding_window": 8, "num_hidden_layers": 3, "layer_types": _GEMMA3_LAYERS},
    ),
    "mixtral": ("Mixtral", SMALL | {"num_local_experts": 4}),
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),  # ALiBi: takes no position ids
    "gpt_neo": (
        "GPTNeo",  # its local layers have a window, but no layer type
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 128, "window_size": 8}
        | {"attention_types": [[["global", "local"], 1]]},
    ),
    "deepseek_v3": ("DeepseekV3", SMALL | _DEEPSEEK),  # keys and values of different widths
}

ONE_LAYER = {"one layer": ("Llama", SMALL | {"num_hidden_layers": 1})}  # for tests that no second layer could change

HYBRIDS = ["qwen3_5_text", "qwen3_next", "olmo_hybrid", "nemotron_h", "bamba", "falcon_h1", "granitemoehybrid", "jamba"]
HYBRIDS += ["zamba", "lfm2", *(["lfm3"] if "lfm3" in CONFIG_MAPPING else [])]  # the oldest transformers has no lfm3
"""Layers with a recurrent or convolutional state; by their types in transformers, as small as `tiny_config` makes
them."""

_FALCON: dict[str, object] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ALIBI = {"falcon_alibi": ("Falcon", _FALCON | {"alibi": True, "multi_query": False, "new_decoder_architecture": False})}
OTHERS = ["phi", "gpt_neox", "stablelm", "glm4", "qwen3_moe", "mistral", "phi3", "phimoe", "starcoder2", "gemma2"]
OTHERS += ["cohere2", "qwen2", "gpt_oss", "llama4_text", "gemma3n_text", "falcon_alibi", "mpt", "diffllama"]
"""Other kinds of masks and positions: windows of 8 tokens, chunks, layers that use the keys and values of earlier ones,
and ALiBi. The layers of diffllama make values of their own of the cache's."""
