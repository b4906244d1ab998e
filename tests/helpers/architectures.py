"""The architectures that are tested, each with the settings of a tiny model."""

import transformers

_SMALL: dict[str, object] = {
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
    "llama": ("Llama", _SMALL),
    "qwen3": ("Qwen3", _SMALL | {"head_dim": 8}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "opt": ("OPT", {k: v for k, v in _SMALL.items() if k not in ("intermediate_size", "num_key_value_heads")} | _OPT),
    "gemma3": (
        "Gemma3",
        _SMALL | {"head_dim": 8, "sliding_window": 8, "num_hidden_layers": 3, "layer_types": _GEMMA3_LAYERS},
    ),
    "mixtral": ("Mixtral", _SMALL | {"num_local_experts": 4}),
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),  # ALiBi: takes no position ids
    "gpt_neo": (
        "GPTNeo",  # its local layers have a window, but no layer type
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 128, "window_size": 8}
        | {"attention_types": [[["global", "local"], 1]]},
    ),
    "deepseek_v3": ("DeepseekV3", _SMALL | _DEEPSEEK),  # keys and values of different widths
}

ONE_LAYER = {"one layer": ("Llama", _SMALL | {"num_hidden_layers": 1})}  # for tests that no second layer could change

_LINEAR: dict[str, object] = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_MAMBA2: dict[str, object] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
}
_FEW_EXPERTS: dict[str, object] = {"num_experts": 2, "num_experts_per_tok": 1}
_MAMBA: dict[str, object] = {"mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False}

HYBRIDS: dict[str, tuple[str, dict[str, object]]] = {  # layers with a recurrent or convolutional state
    "qwen3_5": ("Qwen3_5", _SMALL | _LINEAR),
    "qwen3_next": (
        "Qwen3Next",
        _SMALL | _LINEAR | _FEW_EXPERTS | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "olmo_hybrid": ("OlmoHybrid", _SMALL | _LINEAR),
    "nemotron_h": (
        "NemotronH",
        _SMALL
        | {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 16, "head_dim": 8}
        | {"ssm_state_size": 8, "n_groups": 1, "chunk_size": 4},
    ),
    "bamba": ("Bamba", _SMALL | _MAMBA2 | {"attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1", _SMALL | _MAMBA2 | {"mamba_d_ssm": 64, "head_dim": 8}),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        _SMALL
        | _MAMBA2
        | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32, "num_local_experts": 0},
    ),
    "jamba": ("Jamba", _SMALL | _MAMBA | _FEW_EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1}),
    "zamba": (
        "Zamba",
        _SMALL
        | _MAMBA
        | {"layers_block_type": ["mamba", "hybrid"], "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"n_mamba_heads": 2, "attention_hidden_size": 64, "attention_head_dim": 16},
    ),
    "lfm2": ("Lfm2", _SMALL | {"layer_types": ["conv", "full_attention"]}),
}
if hasattr(transformers, "Lfm3Config"):  # not in the oldest transformers that gen supports
    HYBRIDS["lfm3"] = ("Lfm3", _SMALL | {"layer_types": ["conv", "full_attention"]})

_WINDOW: dict[str, object] = {"sliding_window": 8}
_FOUR_LAYERS: dict[str, object] = {"num_hidden_layers": 4, "head_dim": 8}
_FALCON: dict[str, object] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_MPT: dict[str, object] = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}
_MANY_HEADS = {name: value for name, value in _SMALL.items() if name != "num_key_value_heads"}

OTHERS: dict[str, tuple[str, dict[str, object]]] = {  # other kinds of masks and positions
    "phi": ("Phi", _SMALL),
    "gpt_neox": ("GPTNeoX", _MANY_HEADS),
    "stablelm": ("StableLm", _SMALL),
    "glm4": ("Glm4", _SMALL | {"head_dim": 8}),
    "qwen3_moe": ("Qwen3Moe", _SMALL | {"head_dim": 8, "moe_intermediate_size": 16} | _FEW_EXPERTS),
    "mistral_window": ("Mistral", _SMALL | _WINDOW),
    "phi3_window": ("Phi3", _SMALL | _WINDOW),
    "phi3": ("Phi3", _SMALL),
    "phimoe": ("Phimoe", _SMALL | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "starcoder2_window": ("Starcoder2", _SMALL | _WINDOW),
    "gemma2_window": ("Gemma2", _SMALL | _WINDOW | {"head_dim": 8, "query_pre_attn_scalar": 8}),
    "cohere2_window": ("Cohere2", _SMALL | _WINDOW),
    "qwen2_window": ("Qwen2", _SMALL | _WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "gpt_oss_window": ("GptOss", _SMALL | _WINDOW | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4_chunked": (
        "Llama4",
        _SMALL
        | _FOUR_LAYERS
        | {"attention_chunk_size": 8, "no_rope_layers": [1, 1, 1, 0], "num_local_experts": 2, "num_experts_per_tok": 1}
        | {"intermediate_size_mlp": 64},
    ),
    "gemma3n_shared": (  # its last layers use the keys and values of earlier ones
        "Gemma3n",
        _SMALL
        | _FOUR_LAYERS
        | _WINDOW
        | {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2, "laurel_rank": 4}
        | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300, "altup_num_inputs": 2}
        | {"activation_sparsity_pattern": [0.0] * 4, "intermediate_size": [64] * 4},
    ),
    "falcon_alibi": ("Falcon", _FALCON | {"alibi": True, "multi_query": False, "new_decoder_architecture": False}),
    "mpt_alibi": ("Mpt", _MPT),
    "diffllama": ("DiffLlama", _SMALL),  # its layers make values of their own of the cache's
}


WITH_PARTS = ("Gemma3", "Gemma3n", "Llama4", "Qwen3_5")  # their plain configs have parts for images too
