"""Which rows have which pages: what a row has read stays its own, whatever others do."""

import random

from gen.models.exllama.page_table import PageTable


def test_rows_that_have_pages_in_common_read_what_each_has_written() -> None:
    """The oracle is rows with memory of their own. Pages are numbers, and a page's content is the last write to it."""
    source = random.Random(0)
    for _ in range(40):
        count, places = source.randint(2, 5), source.randint(1, 4)
        table, memory, wanted = PageTable(count), dict[int, int](), [[0] * places for _ in range(count)]
        table.grow(range(count * places))
        memory = dict.fromkeys(range(1000), 0)
        for number in range(1, 60):
            row, place = source.randrange(count), source.randrange(places)
            if source.random() < 0.4:  # a prompt that begins like another row's
                other = source.randrange(count)
                if other != row:
                    table.share(other, row, place)
                    wanted[row][:place] = wanted[other][:place]
            elif source.random() < 0.1:
                table.grow(range(count * places, count * (places + 1)))
                places += 1
                wanted = [[*own, 0] for own in wanted]
            else:  # it is written from there on
                table.part(row, place)
                for at in range(place, places):
                    memory[table.rows[row][at]] = wanted[row][at] = number
            assert [[memory[page] for page in own] for own in table.rows] == wanted
            used = {page for own in table.rows for page in own}
            assert used.isdisjoint(table._spare) and len(used) + len(table._spare) == count * places
