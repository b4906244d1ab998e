"""Arrays: the first items by their own schemas, then any number of one schema, as many as the limits allow."""

from typing import TYPE_CHECKING

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.parts import Part
from gen.constraints.schema.views import item_schemas

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Place, Writer


def write_array(writer: "Writer", part: Part, state: int, place: "Place") -> int | None:
    """Write any array of a part after `state`; returns the state after it, or None if there is no such array.

    Each item stands at a state of its own, until all that is left is the same: a loop.
    """
    most = part.max_items
    if part.unique and (most is None or most > 1):
        raise Unsupported(f"uniqueItems at {place.path}")
    if most is not None and most < part.min_items:
        return None
    nfa = writer.nfa
    opened, between, closing = writer.layout.around(place.level)
    inside = place.within("items", place.depth if part.items else place.depth - 1)
    known = max([len(one.first) for one in part.items] + [part.min_items]) if most is None else most
    ends = []
    here = writer.text(state, "[")
    if part.min_items == 0:
        ends.append(writer.text(here, "]"))
    for number in range(known):
        before = writer.text(here, between if number else opened)
        after = writer.value(item_schemas(part, number), before, inside)
        if after is None:
            break
        here = after
        if number + 1 >= part.min_items:
            ends.append(writer.text(here, f"{closing}]"))
    else:
        if most is None:
            loop = nfa.state()
            nfa.join(writer.text(here, between if known else opened), loop)
            after = writer.value(item_schemas(part, known), loop, inside)
            if after is not None:
                nfa.join(writer.text(after, between), loop)
                ends.append(writer.text(after, f"{closing}]"))
    if not ends:
        return None
    end = nfa.state()
    for one in ends:
        nfa.join(one, end)
    return end
