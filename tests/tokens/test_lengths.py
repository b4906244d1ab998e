"""How few tokens a text may have is known without encoding it; encoding it is the oracle."""

import random
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

import gen
from gen.errors import ContextError
from gen.tokens.lengths import SPACES
from gen.tokens.spelling import letters_of_bytes
from gen.tokens.tokenizers import Tokenizer
from tests.helpers import byte_tokenizer, spaced_tokenizer

WORDS = ["the", "Ġthe", "Ġ" * 9, "---", "him", "hims", "himself", "éÃ"]
PIECES = [
    "a",
    "é",
    "\u0301",
    "\u1f82",
    "ᾂ",
    "\u03b1\u0313\u0300\u0345",
    "K",
    "ﷺ",
    "\uff11",
    "中",
    "가",
    "\u1112\u1161\u11ab",
    "🙂",
    "\x04",
]
TEXTS = [*PIECES, *SPACES, "the", " the", "himself", "---", "<pad>", "  <pad>   ", "\U0010fffd", "▁", "  ", "``"]


def bpe(*words: str, unknown: Sequence[int] = (), **options: Any) -> FastTokenizer:
    """Byte-level BPE with these words, without the tokens of some bytes."""
    alphabet = [letter for byte, letter in enumerate(letters_of_bytes()) if byte not in unknown]
    steps = {word[:end]: (word[: end - 1], word[end - 1]) for word in words for end in range(2, len(word) + 1)}
    vocab = {piece: number for number, piece in enumerate([*alphabet, *dict.fromkeys(steps)])}
    tokenizer = FastTokenizer(models.BPE(vocab=vocab, merges=[*steps.values()], **options))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def wrapped(tokenizer: FastTokenizer, normalizer: Any = None, pre_tokenizer: Any = None) -> Tokenizer:
    """The tokenizer with a token that takes all whitespace beside it."""
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_tokens([AddedToken("<pad>", lstrip=True, rstrip=True)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<pad>"))


def fallback() -> FastTokenizer:
    """BPE that writes unknown characters as bytes, as Llama's."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"t": 256, "h": 257, "e": 258, "th": 259, "the": 260}
    tokenizer = FastTokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def forms(*names: str) -> Any:
    return normalizers.Sequence([getattr(normalizers, name)() for name in names])


known: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: Tokenizer(byte_tokenizer()),
    "unigram with bytes": lambda: Tokenizer(spaced_tokenizer()),
    "BPE with bytes": lambda: wrapped(fallback()),
    "byte-level": lambda: wrapped(bpe(*WORDS)),
    "as SmolLM2's": lambda: wrapped(bpe(*WORDS, unknown=[4, 0xC0, 0xC1, 0xF1, 0xF4, *range(0xF5, 256)])),
    **{f"{name}": lambda name=name: wrapped(bpe(*WORDS), forms(name)) for name in ("NFC", "NFD", "NFKC", "NFKD")},  # type: ignore[misc]
    "twice": lambda: wrapped(bpe(*WORDS), forms("NFKC", "Lowercase", "NFC", "Strip")),
    "GPT-4's": lambda: wrapped(
        bpe(*WORDS, ignore_merges=True),
        None,
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
        ),
    ),
}
unknown: dict[str, Callable[[], Tokenizer]] = {
    "words": lambda: wrapped(FastTokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))),
    "word pieces": lambda: wrapped(FastTokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))),
    "unigram": lambda: wrapped(FastTokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))),
    "BPE": lambda: wrapped(FastTokenizer(models.BPE(vocab={"a": 0}, merges=[]))),
    "no letter e": lambda: wrapped(bpe(unknown=[ord("e")])),
    "no accents": lambda: wrapped(bpe(), forms("NFD", "StripAccents")),
    "pattern": lambda: wrapped(bpe(), normalizers.Replace(Regex("a+"), "a")),
    "shorter": lambda: wrapped(bpe(), normalizers.Replace("``", '"')),
    "removed": lambda: wrapped(bpe(), None, pre_tokenizers.Split("a", "removed")),
}


def texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        *(piece * 40 for piece in TEXTS),
        *("".join(rng.choice(TEXTS) for _ in range(rng.randrange(1, 60))) for _ in range(300)),
        *(unicodedata.normalize("NFD", "".join(rng.choice("ǖứᾂ각") for _ in range(40))) for _ in range(10)),
    ]


@pytest.mark.parametrize("name", known)
def test_no_text_has_fewer_tokens_than_are_told(name: str) -> None:
    tokenizer = known[name]()
    told = [(tokenizer.least_tokens(text, 0), len(tokenizer.encode_plain(text))) for text in texts(len(name))]
    assert all(least <= count for least, count in told)
    assert sum(least > 0 for least, _ in told) > 300


@pytest.mark.parametrize("name", unknown)
def test_tokenizers_that_drop_characters_or_have_one_token_for_many_tell_nothing(name: str) -> None:
    tokenizer = unknown[name]()
    assert not any(tokenizer.least_tokens(text, 0) for text in texts(1))


def test_a_text_of_the_longest_token_has_as_many_tokens_as_are_told() -> None:
    tokenizer = wrapped(bpe("abcdefghi", unknown=[4]))
    for count in (1, 5, 1000):
        text = "abcdefghi" * count
        assert tokenizer.least_tokens(text, 0) == count == len(tokenizer.encode_plain(text))
        assert tokenizer.least_tokens(text, count) == 0 and tokenizer.least_tokens(text, count - 1) in (0, count)
        assert tokenizer.least_tokens(text + " " * 10**6 + "\x04" * 10**6, 0) == count
    assert tokenizer.encode_plain("\x04" * 10) == []


def test_what_is_told_follows_tokens_that_are_added_and_steps_that_are_changed() -> None:
    hf_tokenizer = byte_tokenizer()
    tokenizer = Tokenizer(hf_tokenizer)
    assert tokenizer.least_tokens("a" * 60, 0) == 12  # of the five characters of <end>
    hf_tokenizer.add_tokens(["a" * 60])
    assert tokenizer.least_tokens("a" * 60, 0) == 1
    hf_tokenizer.backend_tokenizer.normalizer = normalizers.StripAccents()
    assert tokenizer.least_tokens("a" * 60, 0) == 0


def test_whitespace_is_what_python_takes_for_it_and_forms_keep_every_other_character() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    assert {one for one in every if one.isspace()} == set(SPACES)
    for one in set(every) - set(SPACES):
        composed = unicodedata.normalize("NFKC", one)
        assert composed.strip(SPACES) and (composed != one or len(unicodedata.normalize("NFKD", one)) <= 4)


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    demo: Any = gen.load("demo", device="cpu")
    encode, longest, most = Tokenizer._encode, [0], demo.context_length

    def noted(self: Tokenizer, text: str, **options: Any) -> list[int]:
        longest[0] = max(longest[0], len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "_encode", noted)
    huge = "word " * 100_000
    with gen.Engine(demo, rows=1) as engine:
        for ask in (
            lambda: gen.generate(demo, huge),
            lambda: gen.generate(demo, huge, chat=True),
            lambda: gen.generate(demo, [{"role": "user", "content": huge}]),
            lambda: engine.submit(huge),
            lambda: engine.submit_all(["a", huge]),
            lambda: next(gen.stream(demo, huge)),
        ):
            with pytest.raises(ContextError, match=r"at least \d+ tokens; the model's context of 1024"):
                ask()
    [_, error] = gen.generate(demo, ["a", huge], max_new_tokens=1, errors="return")
    assert isinstance(error, ContextError) and longest[0] < 100
    # what may fit is encoded: whitespace alone, and a prompt whose end is kept
    assert gen.generate(demo, huge, max_new_tokens=4, truncate="left", seed=1) == gen.generate(
        demo,
        [demo.tokenizer.bos_token_id, *demo.tokenizer.encode_plain(huge)[4 + 1 - most :]],
        max_new_tokens=4,
        seed=1,
    )
    with pytest.raises(ContextError, match=r"prompt 0 has \d+ tokens"):
        gen.generate(demo, " " * 100_000)
