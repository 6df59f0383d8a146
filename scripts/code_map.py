"""Writes docs/code-map.md: every module by its package, each with the first sentence of its docstring."""

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs/code-map.md"

_INTRODUCTION = """\
<!-- Made by `python scripts/code_map.py`: change the modules' docstrings, not this file. -->

# Code map

Every module and what it does, by package. [ARCHITECTURE.md](../ARCHITECTURE.md) has the layers.
"""


def packages(root: Path) -> dict[str, dict[str, str]]:
    """What each module does, by its package's path below `root` (`.` for `root` itself) and its name."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(root.rglob("*.py")):
        if path.name not in {"__init__.py", "_version.py"}:
            found.setdefault(path.parent.relative_to(root).as_posix(), {})[path.stem] = _first_sentence(path)
    return dict(sorted(found.items()))


def page() -> str:
    """The text of docs/code-map.md."""
    root = REPOSITORY / "mcp_bridge"
    parts = [_INTRODUCTION]
    for package, modules in packages(root).items():
        where = root / package
        rows = ["| module | what it does |", "|---|---|"]
        rows += [f"| `{name}` | {sentence} |" for name, sentence in modules.items()]
        title = f"`{where.relative_to(REPOSITORY).as_posix()}/`"
        parts.append("\n".join([f"## {title}\n", f"{_first_sentence(where / '__init__.py')}\n", *rows, ""]))
    return "\n".join(parts)


def _first_sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, or of the comment that it begins with, up to its first full stop."""
    text = path.read_text(encoding="utf-8")
    comment = re.match(r"(?:# ?.*\n)+", text)
    about = re.sub(r"(?m)^# ?", "", comment[0]) if comment else ast.get_docstring(ast.parse(text)) or ""
    paragraph = " ".join(about.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0].replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
