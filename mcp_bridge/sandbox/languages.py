"""The languages that scripts may be written in, and what of memory they need besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Container

Language = Literal["python", "javascript"]

SHOWN: dict[Language, str] = {"python": "Python", "javascript": "JavaScript"}
"""Their names for people."""

JAVASCRIPT_SUFFIXES = frozenset({".js", ".mjs", ".cjs", ".jsx", ".ts", ".mts", ".cts", ".tsx"})
"""How the names of files end that hold JavaScript, or TypeScript."""

NODE_RESERVED_BYTES = 2 << 30
"""What rlimits leave to Node beyond the limit on memory, where they stand in for a control group.

V8 reserves 512 MiB for code, in the main thread and in each worker, as writable memory that it hardly touches. Where it
can't, it ends at once.
"""


def reserved_bytes(languages: Container[Language]) -> int:
    """What the rlimits of a sandbox for these languages leave beyond the limit on memory."""
    return NODE_RESERVED_BYTES if "javascript" in languages else 0


def language_of_file(name: str) -> Language:
    """The language of a script's file, by its name."""
    _, dot, suffix = name.rpartition(".")
    return "javascript" if dot + suffix.lower() in JAVASCRIPT_SUFFIXES else "python"
