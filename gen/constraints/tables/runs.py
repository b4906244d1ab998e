"""The edges of a table: without the dead state, and with neighbouring classes joined into runs.

Example: a line of `next` that is [0, 4, 4, 4, 0, 9] has the runs 1-3 to 4 and 5-5 to 9.
"""

from dataclasses import dataclass

import numpy as np

from gen.constraints.automata.arrays import Ints, Longs, begins


@dataclass(frozen=True)
class Runs:
    """Runs of classes that lead from a state to another one, in the order of states and classes.

    Attributes:
        source, target: (runs,) states; the dead one is never a target.
        first, end: (runs,) the first class, and the one behind the last.
        begin: (states + 1,) where the runs of each state begin.
        begin_before, before: the runs that lead to each state, see `leading_to`.
    """

    source: Longs
    target: Longs
    first: Longs
    end: Longs
    begin: Longs
    begin_before: Longs
    before: Longs


def runs_of(after: Ints) -> Runs:
    """The runs of a table's (states, classes) next states."""
    states, classes = after.shape
    new = np.ones(after.shape, np.bool_)
    np.not_equal(after[:, 1:], after[:, :-1], out=new[:, 1:])
    places = np.flatnonzero(new)
    target = after.ravel()[places].astype(np.int64)
    ends = np.append(places[1:], after.size)
    live = target > 0
    places, target, ends = places[live], target[live], ends[live]
    source = places // classes
    return Runs(
        source=source,
        target=target,
        first=places - source * classes,
        end=ends - source * classes,
        begin=begins(source, states),
        begin_before=begins(target, states),
        before=np.argsort(target, kind="stable"),
    )
