"""Compiles an output type for a model's vocabulary: to an automaton if it can be one, else for llguidance."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from gen.constraints.automata.limits import Empty, TooLarge, Unsupported
from gen.constraints.composing.composition import Composition, Tables
from gen.constraints.composing.trees import Calls, Plan, Tree, bare
from gen.constraints.constraint import Constraint
from gen.constraints.host_engine import Grammar
from gen.constraints.plans import read_tree
from gen.constraints.tables.token_automaton import Found, TokenAutomaton
from gen.constraints.tables.vocabulary import Vocabulary, vocabulary_of
from gen.errors import ConstraintError
from gen.models.base import Model
from gen.models.checks import check_loaded
from gen.runtime.forking import new_lock
from gen.runtime.isolation import isolated
from gen.tokens.tokenizers import Tokenizer
from gen.tools.calls import ToolCallsType

_MOST_KEPT = 64  # constraints of a tokenizer; the least recently used one goes first
_MOST_BYTES = 2**28  # of their automata together, unless the last one alone has more
_kept: WeakKeyDictionary[Tokenizer, OrderedDict[Hashable, Constraint]] = WeakKeyDictionary()
_changing = new_lock()


def compile(model: Model, output_type: Any) -> Constraint:
    """Compile an output type, to use it again and again: in calls, batches, streams and engines, from any thread.

    gen keeps what it has compiled for a vocabulary, so calls that you give the type itself compile it only once, too.

    Args:
        model: whose vocabulary it is for; models with the same tokenizer can share it.
        output_type: as for `gen.generate`; a constraint is checked against the model and returned.
    Raises:
        ConstraintError: it is no output type, no text at all meets it, neither engine can enforce it, or the
            tokenizer's tokens are not known as bytes. The message names the problem and its place.
    """
    check_loaded(model)
    if isinstance(output_type, Constraint):
        return _checked(model, output_type)
    return carry_out(model, read_type(model, output_type))


def compiled_before(model: Model, output_type: Any) -> Constraint | None:
    """The kept constraint of an output type, at once; None if the type has not been compiled yet.

    Raises:
        ConstraintError: as `compile`.
    """
    if isinstance(output_type, Constraint):
        return _checked(model, output_type)
    plan = read_type(model, output_type)
    with _changing:
        known = plan.key in _kept.get(model.tokenizer, ())
    return carry_out(model, plan) if known else None


def read_type(model: Model, output_type: Any) -> Tree | Calls:
    """The tree of an output type that is made of others, or the plan of any other one.

    Raises:
        ConstraintError: it is no output type.
    """
    if isinstance(output_type, ToolCallsType):
        from gen.tools.forms import tree_of

        return tree_of(output_type, model.tokenizer)
    return read_tree(output_type)


def _checked(model: Model, constraint: Constraint) -> Constraint:
    """The constraint, if it is for the model's vocabulary; its tables are on the device of the logits.

    Raises:
        ConstraintError: it is for another one, or the device's memory has no room for its rows.
    """
    vocabulary = vocabulary_of(model)
    if constraint.vocabulary is vocabulary or constraint.vocabulary.tokens == vocabulary.tokens:
        try:
            if constraint.automaton is not None:
                constraint.automaton.place(model.placement.logits_device)
        except TooLarge as error:
            raise ConstraintError(f"{error}; compile the type for this model, as gen.compile(model, ...).") from error
        return constraint
    raise ConstraintError(
        f"the constraint was compiled for another vocabulary, of {len(constraint.vocabulary.tokens)} tokens; this "
        f"model's has {len(vocabulary.tokens)}. Compile it for this model, as gen.compile(model, ...)."
    )


@isolated
def carry_out(model: Model, plan: Tree | Calls, worked: "Worked | None" = None) -> Constraint:
    """The constraint of a plan: the one that is kept, or a new one.

    Args:
        worked: what `work_out` gave for it, in this process or another one.
    """
    vocabulary = vocabulary_of(model)
    with _changing:
        kept = _kept.setdefault(model.tokenizer, OrderedDict())
        constraint = kept.get(plan.key)
    new = constraint is None or constraint.vocabulary is not vocabulary
    if constraint is None or new:
        tables = {} if worked is None else worked.tables
        made = plan if isinstance(plan, Plan) else Composition(plan, vocabulary, tables)
        constraint = _made(plan, made, vocabulary, model.placement.logits_device, worked)
    with _changing:
        kept[plan.key] = constraint
        kept.move_to_end(plan.key)
        while new and (len(kept) > _MOST_KEPT or (len(kept) > 1 and _bytes(kept.values()) > _MOST_BYTES)):
            kept.popitem(last=False)
    return replace(constraint, tree=plan)  # equal schemas may be of different types


def _bytes(constraints: Iterable[Constraint]) -> int:
    """How many bytes the constraints hold now; the number grows, as rows are made when they are first needed."""
    return sum(one.automaton.nbytes for one in constraints if one.automaton is not None)


@dataclass(frozen=True)
class Worked:
    """The costly part of compiling a plan, as arrays and texts that one process can send to another.

    Attributes:
        automaton: None if the plan has none.
        tables: those of its parts, if the plan is made of others.
        reason: why there is no automaton; "" if there is one.
    """

    automaton: Found | None
    tables: Tables
    reason: str


def work_out(plan: Tree | Calls, vocabulary: Vocabulary) -> Worked:
    """Do the costly part of `carry_out` for a plan.

    Raises:
        ConstraintError: as `compile`.
    """
    made = plan if isinstance(plan, Plan) else Composition(plan, vocabulary)
    constraint = _made(plan, made, vocabulary, torch.device("cpu"))
    found = None if constraint.automaton is None else constraint.automaton.found
    return Worked(found, made.tables() if isinstance(made, Composition) else {}, constraint.reason)


def portable(plan: Tree | Calls) -> Tree | Calls:
    """A plan to send to another process, which works it out but reads no values."""
    return Calls(bare(plan.written), bare(plan.read)) if isinstance(plan, Calls) else bare(plan)


def _made(
    plan: Tree | Calls,
    made: Plan | Composition,
    vocabulary: Vocabulary,
    device: torch.device,
    worked: Worked | None = None,
) -> Constraint:
    """The constraint, with an automaton if there is one that the device has room for, otherwise with a grammar."""
    reason = "a grammar is not regular" if worked is None else worked.reason
    automaton = grammar = None
    try:
        if made.table is not None and (worked is None or worked.automaton is not None):
            try:
                found = TokenAutomaton((worked and worked.automaton) or made.table(), vocabulary)
                found.place(device)
                automaton, reason = found, ""
            except Unsupported as error:
                raise ConstraintError(str(error)) from error
            except TooLarge as error:
                reason = str(error)
        if automaton is None:
            try:
                grammar = Grammar(made.grammar(), vocabulary)
                if worked is None:
                    grammar.try_out()
            except ConstraintError as error:
                same = made.table is None or str(error) == reason
                raise ConstraintError(str(error) if same else f"{reason}; nor can the host engine: {error}") from error
    except Empty as error:
        raise ConstraintError(f"no text meets the output type: {error}") from error
    return Constraint(
        engine="host" if automaton is None else "device",
        states=None if automaton is None else automaton.states,
        least_tokens=None if automaton is None else automaton.least_tokens,
        reason=reason,
        vocabulary=vocabulary,
        automaton=automaton,
        grammar=grammar,
        splitter=made.splitter,
        special_ids=made.special_ids,
        tree=plan,
    )
