"""The engine and the image that sandboxes are started with: found by a trial, and the image built if it is missing."""

from __future__ import annotations

import functools
import resource
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import require_writable, state_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.sandbox.engine import Engine
    from mcp_bridge.sandbox.image.store import ImageInfo
    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice
    from mcp_bridge.sandbox.packages.installer import Installer
    from mcp_bridge.sandbox.packages.package_set import PackageSet
    from mcp_bridge.sandbox.probe_report import ProbeReport
    from mcp_bridge.settings import Settings


LEAST_DESCRIPTORS, WANTED_DESCRIPTORS = 128, 1024
"""Open files that a bridge needs for one sandbox, and those that it takes where it may have them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The engine and the image that one bridge starts its sandboxes with.

    Attributes:
        report: What the trial of the engine found.
        engine: Starts containers.
        image: The image that they are made of.
    """

    report: ProbeReport
    engine: Engine
    image: ImageInfo


async def prepare(
    settings: Settings, notify: Callable[[str], None] | None = None, *, refresh: bool = False
) -> Prepared:
    """Find a working engine by a trial, and build the image if it is missing.

    Args:
        settings: The settings.
        notify: Called with a sentence about each step that takes time.
        refresh: Whether to try the engine again, though the result of an earlier trial is kept.

    Raises:
        BridgeError: No working sandbox: `no_runtime`, `image_missing`, `image_build_failed`, `disk_full`, …;
            `state_unusable`, `too_few_descriptors`.
    """
    from mcp_bridge.sandbox.open_driver import open_engine

    require_descriptors()
    require_writable(state_directory(settings.state_dir, durable=True))
    report = await _probe(settings, notify, refresh=refresh)
    image = await _image(settings, report.choice, notify)
    return Prepared(report, open_engine(report.choice, settings.state_dir), image)


def require_descriptors() -> None:
    """Raise the soft limit on open files where it is low. Without enough of them a sandbox fails as if by its script.

    Raises:
        BridgeError: `too_few_descriptors`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= WANTED_DESCRIPTORS:
        return
    most = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if most < LEAST_DESCRIPTORS:
        raise BridgeError(
            "too_few_descriptors",
            f"The bridge may have {hard} open files and connections (ulimit -Hn), and needs {LEAST_DESCRIPTORS}.",
            hint="Raise the hard limit: ulimit -n in the shell that starts it, or LimitNOFILE of systemd.",
            needed=LEAST_DESCRIPTORS,
            limit=hard,
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def choose_engine(settings: Settings) -> RuntimeChoice:
    """The engine to use, without an image.

    Raises:
        BridgeError: As `prepare`.
    """
    # Where it is read-only, the images in it can be looked at.
    state_directory(settings.state_dir, durable=True)
    return (await _probe(settings, None, refresh=False)).choice


async def _probe(settings: Settings, notify: Callable[[str], None] | None, *, refresh: bool) -> ProbeReport:
    from mcp_bridge.sandbox.engine_choice import probe

    async def ensure(choice: RuntimeChoice) -> str:
        return (await _image(settings, choice, notify)).reference

    return await probe(
        runtime=settings.runtime,
        oci_runtime=settings.oci_runtime,
        state_dir=settings.state_dir,
        image=settings.image,
        refresh=refresh,
        ensure=ensure,
    )


async def _image(settings: Settings, choice: RuntimeChoice, notify: Callable[[str], None] | None) -> ImageInfo:
    from mcp_bridge.sandbox.image.image import ImageRequest, ensure_image
    from mcp_bridge.sandbox.open_driver import open_images

    return await ensure_image(
        open_images(choice, settings.state_dir),
        ImageRequest(settings.profile, tuple(settings.packages), "javascript" in settings.languages),
        configured=settings.image,
        progress=notify,
        state_dir=settings.state_dir,
    )


def require_own_image(settings: Settings) -> None:
    """Refuse packages for an image that the bridge hasn't built.

    Raises:
        BridgeError: `packages_unavailable`.
    """
    if settings.image is not None:
        raise BridgeError(
            "packages_unavailable",
            "Packages can't be added here: the operator's own image is used, to which the bridge adds nothing.",
            hint="The operator adds them to the image, or unsets `image`.",
        )


async def prepare_with(
    settings: Settings,
    prepared: Prepared,
    packages: PackageSet,
    installer: Installer,
    notify: Callable[[str], None] | None = None,
) -> tuple[Prepared, list[str]]:
    """As `prepare`, with an image that has a package set; built, and other sets' images removed, if it is missing.

    Args:
        settings: The settings.
        prepared: The engine and the image without the set.
        packages: The set.
        installer: Has the set's files.
        notify: As `prepare`.

    Returns:
        The engine and the image; and the digests of the sets whose images were removed for it.

    Raises:
        BridgeError: `packages_unavailable` where the operator's own image is used; as `image.ensure_image` and
            `Installer.fetch`.
    """
    from mcp_bridge.sandbox.image.image import ImageRequest, ensure_image, image_reference
    from mcp_bridge.sandbox.open_driver import open_images
    from mcp_bridge.sandbox.packages.package_set_images import make_room

    require_own_image(settings)
    store = open_images(prepared.report.choice, settings.state_dir)
    request = ImageRequest(settings.profile, tuple(settings.packages), package_set=packages.digest)
    if not await store.inspect([image_reference(request)]):
        # Before it is built: builds wait for each other.
        await installer.fetch(packages, notify)
    image = await ensure_image(
        store,
        request,
        progress=notify,
        state_dir=settings.state_dir,
        overlay_packages=functools.partial(installer.overlay_packages, packages, notify=notify),
    )
    installer.cache.image_used(packages.digest)
    removed = await make_room(store, prepared.engine, installer.cache, settings.install.cache_size, image)
    return replace(prepared, image=image), removed


def not_enforced(report: ProbeReport) -> list[str]:
    """The limits that this host can't hold by control groups, by name."""
    enforced = report.choice.enforced
    return [name for name in ("memory", "pids", "cpus") if not getattr(enforced, name)]
