"""Random texts of an automaton, for tests that give them to another library's reader."""

import random
from functools import cache

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.dfa import Table


def random_texts(table: Table, count: int, *, seed: int = 0, longest: int = 60) -> list[str]:
    """Texts that the automaton accepts; after `longest` bytes each takes the shortest way to its end."""
    chance = random.Random(seed)
    bytes_of = [np.flatnonzero(table.classes == one).tolist() for one in range(table.next.shape[1])]
    final = table.final.tolist()
    far = _distances(table)

    @cache
    def ways(state: int) -> dict[int, int]:
        """The states that follow a state, by the class of the byte."""
        return {one: int(table.next[state, one]) for one in np.flatnonzero(table.next[state]).tolist()}

    texts = []
    for _ in range(count):
        state, text, ending = 1, bytearray(), chance.choice([0.02, 0.1, 0.4])
        while not final[state] or (ways(state) and chance.random() > ending):
            after = ways(state)
            classes = [*after]
            if len(text) > longest:
                if final[state]:
                    break
                classes = [min(classes, key=lambda one: int(far[after[one]]))]
            chosen = chance.choice(classes)
            text.append(chance.choice(bytes_of[chosen]))
            state = after[chosen]
        texts.append(text.decode())
    return texts


def _distances(table: Table) -> npt.NDArray[np.int64]:
    """Fewest bytes from each state to a final one."""
    far = np.where(table.final, 0, 10**9)
    while True:
        nearer: npt.NDArray[np.int64] = np.minimum(far, np.where(table.next > 0, far[table.next], 10**9).min(1) + 1)
        nearer[0] = 10**9
        if (nearer == far).all():
            return nearer
        far = nearer
