"""The `[ledger]` table of the configuration."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mcp_bridge.configured_values import Size, parse_size, shown_size
from mcp_bridge.ledger.log.quota import Quota
from mcp_bridge.ledger.publish.targets import PublishingConfig

MIN_DAYS = 1 / 24
"""An hour: what is kept for less is gone before anybody has looked at it, and was meant to be kept for longer."""


def _days(value: Literal["forever"] | float) -> Literal["forever"] | float:
    if value != "forever" and not MIN_DAYS <= value < math.inf:
        raise ValueError('write a number of days, at least 0.042 (an hour), or "forever"')
    return value


def _command(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if not isinstance(value, str) and not (value and value[0].strip()):
        raise ValueError("is empty: write the command that prints the key")
    return value


Days = Annotated[Literal["forever"] | float, AfterValidator(_days)]
"""How long something is kept."""


class LedgerConfig(PublishingConfig):
    """What is kept of executions, and how.

    Attributes:
        master_key: `file` (`master.key` in the state directory), `keyring`, or a command with its arguments that prints
            32 bytes in base64 or hex.
        retry_failed: Whether an idempotency key whose execution has failed may be used for another attempt.
        keep_payloads_days: Payloads of executions that have ended are erased when they are older, at a start and every
            few minutes, and earlier where max_size leaves no room for new ones; `forever` keeps them, also then.
        keep_files_days: Artifacts and cut outputs are removed when they are older; `forever` keeps them.
        max_size: Of what is in the file. Over it nothing new begins; `unlimited` for none.
        max_run_size: Of what one run records, a script with its programs.
        max_files_size: Of all artifacts and cut outputs together.
        min_free: What has to be free on the disk for anything to begin.
        subject_fields: Names in the context that programs are started with, and in the arguments of tool calls, at any
            depth. Their values say whose data an execution holds, for `mcp-bridge erase --subject`.
    """

    master_key: Annotated[
        str | tuple[str, ...],
        AfterValidator(_command),
        Field(description="Where the key of the payloads is: file, keyring, or a command"),
    ] = "file"
    retry_failed: Annotated[bool, Field(description="Whether a failed execution's key may be used again")] = False
    keep_payloads_days: Annotated[Days, Field(description="Erase payloads that are older than so many days")] = 30
    keep_files_days: Annotated[
        Days, Field(description="Remove artifacts and cut outputs that are older than so many days")
    ] = 7
    max_size: Annotated[
        Literal["unlimited"] | Size, Field(description="Most that the ledger takes; over it nothing new begins")
    ] = 4 << 30
    max_run_size: Annotated[Size, Field(description="Most that one run records")] = 512 << 20
    max_files_size: Annotated[Size, Field(description="Most that all artifacts and cut outputs take")] = 1 << 30
    min_free: Annotated[
        int, BeforeValidator(parse_size), Field(ge=0, description="Free disk space below which nothing new begins")
    ] = 256 << 20
    subject_fields: Annotated[
        tuple[str, ...],
        Field(
            max_length=20,
            description="Names, in a program's context or a call's arguments, that say whose data it holds",
        ),
    ] = ()

    @property
    def quota(self) -> Quota:
        """What the ledger's file may take."""
        return Quota(None if self.max_size == "unlimited" else self.max_size, self.max_run_size, self.min_free)

    def retention(self) -> str:
        """What is kept how long, and how much of it, in a sentence."""
        days = self.keep_payloads_days
        erased = (
            "are kept until somebody erases them"
            if days == "forever"
            else f"are erased {days:g} days after their run has ended, or earlier if the ledger is full"
        )
        size = "of any size" if self.max_size == "unlimited" else f"at most {shown_size(self.max_size)}"
        files = "until they are erased" if self.keep_files_days == "forever" else f"for {self.keep_files_days:g} days"
        return (
            f"Payloads (what runs were given and gave) {erased}; the ledger is {size}."
            f" Artifacts and cut outputs are kept {files}, at most {shown_size(self.max_files_size)}."
        )
