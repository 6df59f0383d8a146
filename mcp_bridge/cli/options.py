"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcp_bridge.downstream.configuration.known_clients import CLIENT_NAMES, PROGRAMS, ClientName

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Use this file instead of your configuration and the folder's mcp-bridge.toml."
    ),
]
"""Accepted before and after a command; the latter takes precedence."""

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]

Principal = Annotated[str | None, typer.Option("--principal", metavar="NAME", help="Only that principal's.")]


def _program(name: str) -> str:
    # What is no program is refused by the command, which says what reads it.
    if name not in CLIENT_NAMES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, PROGRAMS))}.")
    return name


Program = Annotated[
    ClientName,
    typer.Argument(metavar="CLIENT", parser=_program, show_choices=False, help=f"One of {', '.join(PROGRAMS)}."),
]
