"""Reads from a sentence-transformers folder how long a text may be, and how the vectors of its tokens become one.

`modules.json` is a list of steps. The first is the encoder; the second pools its tokens' vectors into one; linear
layers and normalising may follow. A step that gen cannot do is refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

from torch import nn

from gen.errors import ModelError
from gen.models.checkpoints import Source, read_json

Pooling = Literal["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

_TEXT_ENCODER = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_ENCODER_CONFIGS = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
_LAYERS = ("Dense", "LayerNorm", "Normalize", "Dropout")
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
        layers: sentence-transformers' modules that follow pooling, before the last normalising; float32, on the CPU.
        truncate_dim: how many of a vector's numbers are kept, before the last normalising; None keeps all.
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
    truncate_dim: int | None = None
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    pools_prompt: bool = True


def read_recipe(source: Source) -> Recipe:
    """The recipe of a checkpoint; mean pooling and vectors of length 1 where it has no modules.json.

    Raises:
        ModelError: it has a step or a setting that gen cannot do, a file of it cannot be read, or it has a modules.json
            and sentence-transformers is not installed.
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
    pooling = _load_module(source, *steps[0], known=("Pooling",))
    modes: list[Any] = [pooling.pooling_mode] if isinstance(pooling.pooling_mode, str) else pooling.pooling_mode
    layers = [_load_module(source, kind, place) for kind, place in steps[1:]]
    truncate_dim = settings.get("truncate_dim") or None  # it comes last: what is cut is normalised no more
    normalize = truncate_dim is None and bool(layers) and type(layers[-1]).__name__ == "Normalize"
    if normalize:
        layers.pop()
    return replace(
        recipe,
        pooling=tuple(modes),
        pools_prompt=pooling.include_prompt,
        layers=nn.Sequential(*layers).requires_grad_(False).eval(),
        truncate_dim=truncate_dim,
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


def _load_module(source: Source, kind: str, place: str, *, known: Sequence[str] = _LAYERS) -> Any:
    """A module that pools tokens, or takes a text's vector and gives another one, as sentence-transformers loads it."""
    try:
        from sentence_transformers.sentence_transformer import modules
    except ImportError as error:
        raise ModelError(
            f"{source.name!r} is a folder of sentence-transformers: pip install 'gen-torch[embed]' ({error})"
        ) from error
    name, config = _name(source, kind), _config(source, f"{place}/config.json")
    between = {config.get("module_input_name"), config.get("module_output_name")}
    if name not in known or not between <= {None, "sentence_embedding"}:
        raise _refusal(source, f"{kind} in {place!r}", f"after pooling it can do {', '.join(_LAYERS)}")
    activation = str(config.get("activation_function", "torch.nn.Tanh"))
    if not activation.startswith("torch.nn.") or not hasattr(nn, activation.rsplit(".", 1)[-1]):
        raise _refusal(source, f"activation_function={activation!r}", "of a Dense module: it must be of torch.nn")
    where = {"subfolder": place, "revision": source.revision, "local_files_only": source.cached}
    try:
        return getattr(modules, name).load(source.name, **where)
    except Exception as error:  # configs and weights fail with errors of every kind
        raise ModelError(f"cannot load the {name} in {place!r} of {source.name!r}: {error}") from error


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
