"""Checkpoints sent elsewhere, so that a holder of the log's key can't rewrite what others have seen.

A target is a file on other storage, an address that takes notes, or a witness. Each hears of the log only through its
checkpoints. A file and a witness hold a new one against the last, so they find a log that was rewritten or rolled back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - pydantic reads the annotation
from typing import TYPE_CHECKING, Annotated, Protocol
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.notes import COSIGNATURE, Verifier, parse_checkpoint, split_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.ledger.notes import Checkpoint

CONFLICT = "publish_conflict"
"""The code of an error that is an alarm: somebody else has seen another history than the one that is here."""

MAX_TARGETS = 16

INTERVAL_SECONDS = 60.0

TIMEOUT_SECONDS = 10.0


def _address(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and value.isprintable()
    except ValueError:
        usable = False
    if not usable or " " in value:
        raise ValueError("write an address such as https://witness.example.com")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("an address has no user, password, query or fragment here: it is shown in logs")
    return value.rstrip("/") if parts.path in {"", "/"} else value


def _witness_key(value: str) -> str:
    try:
        kind = Verifier.parse(value).kind
    except BridgeError as exc:
        raise ValueError(exc.message.removesuffix(".")) from None
    if kind != COSIGNATURE:
        raise ValueError("this is a log's key (type 01); write the witness's (type 04), which its address shows")
    return value


Address = Annotated[str, Field(max_length=2000), AfterValidator(_address)]


class Target(BaseModel):
    """A table of `[[ledger.publish]]`: where checkpoints go.

    Attributes:
        file: Notes are added to it; relative to the configuration file. Its directory has to exist: that of a storage
            that isn't mounted doesn't, with luck.
        url: Notes are sent to it by POST.
        witness: The address before `/add-checkpoint` of a witness (C2SP tlog-witness).
        key: The witness's verifier key.
        timeout: Seconds for one attempt.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path | None = None
    url: Address | None = None
    witness: Address | None = None
    key: Annotated[str, AfterValidator(_witness_key)] | None = None
    timeout: Annotated[float, Field(gt=0, le=300, allow_inf_nan=False)] = TIMEOUT_SECONDS

    @model_validator(mode="after")
    def _one(self) -> Target:
        if [self.file, self.url, self.witness].count(None) != 2:  # noqa: PLR2004 - all but one
            raise ValueError("a target has one of file, url and witness")
        if self.file is not None and self.file.name in {"", ".."}:
            raise ValueError("file names no file")
        if self.witness is not None and self.key is None:
            raise ValueError("a witness needs its key, which its address shows")
        if self.key is not None and self.witness is None:
            raise ValueError("key is for a witness")
        return self

    @property
    def id(self) -> str:
        """What it is known by where its state is kept, and shown as. A witness is its key, wherever it moves to."""
        if self.key is not None:
            return f"witness {self.key}"
        return f"url {self.url}" if self.url is not None else f"file {self.file}"

    def resolved(self, base: Path) -> Target:
        """The same, with a relative file taken from `base`."""
        return self if self.file is None else self.model_copy(update={"file": base / self.file.expanduser()})


def _apart(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    if len({target.id for target in targets}) != len(targets):
        raise ValueError("two targets are the same")
    return targets


class PublishingConfig(BaseModel):
    """What the table `[ledger]` says of publishing.

    Attributes:
        publish: The targets.
        publish_interval: Seconds from one attempt to the next, where there is something new.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    publish: Annotated[tuple[Target, ...], Field(max_length=MAX_TARGETS), AfterValidator(_apart)] = ()
    publish_interval: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = INTERVAL_SECONDS


class Source(Protocol):
    """The log that is published."""

    async def root_at(self, size: int) -> bytes | None:
        """The root of the log's first `size` entries, 32 bytes; None if it has fewer."""

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """The consistency proof between two sizes that the log has had, 0 < old < new (RFC 6962, section 2.1.2)."""

    def last(self, target: str) -> int:
        """The size of the last checkpoint that a target (by its `Target.id`) has taken; 0 for none."""


@dataclass(frozen=True, slots=True)
class Published:
    """What came of a checkpoint that a target has taken.

    Attributes:
        target: The target's id.
        size: What the target holds now; more than the checkpoint's if another process was quicker.
        note: The checkpoint, with the cosignatures.
        cosignatures: Their lines, each with its newline; none but of a witness.
    """

    target: str
    size: int
    note: str
    cosignatures: tuple[str, ...] = ()


async def publish(target: Target, note: str, source: Source) -> Published:
    """Bring a checkpoint to a target. What it has taken is durable there, as far as it keeps its word.

    Args:
        target: Where to; its file is absolute.
        note: The log's signed checkpoint.
        source: The log.

    Raises:
        BridgeError: `publish_conflict`: an alarm, see CONFLICT. `publish_unreachable`: it may work later.
            `publish_refused`: the target doesn't want it. `publish_bad_answer`: not what a witness answers.
            `publish_file_unusable`. `publish_file_foreign`: what it holds is not of this log. `publish_file_lost`: what
            was in it is gone. `bad_note`: the note is no checkpoint.
    """
    checkpoint = checkpoint_of(note)
    last = source.last(target.id)
    if last > checkpoint.size:
        if await source.root_at(last) is None:
            raise rolled_back(target, last, checkpoint)
        # Another process has added entries and published them since this checkpoint was read.
        return Published(target.id, last, note)
    # Each is loaded where it is used: the client for HTTP takes a tenth of a second.
    if target.file is not None:
        from mcp_bridge.ledger.publishing_file import publish_to_file  # noqa: PLC0415

        return await publish_to_file(target, note, source)
    from mcp_bridge.ledger.publishing_http import publish_to_url, publish_to_witness  # noqa: PLC0415

    if target.url is not None:
        return await publish_to_url(target, note)
    return await publish_to_witness(target, note, source)


def checkpoint_of(note: str) -> Checkpoint:
    """The checkpoint of a note, whose signatures are not looked at.

    Raises:
        BridgeError: `bad_note`.
    """
    return parse_checkpoint(split_note(note)[0])


def rolled_back(target: Target, size: int, checkpoint: Checkpoint) -> BridgeError:
    """The alarm that a target has seen a longer log."""
    return conflict(
        target,
        f"The {target.id} has seen {size} entries of the log {checkpoint.origin}, and it has {checkpoint.size} now: "
        "it was rolled back.",
        size,
    )


def conflict(target: Target, message: str, size: int) -> BridgeError:
    """An alarm about what a target has seen up to a size."""
    return BridgeError(
        CONFLICT,
        message,
        hint="If you have not restored an old backup, somebody has changed the ledger: keep both, and compare them.",
        target=target.id,
        size=size,
    )
