"""Checkpoints sent elsewhere, so that a holder of the log's key can't rewrite what others have seen.

A target is a file on other storage, an address that takes notes, or a witness. Each hears of the log only through its
checkpoints. With a file and a witness a new one is compared with those before, which finds a log that was rewritten or
rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.ledger.publish.protocol import Published, checkpoint_of, rolled_back

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from mcp_bridge.ledger.publish.protocol import Source
    from mcp_bridge.ledger.publish.targets import Target
    from mcp_bridge.ledger.publish.to_file import FileRead


async def publish(
    target: Target, note: str, source: Source, reads: MutableMapping[str, FileRead] | None = None
) -> Published:
    """Bring a checkpoint to a target. What it has taken is durable there, as far as it keeps its word.

    Args:
        target: Where to; its file is absolute.
        note: The log's signed checkpoint.
        source: The log.
        reads: As `publish_to_file`.

    Raises:
        BridgeError: `publish_conflict`: an alarm, see CONFLICT. `publish_unreachable`: it may work later.
            `publish_refused`: the target doesn't want it. `publish_bad_answer`: not what a witness answers.
            `publish_file_unusable`. `publish_file_foreign`: what it holds is not of this log. `publish_file_lost`: what
            was in it is gone. `bad_note`: the note is no checkpoint.
    """
    checkpoint = checkpoint_of(note)
    last = source.last(target.id)
    if last > checkpoint.size:
        if await source.roots([last]) == [None]:
            raise rolled_back(target, last, checkpoint)
        # Another process has added entries and published them since this checkpoint was read.
        return Published(target.id, last, note)
    # Imported late: the HTTP client takes a tenth of a second to load.
    if target.file is not None:
        from mcp_bridge.ledger.publish.to_file import publish_to_file  # noqa: PLC0415

        return await publish_to_file(target, note, source, reads)
    if target.url is not None:
        from mcp_bridge.ledger.publish.to_url import publish_to_url  # noqa: PLC0415

        return await publish_to_url(target, note)
    from mcp_bridge.ledger.publish.to_witness import publish_to_witness  # noqa: PLC0415

    return await publish_to_witness(target, note, source)
