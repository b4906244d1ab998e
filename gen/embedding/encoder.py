"""Encoder models of transformers, such as BERT: texts in, a vector for each token out, on one pinned device."""

import copy
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from gen.devices import Placement, describe, to_device
from gen.embedding.sentence_folders import Recipe
from gen.errors import GenError, ModelError
from gen.models.rotary import has_two_sets
from gen.models.transformers.placement import embedding_rows
from gen.models.transformers.probing import distance, tolerance_of, undisturbed
from gen.runtime.forking import new_lock

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_LEAST = 1e-3  # how much a token's vector differs with the tokens after it; the experts of a text model round otherwise


class Encoder:
    """A transformers encoder and its tokenizer, for `gen.embed`; threads may share it.

    Attributes:
        hf_model: the transformers model itself.
        recipe: how the vectors of tokens become a text's.
        layers: the recipe's, for pooled vectors (rows, width), float32, on the input device.
        vocab_size: how many token ids it has vectors for.
        hidden_size: the length of a token's vector.
        context_length: how many tokens a text may have, special ones included; sys.maxsize if there is no limit.
        may_pad: whether texts of unequal lengths may share a batch: padding does not change their vectors.
    """

    def __init__(
        self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", recipe: Recipe | None = None
    ) -> None:
        self.hf_model = model
        self.recipe = recipe or Recipe()
        name = type(model).__name__
        self._parts = tuple(model.modules())
        self._refuse_training()
        if model.config.is_encoder_decoder and hasattr(model, "decoder"):
            raise ModelError(f"{name} is an encoder with a decoder; give its encoder alone, as T5EncoderModel.")
        if "lsh" in getattr(model.config, "attn_layers", ()) or not getattr(model.config, "use_expectation", True):
            raise ModelError(
                f"{name} hashes its tokens by numbers that it draws in each forward (attn_layers has 'lsh', or "
                "use_expectation is False), so that a text's vector would differ from call to call; take an encoder "
                "without them."
            )
        devices = list(dict.fromkeys(parameter.device for parameter in model.parameters()))
        if len(devices) != 1 or devices[0].type == "meta":
            raise ModelError(
                f"{name} is on {', '.join(map(str, devices))}, expected one device with values; load it with "
                "gen.load_encoder(path, device=...)."
            )
        self.vocab_size = embedding_rows(model)
        highest = max(tokenizer.get_vocab().values(), default=-1)
        if highest >= self.vocab_size:
            raise ModelError(
                f"the tokenizer has ids up to {highest}, the embedding of {name} only {self.vocab_size} rows: use the "
                "model's own tokenizer."
            )
        self._device = devices[0]
        self.layers = self.recipe.layers.to(devices[0])
        self._tokenizer = copy.deepcopy(tokenizer)  # fast tokenizers keep truncation settings, and are not for threads
        if self.recipe.lower_case:
            _lower_case_(self._tokenizer)
        empty = self._tokenizer("")
        types = zip(empty["input_ids"], empty.get("token_type_ids", ()), strict=False)
        self._types = {token_id: kind for token_id, kind in types if kind}  # XLNet's last special token has type 2
        self._lock = new_lock()
        self._pad_id: int = max(0, tokenizer.pad_token_id or getattr(model.config, "pad_token_id", None) or 0)
        longest = self.recipe.max_seq_length or tokenizer.model_max_length
        self.context_length: int = min(_positions(model), longest, sys.maxsize)
        self.hidden_size, self.may_pad = self._probe()

    @property
    def placement(self) -> Placement:
        """Its device, recorded when the encoder was made, and the dtype that its model has now."""
        on = self._device
        return Placement(input_device=on, logits_device=on, dtype=self.hf_model.dtype, has_cache=False)

    def __repr__(self) -> str:
        """What it is, where, and in which dtype."""
        return describe(type(self.hf_model).__name__, self.hf_model.name_or_path, self.placement)

    def tokenize(self, texts: Sequence[str], *, truncate: bool = False) -> list[list[int]]:
        """Each text's token ids with the special tokens that the tokenizer adds.

        Args:
            truncate: cut tokens beyond context_length; special tokens at the end stay.
        """
        limit = self.context_length if truncate and self.context_length < sys.maxsize else None
        with self._lock:
            encoded = self._tokenizer(list(texts), truncation=limit is not None, max_length=limit, verbose=False)
        return [[int(token_id) for token_id in token_ids] for token_ids in encoded["input_ids"]]

    def prompt_length(self, prompt: str) -> int:
        """How many tokens a prompt has before the text that follows it."""
        [token_ids] = self.tokenize([prompt])
        ended = bool(token_ids) and token_ids[-1] in self._tokenizer.all_special_ids
        return len(token_ids) - ended

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids (rows, width) int64 and their mask (rows, width) bool, on the CPU, padded on the right."""
        width = max(map(len, rows))
        token_ids = torch.full((len(rows), width), self._pad_id, dtype=torch.int64, device="cpu")
        mask = torch.zeros((len(rows), width), dtype=torch.bool, device="cpu")
        for row, ids in enumerate(rows):
            token_ids[row, : len(ids)] = torch.tensor(ids, device="cpu")
            mask[row, : len(ids)] = True
        return token_ids, mask

    def encode(self, token_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """A vector for each token.

        Args:
            token_ids: (rows, width) int64, on the input device, padded on the right.
            attention_mask: (rows, width) bool, on the input device: False at padding.
        Returns:
            (rows, width, hidden_size), of the weights' dtype, on the same device.
        Raises:
            ModelError: the model has been put back into training mode, or moved.
        """
        self._refuse_training()
        here, taken = next(self.hf_model.parameters()).device, self.placement.input_device
        if here != taken:
            name = type(self.hf_model).__name__
            raise ModelError(
                f"{name} was on {taken} when you gave it to gen, and is on {here} now; move it back, or call "
                "gen.from_transformers_encoder(model, tokenizer) again."
            )
        inputs = {"input_ids": token_ids, "attention_mask": attention_mask.to(torch.int64)}
        if self._types:
            inputs["token_type_ids"] = sum((token_ids == one) * kind for one, kind in self._types.items())
        output = self.hf_model(**inputs, return_dict=True)
        hidden: Tensor | None = getattr(output, "last_hidden_state", None)
        if hidden is None:
            raise ModelError(
                f"{type(self.hf_model).__name__} gives no last_hidden_state: it has a head. Load the encoder without "
                "it, with gen.load_encoder or AutoModel."
            )
        return hidden

    def finish(self, vectors: Tensor) -> Tensor:
        """What the recipe's layers make of pooled vectors (rows, width), float32, on the input device; then its cut."""
        finished: Tensor = self.layers({"sentence_embedding": vectors})["sentence_embedding"]
        return finished[:, : self.recipe.truncate_dim]

    def _refuse_training(self) -> None:
        if any(part.training for part in self._parts):
            name = type(self.hf_model).__name__
            raise ModelError(f"{name} is in training mode, where dropout would change the vectors; call model.eval().")

    def _probe(self) -> tuple[int, bool]:
        """Run the encoder on a few tokens: each must get a vector that depends on the tokens after it.

        If a text model's folder says that it embeds, its vectors need not depend on them.

        Returns:
            The length of a vector, and whether padding leaves vectors unchanged.
        """
        name = type(self.hf_model).__name__
        device, longest = self.placement.input_device, min(7, self.context_length)
        batches = [[[1] * 4], [[1, 1, 1, 2]], [[1] * 4, [1] * longest]]
        try:
            with undisturbed(self.hf_model, self.placement.devices):
                hidden, other, in_batch = (
                    self.encode(*(to_device(part, device) for part in self.pad(batch))) for batch in batches
                )
        except GenError:
            raise
        except Exception as error:  # the forwards of models fail with errors of every kind
            raise ModelError(f"gen cannot run {name}: {type(error).__name__}: {error}") from error
        if not self.recipe.declared and distance(other[:, :-1].cpu(), hidden[:, :-1].cpu()) < _LEAST:
            raise ModelError(
                f"{name} is a text model: its vectors know nothing of the tokens after them. Generate with it, after "
                "gen.load or gen.from_transformers; for embeddings load an encoder such as BERT."
            )
        tolerance, _ = tolerance_of(self.hf_model)
        kept = distance(in_batch[0, :4].cpu(), hidden[0].cpu()) <= tolerance
        return hidden.shape[-1], kept and not _looks_at_the_width(self.hf_model.config)


def _looks_at_the_width(config: Any) -> bool:
    """Whether a long batch's width counts: attention is within parts of it, Reformer's chunks, or positions have long
    factors in all of its texts."""
    return hasattr(config, "lsh_attn_chunk_length") or has_two_sets(config)


def _positions(model: "PreTrainedModel") -> int:
    """How many positions the model has for tokens."""
    limit: int = getattr(model.config, "max_position_embeddings", None) or 0
    limit = limit if limit > 0 else sys.maxsize  # some say -1 for none
    if getattr(model, "attention_type", "") == "block_sparse":  # BigBird, from its first text of fewer tokens on not so
        limit = min(limit, (5 + 2 * model.config.num_random_blocks) * model.config.block_size)
    table = next((part for name, part in model.named_modules() if name.endswith("position_embeddings")), None)
    offset = getattr(table, "padding_idx", None)  # RoBERTa and models like it count from the id after the padding's
    return limit if offset is None else limit - offset - 1


def _lower_case_(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Make a fast tokenizer put texts into lower case first, if it does not."""
    from tokenizers import normalizers

    backend = tokenizer.backend_tokenizer
    now = backend.normalizer
    steps = list(cast(Any, now)) if isinstance(now, normalizers.Sequence) else [now] if now else []
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
