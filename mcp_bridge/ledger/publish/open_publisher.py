"""Opens what publishes a log's checkpoints, as the configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.ledger.publish.publish_loop import Publisher
from mcp_bridge.ledger.publish.target_state import PublishedLog, read_states

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.ledger.config import LedgerConfig
    from mcp_bridge.ledger.storage.database import Database


async def open_publisher(database: Database, config: LedgerConfig, base: Path) -> Publisher:
    """What publishes the log's checkpoints.

    Args:
        database: Has the log.
        config: Where to.
        base: The folder that its paths are relative to.

    Raises:
        BridgeError: As `Database.read`; `ledger_damaged`.
    """
    states = await read_states(database)
    log = PublishedLog(database, states)
    targets = [target.resolved(base) for target in config.publish]
    return Publisher(targets, log, log.newest, log.save, states=states, interval=config.publish_interval)
