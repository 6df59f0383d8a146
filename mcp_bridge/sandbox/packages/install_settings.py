"""The `[install]` table of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mcp_bridge.configured_values import ConfiguredTable, Size
from mcp_bridge.errors import BridgeError

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _requirements(entries: tuple[str, ...]) -> tuple[str, ...]:
    from mcp_bridge.sandbox.packages.requirements import parse_requirement  # noqa: PLC0415 - rarely needed

    for entry in entries:
        try:
            parse_requirement(entry)
        except BridgeError as exc:
            raise ValueError(f"{exc.message} {exc.hint}".removesuffix(".")) from None
    return entries


Requirements = Annotated[tuple[str, ...], AfterValidator(_requirements)]
"""Requirements by name, such as `polars` or `requests[socks]>=2,<3`; each is valid."""


class InstallSettings(ConfiguredTable):
    """What scripts may have installed.

    Attributes:
        allow: The packages that may be asked for, with the versions that may be had; none by default.
        dependencies: `any`: what those need comes with them; `listed`: that has to be in `allow` too.
        max_packages: Packages in a set.
        max_size: Bytes of a set's wheels, and eight times that of their files.
        timeout: How long one set may take to be resolved and fetched, in seconds.
        fresh: For how long the same requirements stand for the same set, in seconds; then the index is asked again.
        cache_size: Bytes of the wheels that are kept; and, by itself, of the images of package sets.
    """

    allow: Annotated[Requirements, Field(description="Packages that scripts may ask for, with their versions")] = ()
    dependencies: Annotated[
        Literal["any", "listed"],
        Field(description="What those need: any comes with them, listed has to be in allow, too"),
    ] = "any"
    max_packages: Annotated[int, Field(ge=1, description="Most packages of one set")] = 100
    max_size: Annotated[
        Size, Field(description="Most a set's wheels may have; its files may have eight times that")
    ] = 256 << 20
    timeout: Annotated[Seconds, Field(description="The longest that one set may take to be found and fetched")] = 300.0
    fresh: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="How long a package without a version stays the same one")
    ] = 86_400.0
    cache_size: Annotated[Size, Field(description="Most the kept wheels may have, and the images made of them")] = (
        2 << 30
    )
