"""Builds the documentation site into build/docs, and fails if the site has a fault.

Zensical itself finds broken links between pages, missing anchors and unknown cross references. Any other message of
Zensical and its parts counts as an error too, such as that a docstring names an argument that its function does not
have. Then the pages are read as a browser reads them: every file and anchor that they refer to must be there, and no
font, script, style or picture may come from another host.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "docs"
_EXPECTED = re.compile(r"Build started|No issues found|Build finished in .*|")
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
_LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload"}
_FROM_ELSEWHERE = ("mermaid", "glightbox", "pyodide")  # what Zensical's script fetches for elements of these classes
_IN_STYLES = re.compile(r"@import\s+[\"']?([^\"';)]+)|url\(\s*[\"']?([^\"')]+)")


class Page(HTMLParser):
    """What a page refers to.

    Attributes:
        anchors: its ids.
        links: where its links lead.
        loads: what a browser fetches to show it.
        classes: of its elements.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.classes: set[str] = set()
        self.unresolved = text.count("<autoref")
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.classes |= set(values.get("class", "").split())
        self.loads += styles(values.get("style", ""))
        if tag in _LOADS and _LOADS[tag] in values:
            self.loads.append(values[_LOADS[tag]])
        elif tag == "link" and _LOADING_LINKS & set(values.get("rel", "").split()):
            self.loads.append(values["href"])
        elif tag == "a" and "href" in values:
            self.links.append(values["href"])


def styles(text: str) -> list[str]:
    """What a style sheet fetches, but for what is written out in it."""
    found = (imported or url for imported, url in _IN_STYLES.findall(text))
    return [address.strip() for address in found if not address.startswith(("data:", "#"))]


def faults(site: Path) -> Iterator[str]:
    """The faults of a built site, one on each line."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in page.loads:
            yield from (f"{name}: {fault}" for fault in _fault_of_load(path, address, site))
        for address in page.links:
            target, anchor = _file(path, address, site), unquote(urlsplit(address).fragment)
            if target is not None and not target.is_file():
                yield f"{name}: a link leads nowhere: {address}"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{name}: a link leads to no anchor: {address}"
        for kind in _FROM_ELSEWHERE:
            if kind in page.classes:
                yield f"{name}: an element of class {kind}, whose script comes from another host"
        if page.unresolved:
            yield f"{name}: {page.unresolved} cross references lead nowhere"
    for path in sorted(site.rglob("*.css")):
        for address in styles(path.read_text(encoding="utf-8")):
            yield from (f"{path.relative_to(site)}: {fault}" for fault in _fault_of_load(path, address, site))


def _fault_of_load(page: Path, address: str, site: Path) -> Iterator[str]:
    parts = urlsplit(address)
    if parts.scheme == "data":
        return
    if parts.scheme or parts.netloc:
        yield f"comes from another host: {address}"
    elif (target := _file(page, address, site)) is not None and not target.is_file():
        yield f"is not there: {address}"


def _file(page: Path, address: str, site: Path) -> Path | None:
    """The file of the site that an address on a page means; None for another host."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    if not path:
        return page
    target = (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()
    return target / "index.html" if target.is_dir() else target


def build() -> list[str]:
    """Build the site; what was said beside the usual, a line each."""
    program = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [program, "build", "--strict", "--clean"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    text, _, traceback = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).partition("Traceback (most recent call last):\n")
    said = [line for line in text.splitlines() if not _EXPECTED.fullmatch(line)] or traceback.splitlines()
    return said or ([f"zensical ended with {done.returncode}"] if done.returncode else [])


def main() -> int:
    found = build() or list(faults(SITE))
    print(*found, sep="\n", file=sys.stderr, end="\n" if found else "")
    if not found:
        print(f"{SITE.relative_to(ROOT) / 'index.html'}: {sum(1 for _ in SITE.rglob('*.html'))} pages, no faults")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
