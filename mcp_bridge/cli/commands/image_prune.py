"""`mcp-bridge image prune`: removal of images that the bridge has built, and the engines that have some.

No engine is probed: a probe may build an image first.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.cli import exit_statuses, terminal_output
from mcp_bridge.cli.command_runner import print_json
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.sandbox.image.store import ImageInfo
    from mcp_bridge.sandbox.isolation_flags import EngineName, RuntimeChoice
    from mcp_bridge.settings import Loaded, Settings


_IN_USE = "End what uses it, and try again."
"""What to do about an engine's refusal, which is nearly always about a container of somebody else's."""


class Engine(NamedTuple):
    """An engine that answers, and its images of ours."""

    choice: RuntimeChoice
    images: tuple[ImageInfo, ...]


async def engines(settings: Settings) -> tuple[list[Engine], list[EngineName]]:
    """The engines that the settings allow and that answer, and the names of installed ones that don't."""
    from mcp_bridge.sandbox.engine_info import EngineInfo, engine_info
    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice
    from mcp_bridge.sandbox.open_driver import open_images

    everything: tuple[EngineName, ...] = ("oci", "podman", "docker")
    names = everything if settings.runtime == "auto" else (settings.runtime,)
    found: list[Engine] = []
    silent: list[EngineName] = []
    for name in names:
        if name == "oci":
            # What it has made is in the state directory, whether or not a runtime is still installed.
            choice = RuntimeChoice("oci", "", "", rootless=os.geteuid() != 0)
            if (settings.state_dir / "oci").is_dir():
                images = await open_images(choice, settings.state_dir).images()
                found.append(Engine(choice, tuple(images)))
            continue
        path = shutil.which(name)
        if path is None:
            continue
        info = await engine_info(name, path)
        if isinstance(info, EngineInfo):
            images = await open_images(info.choice, settings.state_dir).images()
            found.append(Engine(info.choice, tuple(images)))
        elif info.code != "engine_alias":
            silent.append(name)
    return found, silent


def prune(loaded: Loaded, *, everything: bool, as_json: bool) -> int:
    """Remove the built images that this configuration doesn't use; return the exit status.

    Args:
        loaded: The configuration.
        everything: Whether to remove the image in use, too: the next run builds it again.
        as_json: Whether to print the removed images as JSON.

    Raises:
        BridgeError: `engine_failed`; as `image.image_reference`.
    """
    import anyio

    from mcp_bridge.sandbox.image import image
    from mcp_bridge.sandbox.image.store import LABEL_SET
    from mcp_bridge.sandbox.packages.cache import WheelCache

    settings = loaded.settings
    wanted = image.image_reference(
        image.ImageRequest(settings.profile, tuple(settings.packages), "javascript" in settings.languages)
    )
    kept = set() if everything else {wanted, settings.image}

    async def work() -> tuple[list[ImageInfo], list[tuple[str, str]]]:
        gone, left = [], []
        for engine in (await engines(settings))[0]:
            chosen = [one for one in engine.images if one.reference not in kept]
            done, failed = await remove_images(engine.choice, settings.state_dir, chosen)
            gone += done
            left += failed
        return gone, left

    gone, left = anyio.run(work)
    cache = WheelCache(settings.state_dir, settings.install)
    for one in gone:
        if (digest := one.labels.get(LABEL_SET)) is not None:
            cache.forget_image(digest)
    if as_json:
        print_json({"removed": [one.reference for one in gone], "left": [reference for reference, _ in left]})
    else:
        for one in gone:
            terminal_output.echo(f"removed {one.reference}, {one.size / 1e6:.0f} MB")
        if not gone and not left:
            terminal_output.echo("No image to remove.")
        print_left(left)
    return exit_statuses.FAILED if left else exit_statuses.OK


def print_left(left: Sequence[tuple[str, str]]) -> None:
    """Name the images that could not be removed, and why."""
    for reference, why in left:
        terminal_output.echo_err(f"mcp-bridge: image_left: {reference} could not be removed: {why}")


async def remove_images(
    choice: RuntimeChoice, state_dir: Path, images: Sequence[ImageInfo]
) -> tuple[list[ImageInfo], list[tuple[str, str]]]:
    """Remove images; return the removed ones, and the others' names with the engine's errors."""
    from mcp_bridge.sandbox.open_driver import open_images

    store = open_images(choice, state_dir)
    removed, left = [], []
    for one in images:
        try:
            await store.remove(one.reference)
        except BridgeError as exc:
            left.append((one.reference, str(exc) if exc.hint else f"{exc.message} {_IN_USE}"))
        else:
            removed.append(one)
    return removed, left
