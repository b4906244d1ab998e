import pytest

from tests.offline.helpers import WorkerHere


@pytest.fixture
def workers_here(monkeypatch: pytest.MonkeyPatch) -> type[WorkerHere]:
    """Jobs have workers without processes of their own; they die at the rows that the test names."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kind = type("OwnWorker", (WorkerHere,), {})
    monkeypatch.setattr("gen.offline.executors.processes.WorkerProcess", kind)
    return kind
