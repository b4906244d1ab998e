"""A worker as a process of its own, which reads requests line by line from stdin, and ends when stdin ends.

Each line is a JSON object, and so is each answer on stdout; output that libraries print goes to stderr.
"""

import json
import os
import signal
import sys
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from gen.errors import GenError
from gen.offline.executors.processes import KINDS
from gen.offline.rows import Row
from gen.offline.worker.worker import Worker

FAULT = 70  # the exit code after an error that the process may not survive; its last line has the error


def main() -> None:
    """Answer until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=_listen, args=(asked,), daemon=True).start()
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    worker: Worker | None = None
    while True:
        answer, fault = answered(worker, asked.get())
        if isinstance(answer, Worker):
            worker, answer = answer, {}
        print(json.dumps(answer), file=answers, flush=True)
        if fault:
            answers.flush()
            os._exit(FAULT)  # other threads may never end


def answered(worker: Worker | None, asked: dict[str, Any]) -> tuple[Any, bool]:
    """The answer to a request, and whether the process must end."""
    try:
        match asked:
            case {"settings": settings, "device": device, "threads": threads}:
                return Worker(settings, device, threads), False
            case {"check": row, "devices": devices} if worker is not None:
                return worker.check(None if row is None else Row(**row), devices), False
            case {"folder": folder, "digest": digest, "drafts": drafts, "task": task} if worker is not None:
                old = None if drafts is None else Path(drafts)
                return worker.run(Path(folder), digest, **task, drafts=old), False
        raise GenError(f"a worker was asked {list(asked)}")
    except GenError as error:
        kind = next(kind for kind in KINDS if isinstance(error, kind))
        return {"error": str(error), "kind": KINDS.index(kind)}, False
    except OSError as error:  # for example, a full disk
        return {
            "error": f"{error}. What is done stays; the same call goes on from there.",
            "kind": KINDS.index(GenError),
        }, False
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {error}"}, True


def _listen(asked: "SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        asked.put(json.loads(line))
    os._exit(0)  # the driver is gone


if __name__ == "__main__":
    main()
