"""What a model keeps between calls can be taken and put back at any point of a thread, also by finalisers."""

import threading

from gen.models.idle_rows import Idle


class Engine:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_finaliser_may_take_and_put_while_an_engine_is_made() -> None:
    idle: Idle[str] = Idle()

    def make() -> Engine:
        idle.put("rows of a stream that was dropped")
        idle.clear()
        assert idle.take() is None
        return Engine()

    made: list[Engine] = []
    thread = threading.Thread(target=lambda: made.append(idle.engine(make)), daemon=True)
    thread.start()
    thread.join(60)
    assert len(made) == 1
    assert idle.engine(make) is made[0]
    made[0].close()
    assert idle.engine(make) is not made[0]


def test_of_two_engines_that_are_made_at_once_one_is_closed() -> None:
    idle: Idle[str] = Idle()
    first, second = Engine(), Engine()

    def make() -> Engine:
        assert idle.engine(lambda: second) is second  # another thread was faster
        return first

    assert idle.engine(make) is second
    assert (first.closed, second.closed) == (True, False)
