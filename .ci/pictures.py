"""Draws the pictures of the documentation, as SVG: `python .ci/pictures.py` writes them anew.

What they show is worked out here from the numbers that their pages give to follow with a pencil.
"""

from collections.abc import Sequence
from math import log
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "inside"
TOKENS = {"cat": 8.0, "dog": 4.0, "owl": 2.0, "emu": 2.0}  # masses: exp(logit)
NOISE = {"cat": 1.2, "dog": 0.3, "owl": 0.9, "emu": 0.1}  # exponential, of mean 1
KEPT, DROPPED, INK, PAPER, DEVICE = "#3f51b5", "#c5cae9", "#222222", "#ffffff", "#eef1fb"


def top_k(masses: dict[str, float], k: int) -> set[str]:
    """The k largest, ties at the k-th included."""
    least = sorted(masses.values(), reverse=True)[k - 1]
    return {token for token, mass in masses.items() if mass >= least}


def top_p(masses: dict[str, float], p: float) -> set[str]:
    """From the largest down, as long as what came before has less than the share p."""
    kept, reached = set(), 0.0
    for token, mass in sorted(masses.items(), key=lambda item: -item[1]):
        if reached < p * sum(masses.values()):
            kept.add(token)
        reached += mass
    return kept


def min_p(masses: dict[str, float], p: float) -> set[str]:
    """At least p times the largest."""
    return {token for token, mass in masses.items() if mass >= p * max(masses.values())}


def arrivals(masses: dict[str, float], noise: dict[str, float]) -> dict[str, float]:
    """When each token arrives: its noise divided by its mass."""
    return {token: noise[token] / mass for token, mass in masses.items()}


def text(x: float, y: float, words: str, *, size: int = 14, anchor: str = "middle", color: str = INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, *, stroke: str = "none", round: int = 0) -> str:
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round}"'
    return f'<rect {place} fill="{fill}" stroke="{stroke}"/>'


def line(*points: tuple[float, float], arrow: bool = False, dashed: bool = False) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    extra = (' marker-end="url(#arrow)"' if arrow else "") + (' stroke-dasharray="5 4"' if dashed else "")
    return f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.3"{extra}/>'


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    size = 'markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"'
    arrow = f'<marker id="arrow" {size}><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker>'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="sans-serif">',
        f"<title>{title}</title>",
        f"<defs>{arrow}</defs>",
        box(0, 0, width, height, PAPER, round=8),
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def cuts() -> str:
    """What each cut keeps of the four tokens."""
    panels = {
        "all": (set(TOKENS), "16 in all"),
        "top-k 2": (top_k(TOKENS, 2), "the two largest"),
        "top-p 0.7": (top_p(TOKENS, 0.7), "8 + 4 reach 0.7 x 16 = 11.2"),
        "min-p 0.4": (min_p(TOKENS, 0.4), "at least 0.4 x 8 = 3.2"),
    }
    parts = []
    for number, (name, (kept, why)) in enumerate(panels.items()):
        left = 20 + number * 185
        parts += [text(left + 80, 26, name, size=16), text(left + 80, 46, why, size=11)]
        for place, (token, mass) in enumerate(TOKENS.items()):
            x, height = left + 8 + place * 38, mass * 15
            parts.append(box(x, 190 - height, 30, height, KEPT if token in kept else DROPPED))
            parts += [text(x + 15, 185 - height, f"{mass:g}", size=12), text(x + 15, 208, token, size=12)]
        if name.startswith("min-p"):
            parts.append(line((left, 190 - 3.2 * 15), (left + 160, 190 - 3.2 * 15), dashed=True))
    return picture(760, 222, "Four tokens, and what top-k, top-p and min-p keep of them", parts)


def race() -> str:
    """Who arrives first, with the noise of the page."""
    times = arrivals(TOKENS, NOISE)
    first = min(times, key=lambda token: times[token])
    parts = [text(250, 30, "start", size=12), line((250, 40), (250, 200))]
    for lane, (token, time) in enumerate(times.items()):
        y, end = 60 + lane * 40, 250 + time * 1000
        sum_ = f"{token}: {NOISE[token]:g} / {TOKENS[token]:g} = {time:g}"
        parts += [text(20, y + 5, sum_, anchor="start"), line((250, y), (end, y))]
        parts.append(f'<circle cx="{end:g}" cy="{y}" r="7" fill="{KEPT if token == first else DROPPED}"/>')
        if token == first:
            parts.append(text(end + 16, y + 5, "first", anchor="start", color=KEPT))
    return picture(760, 220, "A race of four tokens: the smallest time wins", parts)


def data() -> str:
    """The way of the data."""
    parts = [
        box(20, 104, 720, 150, DEVICE, round=8),
        text(30, 246, "the Decoder, on the device", size=12, anchor="start"),
    ]
    boxes = {
        "prompt": (30, 30),
        "Job": (185, 30),
        "Scheduler": (340, 30),
        "Rows": (30, 120),
        "logits": (185, 120),
        "stages": (340, 120),
        "Search": (495, 120),
        "next token": (620, 120),
        "ring": (620, 190),
        "text": (620, 290),
        "value": (465, 290),
    }
    for name, (x, y) in boxes.items():
        parts += [box(x, y, 110, 36, PAPER, stroke=KEPT, round=6), text(x + 55, y + 23, name)]
    for (x, y), (to_x, to_y) in (((140, 48), (185, 48)), ((295, 48), (340, 48)), ((140, 138), (185, 138))):
        parts.append(line((x, y), (to_x, to_y), arrow=True))
    parts += [line((295, 138), (340, 138), arrow=True), line((450, 138), (495, 138), arrow=True)]
    parts += [line((605, 138), (620, 138), arrow=True), line((675, 156), (675, 190), arrow=True)]
    parts += [line((675, 226), (675, 290), arrow=True), line((620, 308), (575, 308), arrow=True)]
    parts.append(line((395, 66), (395, 84), (85, 84), (85, 120), arrow=True))
    parts.append(line((620, 150), (608, 150), (608, 176), (85, 176), (85, 156), arrow=True))
    parts.append(text(346, 194, "the next step, without a word to the host", size=12))
    parts.append(text(395, 214, "stages: penalties, your processors, the constraint", size=12))
    parts.append(text(664, 274, "one step late", size=12, anchor="end"))
    return picture(760, 340, "The way of the data, from a prompt to a value", parts)


FED = ("Helen", " Whit", "combe", " said")  # the newest token, and three drafts
DRAWN = (" Whit", "combe", " told", " that")  # what a plain step would choose after each


def right_drafts(fed: Sequence[str], drawn: Sequence[str]) -> int:
    """How many drafts are what was chosen after the token before them, up to the first that is not."""
    agree = [draft == token for draft, token in zip(fed[1:], drawn, strict=False)]
    return [*agree, False].index(False)


def wide_step() -> str:
    """A step that reads the newest token and three drafts."""
    right = right_drafts(FED, DRAWN)
    rows = {"it reads": (FED, 40), "it chooses": (DRAWN, 130)}
    parts = []
    for name, (tokens, y) in rows.items():
        parts.append(text(20, y + 23, name, anchor="start"))
        for place, token in enumerate(tokens):
            counts = place <= right
            parts.append(box(140 + place * 150, y, 110, 36, KEPT if counts else DROPPED, round=6))
            parts.append(text(195 + place * 150, y + 23, token.strip(), color=PAPER if counts else INK))
    for place in range(len(FED)):
        parts.append(line((195 + place * 150, 76), (195 + place * 150, 130), arrow=True))
    for place in range(len(FED) - 1):
        start, end = (250 + place * 150, 148), (290 + place * 150, 58)
        parts.append(line(start, end, arrow=place < right, dashed=place >= right))
    parts += [text(195, 30, "the newest token", size=12), text(495, 30, "three drafts", size=12)]
    parts.append(text(140, 196, f"{right + 1} new tokens: {right} drafts that were right", size=12, anchor="start"))
    parts.append(text(140, 214, "and the first token that was not drafted", size=12, anchor="start"))
    parts.append(text(700, 196, "forgotten: what follows a wrong draft", size=12, anchor="end"))
    return picture(760, 230, "One step that reads three drafts and makes three tokens", parts)


RECORDED = (" cat", " emu", " dog")  # after "The": what a receipt says
RACES = (NOISE | {"cat": 0.2}, NOISE, NOISE)  # the noise of each key; the masses are the same each time


def receipt() -> str:
    """A recorded text that is read at once, and the race of each place with its own key."""
    read = ("The", *RECORDED[:-1])
    rows = (("it reads", 40), ("key of the draw", 100), ("it chooses", 160), ("recorded", 220))
    parts = [text(20, y + 23, name, anchor="start") for name, y in rows]
    for place, (token, recorded, noise) in enumerate(zip(read, RECORDED, RACES, strict=True)):
        x = 160 + place * 190
        times = arrivals(TOKENS, noise)
        chosen = min(times, key=lambda name: times[name])
        right = chosen == recorded.strip()
        parts += [box(x, 40, 110, 36, KEPT, round=6), text(x + 55, 63, token.strip(), color=PAPER)]
        parts += [box(x, 100, 110, 36, DEVICE, stroke=KEPT, round=6), text(x + 55, 123, f"k(seed, {place})")]
        parts += [box(x, 160, 110, 36, KEPT, round=6), text(x + 55, 183, chosen, color=PAPER)]
        fill, color = (KEPT, PAPER) if right else (DROPPED, INK)
        parts += [box(x, 220, 110, 36, fill, round=6), text(x + 55, 243, recorded.strip(), color=color)]
        parts += [line((x + 55, 76), (x + 55, 100), arrow=True), line((x + 55, 136), (x + 55, 160), arrow=True)]
        late = log(times[recorded.strip()] / times[chosen])
        told = "equal" if right else f"late by ln({times[recorded.strip()]:.3f} / {times[chosen]:.3f}) = {late:.2f}"
        parts.append(text(x + 55, 278, told, size=12))
    return picture(760, 296, "Three tokens of a recorded text, read at once and checked each with its own key", parts)


PICTURES = {
    "cuts.svg": cuts,
    "race.svg": race,
    "data.svg": data,
    "wide_step.svg": wide_step,
    "receipt.svg": receipt,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
