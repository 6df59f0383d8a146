"""Lock what the npm packages of a folder need, all the way down: `node_lock.py FOLDER...`, each with a package.json.

npm writes where it has found each package and who takes donations for it; neither belongs here. What was found is told
by its hash, and `npm ci` looks for it in the registry that is configured where it runs.
"""

import json
import subprocess
import sys
from pathlib import Path

NOTED = ("resolved", "funding")

LOCK = "package-lock.json"


def locked(folder: Path) -> str:
    """The text of a folder's lock file, with the newest versions that its package.json allows."""
    (folder / LOCK).unlink(missing_ok=True)
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    subprocess.run(["npm", "install", "--prefix", str(folder), "--package-lock-only", *quiet], check=True)
    lock = json.loads((folder / LOCK).read_text())
    for place, package in lock["packages"].items():
        for name in NOTED:
            package.pop(name, None)
        if place and not (package.get("integrity") or package.get("inBundle")):
            sys.exit(f"{folder / LOCK}: {place} has no hash")
    return json.dumps(lock, indent=2) + "\n"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        (path / LOCK).write_text(locked(path))
