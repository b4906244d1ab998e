"""Plans of how many columns rows look at, compared with each row alone and with all rows together."""

import random

import pytest
import torch

from gen.attention import plan
from gen.attention.plan import PIECE, Plan, whole


def runs_of(lengths: list[int], numbers: int) -> tuple[plan.Run, ...]:
    made = Plan()
    made.look(lengths, torch.empty(1, 1, numbers))
    return made.runs


def test_the_worked_example() -> None:
    assert runs_of([40, 35, 3, 900, 890], 2**14 // 96) == ((0, 3, 64), (3, 5, 928))


@pytest.mark.parametrize("seed", range(50))
def test_every_row_is_in_one_run_that_looks_at_all_its_columns_and_no_run_costs_more_than_it_saves(seed: int) -> None:
    drawn = random.Random(seed)
    lengths = [drawn.choice([0, drawn.randint(1, 300), drawn.randint(1, 8000)]) for _ in range(drawn.randint(1, 40))]
    numbers = drawn.choice([16, 192, 1024])
    call = 2**14 // numbers
    runs = runs_of(lengths, numbers)
    assert [row for first, end, _ in runs for row in range(first, end)] == [*range(len(lengths))]
    views = [max(PIECE, whole(length)) for length in lengths]
    assert all(view == max(views[first:end]) for first, end, view in runs)
    cost = sum(call + (end - first) * view for first, end, view in runs)
    assert cost <= len(views) * call + sum(views)
    assert cost <= call + len(views) * max(views)


def test_it_looks_at_all_columns_before_it_is_told_and_after() -> None:
    made, seen = Plan(), []
    seen.append(made.runs)
    made.look([5], torch.empty(1, 1, 16))
    seen.append(made.runs)
    made.look_at_all()
    seen.append(made.runs)
    made.look([7], torch.empty(1, 1, 16))
    assert [*seen, made.runs] == [(), ((0, 1, PIECE),), (), ((0, 1, PIECE),)]
