"""Finds the exact packages that meet some requirements, in the operator's index."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import anyio.to_thread
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.packages.package_set import LockedPackage, PackageSet
from mcp_bridge.sandbox.packages.uv import failure, too_large

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from packaging.tags import Tag

    from mcp_bridge.sandbox.packages.install_settings import InstallSettings
    from mcp_bridge.sandbox.packages.uv import Uv

MAX_METADATA_BYTES = 1 << 30
"""What uv may write while it looks for packages: metadata, and a wheel where an index gives no metadata."""


async def resolve(
    uv: Uv,
    requirements: Sequence[str],
    constraints: Sequence[str],
    python: Path,
    work: Path,
    limits: InstallSettings,
    *,
    pure: bool = False,
) -> PackageSet:
    """The packages that meet the requirements and all that these need, each with the hash of its wheel.

    Args:
        uv: Finds them.
        requirements: Valid requirements.
        constraints: Valid requirements, without extras, that hold for what comes along.
        python: The interpreter for which they are.
        work: An empty directory.
        limits: How many packages, how large, and how long it may take.
        pure: Whether a wheel without compiled modules is preferred, where a package has one.

    Raises:
        BridgeError: `package_unresolved`, `index_unreachable`, `packages_too_large`, `packages_timeout`, `disk_full`.
    """
    asked, held = work / "requirements.txt", work / "constraints.txt"
    await anyio.to_thread.run_sync(asked.write_text, "".join(f"{one}\n" for one in requirements))
    await anyio.to_thread.run_sync(held.write_text, "".join(f"{one}\n" for one in constraints))
    result = await uv.run(
        *("pip", "compile", "--format", "pylock.toml", "--generate-hashes", "--only-binary", ":all:"),
        *("--no-header", "--no-annotate", "--python", str(python), "--cache-dir", str(work / "cache")),
        *("--constraints", held.name, asked.name),
        work=work,
        seconds=limits.timeout,
        max_bytes=MAX_METADATA_BYTES,
    )
    if result.returncode != 0:
        raise failure(result)
    try:
        rows = tomllib.loads(result.stdout).get("packages", [])
    except tomllib.TOMLDecodeError as exc:
        raise BridgeError("packages_failed", f"uv gave no lock file: {exc}.") from None
    if len(rows) > limits.max_packages:
        raise BridgeError(
            "packages_too_large",
            f"{len(rows)} packages would be needed; the limit is {limits.max_packages}.",
            hint="Ask for less. The operator can raise max_packages in [install].",
        )
    ranks = {tag: rank for rank, tag in enumerate(sys_tags())}
    wheels = await anyio.to_thread.run_sync(lambda: [_wheel(row, ranks, pure=pure) for row in rows])
    if sum(size for _, size in wheels) > limits.max_size:
        raise too_large(limits.max_size)
    return PackageSet.of(package for package, _ in wheels)


def _wheel(row: dict[str, Any], ranks: Mapping[Tag, int], *, pure: bool) -> tuple[LockedPackage, int]:
    """The wheel of a package that an installer would choose here, and its size; 0 if the index doesn't say.

    Raises:
        BridgeError: `package_unresolved`.
    """
    name, version = str(row.get("name", "")), str(row.get("version", ""))
    best: tuple[int, dict[str, Any], str] | None = None
    for wheel in row.get("wheels", ()):
        file = wheel.get("name") or unquote(urlsplit(str(wheel.get("url") or wheel.get("path") or "")).path)
        file = file.rpartition("/")[2]
        try:
            named, _, _, tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        rank = min((ranks[tag] for tag in tags if tag in ranks), default=None)
        if rank is not None and pure and all(tag.platform == "any" for tag in tags):
            rank -= len(ranks)
        if rank is not None and named == canonicalize_name(name) and (best is None or rank < best[0]):
            best = rank, wheel, file
    sha256 = "" if best is None else best[1].get("hashes", {}).get("sha256", "")
    if best is None or not sha256:
        raise BridgeError(
            "package_unresolved",
            f"The index has no wheel of {name} {version} for this Python and platform, or no hash of it.",
            hint="Nothing is built, and nothing is used whose hash isn't known. Ask for another version.",
        )
    return LockedPackage(canonicalize_name(name), version, best[2], sha256), int(best[1].get("size", 0))
