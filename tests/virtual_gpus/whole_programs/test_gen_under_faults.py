"""gen under faults that machines do not tell of: an error or the right text, never another one.

The oracle is the same call on the plain CPU, see `benchmarks.cases.faults`.
"""

from collections import Counter

from benchmarks.cases.faults import calls, examine, tiny_llama
from virtual_gpus.faults import PartialCopy


def test_random_calls_raise_or_are_right() -> None:
    model = tiny_llama()
    outcomes = [examine(call, model) for call in calls(40, seed=2)]
    assert [outcome for outcome in outcomes if outcome.verdict == "wrong"] == []
    happened = Counter(type(outcome.call.fault).__name__ for outcome in outcomes if outcome.call.fault.happened)
    assert all(happened[kind] > 2 for kind in ("FailedAllocation", "MissingWait", "PartialCopy", "Placeholder")), (
        happened
    )
    copies = {outcome.verdict for outcome in outcomes if isinstance(outcome.call.fault, PartialCopy)}
    assert copies == {"raised", "untouched"}  # it is refused at load, whether the text would have shown it or not
    assert any("pass on to each other" in outcome.said for outcome in outcomes)
