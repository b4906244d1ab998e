"""How files import each other: data goes one way, so no import runs upward, and no circle of imports spans folders.

Every import counts, also those within functions and those only for type checkers. `gen/__init__.py` is left out: it
only names what is public.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "gen").rglob("*.py")
    if path != ROOT / "gen" / "__init__.py"
}

LEVELS = (  # in the order of the data: what is read, the model, the logits, the loop, the calls
    {"arguments", "completions", "devices", "errors", "runtime"},
    {"tokens"},
    {"attention", "samplers"},
    {"hints"},
    {"models"},
    {"constraints", "tools"},
    {"requests"},
    {"stages"},
    {"loop", "receipts", "scoring"},
    {"api", "calls", "embedding", "engine"},
    {"doctor", "integrations", "offline", "server", "testing"},
    {"cli"},
    {"__main__"},
)


def imported(path: Path) -> set[str]:
    """The files of gen that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in FILES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & FILES.keys()


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Sets of files that all import each other, directly or through others, found from what each file can reach."""
    reached = {name: set(found) for name, found in edges.items()}
    for through in edges:
        for found in reached.values():
            if through in found:
                found |= reached[through]
    found_circles: list[set[str]] = []
    for name in edges:
        if name in reached[name] and not any(name in circle for circle in found_circles):
            found_circles.append({other for other in reached[name] if name in reached[other]})
    return found_circles


def test_no_circle_goes_from_folder_to_folder() -> None:
    edges = {name: imported(path) - {name} for name, path in FILES.items()}
    across = [circle for circle in circles(edges) if len({FILES[name].parent for name in circle}) > 1]
    assert across == []


def test_no_import_runs_upward() -> None:
    """A folder, or a file beside the folders, imports only from its own level and the levels above it in `LEVELS`."""
    found = {path.relative_to(ROOT / "gen").parts[0].removesuffix(".py") for path in FILES.values()} - {"__init__"}
    assert found == set().union(*LEVELS)
    level = {part: number for number, parts in enumerate(LEVELS) for part in parts}
    upward = [
        f"{name} imports {other}"
        for name, path in FILES.items()
        for other in imported(path)
        if level[name.split(".")[1]] < level[other.split(".")[1]]
    ]
    assert upward == []
