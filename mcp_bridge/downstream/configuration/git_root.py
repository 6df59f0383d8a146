"""The root of the git repository that a folder belongs to, to which clients bind what they keep for a project."""

from __future__ import annotations

import os
from pathlib import Path

from mcp_bridge.workspace.folder_content import read_regular

_MAX_GIT_BYTES = 4096
"""Size limit of a `.git` file and of the files that it refers to."""


def git_root(folder: Path) -> Path | None:
    """The root of the git repository that contains a folder; for a worktree, the root of its main repository.

    The folder's own claims aren't believed: a worktree counts only if its repository names it too, as git writes it.
    """
    here = folder.resolve()
    for place in (here, *here.parents):
        marker = place / ".git"
        if os.path.lexists(marker):
            try:
                return place if marker.is_dir() else _repository_of(marker) or place
            except (OSError, RuntimeError, ValueError):
                # A symlink loop, or not a path: the folder belongs to no repository.
                return place
    return None


def claude_code_projects(folder: Path) -> list[str]:
    """The keys in `projects` of Claude Code's file under which it keeps what is for a folder, its local scope."""
    places = (folder, folder.resolve(), git_root(folder))
    return list(dict.fromkeys(str(place) for place in places if place is not None))


def _repository_of(marker: Path) -> Path | None:
    """The main working tree of a worktree's `.git` file, if the two refer to each other."""
    word, _, location = _git_line(marker).partition(": ")
    if word != "gitdir" or not location:
        return None
    private = (marker.parent / location).resolve()
    common = (private / _git_line(private / "commondir")).resolve()
    named = Path(_git_line(private / "gitdir"))
    mutual = named.is_absolute() and named.resolve() == marker.resolve()
    return common.parent if mutual and private.parent == common / "worktrees" and common.name == ".git" else None


def _git_line(path: Path) -> str:
    try:
        return read_regular(path, _MAX_GIT_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
