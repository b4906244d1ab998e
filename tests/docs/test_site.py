"""The documentation site: its reference has every public name, and its check finds errors planted in a page."""

import runpy
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gen
import gen.samplers
import virtual_gpus

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CHECK = runpy.run_path(str(ROOT / ".ci" / "docs.py"))
faults: Callable[[Path], Iterator[str]] = CHECK["faults"]

WHOLE = '<html><body><h1 id="top">A page</h1><a href="#top">up</a><img src="picture.svg"></body></html>'
PLANTED = {
    '<a href="nowhere.html">': "leads nowhere: nowhere.html",
    '<a href="other.html#nothing">': "leads to no anchor: other.html#nothing",
    '<script src="https://cdn.example/x.js"></script>': "comes from another host: https://cdn.example/x.js",
    '<script src="//cdn.example/x.js"></script>': "comes from another host: //cdn.example/x.js",
    '<link rel="stylesheet" href="https://fonts.example/css">': "comes from another host: https://fonts.example/css",
    '<link rel="preconnect" href="https://fonts.example">': "comes from another host: https://fonts.example",
    '<img src="https://img.example/x.png">': "comes from another host: https://img.example/x.png",
    '<p style="background: url(https://img.example/x.png)">': "comes from another host: https://img.example/x.png",
    '<img src="missing.svg">': "is not there: missing.svg",
    '<pre class="mermaid">': "class mermaid",
    "<autoref>": "cross references lead nowhere",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "picture.svg").write_text("<svg/>")
    (tmp_path / "other.html").write_text(WHOLE)
    (tmp_path / "page.html").write_text(WHOLE)
    (tmp_path / "main.css").write_text("p { background: url(data:image/png;base64,AAAA), url(picture.svg) }")
    return tmp_path


def test_a_whole_site_has_no_faults(site: Path) -> None:
    (site / "page.html").write_text(
        WHOLE + '<a href="other.html#top">there</a><a href="https://example.org">elsewhere</a>'
    )
    assert list(faults(site)) == []


@pytest.mark.parametrize(("planted", "fault"), PLANTED.items(), ids=range(len(PLANTED)))
def test_a_planted_fault_is_found(planted: str, fault: str, site: Path) -> None:
    (site / "page.html").write_text(WHOLE + planted)
    [found] = faults(site)
    assert found.startswith("page.html: ") and fault in found


def test_a_font_in_a_style_sheet_is_found(site: Path) -> None:
    (site / "main.css").write_text("@import 'https://fonts.example/a.css'; p { src: url(\"https://fonts.example/b\") }")
    assert [fault.split()[-1] for fault in faults(site)] == ["https://fonts.example/a.css", "https://fonts.example/b"]


def test_the_reference_has_every_public_name() -> None:
    named = {
        line.removeprefix("::: ")
        for page in (DOCS / "reference").glob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    }
    modules: dict[str, Any] = {"gen": gen, "gen.samplers": gen.samplers, "virtual_gpus": virtual_gpus}
    public = {f"{module}.{name}" for module, found in modules.items() for name in found.__all__}
    aliases = {f"gen.samplers.{name}" for name in ("beam_search", "greedy", "multinomial")}
    assert public - named - set(modules) == aliases  # the page names these


def test_every_page_is_in_the_navigation() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]

    def pages(part: Any) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        else:
            for inner in part.values() if isinstance(part, dict) else part:
                yield from pages(inner)

    assert sorted(pages(nav)) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
