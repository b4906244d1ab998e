"""What an automaton forces: in each state the token that best spells what must come.

Example: after `{"name": "Ada"` nothing but `, "age": ` can come. Its first token, as the tokenizer would write it, is
`,` and after that `,` it is ` "`. These are guesses for drafts: other tokens spell the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gen.constraints.automata.arrays import Ints

if TYPE_CHECKING:
    from gen.constraints.tables.token_automaton import TokenAutomaton

_MOST_BYTES = 48  # of what must come are looked at


def forced_tokens(automaton: "TokenAutomaton") -> tuple[Ints, Ints]:
    """For each state, the dead one first, a token, -1 for none, and the state after it: (states + 1,) each."""
    table, vocabulary = automaton.table, automaton.vocabulary
    of_class: list[list[int]] = [[] for _ in range(table.next.shape[1])]
    for byte, number in enumerate(table.classes.tolist()):
        of_class[number].append(byte)
    live = table.next > 0
    one_byte = ((live * np.array([*map(len, of_class)])).sum(1) == 1) & ~table.final
    which = live.argmax(1)
    after = table.next[np.arange(len(table.next)), which].tolist()
    byte_of = [of_class[number][0] if of_class[number] else 0 for number in which.tolist()]
    goes_on = one_byte.tolist()
    tokens, states = np.full(len(goes_on), -1, np.int32), np.zeros(len(goes_on), np.int32)
    spelled = {text: number for number, text in reversed([*enumerate(vocabulary.tokens)]) if text}
    known: dict[bytes, int] = {}
    for state in np.flatnonzero(one_byte).tolist():
        chain, at = bytearray(), state
        while goes_on[at] and len(chain) < _MOST_BYTES:
            chain.append(byte_of[at])
            at = after[at]
        text = bytes(chain)
        if text not in known:
            known[text] = _first_token(text, vocabulary.encoder(), vocabulary.tokens, spelled, vocabulary.longest)
        if known[text] >= 0:
            tokens[state], states[state] = known[text], automaton.next_state(state, known[text])
    return tokens, states


def _first_token(
    text: bytes,
    encode: Callable[[str], list[int]] | None,
    tokens: Sequence[bytes],
    spelled: Mapping[bytes, int],
    longest: int,
) -> int:
    """The tokenizer's own first token where that spells the beginning, else the longest that does; -1 for none."""
    if encode is not None:
        first = encode(text.decode(errors="ignore"))[:1]
        if first and first[0] < len(tokens) and tokens[first[0]] and text.startswith(tokens[first[0]]):
            return first[0]
    return next((spelled[text[:n]] for n in range(min(longest, len(text)), 0, -1) if text[:n] in spelled), -1)
