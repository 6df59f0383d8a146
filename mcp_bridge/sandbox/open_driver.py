"""The drivers by the name of the engine: containers, and images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.sandbox.image.store import EngineImages, ImageStore
from mcp_bridge.sandbox.oci.engine import OciEngine
from mcp_bridge.sandbox.oci.images import BundleImages

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.sandbox.cli_engine import CliEngine
    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice


def open_engine(choice: RuntimeChoice, state_dir: Path) -> CliEngine | OciEngine:
    """The driver of the chosen engine.

    Raises:
        BridgeError: `disk_full`, `state_unwritable`.
    """
    if choice.engine == "oci":
        return OciEngine(choice, state_dir)
    from mcp_bridge.sandbox.cli_engine import CliEngine  # noqa: PLC0415  (not needed without an engine)

    return CliEngine(choice, state_dir)


def open_images(choice: RuntimeChoice, state_dir: Path) -> ImageStore:
    """The images of the chosen engine."""
    return BundleImages(state_dir / "oci") if choice.engine == "oci" else EngineImages(*choice.invocation)
