"""Random texts of an automaton, for tests that give them to another library's reader."""

import random

import numpy as np
import numpy.typing as npt

from gen.constraints.automata.table import Table


def random_texts(table: Table, count: int, *, seed: int = 0, longest: int = 60) -> list[str]:
    """Texts that the automaton accepts; after `longest` bytes each takes the shortest way to its end."""
    chance = random.Random(seed)
    bytes_of = [[byte for byte in range(256) if table.classes[byte] == one] for one in range(table.next.shape[1])]
    far = _distances(table)
    texts = []
    for _ in range(count):
        state, text, ending = 1, bytearray(), chance.choice([0.02, 0.1, 0.4])
        while not table.final[state] or (table.next[state].any() and chance.random() > ending):
            classes = [one for one in range(table.next.shape[1]) if table.next[state, one]]
            if len(text) > longest:
                if table.final[state]:
                    break
                classes = [min(classes, key=lambda one: int(far[table.next[state, one]]))]
            chosen = chance.choice(classes)
            text.append(chance.choice(bytes_of[chosen]))
            state = int(table.next[state, chosen])
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
