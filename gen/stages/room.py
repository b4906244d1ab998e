"""Which tokens a text's limit leaves room for, in steps in which a text may be short of room.

Example: the text so far is `{"total": `, and 3 tokens are left, one of them for the end. From all tokens that the type
allows, `5` is drawn; `}` fits after it, so it stays. Next `.` is drawn, after which two more tokens would be needed: it
does not fit. So another token is drawn with the same key from those that fit, and only `}` does. The text is squeezed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Fits = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Room:
    """What a search needs to know in a step in which texts may be short of room.

    Attributes:
        narrow: (wanted (n,) bool or None for all) -> (n, vocab): the logits of the step, but -inf for tokens that may
            not fit; perhaps in the memory of the step's logits. The logits of rows that are not wanted mean nothing.
        squeezed: (n,) bool, which the search sets: whether the limit has changed the row's token.
        fits_after: (tokens (m,), rows (m,) or None if each token is of its own row) -> (m,) bool; None without limits.
    """

    narrow: Callable[[Tensor | None], Tensor]
    squeezed: Tensor
    fits_after: Fits | None = None

    def fits(self, token_ids: Tensor, rows: Tensor | None = None) -> Tensor:
        """Whether each token leaves enough room for an end, after the text of its row.

        Args:
            token_ids: any shape, int64; (n, ...) without rows.
            rows: indices into the step's rows, of the same shape; None if each token comes after its own row.
        Returns:
            bool, of the shape of token_ids. Host sync: none.
        """
        if self.fits_after is None:
            return torch.ones_like(token_ids, dtype=torch.bool)
        return self.fits_after(token_ids.view(-1), None if rows is None else rows.view(-1)).view_as(token_ids)

    def took(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The logits (n, vocab) without tokens that may not fit, and whether a row has lost a token, (n,) bool.

        Host sync: none.
        """
        before = logits.isneginf()
        narrowed = self.narrow(None)
        return narrowed, (before != narrowed.isneginf()).any(1)
