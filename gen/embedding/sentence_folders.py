"""Reads from a sentence-transformers folder how long a text may be, and how the vectors of its tokens become one.

`modules.json` is a list of steps. The first is the encoder; the second pools its tokens' vectors into one; linear
layers and normalising may follow. A step that gen cannot do is refused by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from gen.errors import ModelError
from gen.models.checkpoints import Source, read_json

Pooling = Literal["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

# an old config may switch on several: their results are put side by side, in this order
_OLD_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ENCODER_CONFIGS = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
_TEXT_ENCODER = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_AS_IS = ("unpad_inputs", "query_length", "document_length")  # the vector of a text does not depend on these
_HARMLESS = ("trust_remote_code", "attn_implementation", "torch_dtype", "dtype", "add_pooling_layer", "use_cache")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an encoder's vectors become a text's.

    Attributes:
        declared: whether the model says that it embeds, by its modules.json.
        subfolder: where the encoder's own files are.
        max_seq_length: how many tokens a text may have; None is what the model's positions and tokenizer allow.
        lower_case: whether texts are put into lower case first.
        pooling: how tokens' vectors become one; the results of several are put side by side.
        layers: what follows pooling, before the last normalising; float32, on the CPU.
        normalize: whether the vector is scaled to length 1 at the end.
        prompts: texts to put before a text, by name.
        default_prompt_name: which of them goes before every text.
        pools_prompt: whether the prompt's tokens are pooled with the text's.
    """

    declared: bool = False
    subfolder: str = ""
    max_seq_length: int | None = None
    lower_case: bool = False
    pooling: tuple[Pooling, ...] = ("mean",)
    layers: nn.Sequential = field(default_factory=nn.Sequential)
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    pools_prompt: bool = True


def read_recipe(source: Source) -> Recipe:
    """The recipe of a checkpoint; mean pooling and vectors of length 1 where it has no modules.json.

    Raises:
        ModelError: it has a step or a setting that gen cannot do, or a file of it cannot be read.
    """
    path = source.find("modules.json")
    if path is None:
        return Recipe()
    settings = _config(source, "config_sentence_transformers.json")
    kind = settings.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise ModelError(f"{source.name!r} is a {kind}; gen.embed is for models that give one dense vector a text.")
    first, *steps = [(str(step["type"]), str(step["path"])) for step in read_json(path)]
    recipe = _read_encoder(source, *first)
    if not steps or _name(source, steps[0][0]) != "Pooling":
        raise _refusal(source, steps[0][0] if steps else "no pooling", "a Pooling module must follow the encoder")
    recipe = _read_pooling(source, recipe, steps[0][1])
    layers = [_read_layer(source, kind, place) for kind, place in steps[1:]]
    if width := settings.get("truncate_dim"):
        layers.append(_Cut(width))
    normalize = bool(layers) and isinstance(layers[-1], _Normalize)
    if normalize:
        layers.pop()
    return replace(
        recipe,
        layers=nn.Sequential(*layers).requires_grad_(False).eval(),
        normalize=normalize,
        prompts={name: text for name, text in (settings.get("prompts") or {}).items() if text is not None},
        default_prompt_name=settings.get("default_prompt_name"),
    )


def _read_encoder(source: Source, kind: str, place: str) -> Recipe:
    if _name(source, kind) != "Transformer":
        raise _refusal(source, kind, "the first module must be a Transformer")
    configs = (_config(source, str(PurePosixPath(place, name))) for name in _ENCODER_CONFIGS)
    config = next(filter(None, configs), {})
    limit = config.pop("max_seq_length", None)
    lower_case = config.pop("do_lower_case", False)
    for key, value in config.items():
        harmless = key in _AS_IS or not value
        harmless |= key == "transformer_task" and value == "feature-extraction"
        harmless |= key == "modality_config" and value == _TEXT_ENCODER
        harmless |= key == "module_output_name" and value == "token_embeddings"
        if key.endswith(("_args", "_kwargs")) and isinstance(value, dict):
            limit = value.get("model_max_length", limit) if key in ("tokenizer_args", "processor_kwargs") else limit
            harmless = set(value) <= {*_HARMLESS, "model_max_length"}
        if not harmless:
            raise _refusal(source, f"{key}={value!r}", "of its Transformer module")
    return Recipe(declared=True, subfolder=place, max_seq_length=limit, lower_case=bool(lower_case))


def _read_pooling(source: Source, recipe: Recipe, place: str) -> Recipe:
    config = _config(source, f"{place}/config.json")
    modes = config.get("pooling_mode") or [mode for key, mode in _OLD_POOLINGS.items() if config.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if unknown := [mode for mode in modes if mode not in POOLINGS]:
        raise _refusal(source, f"pooling_mode={unknown[0]!r}", f"gen knows {', '.join(POOLINGS)}")
    return replace(
        recipe, pooling=cast(tuple[Pooling, ...], tuple(modes)), pools_prompt=config.get("include_prompt", True)
    )


def _read_layer(source: Source, kind: str, place: str) -> nn.Module:
    """A module that takes a text's vector and gives another one."""
    name, config = _name(source, kind), _config(source, f"{place}/config.json")
    between = {config.get("module_input_name"), config.get("module_output_name")}
    if name not in _LAYERS or not between <= {None, "sentence_embedding"}:
        raise _refusal(source, f"{kind} in {place!r}", f"after pooling it can do {', '.join(_LAYERS)}")
    layer = _LAYERS[name](source, config)
    if any(True for _ in layer.parameters()):
        layer.load_state_dict(_weights(source, place))
    return layer


class _Dense(nn.Module):
    """A linear layer with its activation; the names are those of sentence-transformers' weights."""

    def __init__(self, source: Source, config: dict[str, Any]) -> None:
        super().__init__()
        width, wide = config["in_features"], config["out_features"]
        self.linear = nn.Linear(width, wide, bias=config.get("bias", True))
        self.activation = _activation(source, config.get("activation_function", "torch.nn.modules.activation.Tanh"))
        self.residual: nn.Module | None = None
        if config.get("use_residual"):
            self.residual = nn.Identity() if width == wide else nn.Linear(width, wide, bias=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.activation(self.linear(vectors))
        return result if self.residual is None else result + self.residual(vectors)


class _LayerNorm(nn.Module):
    def __init__(self, source: Source, config: dict[str, Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config["dimension"])

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(vectors)
        return result


class _Normalize(nn.Module):
    def __init__(self, source: Source, config: dict[str, Any]) -> None:
        super().__init__()

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(vectors, dim=-1)


class _Cut(nn.Module):
    """Keeps a vector's first numbers, as sentence-transformers does after all modules; it is normalised no more."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors[..., : self.width]


_LAYERS: dict[str, Callable[[Source, dict[str, Any]], nn.Module]] = {
    "Dense": _Dense,
    "LayerNorm": _LayerNorm,
    "Normalize": _Normalize,
    "Dropout": lambda source, config: nn.Identity(),  # does nothing outside of training
}


def _activation(source: Source, path: str) -> nn.Module:
    """A module of torch.nn by its full name; no other code is run."""
    name = path.rsplit(".", 1)[-1]
    found = getattr(nn, name, None)
    if not path.startswith("torch.nn.") or not isinstance(found, type) or not issubclass(found, nn.Module):
        raise _refusal(source, f"activation_function={path!r}", "of a Dense module: it must be of torch.nn")
    return found()


def _weights(source: Source, place: str) -> dict[str, torch.Tensor]:
    if path := source.find(f"{place}/model.safetensors"):
        from safetensors.torch import load_file

        return load_file(path)
    if path := source.find(f"{place}/pytorch_model.bin"):
        weights: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return weights
    raise ModelError(f"{source.name!r} has no weights in {place!r}.")


def _config(source: Source, file: str) -> dict[str, Any]:
    path = source.find(file)
    return dict(read_json(path)) if path else {}


def _name(source: Source, kind: str) -> str:
    """The module's class; only those of sentence-transformers have a meaning here."""
    if not kind.startswith("sentence_transformers."):
        raise _refusal(source, kind, "it is code that comes with the model")
    return kind.rsplit(".", 1)[-1]


def _refusal(source: Source, what: str, why: str) -> ModelError:
    return ModelError(f"{source.name!r} needs {what}, which gen cannot do: {why}. Use sentence-transformers for it.")
