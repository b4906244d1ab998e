"""Which request is next in an engine: by priority, by time of arrival, and by a long wait."""

import random
from typing import Any

from gen.loop.feed import PATIENCE, WaitingLine


def test_who_is_next_is_who_a_plain_search_finds() -> None:
    rng = random.Random(0)
    aged = 0
    for _ in range(50):
        line, waiting, now = WaitingLine(), list[tuple[Any, int, float]](), 0.0
        for number in range(60):
            now += rng.choice([0.0, 1.0, 20.0])
            move = rng.random()
            feed: Any = f"feed {number}"
            if move < 0.6:
                priority = rng.randint(-2, 2)
                line.add(feed, "model" + feed, priority, now)
                waiting.append((feed, priority, now))
            elif waiting and move < 0.9:
                patient = [one for one in waiting if now - one[2] >= PATIENCE]
                lowest = min(priority for _, priority, _ in waiting)
                wanted = patient[0] if patient else next(one for one in waiting if one[1] == lowest)
                aged += bool(patient) and wanted[1] > lowest
                waiting.remove(wanted)
                assert line.pop(now) == (wanted[0], "model" + wanted[0])
            elif waiting:
                feed, _, _ = waiting.pop(rng.randrange(len(waiting)))
                assert line.remove(feed)
                assert not line.remove(feed)
            assert (len(line), set(line)) == (len(waiting), {feed for feed, _, _ in waiting})
    assert aged > 20
