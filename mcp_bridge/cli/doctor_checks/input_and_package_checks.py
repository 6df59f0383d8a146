"""Checks of what scripts may be given, inputs and packages, for `mcp-bridge doctor`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.host.engine_setup import require_own_image
from mcp_bridge.inputs.listing import listed
from mcp_bridge.inputs.open_without_links import RefusedError
from mcp_bridge.sandbox.probe_report import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_bridge.inputs.config import InputSource
    from mcp_bridge.settings import Settings

MAX_LISTED = 20
"""Most inputs that are told of each."""


def files(inputs: Mapping[str, InputSource]) -> Iterator[Finding]:
    """Findings about `[files]`: each input is looked for as a script would."""
    wrong = 0
    for name, source in sorted(inputs.items()):
        try:
            listing = listed(source)
        except RefusedError as exc:
            why = exc.why
        else:
            if listing.kind == "file" or listing.files:
                continue
            why = "has no file that can be provided"
        wrong += 1
        if wrong <= MAX_LISTED:
            message = f"Input {name} ([files]): {source.path} {why}."
            yield Finding("warning", "files", message, "Scripts don't get it. Mend the path, or what is there.")
    if wrong > MAX_LISTED:
        yield Finding("warning", "files", f"{wrong - MAX_LISTED} more inputs can't be provided.")
    if inputs and not wrong:
        yield Finding("ok", "files", f"{len(inputs)} inputs ([files]) are there for scripts.")


async def packages(settings: Settings) -> Finding | None:
    """The finding about `[install]`: whether its packages could be had. None where it allows none."""
    allowed = settings.install.allow
    if not allowed:
        return None
    from mcp_bridge.sandbox.packages.uv import Uv

    try:
        with TemporaryDirectory(prefix="mcp-bridge-doctor-") as work:
            await Uv.find(Path(work))
        require_own_image(settings)
    except BridgeError as exc:
        return Finding("warning", exc.code, exc.message, exc.hint)
    return Finding("ok", "install", f"Scripts may ask for {len(allowed)} packages ([install]), and uv is there.")
