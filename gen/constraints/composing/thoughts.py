"""A thought before an answer, as states in front of the answer's automaton, so that one automaton follows both.

Example with the marks <think> and </think>, and answers that are numbers. At the start "<" may begin a thought, and a
digit an answer. Within the thought every token may come, but for those that end the text; the states count how much of
"</think>" has just come. After it, line breaks and then the answer may come. At the bound of the thought, its state is
replaced by one from which only the tokens of the closing mark may come, in the form that the template writes it.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from gen.constraints.automata.arrays import Ints, moved
from gen.constraints.automata.dfa import Dfa, Table, table
from gen.constraints.composing.joining import word_pieces
from gen.constraints.constraint import Constraint, DeviceWalker
from gen.constraints.tables.device_rows import KINDS, Placed
from gen.constraints.tables.guesses import Guess
from gen.constraints.tables.token_automaton import Found, TokenAutomaton
from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError
from gen.runtime.forking import new_lock
from gen.tokens.thoughts import ANSWER, CHANNELS, Marks

_LINE = 16  # a thought near to its bound ends at the end of a line, if one comes within so many last tokens
_BREAK = 10  # a line break


def bounds_of(most: int) -> tuple[int, int]:
    """After how many tokens a thought of at most `most` is near to its bound, and after how many it is there."""
    return most - min(_LINE, most // 2), most


_SPECIAL = slice(0xF5, 0x100)  # the bytes of special tokens
_Bytes = npt.NDArray[np.int32]  # (256,) the state after each byte


class ThoughtAutomaton(TokenAutomaton):
    """The texts of an answer, perhaps after a thought; without an answer's automaton anything may come after it.

    The states of the thought come first: those where the answer may begin, then those within the thought, then those
    in which the text so far may begin a thought or be the beginning of an answer, then the states of the answer. All
    tokens are allowed within a thought of an answer that may be anything.

    Attributes:
        start: the state at the beginning of a text.
        entries, bodies, thoughts: the last state of each of the first three kinds.
        free: whether anything may come after the thought; then the dead state stands for the answer.
        jumps: (states + 1, 2), the state that replaces each one in the last tokens before the bound, and at the bound.
        only: the token that alone may come in a state, for those of a closing mark.
        closing: how many tokens a closing mark has at most, where the bound has ended a thought.
        opening: how many tokens an opening mark may add at the bound, and one that comes again behind a thought.
        header: how many tokens the text before the answer has, see `head`.

    Args:
        answer: the answer's automaton; None for any text.
        must: whether a thought must come.
        head: a text between the thought and the answer. Without an answer's automaton the texts end with it.
    Raises:
        ConstraintError: the vocabulary has no tokens that spell the marks.
    """

    jumps: Ints

    def __init__(
        self, marks: Marks, vocabulary: Vocabulary, answer: TokenAutomaton | None, *, must: bool, head: str = ""
    ) -> None:
        self.header = 0
        if head:
            texts, least = (_NOTHING, 0) if answer is None else (answer.table, answer.least_tokens)
            answer = TokenAutomaton(_after(_spelled(head, vocabulary), texts), vocabulary)
            self.header = answer.least_tokens - least
        self.free = answer is None
        writer = _Writer(marks, vocabulary, answer, must=must)
        self.entries, self.bodies, self.thoughts = writer.entries, writer.bodies, writer.count
        self.start = writer.number["init" if marks.begun else "must 0" if must else "start"]
        super().__init__(writer.found(), vocabulary)
        self.jumps = writer.jumps(self.states)
        self.only: dict[int, int] = {}
        for state, spelled in writer.forced.items():
            token = self.guesses.first_token(spelled)
            if token < 0 and spelled[0] >= _SPECIAL.start:
                continue  # in the middle of a special token, where no text can be
            if token < 0:
                raise ConstraintError(f"the vocabulary has no token that spells the beginning of {spelled!r}")
            self.only[state] = token
            self.guesses.set(state, Guess(token, self.next_state(state, token), True))
        self._answer, self._whole = answer, dict[torch.device, Placed]()
        self.opening = 0 if marks.begun else len(_spelled(marks.written[0], vocabulary))
        self.closing = max(self._forced_from(state) for state in self.jumps[:, 1].tolist())
        if marks.kind == "channels":  # a thought that has just ended may be followed by another one
            self.opening = len(_spelled(marks.written[0], vocabulary)) + self.closing

    def _forced_from(self, state: int) -> int:
        """How many tokens must come from a state, one after the other."""
        count = 0
        while state in self.only:
            state, count = self.next_state(state, self.only[state]), count + 1
        return count

    def next_state(self, state: int, token_id: int) -> int:
        """As `TokenAutomaton.next_state`; where anything may come, a token that spells nothing changes nothing."""
        spelled = self.vocabulary.tokens[token_id]
        return self.walk(state, spelled) if spelled else state if self.free else 0

    def accepts(self, text: bytes) -> bool:
        """Whether a text is an answer."""
        return self._answer is None or self._answer.accepts(text)

    def rows(self, group: int) -> tuple[list[npt.NDArray[np.uint8]], int]:
        state = int(self._examples[group])
        if state in self.only:
            return [np.zeros(self.row_bytes, np.uint8)] * KINDS, 0
        if self.free and state <= self.thoughts:
            return [np.full(self.row_bytes, 255, np.uint8)] * KINDS, 0
        return super().rows(group)

    def place(self, device: torch.device) -> Placed:
        placed = super().place(device)
        if device.type == "cpu":
            return placed
        if device not in self._whole:
            with torch.inference_mode(False):
                none = torch.zeros_like(placed.rows[:1])
                row_of, count = placed.row_of.clone(), len(placed.rows)
                if self.free:
                    row_of.fill_(count + 1)
                for state in self.only:
                    row_of[state - 1] = count
                rows = torch.cat((placed.rows, none, ~none))
                self._whole[device] = Placed(placed.after, placed.needed, placed.worst, rows, row_of)
        return self._whole[device]


_making = new_lock()
_NOTHING = table(Dfa(np.empty((0, 4), np.int32), np.array([True])))  # the empty text


def has_channels(constraint: Constraint) -> bool:
    """Whether the texts of a type are whole messages of gpt-oss's form, with what comes before an answer."""
    return begins_with(constraint, CHANNELS[1])


def thought_automaton(
    vocabulary: Vocabulary, constraint: Constraint | None, marks: Marks, *, must: bool
) -> ThoughtAutomaton:
    """The automaton of an answer that may come after a thought, made once and kept with the answer's. On the host
    engine it is that of the thought alone.
    """
    answer = None if constraint is None else constraint.automaton
    in_channel = marks.kind == "channels" and constraint is not None and not has_channels(constraint)
    head = ANSWER if in_channel else ""
    with _making:
        known = vocabulary.after_thoughts if answer is None else answer.after_thoughts
        key = marks, must, head
        if key not in known:
            known[key] = ThoughtAutomaton(marks, vocabulary, answer, must=must, head=head)
        made = known[key]
    assert isinstance(made, ThoughtAutomaton)  # tells mypy
    return made


def begins_with(constraint: Constraint, mark: str) -> bool:
    """Whether all texts begin with a mark, so that the output type has in it what the mark opens. On the host engine
    only special tokens are such marks.
    """
    if constraint.grammar is not None:
        return constraint.vocabulary.names.get(constraint.grammar.first_token()) == mark
    assert constraint.automaton is not None  # one of the two is there; tells mypy
    texts, state = constraint.automaton.table, 1
    for byte in _spelled(mark, constraint.vocabulary):
        after = texts.next[state, texts.classes]
        if texts.final[state] or not after[byte] or np.count_nonzero(after) > 1:
            return False
        state = int(after[byte])
    return True


class _Writer:
    """Writes the states of a thought. They have names while they are written, and numbers in the automaton.

    Attributes:
        number: the number of each state, by its name.
        forced: the bytes that must come in each state of a mark that is written as a whole.
        entries, bodies, count: see `ThoughtAutomaton`; the count is that of all states of the thought.
    """

    def __init__(self, marks: Marks, vocabulary: Vocabulary, answer: TokenAutomaton | None, *, must: bool) -> None:
        spelled = partial(_spelled, vocabulary=vocabulary)
        self._opens, self._closes, self._ending = map(spelled, marks.written)
        self._again, self._must, self._answer = marks.kind == "channels", must, answer
        self._lead = self._ending.index(self._closes)
        entries = ["start", "gap", "end"]
        bodies = ["init", "line", *(f"within {n}" for n in range(len(self._closes)))]
        bodies += [f"closing {n}" for n in range(len(self._ending))]
        self._shared = self._states_of_both()
        opening = [f"opening {n}" for n in range(1, len(self._opens))]
        bodies += opening[len(self._shared) - 1 :] if answer is not None else []
        bodies += [f"must {n}" for n in range(len(self._opens) if must else 0)]
        names = [*entries, *bodies, *opening[: len(self._shared) - 1 if answer is not None else None]]
        self.number = {name: place for place, name in enumerate(names, 1)}
        self.entries, self.bodies, self.count = len(entries), len(entries) + len(bodies), len(names)
        self._after = np.zeros((self.count + 1, 256), np.int32)
        self._final = np.zeros(self.count + 1, np.bool_)
        least = 0 if answer is None else max(1, answer.least_tokens)
        self._needed = np.full(self.count + 1, least, np.int32)
        self._needed[0] = 0
        self.forced: dict[int, bytes] = {}
        self._write_opening()
        self._write_body()
        self._write_closing()

    def _states_of_both(self) -> list[int]:
        """The answer's states along the opening mark, as far as what has come may be the beginning of an answer."""
        states = [1]
        for count in range(1, len(self._opens)) if self._answer is not None else ():
            assert self._answer is not None  # tells mypy
            states.append(self._answer.walk(1, self._opens[:count]))
        return states[: states.index(0)] if 0 in states else states

    def found(self) -> Found:
        """The automaton, with the answer's behind the states of the thought."""
        answer = self._answer
        source, byte = np.nonzero(self._after)
        target = self._after[source, byte]
        edges = np.stack((source - 1, byte, byte, target - 1), 1).astype(np.int32)
        final, needed = self._final[1:], self._needed
        groups = np.arange(self.count + 1, dtype=np.int32)
        examples = groups
        if answer is not None:
            edges = np.concatenate((edges, moved(answer.table.edges, self.count)))
            final = np.concatenate((final, answer.table.final[1:]))
            needed = np.concatenate((needed, answer.needed[1:])).astype(np.int32)
            groups = np.concatenate((groups, answer.group_of[1:] + self.count)).astype(np.int32)
            examples = np.concatenate((examples, answer.found.examples[1:] + self.count)).astype(np.int32)
        return Found(table(Dfa(edges, final)), needed, groups, examples)

    def jumps(self, states: int) -> Ints:
        near, bound = np.arange(states + 1, dtype=np.int32), np.arange(states + 1, dtype=np.int32)
        number, lead = self.number, self._lead
        near[number["line"]] = bound[number["line"]] = bound[number["init"]] = number[f"closing {lead}"]
        for count in range(len(self._closes)):
            bound[number[f"within {count}"]] = number[f"closing {lead + count if count else 0}"]
        bound[number["gap"]] = number["end"]  # no more line breaks, which would take the answer's room
        return np.stack((near, bound), 1)

    def _to_answer(self, state: int) -> _Bytes:
        """Where the bytes after a state of the answer lead."""
        if self._answer is None or not state:
            return np.zeros(256, np.int32)
        table = self._answer.table
        after = table.next[state, table.classes]
        return np.where(after > 0, after + self.count, 0).astype(np.int32)

    def _end_of(self, name: str, state: int) -> None:
        """Let a state of the thought be where the answer is in one of its own states, too."""
        self._after[self.number[name]] = self._to_answer(state)
        if self._answer is not None and state:
            self._final[self.number[name]] = self._answer.table.final[state]
            self._needed[self.number[name]] = self._answer.needed[state]

    def _write_opening(self) -> None:
        """The states before a thought: what has come may begin one, or be the beginning of an answer."""
        names = ["start", *(f"opening {place}" for place in range(1, len(self._opens))), "init"]
        for place, (byte, name, after) in enumerate(zip(self._opens, names[:-1], names[1:], strict=True)):
            if place < len(self._shared):
                self._end_of(name, self._shared[place])
            self._after[self.number[name], byte] = self.number[after]
        self._write_mark("must", self._opens if self._must else b"", "init")

    def _write_body(self) -> None:
        closes, number = self._closes, self.number
        done = number["start" if self._again else "gap"]
        counts = _matches(closes)
        for name in ("init", "line", *(f"within {count}" for count in range(len(closes)))):
            count = int(name.split()[1]) if name.startswith("within") else 0
            matched = counts[count]
            after = np.array([number[f"within {n}"] for n in range(len(closes))] + [done], np.int32)[matched]
            if not matched[_BREAK]:
                after[_BREAK] = number["init" if name == "init" else "line"]
            if self._again:  # in channels only one special token may come, which ends the message
                after[_SPECIAL if not count else slice(None)] = 0
                after[closes[count]] = number[f"within {count + 1}"] if count + 1 < len(closes) else done
            self._after[number[name]] = after

    def _write_mark(self, name: str, mark: bytes, end: str) -> None:
        """The states of a mark that must come."""
        for place, byte in enumerate(mark):
            state = self.number[f"{name} {place}"]
            self._after[state, byte] = self.number[end if place + 1 == len(mark) else f"{name} {place + 1}"]
            self._needed[state] = max(1, self._needed[state])
            self.forced[state] = mark[place:]

    def _write_closing(self) -> None:
        number = self.number
        self._write_mark("closing", self._ending, "end")
        for name in ("gap", "end"):
            self._end_of(name, 1)
        start = self._after[number["gap"]]
        if self._answer is None or np.delete(start, _BREAK).any() or self._final[number["gap"]]:
            self._after[number["gap"], _BREAK] = number["gap"]


class ThoughtWalker(DeviceWalker):
    """Follows one text on the host, its thought and its answer; its state is that before the bound is looked at.

    Args:
        most: how many tokens a thought has at most.
        room: how many tokens the answer has at most; None if the limit is that of both together.

    Attributes:
        begins: how many tokens came before the answer, as far as it is known.
        cut: whether the bound has ended the thought.
    """

    _automaton: ThoughtAutomaton

    def __init__(self, automaton: ThoughtAutomaton, most: int, room: int | None) -> None:
        super().__init__(automaton)
        self._near, self._bound = bounds_of(most)
        self._room = room
        self._made = 0
        self.begins = 0
        self.cut = False

    @property
    def full(self) -> bool:
        """Whether the answer has as many tokens as it may have."""
        return self._room is not None and self._made > self.last

    @property
    def last(self) -> int:
        """How many tokens may come before the last one, as far as it is known."""
        assert self._room is not None  # tells mypy
        if 0 < self.state <= self._automaton.bodies:
            return self._made + self._room - (self.state <= self._automaton.entries)
        return self.begins + self._room - 1

    @property
    def now(self) -> int:
        """The state that the next token follows."""
        return self._automaton.closed(self.state, self._made, self._near, self._bound)

    def _go_on(self, token_id: int) -> None:
        """The thought and the answer's automaton go on with a token."""
        automaton, state, made = self._automaton, self.state, self._made
        if made >= self._near:
            state = self.now
            self.cut = self.cut or (state != self.state and state > automaton.entries)
        if 0 < state <= automaton.bodies:
            self.begins = made + (state > automaton.entries)
        self._made = made + 1
        self.state = automaton.next_state(state, token_id) if state else 0

    def push(self, token_id: int) -> bool:
        self._go_on(token_id)
        return self.state != 0 or self._automaton.free

    def short(self, left: int, ahead: int) -> bool:
        if self._automaton.free:
            return False
        if self._room is not None:
            left = min(left, self.last + 1 - self._made - ahead)
        return super().short(left, ahead)


def _spelled(text: str, vocabulary: Vocabulary) -> bytes:
    """A mark as bytes; special tokens that it names have their own."""
    specials: Mapping[str, bytes] = vocabulary.specials
    return b"".join(specials.get(piece, piece.encode()) for piece in word_pieces(text, specials))


def _matches(mark: bytes) -> npt.NDArray[np.int64]:
    """(length, 256): how many bytes of a mark have come last, after so many and each byte (Knuth, Morris, Pratt)."""
    counts = np.zeros((len(mark), 256), np.int64)
    shorter = 0
    for count, byte in enumerate(mark):
        counts[count] = counts[shorter] if count else 0
        if count:
            shorter = int(counts[shorter, byte])
        counts[count, byte] = count + 1
    return counts


def _after(head: bytes, texts: Table) -> Table:
    """The texts of a table after the same first bytes."""
    own = [(place, byte, byte, place + 1) for place, byte in enumerate(head)]
    edges = np.concatenate((np.array(own, np.int32), moved(texts.edges, len(head))))
    final = np.concatenate((np.zeros(len(head), np.bool_), texts.final[1:]))
    return table(Dfa(edges, final))
