"""The project's pages, as the tests read them: their blocks, headings and links."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDES = ["README.md", *sorted(f"docs/{path.name}" for path in (REPOSITORY / "docs").glob("*.md"))]
"""What a user reads: the README first, then docs/."""

DOCUMENTS = [
    *GUIDES,
    *sorted({path.name for path in REPOSITORY.glob("*.md")} - {"README.md"}),
    "examples/README.md",
    "examples/clients/README.md",
    "examples/compose/README.md",
    "examples/team/README.md",
    "benchmarks/README.md",
]
"""Every page that links to others."""


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text("utf-8")


def blocks(page: str, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages, in order."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """What a link may name after `#`, by GitHub's rule for headings."""
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: str) -> list[tuple[str, str]]:
    """The links of a page into the repository: a path, empty for the page itself, and an anchor, maybe empty."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    return [tuple(target.partition("#")[::2]) for target in targets if not re.match(r"\w+:", target)]
