"""Package profiles, and their installation on the host for the image's interpreter.

Only binary wheels are installed: no code of a package runs on the host, neither a build script nor a hook.

The installers run in a directory of ours, because the bridge's working directory may be untrusted: `python -m pip`
would import a `pip.py` from there, and uv would take its index from a `uv.toml` or `pyproject.toml`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import spelled_like
from mcp_bridge.sandbox.image.host_tools import ToolResult, disk_full, run_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INSTALL_SECONDS = 900.0
"""Bound on one run of an installer: the data profile is 110 MB of wheels, perhaps over a slow line."""

PROBE_SECONDS = 20.0
"""Bound on `INSTALLER --help`."""

# One PEP 508 requirement by name. Options, URLs, paths and environment markers don't match.
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"(?:===?|~=|!=|<=?|>=?)\s*[A-Za-z0-9.*+!_-]+"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})\s*(?P<extras>\[\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\])?\s*(?P<version>{_VERSION}(?:\s*,\s*{_VERSION})*)?"
)
_PIN = re.compile(rf"^({_NAME}==[^\s;\\]+(?:\s*;[^\\]*)?)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of pinned packages.

    Attributes:
        name: For example `data`.
        path: Its requirements file, with every line pinned and hashed.
        pins: Its requirements without the hashes.
        digest: The SHA-256 of the file.
    """

    name: str
    path: Path
    pins: tuple[str, ...]
    digest: str


def image_directory() -> Path:
    """The directory of the Containerfile and the profiles: package data, or `sandbox_image` in a checkout.

    Raises:
        BridgeError: `image_build_failed` if neither exists.
    """
    package = Path(__file__).resolve().parents[2]
    for candidate in (package / "_sandbox_image", package.parent / "sandbox_image"):
        if (candidate / "profiles").is_dir():
            return candidate
    raise BridgeError(
        "image_build_failed",
        f"The package profiles are missing from this installation ({package}).",
        hint="Install mcp-code-bridge again.",
    )


def profile_names() -> list[str]:
    """The names of the profiles, sorted.

    Raises:
        BridgeError: As `image_directory`.
    """
    return sorted(path.stem for path in (image_directory() / "profiles").glob("*.txt"))


def load_profile(name: str) -> Profile:
    """Read a profile.

    Raises:
        BridgeError: `unknown_profile`, with the nearest names; or as `image_directory`.
    """
    names = profile_names()
    if name not in names:
        nearest = spelled_like(name, names, count=3)
        raise BridgeError(
            "unknown_profile",
            f"There is no package profile {name!r}.",
            hint=f"Did you mean {nearest[0]}?" if nearest else f"Profiles: {', '.join(names)}.",
            profile=name,
            nearest=nearest,
            profiles=names,
        )
    path = image_directory() / "profiles" / f"{name}.txt"
    content = path.read_bytes()
    pins = tuple(match.strip() for match in _PIN.findall(content.decode()))
    return Profile(name, path, pins, hashlib.sha256(content).hexdigest())


def normalise_requirements(packages: Sequence[str]) -> tuple[str, ...]:
    """The requirements, normalised and sorted, so that equal requests result in the same image.

    Raises:
        BridgeError: `packages_failed` for anything but `NAME`, `NAME[EXTRA]` and version specifiers.
    """
    normal: set[str] = set()
    for package in packages:
        match = _REQUIREMENT.fullmatch(package.strip())
        if match is None:
            raise BridgeError(
                "packages_failed",
                f"{package!r} is not a package requirement.",
                hint="Give a name with optional extras and versions, such as requests or polars>=1.2,<2.",
                package=package,
            )
        name = re.sub(r"[-_.]+", "-", match["name"]).lower()
        normal.add(name + re.sub(r"\s+", "", (match["extras"] or "") + (match["version"] or "")))
    return tuple(sorted(normal))


@dataclass(frozen=True, slots=True)
class _Installer:
    """A working package installer.

    Attributes:
        argv: The command, including its subcommand.
        options: Options for quiet and unattended runs.
    """

    argv: tuple[str, ...]
    options: tuple[str, ...]


async def _find_installer(python: Path, work: Path) -> _Installer:
    uv = ("--no-progress", "--python", str(python))
    pip = ("--no-input", "--disable-pip-version-check", "--no-compile", "--no-warn-script-location")
    candidates: list[_Installer] = []
    if found := shutil.which("uv"):
        candidates.append(_Installer((found, "pip"), uv))
    if importlib.util.find_spec("uv"):
        candidates.append(_Installer((sys.executable, "-m", "uv", "pip"), uv))
    if importlib.util.find_spec("pip"):
        candidates.append(_Installer((sys.executable, "-m", "pip"), pip))
    candidates.append(_Installer((str(python), "-m", "pip"), pip))
    for candidate in candidates:
        try:
            # A version manager may have a shim on PATH for tools that the selected version lacks.
            if (await run_tool([*candidate.argv, "--help"], seconds=PROBE_SECONDS, directory=work)).returncode == 0:
                return candidate
        except (OSError, TimeoutError):
            continue
    raise BridgeError(
        "packages_failed",
        "Neither uv nor pip is there to install the image's packages.",
        hint="Install uv, or use the base profile without packages.",
    )


async def install_packages(
    profile: Profile,
    packages: Sequence[str],
    *,
    python: Path,
    target: Path,
    work: Path,
    progress: Callable[[str], None],
) -> tuple[str, ...]:
    """Install a profile and the extra requirements into `target`, for the ABI of `python`.

    Returns:
        The installed packages, as sorted `name==version`.

    Raises:
        BridgeError: `packages_failed` with the installer's last lines, or `disk_full`.
    """
    if not profile.pins and not packages:
        return ()
    installer = await _find_installer(python, work)
    argv = [*installer.argv, "install", *installer.options, "--only-binary", ":all:", "--target", str(target)]
    if profile.pins:
        progress(f"Installing the {profile.name} profile: {len(profile.pins)} pinned packages.")
        await _install([*argv, "--require-hashes", "--no-deps", "-r", str(profile.path)], profile.name, work)
    if packages:
        progress(f"Installing {', '.join(packages)}.")
        # The profile's versions constrain the extras too; hashes can't be required for names that the user chose.
        if profile.pins:
            constraints = work / "constraints.txt"
            await anyio.to_thread.run_sync(constraints.write_text, "\n".join(profile.pins) + "\n")
            argv += ["--constraint", str(constraints)]
        await _install([*argv, *packages], ", ".join(packages), work)
    return await anyio.to_thread.run_sync(installed_packages, target)


async def install_pinned(pins: Path, what: str, *, python: Path, target: Path, work: Path) -> None:
    """Install the wheels of a requirements file, by their hashes and without their dependencies.

    Args:
        pins: The file.
        what: What it is, for errors.
        python: The interpreter for whose ABI they are.
        target: An empty directory.
        work: The installer's working directory.

    Raises:
        BridgeError: As `install_packages`.
    """
    installer = await _find_installer(python, work)
    argv = [*installer.argv, "install", *installer.options, "--only-binary", ":all:", "--target", str(target)]
    await _install([*argv, "--require-hashes", "--no-deps", "-r", str(pins)], what, work)


async def _install(argv: Sequence[str], what: str, work: Path) -> None:
    try:
        result = await run_tool(argv, seconds=INSTALL_SECONDS, directory=work)
    except TimeoutError:
        raise BridgeError("packages_failed", f"Installing {what} did not end within {INSTALL_SECONDS:.0f} s.") from None
    if result.returncode != 0:
        raise _failure(result, what)


def _failure(result: ToolResult, what: str) -> BridgeError:
    if result.disk_full:
        return disk_full(f"while installing {what}.")
    return BridgeError(
        "packages_failed",
        f"Installing {what} failed:\n{result.tail()}",
        hint="Only binary wheels for this Python and platform are installed; check the name and the package index.",
        output=result.tail(),
    )


def installed_packages(target: Path) -> tuple[str, ...]:
    """The packages in a directory, as sorted `name==version`."""
    found = importlib.metadata.distributions(path=[str(target)])
    return tuple(sorted({f"{item.name.lower()}=={item.version}" for item in found}))
