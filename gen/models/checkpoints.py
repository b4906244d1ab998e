"""Where a checkpoint is, a directory or a name that the Hub or its local cache has; its files, read and checked before
any weight is loaded."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gen.errors import ArgumentError, ModelError, show, show_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEMO = Path(__file__).parent / "demo"
ADAPTER = "adapter_config.json"  # what PEFT calls the config of an adapter
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # in the order in which transformers looks for them
_EXLLAMA = {"exl2": (".q_weight", ".q_invperm"), "exl3": (".trellis",)}  # how their tensors' names end
_LOADERS = {"exl2": "from_exllamav2", "exl3": "from_exllamav3"}
_LFS_POINTER = b"version https://git-lfs"
MISTRAL = {"mistral_format": False}  # for AutoTokenizer: mistral-common's, if installed, has no vocabulary to look at
_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a checkpoint's files are.

    Attributes:
        name: a directory, or a name on the Hub.
        revision: for a name on the Hub, the commit if it is known, so that all files are of one commit.
        cached: whether only files in the Hub's local cache may be used.
    """

    name: str
    revision: str | None = None
    cached: bool = False

    @property
    def folder(self) -> Path | None:
        """The directory, if the source is one."""
        return Path(self.name) if Path(self.name).is_dir() else None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for transformers' from_pretrained."""
        return {"revision": self.revision} | ({"local_files_only": True} if self.cached else {})

    def find(self, file: str) -> Path | None:
        """One of the files, downloaded if needed; None if there is none, or if it is not in the cache and must be."""
        if self.folder:
            return self.folder / file if (self.folder / file).is_file() else None
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        known = try_to_load_from_cache(self.name, file, revision=self.revision) if self.revision else None
        if known is not None:
            return Path(known) if isinstance(known, str) else None  # otherwise the cache has noted that there is none
        try:
            return Path(hf_hub_download(self.name, file, **self.options))
        except LocalEntryNotFoundError as error:
            if self.cached:
                return None
            raise ModelError(f"cannot download {file} of {self.name!r}: {error}") from error
        except EntryNotFoundError:
            return None

    def download(self) -> Path:
        """The directory of all files, downloaded if needed."""
        from huggingface_hub import snapshot_download

        return self.folder or Path(snapshot_download(self.name, **self.options))


def find_source(path_or_hub_id: str | Path, revision: str | None = None) -> Source:
    """A directory, or a model that the Hub or its local cache has.

    Raises:
        ArgumentError: something else than a path or a name.
        ModelError: it is in none of these places; the Hub is asked once, without retries.
    """
    if not isinstance(path_or_hub_id, str | Path) or not str(path_or_hub_id):
        hint = "; to use a model that is loaded already: gen.from_transformers(model, tokenizer)"
        raise ArgumentError(
            f"give a directory, a Hub id as 'organisation/name', or 'demo', got {show(path_or_hub_id)}"
            f"{hint if hasattr(path_or_hub_id, 'config') else ''}"
        )
    if not isinstance(revision, str | None):
        raise ArgumentError(f"revision must be the name of a branch, tag or commit, got {show(revision)}")
    if path_or_hub_id == "demo":
        return Source(name=str(DEMO))
    path = find_path(path_or_hub_id)
    if path.is_dir():
        return Source(name=str(path), revision=revision)
    if path.is_file():
        raise ModelError(
            f"{show_path(path)} is a file; give a directory, or to gen.load a GGUF file. If you mean a model on the "
            "Hub, rename the file or work in another directory: transformers would read the file instead."
        )
    if isinstance(path_or_hub_id, str) and _HUB_ID.fullmatch(path_or_hub_id):
        return _ask_hub(path_or_hub_id, revision)
    raise ModelError(f"no directory {show_path(path)}; give one, a Hub id as 'organisation/name', or 'demo'.")


def find_asked(path_or_hub_id: str | Path, revision: str | None) -> Source:
    """The source that a user asks for.

    Raises:
        ArgumentError, ModelError: as `find_source`; or a revision of a directory is asked for.
    """
    source = find_source(path_or_hub_id, revision)
    if revision is not None and source.folder:
        raise ArgumentError(
            f"revision is for models on the Hub, and {show_path(source.name)} is a directory, whose files are read as "
            "they are; leave revision out."
        )
    return source


def load_tokenizer(path_or_hub_id: str | Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a model in Hugging Face format.

    Raises:
        ModelError: there is none.
    """
    source = find_source(path_or_hub_id)

    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source.name, **source.options, **MISTRAL)
    except Exception as error:  # configs and remote code fail with errors of every kind
        raise ModelError(f"cannot load the tokenizer of {show_path(path_or_hub_id)}: {error}") from error
    return tokenizer


def means_file(path_or_hub_id: object) -> bool:
    """Whether the user means a GGUF file: by its ending, its first bytes, or since only a file can have such a name.

    Any other file may have the name of a model on the Hub by chance, as a log called "gpt2", and "demo" is always the
    model of this package.

    Raises:
        ModelError: there can be no such file, or it cannot be read.
    """
    if not isinstance(path_or_hub_id, str | Path) or path_or_hub_id == "demo":
        return False
    path = find_path(path_or_hub_id)
    if path.suffix == ".gguf" or not path.is_file():
        return path.suffix == ".gguf" and not path.is_dir()
    if isinstance(path_or_hub_id, Path) or not _HUB_ID.fullmatch(path_or_hub_id):
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError as error:
        raise ModelError(f"cannot read {show_path(path)}: {error.strerror}.") from error


def find_path(path: str | PathLike[str]) -> Path:
    """A path with the home directory instead of "~".

    Raises:
        ModelError: there can be no such file.
    """
    try:
        found = Path(path).expanduser()
        found.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, or the home of an unknown user
        raise ModelError(f"cannot look at {show_path(path)}: {show(str(error))}") from error
    return found


def _ask_hub(name: str, revision: str | None) -> Source:
    """Find a model; the first request is made once, while transformers tries six times with 23 s of pauses."""
    from huggingface_hub import (
        constants,
        errors,
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )

    hub, offline = constants.ENDPOINT, constants.HF_HUB_OFFLINE
    try:
        files = [try_to_load_from_cache(name, file, revision=revision) for file in ("config.json", ADAPTER)]
        cached = next((Path(file).parent.name for file in files if isinstance(file, str)), None)
        if offline:
            failure: Exception = ConnectionError("HF_HUB_OFFLINE is set")
        else:
            get_hf_file_metadata(hf_hub_url(name, "config.json", revision=revision))
            path = hf_hub_download(name, "config.json", revision=revision)  # notes the commit for offline use, too
            return Source(name=name, revision=Path(path).parent.name)
    except errors.HFValidationError as error:
        raise ModelError(f"{name!r} is no directory and no Hub id: {error}") from error
    except errors.GatedRepoError as error:
        raise ModelError(f"{name!r} is gated: accept its terms at {hub}/{name}, then run `hf auth login`.") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{name!r} is no directory, and {hub} has no such model, or none that you may read; check the path or the "
            "name, or run `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{hub}/{name} has no revision {revision!r}.") from error
    except errors.EntryNotFoundError:
        return Source(name=name, revision=revision)  # it has no config.json; whoever reads that raises
    except Exception as error:  # each HTTP client, proxy and socket has its own kinds
        failure = error
    if cached:
        return Source(name=name, revision=cached, cached=True)
    raise ModelError(
        f"{name!r} is no directory, the local cache of the Hub does not have it, and {hub} cannot be asked "
        f"({failure}); check the path or the connection."
    ) from failure


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ModelError: it is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{show_path(path)} is no valid JSON file: {error}") from error


def has_weights(folder: Path) -> bool:
    """Whether a directory has weights of a whole model."""
    return any((folder / name).is_file() for name in _WEIGHTS)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ModelError: there is none, or it is no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{show_path(folder)} has no config.json, so it is no model in Hugging Face format: {_has(folder)}"
        )
    config = read_json(path)
    if not isinstance(config, dict):
        raise ModelError(f"{show_path(path)} must be a JSON object, got {type(config).__name__}.")
    return config


def is_exl3(source: Source) -> bool:
    """Whether a checkpoint's config says that its weights are in EXL3 format.

    Raises:
        ModelError: it says that they are in EXL2 format, which transformers cannot read.
    """
    path = source.find("config.json")
    config = read_json(path) if path is not None else None
    quantization = config.get("quantization_config") if isinstance(config, dict) else None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method == "exl2":
        raise _exllama_error(source.name, method)
    return method == "exl3"


def check_folder(folder: Path) -> None:
    """Check that a directory is a whole checkpoint in Hugging Face format.

    The headers of safetensors files are read, not their weights.

    Raises:
        ModelError: it lacks its config or weights, a file is cut short, or its weights are in a format of ExLlama that
            its config does not name.
    """
    config = read_config(folder)
    for path in _weight_files(folder, config.get("transformers_weights")):
        names = check_safetensors(path) if path.suffix == ".safetensors" else []
        for method, endings in _EXLLAMA.items():
            if any(name.endswith(endings) for name in names):
                raise _exllama_error(str(folder), method)


def _weight_files(folder: Path, named: str | None) -> Iterator[Path]:
    """The files that transformers would load."""
    names = (named,) if named else _WEIGHTS
    first = next((folder / name for name in names if (folder / name).is_file()), None)
    if first is None:
        raise ModelError(f"{show_path(folder)} has no weights: expected {' or '.join(names)}; {_has(folder)}")
    if not first.name.endswith(".index.json"):
        yield first
        return
    index = read_json(first)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        raise ModelError(f"{show_path(first)} has no weight_map; download it again.")
    paths = [folder / name for name in sorted(set(shards.values()))]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise ModelError(
            f"{show_path(folder)} lacks {len(missing)} of {len(paths)} files of weights that its index names, such as "
            f"{missing[0]!r}; download them."
        )
    yield from paths


def check_safetensors(path: Path) -> list[str]:
    """The names of a file's tensors; see https://github.com/huggingface/safetensors.

    Raises:
        ModelError: the file is not as long as its header says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if _LFS_POINTER.startswith(start) and start:
            raise ModelError(
                f"{show_path(path)} is a pointer of Git LFS, not the weights; get them with `git lfs pull`."
            )
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise ModelError(f"{show_path(path)} has {size} bytes and ends within its header; download it again.")
        try:
            tensors = {name: entry for name, entry in json.loads(file.read(length)).items() if name != "__metadata__"}
            expected = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
            raise ModelError(f"{show_path(path)} is no safetensors file: {error}") from error
    if size != expected:
        raise ModelError(f"{show_path(path)} has {size} bytes, its header says {expected}; download it again.")
    return list(tensors)


def _exllama_error(name: str, method: str) -> ModelError:
    """The error for a checkpoint that transformers cannot read, with the function that can."""
    unnamed = " as its config.json does not say" if method == "exl3" else ""
    return ModelError(
        f"{show_path(name)} is an {method.upper()} checkpoint{unnamed}: load it with "
        f"gen.{_LOADERS[method]}(path, device=...), which needs a CUDA device and pip install "
        f"'gen-torch[{_LOADERS[method].removeprefix('from_')}]'."
    )


def _has(folder: Path) -> str:
    """The first few names in a folder, for a message."""
    names = sorted(path.name for path in folder.iterdir())
    return f"it has {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}." if names else "it is empty."
