"""The sandbox's image: its name, whether it exists, and how to build it without a network.

An image is named by a hash of its ingredients. So an existing image is always the right one, a changed interpreter or
profile gets another image, and nothing is ever pulled. The root file system is written to a file first and passed to
the engine as a whole: an engine that reads a stream accepts one that ends early between two members as complete.
"""

from __future__ import annotations

import errno
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import platformdirs

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.image.build_dir import build_directory
from mcp_bridge.sandbox.image.host_tools import ToolResult, disk_full, run_tool
from mcp_bridge.sandbox.image.packages import install_packages, load_profile, normalise_requirements
from mcp_bridge.sandbox.image.rootfs import PYTHON, Interpreter, running_interpreter, write_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

REPOSITORY = "localhost/mcp-code-bridge"
"""No registry has this name, so an engine can't pull the image by mistake."""

CONFIGURED_IMAGE_HINT = "Load it into the engine, or unset `image` and one is built."
"""The hint for a configured image that doesn't exist: the bridge can't build it."""

LABEL_PROFILE = "mcp-bridge.profile"
LABEL_RECIPE = "mcp-bridge.recipe"
LABEL_PYTHON = "mcp-bridge.python"
LABEL_MAGIC = "mcp-bridge.magic"
LABEL_PACKAGES = "mcp-bridge.packages"
LABEL_BUILT = "mcp-bridge.built"

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

INSPECT_SECONDS = 30.0
"""Bound on one query: an engine that starts after a boot can take seconds to answer."""

IMPORT_SECONDS = 300.0
"""Bound on an import: the engine unpacks and hashes up to half a gigabyte, perhaps on a slow disk."""

LISTING_DELAYS = (0.1, 0.3, 1.0, 3.0)
"""Pauses in seconds before an interrupted listing is repeated."""

_RECIPE_VERSION = 1


@dataclass(frozen=True)
class ImageRequest:
    """The required content of an image.

    Attributes:
        profile: The name of a package profile.
        packages: Additional requirements, normalised by `normalise_requirements`.
    """

    profile: str = "base"
    packages: tuple[str, ...] = ()


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


def image_reference(request: ImageRequest) -> str:
    """The name of the image that this interpreter builds for `request`.

    Raises:
        BridgeError: `unknown_profile`; `packages_failed` for a malformed requirement; `image_build_failed` if the
            interpreter's files can't be found.
    """
    return _reference(request, _recipe(request, running_interpreter()))


def _recipe(request: ImageRequest, interpreter: Interpreter) -> str:
    parts = {
        "version": _RECIPE_VERSION,
        "interpreter": interpreter.identity,
        "profile": load_profile(request.profile).digest,
        "packages": normalise_requirements(request.packages),
        "environment": ENVIRONMENT,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _reference(request: ImageRequest, recipe: str) -> str:
    return f"{REPOSITORY}:{request.profile}-{recipe[:12]}"


async def ensure_image(
    engine: str,
    request: ImageRequest,
    *,
    configured: str | None = None,
    engine_args: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
    state_dir: Path | None = None,
) -> ImageInfo:
    """The configured image, else the existing image for `request`, else a newly built one.

    Args:
        engine: The engine's executable, `podman` or `docker`.
        request: The required content of the image; ignored if `configured` is given.
        configured: A reference that must exist; it is never pulled.
        engine_args: Global arguments, placed after the executable.
        progress: Called with a sentence about each slow step.
        state_dir: Holds the lock and intermediate files; by default the user's state directory.

    Raises:
        BridgeError: `image_missing` if the configured image doesn't exist, or as `build_image`.
    """
    if configured is not None:
        try:
            return await inspect_image(engine, configured, engine_args)
        except BridgeError as error:
            if error.code == "image_missing":
                error.hint = CONFIGURED_IMAGE_HINT
            raise
    reference = image_reference(request)
    present = await _inspect(engine, [reference], engine_args)
    if present:
        return present[0]
    return await _build(engine, request, engine_args, progress or _no_progress, state_dir, forced=False)


async def build_image(
    engine: str,
    request: ImageRequest,
    *,
    engine_args: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
    state_dir: Path | None = None,
) -> ImageInfo:
    """Build the image, even if it exists. Takes the arguments of `ensure_image`.

    A failed or cancelled build leaves nothing behind, and keeps an existing image.

    Raises:
        BridgeError: `image_build_failed`, `packages_failed`, `unknown_profile`, `disk_full`; `no_runtime` if the engine
            isn't installed; `engine_failed` if it doesn't answer.
    """
    return await _build(engine, request, engine_args, progress or _no_progress, state_dir, forced=True)


async def inspect_image(engine: str, reference: str, engine_args: Sequence[str] = ()) -> ImageInfo:
    """Look up a local image by reference or id.

    Raises:
        BridgeError: `image_missing`; `no_runtime` and `engine_failed` as `build_image`.
    """
    found = await _inspect(engine, [reference], engine_args)
    if not found:
        raise BridgeError(
            "image_missing",
            f"The image {reference} isn't on this machine, and images are never pulled.",
            hint="Build one with `mcp-bridge image build`, or load it with the engine's own `load`.",
            image=reference,
        )
    return found[0]


async def list_images(engine: str, engine_args: Sequence[str] = ()) -> list[ImageInfo]:
    """The local images with this project's labels, newest first.

    Raises:
        BridgeError: `no_runtime` and `engine_failed` as `build_image`.
    """
    ids = await _image_ids(engine, engine_args, f"label={LABEL_RECIPE}")
    found = await _inspect(engine, ids, engine_args) if ids else []
    return sorted(found, key=lambda image: image.created, reverse=True)


async def remove_image(engine: str, reference: str, engine_args: Sequence[str] = ()) -> None:
    """Remove an image. An image that no longer exists is not an error.

    Raises:
        BridgeError: `engine_failed` if it is in use; `no_runtime` as `build_image`.
    """
    result = await _engine(engine, engine_args, "image", "rm", reference)
    if result.returncode != 0 and not _is_missing(result):
        raise _engine_failed(result)


def _no_progress(_: str) -> None:
    pass


async def _build(
    engine: str,
    request: ImageRequest,
    engine_args: Sequence[str],
    progress: Callable[[str], None],
    state_dir: Path | None,
    *,
    forced: bool,
) -> ImageInfo:
    interpreter = running_interpreter()
    recipe = _recipe(request, interpreter)
    reference = _reference(request, recipe)
    try:
        async with build_directory(state_dir or platformdirs.user_state_path("mcp-code-bridge"), progress) as work:
            if not forced and (present := await _inspect(engine, [reference], engine_args)):
                return present[0]
            progress(f"Building {reference} from Python {interpreter.version}.")
            tar, packages = await _write_root(interpreter, request, work, progress)
            labels = {
                LABEL_PROFILE: request.profile,
                LABEL_RECIPE: recipe,
                LABEL_PYTHON: interpreter.version,
                LABEL_MAGIC: interpreter.magic,
                LABEL_PACKAGES: ",".join(packages),
                LABEL_BUILT: datetime.now(UTC).isoformat(timespec="seconds"),
            }
            await _import(engine, engine_args, tar, reference, labels)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise disk_full(f"while building {reference}.") from error
        raise BridgeError("image_build_failed", f"Building {reference} failed: {error}.") from error
    await _remove_replaced(engine, engine_args, recipe)
    image = await inspect_image(engine, reference, engine_args)
    progress(f"Built {reference}, {image.size / 1e6:.0f} MB.")
    return image


async def _write_root(
    interpreter: Interpreter, request: ImageRequest, work: Path, progress: Callable[[str], None]
) -> tuple[Path, tuple[str, ...]]:
    profile = load_profile(request.profile)
    extras = normalise_requirements(request.packages)
    site = work / "site-packages"
    site.mkdir()
    packages = await install_packages(
        profile, extras, python=interpreter.executable, target=site, work=work, progress=progress
    )
    tar = work / "root.tar"
    missing = await write_root(tar, interpreter, work=work, site=site if packages else None)
    if missing:
        progress(f"Not on this host, so modules that need them won't load: {', '.join(sorted(missing))}.")
    return tar, packages


async def _import(engine: str, engine_args: Sequence[str], tar: Path, reference: str, labels: dict[str, str]) -> None:
    changes = [f"ENV {name}={json.dumps(value)}" for name, value in ENVIRONMENT.items()]
    changes += [f"LABEL {name}={json.dumps(value)}" for name, value in labels.items()]
    changes += ["USER 65534:65534", "WORKDIR /workspace", f'CMD ["{PYTHON}"]']
    arguments = [part for change in changes for part in ("--change", change)]
    # The engine's temporary copies go to the build directory, which is removed.
    result = await _engine(
        engine,
        engine_args,
        *("import", *arguments, str(tar), reference),
        seconds=IMPORT_SECONDS,
        environment={"TMPDIR": str(tar.parent)},
    )
    if result.disk_full:
        raise disk_full(f"The container engine could not store {reference}.")
    if result.returncode != 0:
        raise BridgeError(
            "image_build_failed",
            f"The container engine's import failed: {result.tail()}",
            output=result.tail(),
        )


async def _remove_replaced(engine: str, engine_args: Sequence[str], recipe: str) -> None:
    """Remove untagged images of the same recipe, from which a forced or concurrent build has taken the name."""
    try:
        replaced = await _image_ids(engine, engine_args, f"label={LABEL_RECIPE}={recipe}", "dangling=true")
    except BridgeError:
        # The build has succeeded; the next build removes what is left.
        return
    for image in replaced:
        # An image that a container still uses stays until the next build.
        await _engine(engine, engine_args, "image", "rm", image)


async def _image_ids(engine: str, engine_args: Sequence[str], *filters: str) -> list[str]:
    arguments = [part for text in filters for part in ("--filter", text)]
    for delay in (*LISTING_DELAYS, None):
        result = await _engine(engine, engine_args, "images", "--quiet", "--no-trunc", *arguments)
        if result.returncode == 0:
            return list(dict.fromkeys(result.stdout.split()))
        # Podman's listing fails completely if an image is removed while it reads them.
        if delay is None or not _is_missing(result):
            break
        await anyio.sleep(delay)
    raise _engine_failed(result)


async def _inspect(engine: str, references: Sequence[str], engine_args: Sequence[str]) -> list[ImageInfo]:
    result = await _engine(engine, engine_args, "image", "inspect", *references)
    if result.returncode != 0 and not _is_missing(result):
        raise _engine_failed(result)
    try:
        rows = json.loads(result.stdout or "[]")
        return [_decode(row, references) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise BridgeError("engine_failed", f"The container engine describes an image unreadably: {error!r}.") from error


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


async def _engine(
    engine: str,
    engine_args: Sequence[str],
    *arguments: str,
    seconds: float = INSPECT_SECONDS,
    environment: dict[str, str] | None = None,
) -> ToolResult:
    try:
        return await run_tool([engine, *engine_args, *arguments], seconds=seconds, environment=environment)
    except (FileNotFoundError, PermissionError) as error:
        raise BridgeError(
            "no_runtime", f"The container engine {engine} can't be started.", hint="Install podman or docker."
        ) from error
    except TimeoutError:
        raise BridgeError(
            "engine_failed", f"The container engine's {arguments[0]} did not end within {seconds:.0f} s."
        ) from None


def _engine_failed(result: ToolResult) -> BridgeError:
    return BridgeError("engine_failed", f"The container engine failed: {result.tail()}", output=result.tail())
