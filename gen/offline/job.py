"""`run_batch`: makes a job's folder, or goes on with one, until every row has a result.

The driver imports no torch: a first worker answers what needs the model, before any part is begun.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gen.arguments import check_flag, read_whole
from gen.errors import ArgumentError, GenError, show, show_path
from gen.offline.described import as_json, describe_sampler, describe_speculate, describe_type
from gen.offline.driver import Driver
from gen.offline.executors.processes import Processes
from gen.offline.executors.ray_actors import RayActors
from gen.offline.rows import check_template
from gen.offline.status import merge

if TYPE_CHECKING:
    from gen.loop.speculation.settings import Speculate
    from gen.samplers import Sampler

_OF_THE_CALL = {  # arguments that do not affect the texts
    "inputs",
    "out",
    "devices",
    "executor",
    "ray_address",
    "batch_size",
    "part_rows",
    "retry_failed",
    "dry_run",
    "progress",
    "logits_processors",
    "drafts",
    "receipts",  # in the manifest only where they are asked for
}


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """The outcome of a job.

    Attributes:
        rows: how many have a result or an error.
        failed: how many have an error.
        tokens: how many new tokens all texts have.
        seconds: how long this call took.
        parts: the files with the results, JSON lines, in the order of the rows.
    """

    rows: int
    failed: int
    tokens: int
    seconds: float
    parts: list[Path]

    def merge(self, path: str | Path) -> None:
        """Write all results into one file, in the order of the rows.

        Args:
            path: *.jsonl, or *.parquet (needs pyarrow): there a `value` with a fixed schema is a struct, and any other
                one is JSON.
        Raises:
            ArgumentError: pyarrow is not installed.
            GenError: there are no parts, or the file's name asks for no such format.
            OSError: it cannot be written.
        """
        if not self.parts:
            raise GenError("there are no results to write: nothing was run.")
        merge(self.parts[0].parent, Path(path))


def run_batch(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    model: str | Path,
    output_type: Any = None,
    devices: str | Sequence[str] | None = None,
    dtype: str | None = None,
    context_length: int | None = None,
    executor: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    batch_size: int | None = None,
    part_rows: int | None = None,
    prompt_template: str | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    progress: bool = True,
    sampler: "Sampler | list[Any] | None" = None,
    max_new_tokens: int | None = None,
    stop: str | Sequence[str] | None = None,
    include_stop: bool = False,
    seed: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    chat: bool = False,
    chat_template_kwargs: Mapping[str, object] | None = None,
    thinking: bool | int | None = None,
    describe: bool = False,
    skip_special_tokens: bool | Sequence[str] = True,
    num_return_sequences: int = 1,
    logits_processors: None = None,
    top_logprobs: int | None = None,
    shorten: bool = False,
    truncate: Literal["left", "turns"] | None = None,
    exact: bool = False,
    speculate: "Speculate" = "auto",
    retries: int = 0,
    drafts: str | Path | None = None,
    receipts: bool = False,
) -> BatchReport:
    """Continue the prompts of files on many devices, and write the results to a folder; go on there after any end.

    Each device has a process with the model, which makes one part of the results after the other. A part is there
    whole or not at all. Make the same call again after Ctrl-C, a crash or a full disk, on other devices too: it makes
    the missing parts. A row's text is what `gen.generate` gives for its prompt and its seed (in float32; in bfloat16 a
    part made again on the same kind of device is equal, too).

    Arguments that are not listed here are as for `gen.generate`.

    Args:
        inputs: files of rows: JSON lines or CSV (either may be packed with gzip), parquet (needs pyarrow: `pip install
            'gen-torch[parquet]'`), or "-" for JSON lines from stdin. A row has a prompt (a text, or token ids) or
            messages, and may have a unique id, a seed and max_new_tokens of its own; its other columns are carried
            through. Or it is a line of OpenAI's batch format, for chat/completions.
        out: the job's folder; if it has this job already, the call goes on with it.
        model: as `gen.load` takes it: a directory, a GGUF file, a name on the Hub, or "demo".
        output_type: as for `gen.generate`, one for all rows. Workers import classes, so define these at the top level
            of a module.
        devices: names, as ["cuda:0", "cuda:1"] or "cuda:0,cuda:1"; name a device twice for two processes. None is
            every CUDA device, or else the CPU.
        dtype: as for `gen.load`.
        context_length: as for `gen.load`.
        executor: "local" runs processes of this machine, "ray" actors of a Ray cluster, each with a GPU (or a CPU if
            there is none); all must see `out` (`pip install 'gen-torch[ray]'`).
        ray_address: of the cluster; None starts one on this machine.
        batch_size: how many rows run at once; None is as many as fit into half of the first worker's memory, at most as
            many as `gen.generate` runs at once.
        part_rows: how many rows a part has; None is eight times `batch_size`.
        prompt_template: makes a prompt from a row's columns, as "Classify: {text}".
        retry_failed: make parts with failed rows again.
        dry_run: check everything, and only say what would be done.
        progress: whether stderr shows how far the job is.
        speculate: as for `gen.generate`, but "auto" calculates what pays instead of measuring it, so that no clock
            affects a part.
        drafts: the folder of an earlier job. A row takes the text of the row with the same id there as its `draft`, so
            that those that have not changed are made faster: no text changes, and of log-probabilities the last digits.
        receipts: whether each result has a `receipt`, as `gen.Completion.receipt` (a list of them, `receipts`, if a row
            has several texts); `gen.Receipt.load` reads these from the results. Not for lines of OpenAI's format.
        retries: as for `gen.generate`; `attempts` in a result counts the answers that its value took.
        seed: a row without a seed gets one derived from this seed and its id; None draws one for the job.
    Returns:
        How many rows there are, and how many failed: a failed row has its error instead of a text.
    Raises:
        ArgumentError: an argument, an input or an output type cannot be used, or the folder has another job. No row has
            run then.
        DeviceError, ModelError: as `gen.load`.
        GenError: another driver works in the folder, no device is left, or memory does not hold this many rows.
        OSError: the folder cannot be written to.
    """
    asked = dict(locals())
    given = {name: value for name, value in asked.items() if name not in _OF_THE_CALL}
    if not isinstance(inputs, Path | Iterable):
        raise ArgumentError(f"inputs must be a file or a list of files, got {show(inputs)}")
    names = [str(one) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    folder = _read_folder(out)
    if not isinstance(model, str | Path) or not str(model):
        raise ArgumentError(f"model must be the name or the folder of a model, which workers load, got {show(model)}")
    if logits_processors is not None:
        raise ArgumentError("logits_processors are functions, which a job's manifest cannot have; leave them out.")
    if executor not in ("local", "ray"):
        raise ArgumentError(f'executor must be "local" or "ray", got {show(executor)}')
    if executor == "ray" and devices is not None:
        raise ArgumentError("with the executor ray each actor has a GPU that Ray chooses; leave devices out.")
    if executor == "local" and ray_address is not None:
        raise ArgumentError('ray_address is for the executor "ray"; give executor="ray" too.')
    for name in ("retry_failed", "dry_run", "progress", "receipts"):  # workers check the others
        check_flag(name, asked[name])
    for name in ("batch_size", "part_rows"):
        if asked[name] is not None:
            asked[name] = read_whole(name, asked[name], minimum=1)
    if seed is not None:
        read_whole("seed", seed)
    read_whole("retries", retries)
    if describe and output_type is None:
        raise ArgumentError("describe=True describes the job's output type, and it has none; give an output type.")
    if retries and output_type is None:
        raise ArgumentError("retries ask again for values of the job's output type, and it has none; give one.")
    if prompt_template is not None:
        check_template(prompt_template)
    settings = given | {
        "model": model if model == "demo" or not Path(model).exists() else str(Path(model).absolute()),
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "output_type": describe_type(output_type) if not isinstance(output_type, dict) else output_type,
        "sampler": describe_sampler(sampler),
        "speculate": describe_speculate(speculate),
        **({"receipts": True} if receipts else {}),
    }
    driver = Driver(
        names=names,
        folder=folder,
        settings=as_json(settings),
        executor=RayActors(ray_address) if executor == "ray" else Processes(_read_devices(devices)),
        batch_size=asked["batch_size"],
        part_rows=asked["part_rows"],
        progress=progress,
        drafts=None if drafts is None else _read_drafts(drafts),
    )
    return BatchReport(**(driver.rehearse() if dry_run else driver.run(retry_failed=retry_failed)))


def _read_folder(out: str | Path, name: str = "out") -> Path:
    if not isinstance(out, str | Path) or not str(out):
        raise ArgumentError(f"{name} must be a folder, got {show(out)}")
    if "://" in str(out):
        raise ArgumentError(
            f"{name} must be a folder that this machine and its workers see, got the URL {show_path(out)}"
        )
    folder = Path(out).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise ArgumentError(f"{name} must be a folder, and {show_path(out)} is a file.")
    return folder


def _read_drafts(drafts: str | Path) -> Path:
    folder = _read_folder(drafts, "drafts")
    if not any(folder.glob("part-*.jsonl")):
        raise ArgumentError(f"drafts must be the folder of a job that has parts; {show_path(folder)} has none.")
    return folder


def _read_devices(devices: str | Sequence[str] | None) -> list[str] | None:
    if devices is None:
        return None
    given: Any = devices.split(",") if isinstance(devices, str) else devices
    names = [str(name).strip() for name in given] if isinstance(given, Iterable) else []
    if not names or not all(names):
        raise ArgumentError(f'devices must be names, as ["cuda:0", "cuda:1"] or "cuda:0,cuda:1", got {show(devices)}')
    return names
