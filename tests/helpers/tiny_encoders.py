"""Tiny encoders with random weights, and their tokenizer of fifteen words."""

import torch
import transformers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "dog", "sat", "ran", "on", "the", "mat", "red", "moon", "."]


def encoder_tokenizer(*, special: bool = True) -> PreTrainedTokenizerFast:
    """A tokenizer like BERT's: words, between [CLS] and [SEP] if `special`."""
    tokenizer = FastTokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        ends = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


def tiny_encoder(shape: str = "Bert", **changes: object) -> PreTrainedModel:
    """A small encoder with random weights, such as "Bert" or "Roberta", for `encoder_tokenizer`."""
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    settings = {"vocab_size": len(WORDS), "max_position_embeddings": 24, "pad_token_id": 0} | small | changes
    torch.manual_seed(0)
    config = getattr(transformers, f"{shape}Config")(initializer_range=0.5, **settings)
    model: PreTrainedModel = getattr(transformers, f"{shape}Model")(config)
    return model.eval()
