"""The demo model's tokenizer: byte-level BPE that spells a name the same way wherever it stands."""

import re
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from training.demo.names import BOYS, GIRLS

SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>")
BOS, EOS, PAD = 0, 1, 2

# Lower-case words and punctuation take the space before them; capitalised words do not, so that "Describe Ada" and
# '"name": "Ada"' hold the same tokens for Ada, and a name can be copied token by token. Digits stand alone.
_WORDS = r" ?\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{Lu}\p{Ll}*|\p{N}| ?[^\s\p{Ll}\p{Lu}\p{N}]+|\n+| +(?= )|\s"

CHAT_TEMPLATE = (
    "<|bos|>"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|eos|>' }}"
    "{% else %}{{ raise_exception('roles are system, user and assistant, got ' + message['role']) }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, model_max_length: int) -> PreTrainedTokenizerFast:
    """Learn the merges and wrap them for transformers.

    Args:
        texts: training texts. The first names of the templates are cut out, so none of them becomes one token: seen
            and unseen names are spelled alike, from pieces of two or three letters.
        vocab_size: all entries, the 5 special tokens and the 256 bytes among them.
        model_max_length: context length in tokens.
    Returns:
        A tokenizer that puts <|bos|> first, pads on the left, and whose decode inverts its encode exactly.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    names = re.compile(r"\b(" + "|".join(GIRLS + BOYS) + r")\b")
    tokenizer.train_from_iterator((names.sub("", text) for text in texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A <|bos|> $B", special_tokens=[("<|bos|>", BOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        extra_special_tokens=["<|user|>", "<|assistant|>"],
        padding_side="left",
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )
