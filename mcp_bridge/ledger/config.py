"""The `[ledger]` table of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mcp_bridge.ledger.targets import PublishingConfig


class LedgerConfig(PublishingConfig):
    """What is kept of executions, and how.

    Attributes:
        master_key: `file` (`master.key` in the state directory), `keyring`, or a command with its arguments that prints
            32 bytes in base64 or hex.
        retry_failed: Whether an idempotency key whose execution has failed may be used for another attempt.
        keep_payloads_days: Payloads of executions that have ended are erased when they are older, at a start and every
            hour; None keeps them.
        subject_fields: Names in the context of programs, and in the arguments of a script's calls. The first of them
            that is there says whose data an execution holds, for `mcp-bridge erase --subject`.
    """

    master_key: Annotated[
        str | tuple[str, ...], Field(description="Where the key of the payloads is: file, keyring, or a command")
    ] = "file"
    retry_failed: Annotated[bool, Field(description="Whether a failed execution's key may be used again")] = False
    keep_payloads_days: Annotated[
        float | None, Field(gt=0, allow_inf_nan=False, description="Erase payloads that are older than so many days")
    ] = None
    subject_fields: Annotated[
        tuple[str, ...],
        Field(
            max_length=20,
            description="Names, in a program's context or a call's arguments, that say whose data it holds",
        ),
    ] = ()
