"""A grammar while it is written: states like those of an Nfa, with terminals and other rules on the edges.

Example: "[", then values of the rule that begins at state 7, with ", " between, then "]",

    0 --"["--> 1        1 --7--> 2        2 --", "--> 1        2 --"]"--> 3, the end

becomes, in Lark, `s0: "[" s1`, `s1: s7 s2`, `s2: ", " s1 | "]"`; a state with one way out may be written into the
rules that lead to it.
"""

from collections.abc import Collection

from gen.constraints.automata.limits import Budget, Empty, TooLarge, Unsupported

_MOST_STATES = 300_000
_WORK = 3  # of a state

Symbol = str | int
"""A terminal, as Lark writes one, or the first state of a rule."""

Way = tuple[Symbol, int] | None
"""The symbol that is read ("" for nothing) and the state after it; None where a rule may end."""


class Network:
    """States numbered from 0, with the interface of `gen.constraints.automata.nfa.Nfa`.

    Attributes:
        states: how many there are.
        ends: the states at which a rule ends.
        refused: for the first state of a rule, why the rule cannot be written.
    """

    def __init__(self, budget: Budget) -> None:
        self.states = 0
        self.ends: set[int] = set()
        self.refused: dict[int, Unsupported] = {}
        self._edges: dict[int, list[Way]] = {}
        self._silent: dict[int, list[int]] = {}
        self._budget = budget

    def state(self) -> int:
        """A new state. Raises TooLarge at the bound."""
        self.check(1)
        self.states += 1
        self._budget.spend(_WORK, "writing the grammar")
        return self.states - 1

    def check(self, count: int) -> None:
        """Raise TooLarge if there is no room for this many more states."""
        if self.states + count > _MOST_STATES:
            raise TooLarge(f"more than {_MOST_STATES} states of a grammar")

    def join(self, source: int, target: int) -> None:
        """Let a state lead to another without reading."""
        self._silent.setdefault(source, []).append(target)

    def after(self, state: int) -> int:
        """A new state that `state` leads to without reading."""
        new = self.state()
        self.join(state, new)
        return new

    def reads(self, state: int, symbol: Symbol) -> int:
        """A new state that `state` leads to by a symbol."""
        new = self.state()
        self._edges.setdefault(state, []).append((symbol, new))
        return new

    def lark(self, start: int) -> str:
        """The grammar of a rule and of all that it needs. Raises Empty if the rule has no texts, Unsupported."""
        ways = {state: self._ways(state) for state in range(self.states)}
        live = _live(ways)
        if start not in live:
            raise Empty("no value meets this schema")
        for state in live:
            kept = (way for way in ways[state] if way is None or _leads_on(way, live))
            ways[state] = list(dict.fromkeys(kept))
        return _lines(*_merged(ways, start, self.refused), self.refused)

    def _ways(self, state: int) -> list[Way]:
        """The ways out of a state."""
        out: list[Way] = [None] if state in self.ends else []
        out += self._edges.get(state, ())
        return out + [("", one) for one in dict.fromkeys(self._silent.get(state, ()))]


def _leads_on(way: tuple[Symbol, int], live: set[int]) -> bool:
    symbol, target = way
    return target in live and (isinstance(symbol, str) or symbol in live)


def _live(ways: dict[int, list[Way]]) -> set[int]:
    """The states from which a rule can end."""
    needs: dict[int, list[int]] = {}  # the states to be looked at again once a state is live
    for state, found in ways.items():
        for way in found:
            for one in () if way is None else way[::-1]:
                if isinstance(one, int):
                    needs.setdefault(one, []).append(state)
    live: set[int] = set()
    todo = list(ways)
    while todo:
        state = todo.pop()
        if state not in live and any(way is None or _leads_on(way, live) for way in ways[state]):
            live.add(state)
            todo += needs.get(state, ())
    return live


def _merged(ways: dict[int, list[Way]], start: int, kept: Collection[int]) -> tuple[dict[int, list[Way]], int]:
    """The ways and the start, with one state instead of all that have equal ways; those on a cycle stay.

    Alternatives of a schema often have values in common. llguidance follows each way to write a text, up to a limit.

    Args:
        kept: states to keep.
    """
    out: dict[int, list[Way]] = {}
    same: dict[Symbol, int] = {}  # for each state, the one that stands for it
    known: dict[frozenset[Way], int] = {}
    todo = [(start, False)]
    while todo:
        state, looked_into = todo.pop()
        if looked_into:
            merged = (way and (same.get(way[0], way[0]), same.get(way[1], way[1])) for way in ways[state])
            out[state] = list(dict.fromkeys(merged))
            same[state] = state if state in kept else known.setdefault(frozenset(out[state]), state)
        elif state not in out:
            out[state] = []
            todo.append((state, True))
            todo += [(one, False) for way in ways[state] if way for one in way if isinstance(one, int)]
    return out, same[start]


def _lines(ways: dict[int, list[Way]], start: int, refused: dict[int, Unsupported]) -> str:
    """Rules of Lark, and their terminals."""
    uses: dict[int, int] = {}
    for found in ways.values():
        for way in found:
            if way is not None:
                uses[way[1]] = uses.get(way[1], 0) + 1
    terminals: dict[str, str] = {}
    lines = ["start: s" + str(start)]
    todo, known = [start], {start}

    def named(state: int) -> str:
        if state not in known:
            known.add(state)
            todo.append(state)
        return f"s{state}"

    def written(way: Way) -> str:
        words = []
        while way is not None:
            symbol, state = way
            if symbol != "":
                words.append(
                    named(symbol) if isinstance(symbol, int) else terminals.setdefault(symbol, f"T{len(terminals)}")
                )
            if len(ways[state]) > 1 or (uses[state] > 1 and ways[state] != [None]):
                words.append(named(state))
                break
            [way] = ways[state]
        return " ".join(words) or '""'

    for state in todo:
        if state in refused:
            raise refused[state]
        lines.append(f"s{state}: {' | '.join(dict.fromkeys(map(written, ways[state])))}")
    lines += [f"{name}: {terminal}" for terminal, name in terminals.items()]
    return "\n".join(lines)
