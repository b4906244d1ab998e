"""Small tokenizers: one with a token for each byte, one with pieces of Llama 2's kind."""

from collections.abc import Sequence

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BOS, EOS, OTHER_EOS = 256, 257, 258
CHAT_TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "


def byte_tokenizer(*, bos: bool = True, chat: bool = False, specials: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are the bytes in order, then <s>, </s> and <end>: every character outside ASCII takes several
    tokens.

    Args:
        specials: special tokens that come after those.
    """
    alphabet = bytes_to_characters()
    vocab = {character: byte for byte, character in enumerate(alphabet)} | {"<s>": BOS, "</s>": EOS, "<end>": OTHER_EOS}
    vocab |= {text: OTHER_EOS + number for number, text in enumerate(specials, 1)}
    tokenizer = FastTokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = {"eos_token": "</s>", "additional_special_tokens": ["<end>", *specials]}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named, **({"bos_token": "<s>"} if bos else {}))
    if chat:
        wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def bytes_to_characters() -> list[str]:
    """How byte-level BPE writes each byte, as in GPT-2: printable ones as themselves, the others from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def spaced_tokenizer() -> PreTrainedTokenizerFast:
    """Like Llama 2's: words with a leading space, which decoding drops at the start, and bytes for anything unknown."""
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
