"""An embedding that stays in its file: how much memory it takes, and what happens to it when the file changes."""

import gc
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gen
from gen.models.transformers.mapped_weights import left_in_file
from tests.helpers import byte_tokenizer, tiny_model

ROWS, COLUMNS = 20_000, 300  # 12 MB in float16


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A float16 checkpoint that consists mostly of its embedding."""
    sizes: dict[str, Any] = {"hidden_size": 304, "num_attention_heads": 4, "vocab_size": ROWS}
    tiny_model(**sizes, tie_word_embeddings=True).half().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def in_memory(path: Path, what: str = "Rss") -> int:
    """How many bytes of a file this process has in memory, or ("Anonymous") how many no longer belong to the file."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            here = str(path) in line
        elif here and line.startswith(f"{what}:"):
            found += 1024 * int(line.split()[1])
    return found


def mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def embedding(path: Path) -> torch.Tensor:
    """A weight of a file, in the mapping of the whole file that safetensors makes."""
    torch.manual_seed(0)
    first, weight = torch.randn(7, 3).half(), torch.randn(ROWS, COLUMNS).half()
    weight[0, 0] = torch.nan
    save_file({"a": first, "b": weight, "c": first.clone()}, path)
    return load_file(path)["b"]


def test_only_rows_that_are_read_take_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    weight = embedding(path)
    own = left_in_file(weight)
    assert own is not None
    expected = weight.clone()
    del weight
    gc.collect()
    assert in_memory(path) == 0
    assert torch.equal(own[[5, 19_000]], expected[[5, 19_000]])
    assert 0 < in_memory(path) < own.nbytes / 2  # Linux maps up to 2 MB of cached pages at once
    assert torch.equal(own[1:], expected[1:])
    assert in_memory(path) >= own.nbytes and in_memory(path, "Anonymous") == 0
    del own
    gc.collect()
    assert not mapped(path)


def test_a_deleted_or_replaced_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    own = left_in_file(embedding(path))
    assert own is not None
    expected = own.clone()
    save_file({"b": torch.zeros(ROWS, COLUMNS).half()}, tmp_path / "other")
    (tmp_path / "other").replace(path)
    assert torch.equal(own[1:], expected[1:])
    path.unlink()
    assert torch.equal(own[1:], expected[1:])


def test_changes_stay_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    before = embedding(path)
    own = left_in_file(before)
    assert own is not None
    own[3] = 7
    assert (own[3] == 7).all()
    assert not (before[3] == 7).any()
    assert not (load_file(path)["b"][3] == 7).any()


def test_without_a_file_there_is_nothing_to_map(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    weight = embedding(path)
    assert left_in_file(weight.clone()) is None
    shutil.copy(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)  # an equal file, but another one
    save_file({"b": torch.zeros(9, 9)}, path)
    assert left_in_file(weight) is None
    path.unlink()
    assert left_in_file(weight) is None


def test_a_changed_weight_is_not_taken_from_its_file(tmp_path: Path) -> None:
    weight = embedding(tmp_path / "a.safetensors")
    weight[5, 5] += 1
    assert left_in_file(weight) is None


def test_a_loaded_model_leaves_its_embedding_in_the_checkpoint(saved: Path) -> None:
    model = gen.load(saved, device="cpu")
    assert mapped(saved / "model.safetensors")
    texts = gen.generate(model, ["Once", "upon"], seed=2)
    assert in_memory(saved / "model.safetensors", "Anonymous") == 0
    assert gen.generate(gen.load(saved, device="cpu", dtype="float32"), ["Once", "upon"], seed=2) == texts
    model.hf_model.save_pretrained(saved)  # into the folder from which it is mapped
    byte_tokenizer().save_pretrained(saved)
    assert gen.generate(model, ["Once", "upon"], seed=2) == texts
    assert gen.generate(gen.load(saved, device="cpu"), ["Once", "upon"], seed=2) == texts
