"""The texts of an earlier job, by the ids of their rows: drafts for the texts of this one."""

import json
from pathlib import Path

from gen.offline.parts import Result


class OldTexts:
    """Finds texts in the parts of a job; it keeps only where each row's result is.

    Raises:
        OSError: a part cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, tuple[Path, int]] = {}
        for path in sorted(folder.glob("part-*.jsonl")):
            place = 0
            for line in path.read_bytes().splitlines(keepends=True):
                result = json.loads(line)
                row_id = result.get("custom_id", result["id"])
                self._places[row_id] = path, place
                place += len(line)

    def text(self, row_id: str) -> str | None:
        """The text of a row, or the first of several; None if the job has none."""
        if row_id not in self._places:
            return None
        path, place = self._places[row_id]
        with path.open("rb") as file:
            file.seek(place)
            return _text(json.loads(file.readline()))


def _text(result: Result) -> str | None:
    text = result.get("text")
    for first in result.get("texts") or ():
        text = text or first
    body = (result.get("response") or {}).get("body", {})
    for choice in body.get("choices", ()):
        text = text or choice["message"].get("content")
    return text if isinstance(text, str) else None
