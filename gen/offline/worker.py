"""A worker: checks a job's settings, and makes its parts, in a process of its own or in an actor of Ray's.

A part is one call of the loop with a fixed number of rows, in an order that follows from the manifest. So every worker
makes the same part; in bfloat16 this holds on the same kind of device.

As a process it reads requests line by line from stdin, and ends when stdin ends. Each line is a JSON object, and so is
each answer on stdout; output that libraries print goes to stderr.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

import gen
from gen.calls.call import Call
from gen.calls.reading import find_step_rows
from gen.calls.retrying import retry_refused
from gen.constraints.output_types import Choice, Either, Grammar, JsonSchema, Regex, Repeat, Text
from gen.constraints.output_types import Sequence as InOrder
from gen.constraints.python_types import schema_of
from gen.devices import available_devices, resolve_device
from gen.errors import ArgumentError, GenError
from gen.loop.jobs import Job, new_job
from gen.loop.memory import TooManyRows, tokens_that_fit
from gen.loop.options import Options
from gen.loop.row_pool import usual_rows
from gen.loop.runner import run_all
from gen.loop.speculation.settings import same_in_any_width
from gen.offline.described import made_speculate, made_type
from gen.offline.executors.processes import KINDS, Answer
from gen.offline.folder import Manifest, Result, counts_of, failed, read_manifest, write_part
from gen.offline.reading import OldTexts, Reader, ReadRow, failure_of
from gen.offline.rows import Row
from gen.offline.unchanged import difference, fingerprint, sources_of
from gen.receipts import versions
from gen.requests.settings import trial_prompt
from gen.server.errors import ApiError

FAULT = 70  # the exit code after an error that the process may not survive; its last line has the error
_UNSPENT = 0.5  # of a GPU's memory is left free if a worker chooses the number of rows


class Worker:
    """Holds a job's model on one device.

    Args:
        settings: those of the manifest.
        device: as `gen.load` takes it.
        threads: of torch, on a CPU.
    """

    def __init__(self, settings: Any, device: str | None, threads: int) -> None:
        self._settings = settings
        target = resolve_device(device)
        if target.type == "cpu":
            torch.set_num_threads(threads)
        given = {name: settings[name] for name in ("dtype", "context_length")}
        self._model = gen.load(settings["model"], device=target, **given)
        self._fingerprint = fingerprint(settings["model"])
        self._reader = Reader(self._model, settings)
        self._manifest: tuple[Manifest, str] | None = None
        self._old: OldTexts | None = None

    def check(self, longest: Row | None, devices: list[str | None]) -> Result:
        """What the driver needs to know before it begins; this generates one token.

        Args:
            longest: the row with the longest prompt.
            devices: the devices of other workers.
        """
        for device in devices:
            resolve_device(device)
        call = self._reader.read(Row(id="", prompt=trial_prompt(self._settings))).call
        [request] = call.requests
        one_token = replace(request, constraint=None, limit=1, retry=None)
        self._run([replace(call, requests=[one_token])], rows=None)  # one token with all rows' settings
        return {
            **self._facts(),
            "batch_size": self._rows_that_fit(longest),
            "devices": [str(device) for device in available_devices() if device.type == "cuda"] or ["cpu"],
        }

    def run(
        self,
        folder: Path,
        digest: str,
        part: int,
        row: int | None = None,
        *,
        attempt: int = 1,
        drafts: Path | None = None,
    ) -> Result:
        """Make a part, or run one of its rows.

        Args:
            digest: the sha256 of the driver's manifest.
            row: the only row, whose result is the answer; None for all rows, whose part the worker writes.
            attempt: the number of the attempt, from 1.
            drafts: the folder of a job whose texts are drafts for those of rows with the same ids.
        Returns:
            How many rows, failed rows and tokens; a row that was run to its end, or None; the result of the only row.
        Raises:
            GenError: the part cannot be made here: the manifest or the model is another one, or memory is too small.
            Exception: an error that a worker does not survive, such as one of CUDA.
        """
        begin, manifest = time.time(), self._read_manifest(folder, digest)
        if drafts is not None and self._old is None:
            self._old = OldTexts(drafts)
        results = self._results(manifest, manifest.rows_of(folder, part, row))
        if row is not None:
            return {"good": None if failed(results[0]) else row, "result": results[0]}
        meta = {
            "device": str(self._model.placement),
            "gpu": self._gpu(),
            "host": socket.gethostname(),
            "attempt": attempt,
            "begun": round(begin, 3),
            "seconds": round(time.time() - begin, 3),
        }
        write_part(folder, part, results, meta)
        good = next((row for row, result in enumerate(results) if not failed(result)), None)
        return {**counts_of(results), "good": good}

    def _results(self, manifest: Manifest, rows: Sequence[Row]) -> list[Result]:
        """The results of rows, in their order."""
        read: dict[int, ReadRow] = {}
        results: dict[int, Result] = {}
        for index, row in enumerate(rows):
            try:
                if row.error:
                    raise ArgumentError(row.error)
                read[index] = self._read(row)
            except (ArgumentError, ApiError) as error:
                results[index] = failure_of(row, error)
        jobs = self._run([one.call for one in read.values()], rows=manifest.batch_size)
        for (index, one), job in zip(read.items(), jobs, strict=True):
            try:
                results[index] = one.result(manifest, job)
            except TooManyRows as error:
                raise GenError(
                    f"batch_size={manifest.batch_size} is too much for the memory of {self._model.placement}: {error} "
                    f"Begin the job again in another folder, with batch_size={error.rows}."
                ) from error
            except GenError as error:
                results[index] = failure_of(rows[index], error)
        return [results[index] for index in range(len(rows))]

    def _read(self, row: Row) -> ReadRow:
        """A row as a call, with the old job's text as its draft."""
        if self._old is None or (draft := self._old.text(row.id)) is None:
            return self._reader.read(row)
        read = self._reader.read(row, draft)
        fits = self._old.has(row) and same_in_any_width(self._model)  # otherwise the order of rows may change texts
        requests = [replace(one, draft_fits=fits) for one in read.call.requests]
        return replace(read, call=replace(read.call, requests=requests))

    def _run(self, calls: Sequence[Call], rows: int | None) -> list[Job]:
        """Run calls in this many rows: those of an earlier part, with its recorded steps, if new ones were alike."""
        jobs = [new_job(self._model, call.requests[0]) for call in calls]
        step_rows = find_step_rows(self._model, self._settings["exact"])
        speculate = made_speculate(self._settings["speculate"])
        options = Options(step_rows=step_rows, rows=rows, fixed=rows is not None, speculate=speculate)
        run_all(self._model, jobs, options)
        while again := retry_refused(self._model, calls, jobs):
            run_all(self._model, again, options)
        return jobs

    def _rows_that_fit(self, longest: Row | None) -> int:
        """How many rows like the longest one run at once in half of the memory, at most the usual number."""
        usual, placement = usual_rows(self._model), self._model.placement
        known = getattr(getattr(self._model, "idle", None), "token_bytes", None)
        try:
            request = None if longest is None else self._reader.read(longest).call.requests[0]
        except (ArgumentError, ApiError):  # the row will get this error
            request = None
        room = None if known is None else tokens_that_fit(placement, known)
        if request is None or room is None:
            return usual
        if placement.logits_device.type == "cuda":
            room = int(room * _UNSPENT)  # on a CPU, rows take at most half of the memory anyway
        return max(1, min(usual, room // (len(request.prompt_ids) + request.limit)))

    def _facts(self) -> Result:
        """What must be the same on every worker, beside the manifest."""
        schema = schema_of_type(made_type(self._settings["output_type"]))
        sources = sources_of(self._settings["output_type"])
        return {"fingerprint": self._fingerprint, "schema": schema, "sources": sources, "versions": versions()}

    def _read_manifest(self, folder: Path, digest: str) -> Manifest:
        """The job's manifest, if it is the driver's, and if the worker's model is the manifest's."""
        if self._manifest is not None and self._manifest[1] == digest:
            return self._manifest[0]
        host = socket.gethostname()
        try:
            manifest, found = read_manifest(folder)
        except OSError as error:
            raise GenError(f"{host} does not see the job's folder {folder}: {error}") from error
        if found != digest:
            raise GenError(
                f"{host} sees another manifest in {folder} than the driver has; give a folder that both share."
            )
        if (problem := difference(manifest, self._facts())) is not None:
            raise GenError(f"on {host} {problem}")
        self._manifest = manifest, digest
        return manifest

    def _gpu(self) -> str | None:
        """The uuid of the GPU that the worker has."""
        device = self._model.placement.logits_device
        if device.type != "cuda":
            return None
        return str(getattr(torch.cuda.get_device_properties(device), "uuid", "")) or None


def schema_of_type(output_type: Any) -> Any:
    """The JSON Schema of an output type's values; None if there is no type, or if they may be anything."""
    match output_type:
        case None | InOrder() | Either() | Repeat():
            return None
        case Regex() | Grammar() | Text():
            return {"type": "string"}
        case Choice():
            return {"enum": list(output_type.options.values())}
        case JsonSchema():
            return json.loads(output_type.schema)
    return schema_of(output_type)[0]


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=_listen, args=(asked,), daemon=True).start()
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    answering = Answers()
    while True:
        answer = answering.answer(asked.get())
        print(json.dumps(answer), file=answers, flush=True)
        if "fault" in answer:
            os._exit(FAULT)  # other threads may never end


class Answers:
    """Answers a driver's requests; the first one asks for the worker that does what the others ask for."""

    _worker: Worker

    def answer(self, asked: Mapping[str, Any]) -> Answer:
        """The answer to a request. After a "fault" the process must end."""
        try:
            match asked:
                case {"settings": settings, "device": device, "threads": threads}:
                    self._worker = Worker(settings, device, threads)
                    return {}
                case {"check": row, "devices": devices}:
                    return self._worker.check(None if row is None else Row(**row), devices)
                case {"folder": folder, "digest": digest, "drafts": drafts, "task": task}:
                    old = None if drafts is None else Path(drafts)
                    return self._worker.run(Path(folder), digest, **task, drafts=old)
            raise GenError(f"a worker was asked {list(asked)}")
        except GenError as error:
            kind = next(kind for kind in KINDS if isinstance(error, kind))
            return {"error": str(error), "kind": KINDS.index(kind)}
        except OSError as error:  # for example, a full disk
            told = f"{error}. What is done stays; the same call goes on from there."
            return {"error": told, "kind": KINDS.index(GenError)}
        except Exception as error:
            return {"fault": f"{type(error).__name__}: {error}"}


def _listen(asked: "SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        asked.put(json.loads(line))
    os._exit(0)  # the driver is gone


if __name__ == "__main__":
    main()
