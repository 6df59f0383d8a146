"""The `[sessions]` table of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mcp_bridge.configured_values import ConfiguredTable

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SessionSettings(ConfiguredTable):
    """What sessions may take.

    Attributes:
        idle_timeout: A session's sandbox is put away when no cell has run for so long; its next cell rebuilds it.
        idle_processor_seconds: A session's sandbox is put away when what a cell has left running has used so much
            processor time since the cell's end.
        max_idle: Sandboxes of one principal that are kept between cells; the one used longest ago is put away first.
        max_idle_together: As `max_idle`, of all principals together.
        max_waiting: Cells that wait for one session.
        max_sessions: Sessions of one principal, with a sandbox or without.
        rebuild: Whether a session whose sandbox is gone is rebuilt.
        rebuild_cells: How many cells run again at most.
        rebuild_seconds: How long that may take.
    """

    idle_timeout: Annotated[Seconds, Field(description="Put an idle session's sandbox away after so long")] = 900.0
    idle_processor_seconds: Annotated[
        Seconds, Field(description="Put it away when what was left running has used so much processor time meanwhile")
    ] = 30.0
    max_idle: Annotated[int, Field(ge=0, description="Idle sessions of one principal that keep their sandbox")] = 4
    max_idle_together: Annotated[int, Field(ge=0, description="Idle sessions of all that keep their sandbox")] = 8
    max_waiting: Annotated[
        int, Field(ge=0, description="Cells that wait for one session; further ones are refused as busy")
    ] = 16
    max_sessions: Annotated[int, Field(ge=1, description="Sessions of one principal")] = 100
    rebuild: Annotated[bool, Field(description="Rebuild a session whose sandbox is gone from its record")] = True
    rebuild_cells: Annotated[int, Field(ge=1, description="Most cells that are run again for that")] = 500
    rebuild_seconds: Annotated[Seconds, Field(description="The longest that may take")] = 300.0
