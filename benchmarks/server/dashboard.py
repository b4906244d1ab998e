"""Draws what the dashboard in docs/guides/gen-dashboard.json shows of a real run of `gen serve`, without Grafana.

    python -m benchmarks.server.dashboard --seconds 240 --out docs/guides/gen-dashboard.svg

Clients ask in waves. The server's /metrics are read every four seconds, the dashboard's own expressions are worked out
from them as Prometheus does, but over the last 30 seconds instead of five minutes, and drawn with matplotlib.
"""

import json
import math
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.measuring import read_arguments
from benchmarks.server.asking import COMPLETIONS, Numbers, ask, metrics
from benchmarks.server.serving import serving

DASHBOARD = Path(__file__).resolve().parents[2] / "docs" / "guides" / "gen-dashboard.json"
EVERY, WINDOW = 4.0, 30.0  # seconds
WORDS = ["fox", "river", "stone", "morning", "lantern", "quiet", "garden", "blue", "winter", "teacher", "candle"]


class Prometheus:
    """Samples of some minutes, and the few forms of expressions that the dashboard has."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.samples: list[Numbers] = []

    def value(self, expression: str, at: int) -> dict[str, float]:
        """The series of an expression at a sample, by the label that it is summed by, or ""."""
        if " / " in expression:
            above, below = (self.value(part, at).get("", 0.0) for part in expression.split(" / "))
            return {"": above / below} if below else {}
        if found := re.fullmatch(r"histogram_quantile\((.*?), sum by \(le\) \(rate\((.*)\[5m\]\)\)\)", expression):
            counts = sorted((math.inf if le == "+Inf" else float(le), n) for le, n in self._rate(found[2], at, "le"))
            return quantile(float(found[1]), counts)
        if found := re.fullmatch(r"sum(?: by \((\w+)\))? \(rate\((.*)\[5m\]\)\)|sum\(rate\((.*)\[5m\]\)\)", expression):
            return dict(self._rate(found[2] or found[3], at, found[1] or ""))
        found = re.fullmatch(r"(?:sum|max)\((.*)\)", expression)
        assert found is not None, expression
        return {"": sum(value for (name, _), value in self.samples[at].items() if name == found[1])}

    def _rate(self, name: str, at: int, by: str) -> list[tuple[str, float]]:
        first = next(one for one, then in enumerate(self.times) if then >= self.times[at] - WINDOW)
        passed, summed = self.times[at] - self.times[first], dict[str, float]()
        for (known, labels), value in self.samples[at].items():
            if known == name and passed:
                key = dict(labels).get(by, "")
                more = value - self.samples[first].get((known, labels), 0.0)
                summed[key] = summed.get(key, 0.0) + more / passed
        return [*summed.items()]


def quantile(part: float, counts: list[tuple[float, float]]) -> dict[str, float]:
    """Prometheus' histogram_quantile: linear within a bucket."""
    if not counts or not counts[-1][1]:
        return {}
    wanted, below, lower = part * counts[-1][1], 0.0, 0.0
    for upper, count in counts:
        if count >= wanted:
            inside = (wanted - below) / (count - below) if count > below else 1.0
            return {"": lower if upper == math.inf else lower + (upper - lower) * inside}
        below, lower = count, upper
    return {}


def client(url: str, number: int, end: float) -> None:
    """Asks one thing after the other: alone at first, with others in the middle of the run, and some leave early."""
    draw, begun = random.Random(number), time.monotonic()
    while (now := time.monotonic()) < end:
        if number >= 2 + 30 * math.sin(math.pi * (now - begun) / (end - begun)) ** 2:
            time.sleep(1)
            continue
        prompt = "Once upon a time " * draw.randint(1, 8) + " ".join(draw.choices(WORDS, k=draw.randint(2, 60)))
        fields = {"prompt": prompt, "max_tokens": draw.randint(8, 120), "seed": draw.randint(0, 999)}
        if draw.random() < 0.1:
            fields |= {"structured_outputs": {"regex": f"[a-z]{{{draw.randint(3, 30)}}}"}}
        if draw.random() < 0.03:
            fields |= {"temperature": 9}  # which is refused
        ask(url, COMPLETIONS, fields, leave=draw.random() < 0.05)
        time.sleep(draw.random())


def draw_panels(found: Prometheus, said: str, out: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # texts stay texts
    from matplotlib import pyplot

    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    figure, places = pyplot.subplots(len(panels) // 2, 2, figsize=(12, 2.1 * len(panels) / 2), layout="constrained")
    minutes = [(then - found.times[0]) / 60 for then in found.times]
    for panel, axes in zip(panels, places.flat, strict=True):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            values = [found.value(target["expr"], at) for at in range(len(minutes))]
            for key in sorted({key for one in values for key in one}):
                name = target.get("legendFormat", "").replace("{{status}}", key)
                axes.plot(minutes, [one.get(key, math.nan) for one in values], label=name, linewidth=1.2)
        axes.set_title(f"{panel['title']}{'' if unit == 'short' else f' ({unit})'}", fontsize=9, loc="left")
        axes.tick_params(labelsize=7)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper left", frameon=False)
    figure.supxlabel(f"minutes. {said}", fontsize=8)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    given = read_arguments(__doc__, model="demo", seconds=240.0, clients=32, out=DASHBOARD.with_suffix(".svg"))
    found, end = Prometheus(), 0.0
    with serving(given.model, "--rows", 8, "--log-level", "warning") as (url, _):
        end = time.monotonic() + given.seconds
        clients = [threading.Thread(target=client, args=(url, number, end)) for number in range(given.clients)]
        for one in clients:
            one.start()
        while time.monotonic() < end:
            found.times.append(time.monotonic())
            found.samples.append(metrics(url))
            time.sleep(EVERY)
        for one in clients:
            one.join()
    said = f"gen serve {given.model} on two shared cores, drawn by matplotlib from /metrics, rates over {WINDOW:.0f} s"
    draw_panels(found, said, given.out)


if __name__ == "__main__":
    main()
