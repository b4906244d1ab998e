"""Attention masks for rows that each have a column of their own: which earlier columns a token may see.

Example: a window of 3, a row whose next token goes to column 4, and 6 columns in view: it sees columns 2, 3 and 4.
transformers makes masks for rows of one length, from the host's count of tokens; these masks use the columns on the
device. Source of the kinds: `create_masks_for_generate` of transformers; gen reads them from the config, because older
versions of it fail for some models.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gen.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_KINDS: dict[str, dict[str, str | None]] = {
    # for each kind of layer, the names of its masks and the kind of each; None for no mask
    FULL: {FULL: FULL},
    SLIDING: {SLIDING: SLIDING},
    CHUNKED: {CHUNKED: CHUNKED},
    "indexed_attention": {"indexed_attention": FULL},
    "minimax_m3_sparse": {"minimax_m3_sparse": FULL},
    "linear_attention": {"linear_attention": None},
    "conv": {"conv": None},
    "hybrid": {FULL: FULL, "linear_attention": None, "hybrid": FULL},
    "hybrid_sliding": {SLIDING: FULL, "linear_attention": None},
}
_WITHOUT_WINDOW = {"moshi"}  # model types that ignore the window in their config
_WITHOUT_TOKENS = {"moe", "mlp"}  # kinds of layers that keep nothing; a model with such layers makes its masks itself


class Masks:
    """Makes a model's masks.

    Args:
        config: of the decoder.
        flat: whether the model takes only a mask (rows, columns), like models with ALiBi.
    Attributes:
        flat: as given, or True because the model makes its masks itself.
    Raises:
        ModelError: gen does not know a kind of layer in the config.
    """

    def __init__(self, config: "PreTrainedConfig", *, flat: bool, dtype: torch.dtype) -> None:
        self.flat, self._dtype, self._config = flat, dtype, config
        self._by_name: dict[str, str | None] | None = None
        kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
        if _WITHOUT_TOKENS & kinds.keys() and not {SLIDING, CHUNKED} & kinds.keys():
            self.flat = True
        elif kinds:
            self._by_name = {}
            for kind in kinds:
                if kind not in _KINDS:
                    raise ModelError(
                        f"{type(config).__name__} has layers of the kind {kind!r}, which gen does not know."
                    )
                self._by_name |= _KINDS[kind]
        self._numbers: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def of(self, queries: Tensor, columns: Tensor) -> Tensor | dict[str, Tensor | None]:
        """The masks for some tokens.

        Args:
            queries: (rows, tokens), int64: the tokens' own columns.
            columns: (view,), int64: 0 to view - 1, on the same device.
        Returns:
            (rows, 1, tokens, view) of the model's dtype: 0 where a token may attend, the lowest number elsewhere; a
            dict of such masks by kind of layer if the model has several; or (rows, view) bool, flat. No host sync.
        """
        if self.flat:
            return columns <= queries[:, -1:]
        if self._by_name is None:
            bound = SLIDING if self._window is not None else CHUNKED
            return self._numbered(self._seen(bound, queries, columns))
        made: dict[str | None, Tensor | None] = {None: None}
        for kind in self._by_name.values():
            if kind not in made and kind is not None:
                made[kind] = self._numbered(self._seen(kind, queries, columns))
        return {name: made[kind] for name, kind in self._by_name.items()}

    @property
    def _window(self) -> int | None:
        """As the config has it now, which may change from call to call."""
        windowed = self._config.model_type not in _WITHOUT_WINDOW
        return getattr(self._config, "sliding_window", None) if windowed else None

    def _seen(self, kind: str, queries: Tensor, columns: Tensor) -> Tensor:
        """(rows, tokens, view), bool."""
        own = queries.unsqueeze(-1)
        seen = columns <= own
        chunk = getattr(self._config, "attention_chunk_size", None)
        if kind == SLIDING and (window := self._window) is not None:
            seen = seen & (columns > own - window)
        elif kind == CHUNKED and chunk is not None:
            seen = seen & (columns // chunk == own // chunk)
        return seen

    def _numbered(self, seen: Tensor) -> Tensor:
        """The mask as numbers to add: eager attention needs them, and sdpa would convert bools anew in every layer."""
        if seen.device not in self._numbers:
            lowest = torch.finfo(self._dtype).min
            self._numbers[seen.device] = tuple(  # type: ignore[assignment]
                torch.full((), number, dtype=self._dtype, device=seen.device) for number in (0.0, lowest)
            )
        return torch.where(seen.unsqueeze(1), *self._numbers[seen.device])
