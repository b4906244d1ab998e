"""The smallest `gen.models.base.Model`: it writes what a test tells it to."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gen.devices import Placement
from gen.models.base import Model, Rows
from gen.models.idle_rows import Idle
from gen.tokens.tokenizers import Tokenizer
from tests.helpers.tokenizers import EOS, byte_tokenizer


class ScriptedModel(Model):
    """A `gen.models.base.Model` that writes its script: a byte at each step, then the eos token; `read` has the prompts
    that were read."""

    rows: "type[ScriptedRows]"  # of which class its rows are

    def __init__(
        self, script: Callable[[str], Sequence[int]] | str, *, context_length: int = 1000, vocab_size: int = 259
    ) -> None:
        self.tokenizer = Tokenizer(byte_tokenizer())
        self.placement = Placement(input_device=torch.device("cpu"), logits_device=torch.device("cpu"))
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.eos_token_ids: tuple[int, ...] = (EOS,)
        self.steps = 0
        self.idle: Idle[object] = Idle()
        self.idle.token_bytes = {}  # so that no row is made to see it
        self._script = script
        self.read: list[str] = []

    def new_rows(self, count: int, length: int) -> "ScriptedRows":
        return self.rows(self, count, length)

    def script(self, prompt_ids: Sequence[int]) -> list[int]:
        prompt = self.tokenizer.decode(prompt_ids)
        self.read.append(prompt.removeprefix("<s>"))
        return [*(self._script.encode() if isinstance(self._script, str) else self._script(prompt)), EOS]


class ScriptedRows(Rows):
    """Rows that each write their script; the model's `steps` counts how often logits were asked for."""

    refillable = True
    whole_prompts = False

    def __init__(self, model: ScriptedModel, count: int, length: int) -> None:
        self.count, self.length = count, length
        self._model = model
        self._read: list[list[int]] = [[] for _ in range(count)]  # the prompts
        self._scripts: list[list[int]] = [[EOS] for _ in range(count)]
        self._said = [0] * count

    def prefill(
        self, rows: slice, prompts: Sequence[Sequence[int]], starts: Sequence[int] = (), *_: object, **__: object
    ) -> Tensor:
        for row, prompt, start in zip(range(self.count)[rows], prompts, starts or [0] * len(prompts), strict=True):
            self._read[row] = [*self._read[row][:start], *prompt]
            self._scripts[row] = self._model.script(self._read[row])
            self._said[row] = 0
        return self.logits(range(self.count)[rows])

    def logits(self, rows: Sequence[int]) -> Tensor:
        self._model.steps += 1
        logits = torch.full((len(rows), self._model.vocab_size), -torch.inf)
        for number, row in enumerate(rows):
            script = self._scripts[row]
            logits[number, script[min(self._said[row], len(script) - 1)]] = 0.0
        return logits

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        rows = range(len(token_ids))
        for row in rows:
            self._said[row] += 1
        return self.logits(rows)

    def reorder(self, ancestors: Tensor, view: int) -> None:
        sources = ancestors.tolist()
        self._read[: len(sources)] = [self._read[row] for row in sources]
        self._scripts[: len(sources)] = [self._scripts[row] for row in sources]
        self._said[: len(sources)] = [self._said[row] for row in sources]

    def copy(self, source: int, targets: slice, view: int) -> None:
        for target in range(self.count)[targets]:
            self._read[target] = self._read[source]
            self._scripts[target] = self._scripts[source]
            self._said[target] = self._said[source]

    def grow(self, length: int) -> None:
        self.length = length


ScriptedModel.rows = ScriptedRows
