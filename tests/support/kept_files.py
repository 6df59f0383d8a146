"""What is in a folder, byte by byte, while a bridge's sandboxes are still being removed from it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def kept_files(folder: Path) -> dict[Path, bytes]:
    """The content of every file in a folder, at any depth. What is removed while it is looked at isn't kept."""
    files = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                files[path] = path.read_bytes()
    return files
