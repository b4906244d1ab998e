"""Tiny models and tokenizers that the tests share: random weights, a token for each byte, scripted texts."""

import warnings
from collections.abc import Callable, Sequence

import torch
import transformers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gen.devices import Placement
from gen.models.base import Inputs
from gen.models.idle_rows import Idle
from gen.tokenizers import Tokenizer

BOS, EOS, OTHER_EOS, BYTES = 256, 257, 258, 256
CHAT_TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "


def byte_tokenizer(*, bos: bool = True, chat: bool = False) -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are the bytes in order, then <s>, </s> and <end>: every character but ASCII takes several tokens."""
    alphabet = bytes_to_characters()
    vocab = {character: byte for byte, character in enumerate(alphabet)} | {"<s>": BOS, "</s>": EOS, "<end>": OTHER_EOS}
    tokenizer = FastTokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = {"eos_token": "</s>", "additional_special_tokens": ["<end>"]} | ({"bos_token": "<s>"} if bos else {})
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials)
    if chat:
        wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def bytes_to_characters() -> list[str]:
    """How byte-level BPE writes each byte: printable ones as themselves, the others from U+0100 on, as GPT-2 has it."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's: words with a leading space, which decoding drops at the start, and bytes for what is unknown."""
    words = ["▁", "▁the", "▁cat", "▁sat", "s", "."]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {word: 259 + number for number, word in enumerate(words)}
    scores = [(token, 0.0 if token in words else -10.0) for token in vocab]
    tokenizer = FastTokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


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
        "GPTNeo",  # the window of its local layers is no layer type
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 128, "window_size": 8}
        | {"attention_types": [[["global", "local"], 1]]},
    ),
    "deepseek_v3": ("DeepseekV3", _SMALL | _DEEPSEEK),  # keys and values of other widths
}


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
if hasattr(transformers, "Lfm3Config"):  # not in the oldest transformers that gen takes
    HYBRIDS["lfm3"] = ("Lfm3", _SMALL | {"layer_types": ["conv", "full_attention"]})

_WINDOW: dict[str, object] = {"sliding_window": 8}
_FOUR_LAYERS: dict[str, object] = {"num_hidden_layers": 4, "head_dim": 8}
_FALCON: dict[str, object] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_MPT: dict[str, object] = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128}
_MANY_HEADS = {name: value for name, value in _SMALL.items() if name != "num_key_value_heads"}

OTHERS: dict[str, tuple[str, dict[str, object]]] = {  # further kinds of masks and positions
    "phi": ("Phi", _SMALL),
    "gpt_neox": ("GPTNeoX", _MANY_HEADS),
    "stablelm": ("StableLm", _SMALL),
    "glm4": ("Glm4", _SMALL | {"head_dim": 8}),
    "qwen3_moe": ("Qwen3Moe", _SMALL | {"head_dim": 8, "moe_intermediate_size": 16} | _FEW_EXPERTS),
    "mistral_window": ("Mistral", _SMALL | _WINDOW),
    "phi3_window": ("Phi3", _SMALL | _WINDOW),
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
}


_WITH_PARTS = ("Gemma3", "Gemma3n", "Llama4", "Qwen3_5")  # their plain configs have parts for images too


def tiny_model(shape: str = "llama", *, vocab_size: int = 300, seed: int = 0, **changes: object) -> PreTrainedModel:
    """A small model with random weights, large enough that its greedy texts vary."""
    name, settings = (SHAPES | HYBRIDS | OTHERS)[shape]
    config_name = f"{name}TextConfig" if name in _WITH_PARTS else f"{name}Config"
    tokens = {"bos_token_id": BOS, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # configs of reduced size warn of what full ones have
        config = getattr(transformers, config_name)(vocab_size=vocab_size, **(settings | tokens | changes))
        torch.manual_seed(seed)
        head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
        model: PreTrainedModel = getattr(transformers, f"{name}{head}")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                spread = 1.0 if "emb" in parameter_name or "wte" in parameter_name else 0.3
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


@torch.inference_mode()
def plain_greedy(model: torch.nn.Module, prompt_ids: Sequence[int], new_tokens: int, known: int = 259) -> list[int]:
    """The likeliest tokens below `known` by the plain forward, anew at every token: no cache, padding or mask."""
    token_ids = list(prompt_ids)
    for _ in range(new_tokens):
        logits = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1, :known]
        token_ids.append(int(logits.argmax()))
    return token_ids[len(prompt_ids) :]


class ScriptedModel:
    """A `gen.models.base.Model` that says what it is told: a byte of the script at each step, then the eos token."""

    def __init__(
        self, script: Callable[[str], Sequence[int]] | str, *, context_length: int = 1000, vocab_size: int = 259
    ) -> None:
        self.tokenizer = Tokenizer(byte_tokenizer())
        self.placement = Placement(input_device=torch.device("cpu"), logits_device=torch.device("cpu"))
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.eos_token_ids: tuple[int, ...] = (EOS,)
        self.steps = 0
        self.idle: Idle[object] = Idle()
        self._script = script

    def new_rows(self, count: int, length: int) -> "ScriptedRows":
        return ScriptedRows(self, count, length)

    def script(self, prompt_ids: Sequence[int]) -> list[int]:
        prompt = self.tokenizer.decode(prompt_ids)
        return [*(self._script.encode() if isinstance(self._script, str) else self._script(prompt)), EOS]


class ScriptedRows:
    """Rows that each say their script; `steps` of the model counts how often logits were asked for."""

    refillable = True
    replayable = False
    whole_prompts = False

    def __init__(self, model: ScriptedModel, count: int, length: int) -> None:
        self.count, self.length = count, length
        self._model = model
        self._read: list[list[int]] = [[] for _ in range(count)]  # the prompts
        self._scripts: list[list[int]] = [[EOS] for _ in range(count)]
        self._said = [0] * count

    def fill(
        self, rows: slice, prompts: Sequence[Sequence[int]], start: int = 0, inputs: Sequence[Inputs] = ()
    ) -> Tensor:
        for row, prompt in zip(range(self.count)[rows], prompts, strict=True):
            self._read[row] = [*self._read[row][:start], *prompt]
            self._scripts[row] = self._model.script(self._read[row])
            self._said[row] = 0
        return self.logits(range(self.count)[rows])

    def logits(self, rows: Sequence[int]) -> Tensor:
        self._model.steps += 1
        logits = torch.full((len(rows), self._model.vocab_size), -torch.inf)
        for number, row in enumerate(rows):
            script = self._scripts[row]
            logits[number, script[min(self._said[row], len(script) - 1)]] = 0.0
        return logits

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        rows = range(len(token_ids))
        for row in rows:
            self._said[row] += 1
        return self.logits(rows)

    def reorder(self, ancestors: Tensor, view: int) -> None:
        sources = ancestors.tolist()
        self._read[: len(sources)] = [self._read[row] for row in sources]
        self._scripts[: len(sources)] = [self._scripts[row] for row in sources]
        self._said[: len(sources)] = [self._said[row] for row in sources]

    def copy(self, source: int, targets: slice, view: int) -> None:
        for target in range(self.count)[targets]:
            self._read[target] = self._read[source]
            self._scripts[target] = self._scripts[source]
            self._said[target] = self._said[source]

    def moving(self) -> tuple[Tensor, ...]:
        return ()

    def parts(self) -> tuple[tuple[str, Tensor, torch.device], ...]:
        return ()

    def grow(self, length: int) -> None:
        self.length = length


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "dog", "sat", "ran", "on", "the", "mat", "red", "moon", "."]


def encoder_tokenizer(*, special: bool = True) -> PreTrainedTokenizerFast:
    """As BERT's: words, between [CLS] and [SEP] if `special`."""
    tokenizer = FastTokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        ends = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


def tiny_encoder(shape: str = "Bert", **changes: object) -> PreTrainedModel:
    """A small encoder with random weights, as "Bert" or "Roberta", for `encoder_tokenizer`."""
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    settings = {"vocab_size": len(WORDS), "max_position_embeddings": 24, "pad_token_id": 0} | small | changes
    torch.manual_seed(0)
    config = getattr(transformers, f"{shape}Config")(initializer_range=0.5, **settings)
    model: PreTrainedModel = getattr(transformers, f"{shape}Model")(config)
    return model.eval()
