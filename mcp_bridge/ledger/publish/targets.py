"""The targets of publishing, as configured."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotation
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from mcp_bridge.configured_values import ConfiguredTable, HomePath
from mcp_bridge.errors import BridgeError

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
    from mcp_bridge.ledger.proofs.signing import COSIGNATURE, Verifier  # noqa: PLC0415 - cryptography takes its time

    try:
        kind = Verifier.parse(value).kind
    except BridgeError as exc:
        raise ValueError(exc.message.removesuffix(".")) from None
    if kind != COSIGNATURE:
        raise ValueError("this is a log's key (type 01); write the witness's (type 04), which its address shows")
    return value


Address = Annotated[str, Field(max_length=2000), AfterValidator(_address)]


class Target(ConfiguredTable):
    """A table of `[[ledger.publish]]`: where checkpoints go.

    Attributes:
        file: Notes are added to it; relative to the configuration file. Its directory has to exist: that of a storage
            that isn't mounted doesn't, with luck.
        url: Notes are sent to it by POST.
        witness: The address before `/add-checkpoint` of a witness (C2SP tlog-witness).
        key: The witness's verifier key.
        timeout: Seconds for one attempt.
    """

    file: HomePath | None = None
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
        """The target's id, under which its state is stored and displayed. A witness is identified by its key."""
        if self.key is not None:
            return f"witness {self.key}"
        return f"url {self.url}" if self.url is not None else f"file {self.file}"

    def resolved(self, base: Path) -> Target:
        """The same target, with a relative file resolved against `base`."""
        return self if self.file is None else self.model_copy(update={"file": base / self.file})


def _apart(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    if len({target.id for target in targets}) != len(targets):
        raise ValueError("two targets are the same")
    return targets


class PublishingConfig(ConfiguredTable):
    """The keys of the table `[ledger]` about publishing.

    Attributes:
        publish: The targets.
        publish_interval: Seconds from one attempt to the next, if there is something new.
    """

    publish: Annotated[
        tuple[Target, ...],
        Field(max_length=MAX_TARGETS, description="Where checkpoints are sent: files, addresses and witnesses"),
        AfterValidator(_apart),
    ] = ()
    publish_interval: Annotated[
        float, Field(ge=1, le=86_400, allow_inf_nan=False, description="Seconds between two attempts to publish")
    ] = INTERVAL_SECONDS
