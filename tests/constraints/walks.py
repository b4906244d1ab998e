"""Random texts of an automaton, for tests that give them to another library's reader."""

import random
from functools import cache

import numpy as np

from gen.constraints.automata.dfa import Table, distances


def random_texts(table: Table, count: int, *, seed: int = 0, longest: int = 60) -> list[str]:
    """Texts that the automaton accepts; after `longest` bytes each takes the shortest way to its end."""
    chance = random.Random(seed)
    bytes_of = [np.flatnonzero(table.classes == one).tolist() for one in range(table.next.shape[1])]
    final = table.final.tolist()
    far = [0, *distances(table.edges, table.final[1:]).tolist()]

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
                classes = [min(classes, key=lambda one: far[after[one]])]
            chosen = chance.choice(classes)
            text.append(chance.choice(bytes_of[chosen]))
            state = after[chosen]
        texts.append(text.decode())
    return texts
