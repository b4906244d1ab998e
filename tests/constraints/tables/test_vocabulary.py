"""Vocabularies as bytes: tokens spell what their tokenizer encodes, and the trie holds all of them."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

import gen
from gen.constraints.tables.vocabulary import MAX_BYTES, NO_BYTE, Vocabulary, vocabulary_of
from gen.errors import ConstraintError
from gen.tokens.tokenizers import Tokenizer
from tests.constraints.vocabularies import spelled, wordy_tokenizer
from tests.helpers import EOS, ScriptedModel, byte_tokenizer, encoder_tokenizer, spaced_tokenizer

TEXTS = ["", "a b  c", "naïve café", "\t\n x", "日本語", "🙂 ok", 'x = {"a": [1, 2.5]}', "\x00\x7f", "İstanbul ﬁ"]


def paths_of(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of each node of the trie, found by following the parents."""
    paths = [b""]
    for parents, bytes_ in vocabulary.levels:
        paths += [paths[parent] + bytes([byte]) for parent, byte in zip(parents, bytes_, strict=True)]
    return paths


@pytest.mark.parametrize(
    "tokenizer", [byte_tokenizer(), wordy_tokenizer(), gen.load("demo")], ids=["bytes", "words", "demo"]
)
def test_the_tokens_of_a_text_spell_it(tokenizer: Any) -> None:
    wrapped = getattr(tokenizer, "tokenizer", None) or Tokenizer(tokenizer)
    tokens = wrapped.all_token_bytes()
    for text in TEXTS:
        assert b"".join(tokens[token_id] for token_id in wrapped.encode_plain(text)) == text.encode()
        assert not text or b"".join(tokens[token_id] for token_id in wrapped.encode(text)) == text.encode()


def test_sentence_pieces_spell_a_text_with_a_space_before_it() -> None:
    wrapped = Tokenizer(spaced_tokenizer())
    tokens = wrapped.all_token_bytes()
    assert tokens[:3] == [b"", b"", b""]
    assert tokens[3 : 3 + 256] == [bytes([byte]) for byte in range(256)]
    assert tokens[259:] == [b" ", b" the", b" cat", b" sat", b"s", b"."]
    for text in TEXTS[1:]:
        made = b"".join(tokens[token_id] for token_id in wrapped.encode_plain(text))
        assert made.removeprefix(b" ") == text.encode().removeprefix(b" ")


def test_added_tokens_spell_themselves_and_special_or_long_ones_nothing() -> None:
    vocabulary = Vocabulary(Tokenizer(wordy_tokenizer()).all_token_bytes())
    assert vocabulary.tokens == [b"" if token and max(token) > 0xF4 else token for token in spelled()]
    assert not vocabulary.tokens[vocabulary.end]


def test_added_tokens_of_sentence_pieces_may_be_spaces() -> None:
    """As those of Gemma, whose tokens of several spaces are in its vocabulary and added to it."""
    tokenizer = spaced_tokenizer()
    tokenizer.add_tokens([AddedToken("\u2581" * count, normalized=False) for count in (1, 2, 3)] + ["\n\n"])
    wrapped = Tokenizer(tokenizer)
    for token_id in wrapped.added_ids - wrapped.special_tokens.keys():
        before = tokenizer.convert_tokens_to_ids("s")
        assert wrapped.token_bytes(token_id) == wrapped.decode([before, token_id]).removeprefix("s").encode()


@pytest.mark.parametrize("options", [{}, {"normalized": False}, {"lstrip": True, "rstrip": True}], ids=str)
@pytest.mark.parametrize("legacy", [False, True], ids=["pre_tokenizer", "normalizer"])
def test_added_tokens_beside_which_spaces_come_or_go_spell_what_decoding_shows(
    legacy: bool, options: dict[str, Any]
) -> None:
    tokenizer = spaced_tokenizer()
    if legacy:
        backend = tokenizer.backend_tokenizer
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.pre_tokenizer = None
    tokenizer.add_tokens([AddedToken(name, **options) for name in ("fox", "{", "<tool>")])
    wrapped = Tokenizer(tokenizer)
    told = wrapped.all_token_bytes()
    for text in ("the fox sat", "foxes.<tool>", "<tool> {fox fox"):
        token_ids = wrapped.encode_plain(text)
        assert not wrapped.added_ids.isdisjoint(token_ids)
        assert b"".join(told[one] for one in token_ids).decode().removeprefix(" ") == wrapped.decode(token_ids)


def lowering() -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def without_bytes() -> PreTrainedTokenizerFast:
    tokenizer = FastTokenizer(models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -1.0)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("tokenizer", [encoder_tokenizer(), lowering(), without_bytes()], ids=["words", "lower", "unk"])
def test_a_tokenizer_whose_tokens_do_not_spell_texts_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConstraintError, match="byte-level BPE, or SentencePiece"):
        Tokenizer(tokenizer).all_token_bytes()


def test_the_trie_holds_what_tokens_spell() -> None:
    vocabulary = Vocabulary(spelled())
    paths = paths_of(vocabulary)
    assert len(paths) == vocabulary.nodes == len(set(paths))
    assert set(paths) == {token[:end] for token in vocabulary.tokens for end in range(len(token) + 1)}
    for token_id, token in enumerate(vocabulary.tokens):
        node = vocabulary.node_of[token_id]
        assert paths[node] == token if token else node == vocabulary.nodes
        row = vocabulary.bytes[token_id]
        assert bytes(row[: len(token)].tolist()) == token
        assert (row[len(token) :] == NO_BYTE).all()
    assert {paths[node] for node in np.flatnonzero(vocabulary.is_token)} == set(vocabulary.tokens) - {b""}
    for parents, bytes_ in vocabulary.levels:  # searches rely on this order
        assert (np.diff(parents.astype(np.int64) * 256 + bytes_) > 0).all()
    assert vocabulary.spells[:0xF5].all() and not vocabulary.spells[0xF5:].any()  # those are in no text


def test_equal_tokens_share_a_node() -> None:
    vocabulary = Vocabulary([b"", b"ab", b"a", b"ab"])
    assert vocabulary.node_of[1] == vocabulary.node_of[3]
    assert vocabulary.spells.sum() == 1


@pytest.mark.parametrize(
    ("tokens", "end"),
    [
        ([b"a", b"", b"bc"], 1),
        ([b"a", b"x" * (MAX_BYTES + 1), b"bc"], 1),
        ([b"a", b"abc", b"bc"], 1),
        ([*(bytes([byte]) for byte in range(256)), b"the"], 0xF5),
    ],
)
def test_the_end_is_a_token_that_no_text_needs(tokens: list[bytes], end: int) -> None:
    vocabulary = Vocabulary(tokens)
    assert vocabulary.end == end
    assert vocabulary.tokens[end] == b""
    assert vocabulary.node_of[end] == vocabulary.nodes


def test_special_tokens_are_told_by_bytes_that_no_text_and_no_other_token_has() -> None:
    plain = [bytes([byte]) for byte in range(256)]
    for count in (1, 11, 12, 130):
        names = {256 + number: f"<{number}>" for number in range(count)}
        vocabulary = Vocabulary([*plain, *[b""] * (count + 1)], names)
        marks = [vocabulary.tokens[token_id] for token_id in names]
        assert len({*marks}) == count and len({*map(len, marks)}) == 1
        assert min(b"".join(marks)) > max(b"".join(vocabulary.tokens[:256]))
        assert vocabulary.specials == dict(zip(names.values(), marks, strict=True))
        assert vocabulary.texts[256 : 256 + count] == [name.encode() for name in names.values()]
        assert vocabulary.written([97, 256]) == b"a" + marks[0]


def test_a_vocabulary_without_text_is_refused() -> None:
    with pytest.raises(ConstraintError, match="no token that spells text"):
        Vocabulary([b"", b""])


def test_a_model_keeps_one_vocabulary_as_long_as_its_tokenizer_lives() -> None:
    model = ScriptedModel("a")
    vocabulary = vocabulary_of(model)
    assert vocabulary_of(model) is vocabulary
    kept = weakref.ref(vocabulary)
    del model, vocabulary
    gc.collect()
    assert kept() is None


def test_it_has_as_many_tokens_as_logits_and_tokenizer_both_have() -> None:
    for width, size in ((258, 258), (300, 259)):
        assert vocabulary_of(ScriptedModel("a", vocab_size=width)).size == size


def test_what_ends_a_models_texts_is_never_in_them() -> None:
    model = ScriptedModel("a")
    assert vocabulary_of(model).tokens[ord("\n")] == b"\n"
    model.eos_token_ids = (ord("\n"), EOS)
    assert vocabulary_of(model).tokens[ord("\n")] == b""


def test_on_a_device_it_is_made_once() -> None:
    vocabulary = Vocabulary(spelled())
    placed = vocabulary.on(torch.device("cpu"))
    assert vocabulary.on(torch.device("cpu")) is placed
    assert torch.equal(placed.node_of, torch.from_numpy(vocabulary.node_of))
