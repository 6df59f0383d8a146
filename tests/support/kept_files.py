"""What is in a folder, byte by byte, while a bridge's sandboxes are still being removed from it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def kept_files(folder: Path) -> dict[Path, bytes]:
    """The content of every file in a folder, at any depth. What is removed while it is looked at isn't kept."""
    files = {}
    # Unlike `rglob`, this passes over folders that are removed meanwhile.
    for inside, _, names in os.walk(folder):
        for path in (Path(inside, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file():
                    files[path] = path.read_bytes()
    return files
