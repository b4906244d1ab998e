"""A value that its type refuses, asked for again: the refusal is the next turn of the chat."""

from collections.abc import Iterable, Sequence

from gen.calls.call import Call
from gen.errors import ValueRefusedError
from gen.loop.jobs import Job, new_job
from gen.models.base import Model
from gen.tokens.tokenizers import Message


def next_turn(messages: Sequence[Message], begun: str, error: ValueRefusedError) -> list[Message]:
    """The chat with the refused answer, without its thought, and with what its type says of it.

    Args:
        messages: without the one that the answer has continued.
        begun: what that message had of the answer.
    """
    said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in error.errors]
    why = "; ".join(said) or str(error.__cause__)
    return [
        *messages,
        {"role": "assistant", "content": begun + error.text},
        {"role": "user", "content": f"This is refused: {why}. Answer again."},
    ]


def next_job(model: Model, call: Call, job: Job) -> Job | None:
    """A job for the next turn, if the value of a job was refused and is asked for again; else None."""
    if job.request.retry is None:
        return None
    try:
        call.result(job)
    except ValueRefusedError as error:
        request = job.request.retry(job.request, error)
        return None if request is None else new_job(model, request)
    except Exception:  # the call itself raises it
        pass
    return None


def retry_refused(model: Model, calls: Iterable[Call], jobs: list[Job]) -> list[Job]:
    """Put jobs for the next turn in the place of those whose value was refused; returns the new ones.

    Args:
        calls: the call of each job.
    """
    new = []
    for place, (call, job) in enumerate(zip(calls, jobs, strict=True)):
        if (again := next_job(model, call, job)) is not None:
            jobs[place] = again
            new.append(again)
    return new
