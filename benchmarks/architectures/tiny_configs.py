"""A configuration as small as it goes for each architecture of transformers, with windows and every kind of layer.

Sizes are set by the names of the fields; `EXCEPTIONS` has what these rules do not cover.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 256  # the tokenizer's ids, which are the bytes; the model has a few more, for padding and the like
WINDOW = 8

SIZES: dict[str, object] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size"), VOCABULARY + 8),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_dim", "lru_width", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "dense_intermediate_size", "ffn_hidden_size"), 96),
    **dict.fromkeys(("ffn_dim", "decoder_ffn_dim", "n_inner", "dff", "dim_ff", "emb_dim", "d_inner"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "feed_forward_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("shared_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"), 2),
    **dict.fromkeys(("decoder_layers", "num_encoder_layers", "num_decoder_layers", "num_blocks"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "kv_channels", "d_head", "dim_head", "attention_head_size"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "index_head_dim", "linear_head_dim"), 16),
    **dict.fromkeys(("v_head_dim", "rotary_dim", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "gated_norm_rank", "hc_lowrank"), 16),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "window_size", "attention_window_size"), WINDOW),
    **dict.fromkeys(
        ("local_attention", "attention_window", "keep_window_size", "sliding_window_size", "index_topk"), WINDOW
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions"), 512),
    **dict.fromkeys(("model_max_length", "n_ctx", "context_length"), 512),
    "max_window_layers": 1,
    "index_n_heads": 16,  # with few, many scores are equal to 0, and the choice among them means nothing
    **dict.fromkeys(("chunk_size", "mamba_chunk_size", "block_size"), WINDOW),
    "time_step_min": 1e-6,  # transformers raises smaller steps to this value in a prompt, but not in a decode step
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("time_step_rank",), 64),
}
ALWAYS: dict[str, object] = {
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "is_decoder": True,
    "tie_word_embeddings": False,
    "bos_token_id": VOCABULARY + 1,
    "pad_token_id": VOCABULARY,
    "eos_token_id": None,
}
"""Set wherever the field exists; `SIZES` change no field that is None or 0."""

_LOCAL = ["sliding_attention", "full_attention"] * 2
_INDEXER: dict[str, object] = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": WINDOW,
    "indexer_compress_ratio": 4,
}
_DOTS3: dict[str, object] = {
    **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 4),
    **dict.fromkeys(("swa_q_lora_rank", "swa_kv_lora_rank", "swa_qk_nope_head_dim", "swa_v_head_dim"), 16),
    **dict.fromkeys(("head_dim", "swa_head_dim", "shared_experts_intermediate_size"), 32),
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
_IMAGE_ROPE: dict[str, object] = {"rope_parameters": _ROPE}
IMAGES: dict[str, object] = {
    **dict.fromkeys(("image_size", "force_image_size"), 32),
    **dict.fromkeys(("patch_size", "stem_patch_size"), 8),
    **dict.fromkeys(("depth", "num_hidden_layers", "layers", "resampler_depth"), 2),
    **dict.fromkeys(("num_heads", "attention_heads", "resampler_n_heads"), 4),
    **dict.fromkeys(
        ("embed_dim", "out_hidden_size", "projection_dim", "text_hidden_size", "projector_hidden_size"), 64
    ),
    **dict.fromkeys(("image_seq_length", "num_image_tokens", "num_query_tokens", "resampler_n_latents"), 16),
    "mm_tokens_per_image": 4,
    "resampler_head_dim": 16,
    "num_patches": 16,
    "patch_embed_hidden_size": 192,
    "projection_hidden_size": 64,
}
"""Of models that read images, beside `SIZES`, where a test gives them images: 16 patches of 8 x 8 pixels."""
IMAGE_TOKEN = VOCABULARY + 2  # stands for an image's features; other marks of images and sounds come after it

EXCEPTIONS: dict[str, dict[str, object]] = {
    **{name: {"text_config": _IMAGE_ROPE} for name in ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker", "glm46v")},
    **{name: {"text_config": _IMAGE_ROPE} for name in ("glm4v", "glm_ocr", "glmga", "paddleocr_vl")},
    "bamba": {"num_hidden_layers": 4, "attn_layer_indices": [1, 3]},
    "blt": {
        "local_attention_window_len": WINDOW,
        "encoder_hash_byte_group_vocab": 64,
        "decoder_config": {"hidden_size_global": 64},
        "patcher_config": {"sliding_window": WINDOW},
    },
    "cohere_compass_text": {"layer_types": _LOCAL, "rope_parameters": dict.fromkeys(_LOCAL, _ROPE)},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": WINDOW}},
    "dots1": {"layer_types": _LOCAL, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {
        "text_config": _DOTS3,
        "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64},
        "audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64},
    },
    "dots3_note_text": _DOTS3,
    "esm": {"mask_token_id": VOCABULARY + 2},
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {
        "layer_types": _LOCAL,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "laguna": {"layer_types": _LOCAL},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "mellum": {"layer_types": _LOCAL},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_n_heads": 2,
        "index_block_size": 4,
        "index_topk_blocks": 2,
    },
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {"text_config": _INDEXER},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "hash_seed": 0,
        "axial_pos_shape": (16, 32),
        "axial_pos_embds_dim": (32, 32),
        "local_attn_chunk_length": WINDOW,
        "lsh_attn_chunk_length": WINDOW,
    },
    "roc_bert": {"pronunciation_embed_dim": 16, "shape_embed_dim": 16, "shape_vocab_size": 300},
    "squeezebert": {"embedding_size": 64},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}


_WINDOWS: dict[str, object] = {"vision_config": {"window_size": 32, "fullatt_block_indexes": [1]}}
_TILES: dict[str, object] = {"image_grid_pinpoints": [[32, 32]]}
_SAM: dict[str, object] = {"window_size": 2, "global_attn_indexes": [1], "output_channels": 32, "mlp_dim": 64}
IMAGE_EXCEPTIONS: dict[str, dict[str, object]] = {
    **{name: _WINDOWS for name in ("qwen2_5_vl", "exaone4_5", "hyperclovax_vision_v2")},
    "qwen2_5_omni_thinker": _WINDOWS | {"vision_start_token_id": IMAGE_TOKEN + 2},
    **{name: _TILES for name in ("llava_next", "llava_next_video", "llava_onevision")},
    **{name: {"vision_config": {"pooling_kernel_size": 2}} for name in ("gemma4", "gemma4_unified")},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": _ROPE | {"mrope_section": [3, 3, 2]}}},
    "glm4v_moe": {"text_config": {"rope_parameters": _ROPE | {"mrope_section": [2, 1, 1]}}},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "chameleon": {
        "vocabulary_map": {"<image>": IMAGE_TOKEN, **{f"IMGIMG{'ABCD'[code]}Z": 100 + code for code in range(4)}},
        "vq_config": {"num_embeddings": 4, "base_channels": 32, "resolution": 32, "channel_multiplier": [1, 2]},
    },
    "cohere_compass": {"text_config": {"layer_types": _LOCAL, "rope_parameters": dict.fromkeys(_LOCAL, _ROPE)}},
    "emu3": {
        "vocabulary_map": {
            "<image>": IMAGE_TOKEN,
            "<|extra_200|>": 99,
            **{f"<|visual token {code:06}|>": 100 + code for code in range(4)},
        },
        "vq_config": {"codebook_size": 4, "base_channels": 32, "channel_multiplier": [1, 2], "num_attention_heads": 1},
    },
    "cosmos3_edge": {"text_config": _IMAGE_ROPE},
    "deepseek_ocr2": {
        "vision_config": {"sam_config": {**_SAM, "downsample_channels": [32, 64]}},
        "text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    },
    "deepseek_vl_hybrid": {"high_res_vision_config": _SAM},
    "florence2": {
        "vision_config": {
            "depths": [1, 1],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "embed_dim": [32, 64],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "window_size": 4,
        }
    },
    "glm5_next": {"text_config": {"index_kpool": 4}},
    "granite4_vision": {
        **_TILES,
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [1],
        "downsample_rate": "1/2",
    },
    "hunyuan_vl": {"text_config": _IMAGE_ROPE | {"head_dim": 16}},
    "kimi_k25": {"projection_hidden_size": 64},
    "kosmos-2": {"latent_query_num": 4},
    "kosmos-2.5": {"latent_query_num": 4},
    "llama4": {
        "vision_config": {
            **dict.fromkeys(("projector_input_dim", "projector_output_dim", "vision_output_dim"), 64),
            "intermediate_size": 256,
        }
    },
    "mllama": {
        "vision_config": {"intermediate_layers_indices": [0, 1], "vision_output_dim": 192, "num_global_layers": 1},
        "text_config": {"cross_attention_layers": [1]},
    },
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "muse_glimmer": {"out_hidden_size": 256},
    "muse_spark": {"out_hidden_size": 256, "audio_config": {"num_hidden_layers": 4}},
    "nemotron_h_omni": {
        "vision_hidden_size": 64,
        "vision_config": {"video_temporal_patch_size": 2},
        "text_config": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
    },
    "pp_formulanet": {"vision_config": {**_SAM, "post_conv_in_channels": 32, "decoder_hidden_size": 64}},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": IMAGE_TOKEN + 2},
    "unlimited_ocr": {"vision_config": {"sam_config": {**_SAM, "downsample_channels": [32, 64]}}},
    "vision-encoder-decoder": {"decoder": {"add_cross_attention": True}},
    "vipllava": {"vision_feature_layers": [-1, -2]},
}
"""What `IMAGES` do not cover of models that read images."""


def tiny_config(model_type: str, *, decoder: bool = True, images: bool = False) -> PreTrainedConfig:
    """The configuration of an architecture, as small as it goes; with `images`, its part for images too."""
    kind = CONFIG_MAPPING[model_type]
    changes: dict[str, object] = EXCEPTIONS.get(model_type, {})
    if images:
        changes = changes | IMAGE_EXCEPTIONS.get(model_type, {})
    if not decoder and "is_decoder" in {field.name for field in fields(kind)}:
        changes = {**changes, "is_decoder": False}
    return _shrunk(kind, changes, images)


def _shrunk(kind: type[PreTrainedConfig], changes: Mapping[str, object], images: bool) -> PreTrainedConfig:
    """A configuration of this class with small sizes, every kind of layer, and the changes."""
    known = {field.name for field in fields(kind)}
    always = {name: value for name, value in ALWAYS.items() if name in known}
    default = vars(kind(**always))
    default |= {name: default[actual] for name, actual in kind.attribute_map.items() if actual in default}
    sizes = {**SIZES, **IMAGES} if images else SIZES
    values: dict[str, Any] = {name: value for name, value in sizes.items() if name in known and _is_size(default[name])}
    if images:
        values |= {name: [IMAGES[name]] * 2 for name in IMAGES if isinstance(default.get(name), list | tuple)}
        values |= _token_ids(default, known)
    values |= always
    if "kv_lora_rank" in known:  # each head has keys of its own, made from what all heads share
        values["num_key_value_heads"] = values["num_attention_heads"]
    values |= {name: value for name, value in changes.items() if name not in kind.sub_configs}
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"):  # the first sets their number
        if default.get(name) and name in known and name not in changes:
            kinds = list(dict.fromkeys(default[name]))
            count = max(4, len(kinds)) if name == "layer_types" else values.get("num_hidden_layers", 2)
            values[name] = [kinds[layer % len(kinds)] for layer in range(count)]
        if name == "layer_types" and name in values:
            values["num_hidden_layers"] = len(values[name])
    for name in kind.sub_configs:
        inner = changes.get(name, {})
        if isinstance(default.get(name), PreTrainedConfig) or (images and name in changes):
            part = type(default[name]) if default.get(name) else kind.sub_configs[name]
            values[name] = _shrunk(part, inner if isinstance(inner, Mapping) else {}, images)
    return kind(**values)


def _token_ids(default: Mapping[str, object], known: set[str]) -> dict[str, int]:
    """Ids of the vocabulary for the tokens that mark images and the like."""
    names = [name for name in default if name in known and name.endswith(("_token_id", "_token_index", "_patch_id"))]
    names = [name for name in names if name not in ALWAYS and not name.startswith("decoder_start")]
    of_image = [
        name for name in names if name.removesuffix("_id").removesuffix("_index") in ("image_token", "image_patch")
    ]
    others = [name for name in names if name not in of_image]
    last = VOCABULARY + 7
    return {name: IMAGE_TOKEN for name in of_image} | {
        name: min(IMAGE_TOKEN + 1 + number, last) for number, name in enumerate(others)
    }


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
