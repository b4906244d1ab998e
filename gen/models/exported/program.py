"""Programs of torch.export: language models without Python code of their own, on the device that is asked for."""

import logging
import warnings
import zipfile
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from gen.arguments import read_token_ids, read_whole
from gen.devices import Placement, current, describe, resolve_device, to_device
from gen.errors import ArgumentError, ModelError, show_path
from gen.models.base import Model, Rows
from gen.models.checkpoints import find_path
from gen.models.checks import check_hf_tokenizer, kind_of
from gen.models.exported.program_inputs import ProgramInputs
from gen.models.exported.relocating import relocate, run_on
from gen.models.idle_rows import Idle
from gen.runtime.isolation import isolated
from gen.tokens.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from transformers import PreTrainedTokenizerBase

_LOGITS = 2**25  # the most numbers in the logits of rows that run together; a program gives logits of all tokens


@isolated
@torch.inference_mode(False)
def from_exported(
    path_or_program: "str | PathLike[str] | ExportedProgram",
    tokenizer: "PreTrainedTokenizerBase",
    *,
    device: str | int | torch.device | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    context_length: int | None = None,
) -> "ExportedModel":
    """Use a causal language model that torch.export has made into a program, on any device.

    The program takes input_ids (batch, length), and may take attention_mask and position_ids of the same shape; it
    gives logits (batch, length, vocabulary), by themselves, first in a tuple, or as `logits`. Dimensions may be dynamic
    or fixed: shorter texts are padded on the right, where a causal model does not look, and larger batches are run in
    parts. There is no cache: each decode step computes the whole text again.

    Args:
        path_or_program: a file of torch.export.save, which is unpickled: load only what you trust; or the program
            itself, which stays as it is.
        tokenizer: the model's, from transformers.
        device: where the whole program goes, wherever it was exported; None is the caller's current CUDA
            device if there is one, else the CPU.
        eos_token_id: what ends a text; None is the tokenizer's, an empty list nothing.
        context_length: how many tokens a text may have; None is what the program takes.
    Raises:
        ArgumentError: an argument is no program or no tokenizer, or the program takes no such context_length.
        DeviceError: the device does not exist.
        ModelError: the file cannot be read, the program is no causal language model, or has a part that cannot be
            moved; the message says which.
    """
    from torch.export import ExportedProgram

    target = resolve_device(device)
    check_hf_tokenizer("from_exported", tokenizer)
    if isinstance(path_or_program, str | PathLike):
        program = _read(find_path(path_or_program))
    elif isinstance(path_or_program, ExportedProgram):
        program = path_or_program
    else:
        raise ArgumentError(
            "from_exported takes a file of torch.export.save or a program of torch.export.export, got "
            f"{kind_of(path_or_program)}; for a transformers model use gen.from_transformers."
        )
    if eos_token_id is None:
        eos_token_id = [] if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    eos_token_ids = read_token_ids("eos_token_id", eos_token_id, Tokenizer(tokenizer).vocab_size)
    return ExportedModel(program, tokenizer, target, tuple(eos_token_ids), context_length)


class ExportedModel(Model):
    """An exported program behind `gen.models.base.Model`, which says what its attributes are.

    Attributes:
        module: the program's graph, on the device.
    """

    def __init__(
        self,
        program: "ExportedProgram",
        tokenizer: "PreTrainedTokenizerBase",
        device: torch.device,
        eos_token_ids: tuple[int, ...],
        context_length: int | None,
    ) -> None:
        self.idle: Idle[object] = Idle()
        self.tokenizer = Tokenizer(tokenizer)
        self.eos_token_ids = eos_token_ids
        self._inputs = ProgramInputs.read(program)
        widths = self._inputs.widths
        longest = widths.high
        if context_length is not None:
            longest = read_whole("context_length", context_length, minimum=2, maximum=longest)
        self.context_length: int = longest
        self.module = relocate(program, device)
        with current(device):
            logits = self._probe(device)
        self.vocab_size: int = logits.shape[-1]
        weights = (weight.dtype for weight in self.module.parameters() if weight.is_floating_point())
        self.placement = Placement(
            input_device=device, logits_device=device, dtype=next(weights, logits.dtype), has_cache=False
        )

    def __repr__(self) -> str:
        """What it is, where, and in which dtype."""
        return describe("torch.export program", "", self.placement)

    def new_rows(self, count: int, length: int) -> "ExportedRows":
        """See `gen.models.base.Model.new_rows`."""
        return ExportedRows(self, count, length)

    def forward(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """The logits (rows, vocab_size) after each row's last token.

        Args:
            token_ids: (rows, width) int64, padded on the right; width is at most context_length.
            lengths: (rows,) int64; those beyond the width count as the width.
        """
        rows, width = token_ids.shape
        padded = self._inputs.widths.nearest(width)
        batch = self._inputs.batches.nearest(min(rows, max(1, _LOGITS // (padded * self.vocab_size))))
        token_ids = pad(token_ids, (0, padded - width, 0, -rows % batch))
        lengths = pad(lengths.clamp(max=width), (0, -rows % batch), value=1)
        parts = []
        for start in range(0, len(token_ids), batch):
            part, ends = token_ids[start : start + batch], lengths[start : start + batch]
            args, kwargs = self._inputs.arguments(part, ends)
            logits = _logits(self.module(*args, **kwargs))
            last = (ends - 1).view(-1, 1, 1).expand(-1, 1, logits.shape[-1])
            parts.append(logits.gather(1, last).squeeze(1))
        return torch.cat(parts)[:rows]

    @torch.inference_mode()
    def _probe(self, device: torch.device) -> Tensor:
        """Run the program twice on a few tokens, to check that it is causal, and that all of it is on the device."""
        inputs = self._inputs
        width = inputs.widths.nearest(3)
        token_ids = torch.zeros((inputs.batches.nearest(1), width), dtype=torch.int64, device=device)
        lengths = torch.full((len(token_ids),), width, device=device)
        args, kwargs = inputs.arguments(token_ids, lengths)
        logits = _logits(run_on(self.module, device, *args, **kwargs))
        shape = tuple(logits.shape)
        if len(shape) != 3 or shape[:2] != token_ids.shape or not logits.is_floating_point():
            raise ModelError(
                f"for input_ids {tuple(token_ids.shape)} the program gives {shape} {logits.dtype}, expected logits "
                f"{(*token_ids.shape, 'vocabulary')} of a floating type: one row for each token. Export the model with "
                "its language model head, and without logits_to_keep."
            )
        if shape[2] < self.tokenizer.vocab_size:
            raise ModelError(
                f"the program's output {shape} has {shape[2]} numbers for each token, the tokenizer "
                f"{self.tokenizer.vocab_size} ids: it is no vocabulary. Export the model with its language model head, "
                "or give its own tokenizer; for embeddings load the model itself with gen.load_encoder."
            )
        token_ids[:, -1] = 1
        args, kwargs = inputs.arguments(token_ids, lengths)
        change = (_logits(self.module(*args, **kwargs)) - logits)[:, :-1].abs().amax()
        if change > 16 * torch.finfo(logits.dtype).eps * logits.abs().amax():
            raise ModelError(
                "the program is no causal language model: the logits of a token depend on the tokens after it, by "
                f"{change:.2g}. For embeddings load an encoder with gen.load_encoder."
            )
        return logits


class ExportedRows(Rows):
    """Rows without a cache: they are the tokens, and each step reads all of them again; see `gen.models.base.Rows`."""

    refillable = True

    def __init__(self, model: ExportedModel, count: int, length: int) -> None:
        device = model.placement.input_device
        self._model = model
        self.count, self.length = count, length
        self._token_ids = torch.zeros((count, length), dtype=torch.int64, device=device)  # padded on the right
        self._lengths = torch.ones(count, dtype=torch.int64, device=device)

    def prefill(self, rows: slice, prompts: Sequence[Sequence[int]], *_: object, **__: object) -> Tensor:
        """See `gen.models.base.Rows.prefill`."""
        width = max(map(len, prompts))
        token_ids = torch.zeros((len(prompts), width), dtype=torch.int64, device="cpu")
        for row, prompt in enumerate(prompts):
            token_ids[row, : len(prompt)] = torch.tensor(prompt, device="cpu")
        self._token_ids[rows, :width] = to_device(token_ids, self._lengths.device)
        self._lengths[rows] = to_device(torch.tensor([*map(len, prompts)], device="cpu"), self._lengths.device)
        return self._model.forward(self._token_ids[rows, :width], self._lengths[rows])

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step`."""
        count = len(token_ids)
        lengths = self._lengths[:count]
        self._token_ids[:count].scatter_(1, lengths.unsqueeze(1), token_ids)
        lengths.add_(1).clamp_(max=self.length - 1)
        return self._model.forward(self._token_ids[:count, : min(view, self._model.context_length)], lengths)

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """See `gen.models.base.Rows.reorder`."""
        for tensor in (self._token_ids[: len(ancestors), :view], self._lengths[: len(ancestors)]):
            tensor.copy_(tensor.index_select(0, ancestors))

    def copy(self, source: int, targets: slice, view: int) -> None:
        """See `gen.models.base.Rows.copy`."""
        for tensor in (self._token_ids[:, :view], self._lengths):
            tensor[targets].copy_(tensor[source])

    def moving(self) -> tuple[Tensor, ...]:
        """See `gen.models.base.Rows.moving`."""
        return (self._lengths,)

    def parts(self) -> tuple[tuple[str, Tensor, torch.device], ...]:
        """See `gen.models.base.Rows.parts`."""
        device = self._model.placement.input_device
        return ("the token ids", self._token_ids, device), ("the lengths", self._lengths, device)

    def grow(self, length: int) -> None:
        """See `gen.models.base.Rows.grow`."""
        self._token_ids = pad(self._token_ids, (0, length - self.length))
        self.length = length


def _logits(output: Any) -> Tensor:
    """The logits among what a program gives."""
    found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", output)
    if isinstance(found, list | tuple) and found:
        found = found[0]
    if not isinstance(found, Tensor):
        keys = f" of {', '.join(output)}" if isinstance(output, dict) else ""
        raise ModelError(
            f"the program gives a {type(output).__name__}{keys} without logits; export the language model with its "
            "head, as from AutoModelForCausalLM."
        )
    return found


def _read(path: Path) -> "ExportedProgram":
    """Load a program.

    Raises:
        ModelError: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise ModelError(f"no file {show_path(path)}; save a program with torch.export.save(program, path).")
    import transformers.modeling_outputs  # noqa: F401 - a program may give one, which must be known before it is read

    if not zipfile.is_zipfile(path):
        raise ModelError(
            f"{show_path(path)} is no file of torch.export.save, or only a part of one: it is no whole zip archive."
        )
    reasons: list[str] = []
    log = logging.getLogger("torch.export")  # torch logs the reason here, with its stack, and raises without it

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            reasons.append(str(record.exc_info[1]))
        return not record.exc_info

    log.addFilter(keep)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch before 2.12 reads weights so
            return torch.export.load(path)
    except Exception as error:  # archives, pickles and schemas fail with errors of every kind
        reason = (reasons or [str(error)])[0].rstrip(". ")
        raise ModelError(
            f"cannot read {show_path(path)} as a program of torch.export.save: {reason}. Export "
            f"the model again with this version of torch, {torch.__version__}, since others may write other files; and "
            "on the CPU, since weights saved from a GPU need that GPU when they are read, and gen moves the program."
        ) from error
    finally:
        log.removeFilter(keep)
