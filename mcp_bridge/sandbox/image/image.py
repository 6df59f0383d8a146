"""The sandbox's image: its name, whether it exists, and how to build it without a network.

An image is named by a hash of its ingredients. So an existing image is always the right one, a changed interpreter or
profile gets another image, and nothing is ever pulled. The root file system is written to a file first and passed to
its store as a whole: an engine that reads a stream accepts one that ends early between two members as complete.
"""

from __future__ import annotations

import errno
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

import anyio.to_thread
import platformdirs

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.build_dir import build_directory
from mcp_bridge.sandbox.image.host_tools import disk_full
from mcp_bridge.sandbox.image.node import node_executable, node_identity
from mcp_bridge.sandbox.image.package_profiles import (
    install_packages,
    installed_packages,
    load_profile,
    normalise_requirements,
)
from mcp_bridge.sandbox.image.rootfs import Interpreter, running_interpreter, write_root
from mcp_bridge.sandbox.image.store import (
    CONFIGURED_IMAGE_HINT,
    ENVIRONMENT,
    LABEL_BUILT,
    LABEL_MAGIC,
    LABEL_PACKAGES,
    LABEL_PROFILE,
    LABEL_PYTHON,
    LABEL_RECIPE,
    LABEL_SET,
    REPOSITORY,
    ImageInfo,
    ImageStore,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

_BUILD_ROOM = "The base image takes 150 MB meanwhile; with Podman or Docker, or more packages, several times that."

_RECIPE_VERSION = 1


@dataclass(frozen=True)
class ImageRequest:
    """The required content of an image.

    Attributes:
        profile: The name of a package profile.
        packages: Additional requirements, normalised by `normalise_requirements`.
        javascript: Whether it has Node.
        package_set: The digest of a package set that is laid over these; empty for none.
    """

    profile: str = "base"
    packages: tuple[str, ...] = ()
    javascript: bool = False
    package_set: str = ""


CopyPackages: TypeAlias = "Callable[[Path], Awaitable[None]]"
"""Copies the files of a package set over a directory of packages."""


def image_reference(request: ImageRequest) -> str:
    """The name of the image that this interpreter builds for `request`.

    Raises:
        BridgeError: `unknown_profile`; `packages_failed` for a malformed requirement; `image_build_failed` if the
            interpreter's files can't be found; `node_missing`.
    """
    return _reference(request, _recipe(request, running_interpreter()))


def _recipe(request: ImageRequest, interpreter: Interpreter) -> str:
    parts: dict[str, object] = {
        "version": _RECIPE_VERSION,
        "interpreter": interpreter.identity,
        "profile": load_profile(request.profile).digest,
        "packages": normalise_requirements(request.packages),
        "environment": ENVIRONMENT,
    }
    if request.package_set:
        parts["package_set"] = request.package_set
    if request.javascript:
        parts["node"] = node_identity()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _reference(request: ImageRequest, recipe: str) -> str:
    return f"{REPOSITORY}:{request.profile}-{'set-' if request.package_set else ''}{recipe[:12]}"


async def ensure_image(
    store: ImageStore,
    request: ImageRequest,
    *,
    configured: str | None = None,
    progress: Callable[[str], None] | None = None,
    state_dir: Path | None = None,
    overlay_packages: CopyPackages | None = None,
) -> ImageInfo:
    """The configured image, else the existing image for `request`, else a newly built one.

    Args:
        store: Where images are kept.
        request: The required content of the image; ignored if `configured` is given.
        configured: A reference that must exist; it is never pulled.
        progress: Called with a sentence about each slow step.
        state_dir: Holds the lock and intermediate files; by default the user's state directory.
        overlay_packages: Has the files of the request's package set; needed for one that has a set.

    Raises:
        BridgeError: `image_missing` if the configured image doesn't exist, or as `build_image`.
    """
    if configured is not None:
        try:
            return await inspect_image(store, configured)
        except BridgeError as error:
            if error.code == "image_missing":
                error.hint = CONFIGURED_IMAGE_HINT
            raise
    reference = image_reference(request)
    present = await store.inspect([reference])
    if present:
        return present[0]
    return await _build(store, request, progress or _no_progress, state_dir, overlay_packages, forced=False)


async def build_image(
    store: ImageStore,
    request: ImageRequest,
    *,
    progress: Callable[[str], None] | None = None,
    state_dir: Path | None = None,
) -> ImageInfo:
    """Build the image, even if it exists. Takes the arguments of `ensure_image`.

    A failed or cancelled build leaves nothing unfinished behind, and keeps an existing image.

    Raises:
        BridgeError: `image_build_failed`, `packages_failed`, `unknown_profile`, `disk_full`; as `ImageStore.add`.
    """
    return await _build(store, request, progress or _no_progress, state_dir, None, forced=True)


async def inspect_image(store: ImageStore, reference: str) -> ImageInfo:
    """Look up a local image by reference or id.

    Raises:
        BridgeError: `image_missing`; `no_runtime` and `engine_failed` as `build_image`.
    """
    found = await store.inspect([reference])
    if not found:
        raise BridgeError(
            "image_missing",
            f"The image {reference} isn't on this machine, and images are never pulled.",
            hint="Build one with `mcp-bridge image build`, or load it with the engine's own `load`.",
            image=reference,
        )
    return found[0]


def _no_progress(_: str) -> None:
    pass


async def _build(
    store: ImageStore,
    request: ImageRequest,
    progress: Callable[[str], None],
    state_dir: Path | None,
    overlay_packages: CopyPackages | None,
    *,
    forced: bool,
) -> ImageInfo:
    interpreter = running_interpreter()
    recipe = _recipe(request, interpreter)
    reference = _reference(request, recipe)
    try:
        async with build_directory(state_dir or platformdirs.user_state_path("mcp-code-bridge"), progress) as work:
            if not forced and (present := await store.inspect([reference])):
                return present[0]
            progress(f"Building {reference} from Python {interpreter.version}.")
            tar, packages = await _write_root(interpreter, request, work, progress, overlay_packages)
            labels = {
                LABEL_PROFILE: request.profile,
                LABEL_RECIPE: recipe,
                LABEL_PYTHON: interpreter.version,
                LABEL_MAGIC: interpreter.magic,
                LABEL_PACKAGES: ",".join(packages),
                LABEL_BUILT: datetime.now(UTC).isoformat(timespec="seconds"),
            }
            if request.package_set:
                labels[LABEL_SET] = request.package_set
            await store.add(tar, reference, labels)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise disk_full(f"while building {reference}. {_BUILD_ROOM}") from error
        raise BridgeError("image_build_failed", f"Building {reference} failed: {error}.") from error
    await store.remove_replaced(recipe)
    image = await inspect_image(store, reference)
    progress(f"Built {reference}, {image.size / 1e6:.0f} MB.")
    return image


async def _write_root(
    interpreter: Interpreter,
    request: ImageRequest,
    work: Path,
    progress: Callable[[str], None],
    overlay_packages: CopyPackages | None,
) -> tuple[Path, tuple[str, ...]]:
    profile = load_profile(request.profile)
    extras = normalise_requirements(request.packages)
    site = work / "site-packages"
    site.mkdir()
    packages = await install_packages(
        profile, extras, python=interpreter.executable, target=site, work=work, progress=progress
    )
    if overlay_packages is not None:
        await overlay_packages(site)
        packages = await anyio.to_thread.run_sync(installed_packages, site)
    tar = work / "root.tar"
    node = None
    if request.javascript:
        node = await node_executable(interpreter.executable, work, progress)
    missing = await write_root(
        tar, interpreter, work=work, site=site if packages else None, node=node, is_trusted=overlay_packages is None
    )
    if missing:
        progress(f"Not on this host, so modules that need them won't load: {', '.join(sorted(missing))}.")
    return tar, packages
