"""Compares recorded texts with those of another run, or with what a model makes now: `gen.diff`."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, inf
from os import PathLike
from typing import Any

from gen.completions import Receipt
from gen.errors import ArgumentError, show
from gen.loop.prefixes.columns import common
from gen.models.base import Model
from gen.receipts.checks import Difference, Kind, Verification
from gen.receipts.reading import listed, unlike
from gen.receipts.verifying import verify

_SHOWN = 24  # characters of a text around the place where two part
_KINDS: tuple[Kind, ...] = ("equal", "near tie", "different")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A text of the old set, and what has become of it.

    Attributes:
        number: of the old receipt, from 0.
        kind: see `Verification`; two recorded texts are equal or different.
        setting: how its tokens were chosen, in words.
        difference: the first token that differs; None for an equal text.
        words: the difference in words; "" for an equal text.
        changed: see `Verification`.
        verification: if it was compared with a model.
    """

    number: int
    kind: Kind
    setting: str
    difference: Difference | None
    words: str
    changed: Mapping[str, tuple[Any, Any]]
    verification: Verification | None = None

    def __str__(self) -> str:
        """A line of JSON."""
        told = {name: value for name, value in asdict(self).items() if name != "verification"}
        if self.verification is not None:
            told |= {
                "ties": self.verification.ties,
                "tokens": self.verification.tokens,
                "logprob_difference": self.verification.logprob_difference,
                "tolerance": self.verification.tolerance,
            }
        if self.difference is not None and self.difference.margin == inf:
            told["difference"]["margin"] = None
        return json.dumps(told, ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class Diff:
    """What `gen.diff` found; `str` of it is a table of the settings, with a line for each text that is not equal.

    Attributes:
        texts: one for each receipt of the old set that the new set has too.
        missing, added: how many texts only the old set has, and only the new one.
    """

    texts: Sequence[Compared]
    missing: int = 0
    added: int = 0

    @property
    def same(self) -> bool:
        """Whether no text is different, and none is missing or added."""
        return not (self.missing or self.added or self.counts["different"])

    @property
    def counts(self) -> Counter[str]:
        """How many texts there are of each kind."""
        return Counter(one.kind for one in self.texts)

    @property
    def by_setting(self) -> dict[str, Counter[str]]:
        """The same for each setting."""
        found = defaultdict[str, Counter[str]](Counter)
        for one in self.texts:
            found[one.setting][one.kind] += 1
        return dict(found)

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """What has changed since a receipt was made, see `Verification`; of several changes the first one's values."""
        found: dict[str, tuple[Any, Any]] = {}
        for one in self.texts:
            found = {**one.changed, **found}
        return found

    def __str__(self) -> str:
        rows = [("setting", *_KINDS)]
        rows += [
            (setting, *(str(counts[kind]) for kind in _KINDS)) for setting, counts in sorted(self.by_setting.items())
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            )
            for row in rows
        ]
        lines += [f"text {one.number}: {one.kind}, {one.words}" for one in self.texts if one.kind != "equal"]
        lines += [
            f"{count} of the texts are only in the {name} set"
            for name, count in (("old", self.missing), ("new", self.added))
            if count
        ]
        lines += [f"{name} was {show(old)}, is {show(new)}" for name, (old, new) in self.changed.items()]
        return "\n".join(lines)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw how many texts of each setting are still equal after so many tokens; needs the extra `bench`.

        Raises:
            ArgumentError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ArgumentError("a plot needs matplotlib: pip install 'gen-torch[bench]'") from error
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        places = [one.difference.at for one in self.texts if one.difference is not None]
        last = max(places, default=0) + 1
        for setting, counts in sorted(self.by_setting.items()):
            ends = [
                one.difference.at
                for one in self.texts
                if one.setting == setting and one.kind == "different" and one.difference is not None
            ]
            shares = [1 - sum(end < place for end in ends) / counts.total() for place in range(last + 1)]
            axes.step(range(last + 1), shares, where="post", label=setting)
        axes.set(xlabel="tokens", ylabel="share of texts that are still equal", ylim=(0, 1.05))
        axes.legend(fontsize="small")
        figure.savefig(path)


def diff(old: Sequence[Receipt], new: Sequence[Receipt] | Model) -> Diff:
    """Compare recorded texts with those of another run, or with what a model makes of the same requests now.

    Args:
        old: receipts.
        new: receipts, whose texts are compared with the old ones of the same prompt tokens, images, seed and sample, of
            several with those of the same settings; or a model, which verifies the old ones. Only a model can tell a
            near tie.
    Returns:
        What is equal and what differs, by setting, and the first token that differs in each text.
    Raises:
        ArgumentError: `old` or `new` has something else; or as `gen.verify`.
        ConstraintError, ModelError: as `gen.verify`.
    """
    old = listed("diff", old)
    if isinstance(new, Model):
        found = verify(new, old)
        return Diff(texts=[_verified(new, *one) for one in zip(range(len(old)), old, found, strict=True)])
    new = listed("diff", new)
    waiting = defaultdict[Any, list[Receipt]](list)
    for receipt in new:
        waiting[_key(receipt)].append(receipt)
    compared: dict[int, Compared] = {}
    for other_settings in (False, True):  # of texts with one key, those of the same settings belong together
        for number, receipt in enumerate(old):
            of_key = waiting[_key(receipt)]
            pairs = [one for one in of_key if other_settings or _setting(one) == _setting(receipt)]
            if number not in compared and pairs:
                compared[number] = _paired(number, receipt, pairs[0])
                of_key.remove(pairs[0])
    texts = [compared[number] for number in sorted(compared)]
    return Diff(texts=texts, missing=len(old) - len(texts), added=len(new) - len(texts))


def words(model: Model, difference: Difference) -> str:
    """A difference in words: the place, both candidates with their probabilities, and the margin."""
    if difference.reason:
        return f"at token {difference.at}: {difference.reason}"
    names = []
    pairs = zip((difference.recorded, difference.found), difference.logprobs, strict=True)
    for token_id, logprob in pairs:
        name = "the end" if token_id is None else repr(model.tokenizer.decode([token_id])) + f" ({token_id})"
        names.append(name if logprob is None else f"{name}, probability {exp(logprob):.2%}")
    margin = "ruled out" if difference.margin == inf else f"margin {difference.margin:.3g}"
    return f"at token {difference.at}: recorded {names[0]}; found {names[1]}; {margin}"


def _verified(model: Model, number: int, receipt: Receipt, found: Verification) -> Compared:
    return Compared(
        number=number,
        kind=found.kind,
        setting=_setting(receipt),
        difference=found.difference,
        words="" if found.difference is None else words(model, found.difference),
        changed=found.changed,
        verification=found,
    )


def _paired(number: int, old: Receipt, new: Receipt) -> Compared:
    """Two recorded texts of the same prompt and seed."""
    then, now = (
        {**one.model, **one.versions, "sampler": one.sampler, "settings": one.settings, "output_type": one.output_type}
        for one in (old, new)
    )
    equal = (old.token_ids, old.text, old.finish_reason) == (new.token_ids, new.text, new.finish_reason)
    difference = None if equal else _first_difference(old, new)
    return Compared(
        number=number,
        kind="equal" if equal else "different",
        setting=_setting(old),
        difference=difference,
        words="" if difference is None else difference.reason,
        changed=unlike(then, now),
    )


def _first_difference(old: Receipt, new: Receipt) -> Difference:
    """Where two recorded texts part. Receipts have no tokenizer, so the words are those of the texts."""
    at, parted = common(old.token_ids, new.token_ids), common(old.text, new.text)
    tokens, logprobs, words = [], list[float | None](), []
    for name, one in (("was", old), ("is", new)):
        goes_on = at < len(one.token_ids)
        tokens.append(one.token_ids[at] if goes_on else None)
        logprobs.append(one.logprobs[at] if goes_on else None)
        chance = f"probability {exp(one.logprobs[at]):.2%}" if goes_on else f"the end, {one.finish_reason}"
        words.append(f"it {name} {show(one.text[parted : parted + _SHOWN])} ({chance})")
    before = show(old.text[max(0, parted - _SHOWN) : parted])
    return Difference(
        at=at,
        recorded=tokens[0],
        found=tokens[1],
        margin=inf,
        logprobs=(logprobs[0], logprobs[1]),
        reason=f"at token {at}, after {before}: {', '.join(words)}",
    )


def _key(receipt: Receipt) -> tuple[Any, ...]:
    images = () if receipt.images is None else tuple(receipt.images["images"])
    return tuple(receipt.prompt_ids), images, receipt.seed, receipt.sample


def _setting(receipt: Receipt) -> str:
    """How a text's tokens were chosen, as a call of `gen.samplers`, and its kind of output type."""
    given = ", ".join(f"{name}={show(value)}" for name, value in receipt.sampler.items() if name != "name")
    kind = "" if receipt.output_type is None else f", {receipt.output_type[0]} on the {receipt.engine} engine"
    return f"{receipt.sampler['name']}({given}){kind}"
