"""Where images are kept: the interface, and its implementation by an engine's command line.

The other implementation is `sandbox/oci/images.py`, which keeps them in the state directory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.host_tools import ToolResult, disk_full, run_tool
from mcp_bridge.sandbox.image.rootfs import PYTHON

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

REPOSITORY = "localhost/mcp-code-bridge"
"""No registry has this name, so an engine can't pull the image by mistake."""

CONFIGURED_IMAGE_HINT = "Load it into the engine, or unset `image` and one is built."
"""The hint for a configured image that doesn't exist: the bridge can't build it."""

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - inside the image
    "LANG": "C.UTF-8",
    # One CPU and a few hundred MiB: further BLAS threads cost memory and start-up time and bring no benefit.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp/matplotlib",  # noqa: S108 - inside the image
    # Otherwise joblib tries to use /dev/shm at import, and warns where it can't.
    "JOBLIB_MULTIPROCESSING": "0",
}
"""The image's environment, which must also be passed to a container that is started with an empty one."""

LABEL_PROFILE = "mcp-bridge.profile"
LABEL_RECIPE = "mcp-bridge.recipe"
LABEL_PYTHON = "mcp-bridge.python"
LABEL_MAGIC = "mcp-bridge.magic"
LABEL_PACKAGES = "mcp-bridge.packages"
LABEL_BUILT = "mcp-bridge.built"
LABEL_SET = "mcp-bridge.package-set"
"""The digest of the package set that an image was made for; images of a profile alone have none."""

INSPECT_SECONDS = 30.0
"""Bound on one query: an engine that starts after a boot can take seconds to answer."""

IMPORT_SECONDS = 300.0
"""Bound on an import: the engine unpacks and hashes up to half a gigabyte, perhaps on a slow disk."""

NAMING_SECONDS = 3.0
"""How long an import may take to give its image a name."""

LISTING_DELAYS = (0.1, 0.3, 1.0, 3.0)
"""Pauses in seconds before an interrupted listing is repeated."""


@dataclass(frozen=True)
class ImageInfo:
    """A local image.

    Attributes:
        reference: The image's name on the engine.
        id: The engine's full id.
        size: The size that the engine reports, in bytes.
        profile: The package profile; this and the next three are empty for an image without our labels.
        python: The interpreter's version.
        magic: The magic number of its bytecode, in hexadecimal.
        packages: `name==version`, sorted.
        created: RFC 3339, as the engine reports it.
        labels: All of its labels.
    """

    reference: str
    id: str
    size: int
    profile: str
    python: str
    magic: str
    packages: tuple[str, ...]
    created: str
    labels: dict[str, str]


class ImageStore(Protocol):
    """A store of local images."""

    async def inspect(self, references: Sequence[str]) -> list[ImageInfo]:
        """The images of these names or ids; those that aren't there are left out.

        Raises:
            BridgeError: `no_runtime`, `engine_failed`.
        """

    async def images(self) -> list[ImageInfo]:
        """The images with this project's labels, newest first.

        Raises:
            BridgeError: `no_runtime`, `engine_failed`.
        """

    async def add(self, tar: Path, reference: str, labels: Mapping[str, str]) -> None:
        """Make an image of a root file system, under a name that another image may have had.

        Raises:
            BridgeError: `disk_full`, `image_build_failed`, `no_runtime`, `engine_failed`.
        """

    async def remove(self, reference: str) -> None:
        """Remove an image. An image that no longer exists is not an error.

        Raises:
            BridgeError: `engine_failed` if it is in use; `no_runtime`.
        """

    async def remove_replaced(self, recipe: str) -> None:
        """Remove images of a recipe from which another has taken the name. What can't be removed stays."""


class EngineImages(ImageStore):
    """The images of a container engine.

    Args:
        command: The engine's executable.
        global_args: Global arguments, placed after the executable.
    """

    def __init__(self, command: str, global_args: Sequence[str] = ()) -> None:
        self._command = command
        self._global_args = tuple(global_args)

    async def inspect(self, references: Sequence[str]) -> list[ImageInfo]:
        """Look up images by reference or id."""
        result = await self._run("image", "inspect", *references)
        if result.returncode != 0 and not _is_missing(result):
            raise _engine_failed(result)
        try:
            rows = json.loads(result.stdout or "[]")
            return [_decode(row, references) for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise BridgeError(
                "engine_failed", f"The container engine describes an image unreadably: {error!r}."
            ) from error

    async def images(self) -> list[ImageInfo]:
        """The local images with this project's labels, newest first."""
        ids = await self._ids(f"label={LABEL_RECIPE}")
        found = await self.inspect(ids) if ids else []
        return sorted(found, key=lambda image: image.created, reverse=True)

    async def add(self, tar: Path, reference: str, labels: Mapping[str, str]) -> None:
        """Import a root file system."""
        changes = [f"ENV {name}={json.dumps(value)}" for name, value in ENVIRONMENT.items()]
        changes += [f"LABEL {name}={json.dumps(value)}" for name, value in labels.items()]
        changes += ["USER 65534:65534", "WORKDIR /workspace", f'CMD ["{PYTHON}"]']
        arguments = [part for change in changes for part in ("--change", change)]
        # The engine's temporary copies go to the build directory, which is removed.
        result = await self._run(
            *("import", *arguments, str(tar), reference),
            seconds=IMPORT_SECONDS,
            environment={"TMPDIR": str(tar.parent)},
        )
        if result.disk_full:
            size = (await anyio.Path(tar).stat()).st_size / 1e6
            raise disk_full(f"The container engine could not store {reference}, whose archive has {size:.0f} MB.")
        if result.returncode != 0:
            raise BridgeError(
                "image_build_failed",
                f"The container engine's import failed: {result.tail()}",
                output=result.tail(),
            )

    async def remove(self, reference: str) -> None:
        """Remove an image."""
        result = await self._run("image", "rm", reference)
        if result.returncode != 0 and not _is_missing(result):
            raise _engine_failed(result)

    async def remove_replaced(self, recipe: str) -> None:
        """Remove untagged images of the same recipe, from which a forced or concurrent build has taken the name."""
        without_name = (f"label={LABEL_RECIPE}={recipe}", "dangling=true")
        try:
            replaced = await self._ids(*without_name)
            if replaced:
                # One that somebody else imports just now has no name for a moment, and would be removed with it.
                await anyio.sleep(NAMING_SECONDS)
                left = await self._ids(*without_name)
                replaced = [image for image in replaced if image in left]
        except BridgeError:
            # The build has succeeded; the next build removes what is left.
            return
        for image in replaced:
            # An image that a container still uses stays until the next build.
            await self._run("image", "rm", image)

    async def _ids(self, *filters: str) -> list[str]:
        arguments = [part for text in filters for part in ("--filter", text)]
        for delay in (*LISTING_DELAYS, None):
            result = await self._run("images", "--quiet", "--no-trunc", *arguments)
            if result.returncode == 0:
                return list(dict.fromkeys(result.stdout.split()))
            # Podman's listing fails completely if an image is removed while it reads them.
            if delay is None or not _is_missing(result):
                break
            await anyio.sleep(delay)
        raise _engine_failed(result)

    async def _run(
        self,
        *arguments: str,
        seconds: float = INSPECT_SECONDS,
        environment: dict[str, str] | None = None,
    ) -> ToolResult:
        try:
            return await run_tool(
                [self._command, *self._global_args, *arguments], seconds=seconds, environment=environment
            )
        except (FileNotFoundError, PermissionError) as error:
            raise BridgeError(
                "no_runtime",
                f"The container engine {self._command} can't be started.",
                hint="Install podman or docker.",
            ) from error
        except TimeoutError:
            raise BridgeError(
                "engine_failed", f"The container engine's {arguments[0]} did not end within {seconds:.0f} s."
            ) from None


def _decode(row: dict[str, Any], asked: Sequence[str]) -> ImageInfo:
    labels = {str(name): str(value) for name, value in ((row.get("Config") or {}).get("Labels") or {}).items()}
    names = [str(name) for name in row.get("RepoTags") or ()]
    packages = labels.get(LABEL_PACKAGES, "")
    # An image looked up by name keeps this name, though it may have others.
    reference = next((name for name in names if name in asked), names[0] if names else str(row["Id"]))
    return ImageInfo(
        reference=reference,
        id=str(row["Id"]),
        size=int(row["Size"]),
        profile=labels.get(LABEL_PROFILE, ""),
        python=labels.get(LABEL_PYTHON, ""),
        magic=labels.get(LABEL_MAGIC, ""),
        packages=tuple(packages.split(",")) if packages else (),
        created=str(row["Created"]),
        labels=labels,
    )


def _is_missing(result: ToolResult) -> bool:
    text = result.stderr.lower()
    return any(words in text for words in ("no such image", "image not known", "not found in local storage"))


def _engine_failed(result: ToolResult) -> BridgeError:
    return BridgeError("engine_failed", f"The container engine failed: {result.tail()}", output=result.tail())
