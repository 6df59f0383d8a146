"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Instead of your own, and a trusted ./mcp-bridge.toml.")
]
"""Accepted before and after a command; the latter takes precedence."""

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]

Principal = Annotated[str | None, typer.Option("--principal", metavar="NAME", help="Only that principal's.")]
