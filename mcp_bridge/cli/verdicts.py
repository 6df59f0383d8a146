"""Verdicts of `mcp-bridge audit verify`, as JSON and as text: verified, or only in agreement with itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, cast

from mcp_bridge.cli import terminal_output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.proofs.tlog_proof import VerifiedProof
    from mcp_bridge.ledger.proofs.verified_log import VerifiedLog
    from mcp_bridge.ledger.publish.checkpoints_seen import TargetRecord


class WitnessRecord(TypedDict):
    """The newest checkpoint that a witness has cosigned.

    Attributes:
        key: The witness's verifier key.
        time: When it cosigned, in seconds since 1970.
        size: The checkpoint's number of entries.
    """

    key: str
    time: int
    size: int


class LostKeyRecord(TypedDict):
    """A key that was replaced as lost.

    Attributes:
        entry: The number of the entry that says so.
        key: The lost key.
        by: The key in its place.
    """

    entry: int
    key: str
    by: str


class LossRecord(TypedDict):
    """A place where the log lacks what had been recorded, as `verified_log.Lost`."""

    entry: int
    time: float
    restored: bool | None
    had: int | None


class EntryRecord(TypedDict):
    """The entry that a proof is about.

    Attributes:
        sequence: Its number.
        kind: Its kind.
        execution: Its execution's id.
        step: The path of a step, or None.
        time: Its time, in seconds since 1970.
    """

    sequence: int
    kind: str
    execution: str
    step: str | None
    time: float


class VerdictRecord(TypedDict):
    """A verdict on a file, as JSON.

    Attributes:
        file: The path.
        origin, size, root: The name, number of entries and root hash (in hexadecimal) of the verified checkpoint.
        authenticated: Whether a trusted key has signed the checkpoint.
        keys: The keys that have signed it.
        executions, disclosed, undisclosed, checkpoints, compared: Counts, as in `verified_log.VerifiedLog`.
        witnesses: The newest checkpoint of each witness.
        silent: The given witness keys that have cosigned nothing of it.
        lost: The keys that were replaced as lost.
        losses: Where the log lacks what had been recorded.
        erased: Of a log: how many executions are erased.
        withheld: Of an export: how many entries have a payload that is neither there nor erased.
        opened: Of a ledger: whether its payloads were decrypted.
        foreign_public_key: Of the own ledger: the key in `checkpoint.pub`, if it isn't the log's; else None.
        artifacts: Of the own ledger: how many artifacts are there, and are what it has recorded.
        targets: Of the own ledger: the checks of the publishing targets.
        offline: Of the own ledger: whether there are targets that weren't asked.
        entry: Of a proof: the entry.
        payload: Of a proof: the disclosed payload, or None.
    """

    file: str
    origin: str
    size: int
    root: str
    authenticated: bool
    keys: list[str]
    witnesses: list[WitnessRecord]
    silent: list[str]
    compared: int
    executions: NotRequired[int]
    disclosed: NotRequired[int]
    undisclosed: NotRequired[int]
    checkpoints: NotRequired[int]
    lost: NotRequired[list[LostKeyRecord]]
    losses: NotRequired[list[LossRecord]]
    erased: NotRequired[int]
    withheld: NotRequired[int]
    opened: NotRequired[bool]
    foreign_public_key: NotRequired[str | None]
    artifacts: NotRequired[int]
    targets: NotRequired[list[TargetRecord]]
    offline: NotRequired[bool]
    entry: NotRequired[EntryRecord]
    payload: NotRequired[str | None]


def log_record(file: Path, verdict: VerifiedLog, keys: Sequence[Verifier] | None) -> VerdictRecord:
    """The verdict on a log, from a ledger or an export.

    Args:
        file: The file.
        verdict: The verdict.
        keys: The trusted keys; None to trust none.
    """
    return {
        "file": str(file),
        "origin": verdict.origin,
        "size": verdict.size,
        "root": verdict.root.hex(),
        "authenticated": verdict.authenticated,
        "keys": list(verdict.keys),
        "executions": verdict.executions,
        "disclosed": verdict.disclosed,
        "undisclosed": verdict.undisclosed,
        "checkpoints": verdict.checkpoints,
        "compared": verdict.compared,
        "witnesses": [{"key": one.by.vkey, "time": one.time, "size": one.size} for one in verdict.newest_cosigned],
        "silent": _silent(keys, [one.by for one in verdict.newest_cosigned]),
        "lost": [{"entry": entry, "key": old, "by": new} for entry, old, new in verdict.lost],
        "losses": [cast("LossRecord", one._asdict()) for one in verdict.losses],
    }


def _silent(keys: Sequence[Verifier] | None, cosigners: Sequence[Verifier]) -> list[str]:
    """The given witness keys that have cosigned nothing in what was verified."""
    from mcp_bridge.ledger.proofs.signing import COSIGNATURE

    return [key.vkey for key in keys or () if key.kind == COSIGNATURE and key not in cosigners]


def proof_record(file: Path, proved: VerifiedProof, keys: Sequence[Verifier] | None) -> VerdictRecord:
    """The verdict on the proof of an entry; arguments as for `log_record`."""
    leaf = proved.leaf
    payload = proved.disclosed.payload
    return {
        "file": str(file),
        "origin": proved.checkpoint.origin,
        "size": proved.checkpoint.size,
        "root": proved.checkpoint.root.hex(),
        "authenticated": proved.authenticated,
        "keys": [by.vkey for by, _ in proved.signatures],
        "witnesses": [
            {"key": by.vkey, "time": time, "size": proved.checkpoint.size}
            for by, time in proved.signatures
            if time is not None
        ],
        "silent": _silent(keys, [by for by, time in proved.signatures if time is not None]),
        "entry": {
            "sequence": leaf.sequence,
            "kind": leaf.kind,
            "execution": leaf.execution,
            "step": leaf.step,
            "time": leaf.time / 1e6,
        },
        "payload": None if payload is None else payload.decode(),
        "compared": proved.compared,
    }


def verdict_status(record: VerdictRecord) -> Literal["verified", "unauthenticated"]:
    """A verdict in a word: without a trusted key, a file only agrees with itself."""
    return "verified" if record["authenticated"] else "unauthenticated"


def verdict_lines(record: VerdictRecord) -> list[str]:
    """A verdict as text for people."""
    whole = f"{record['file']}: {record['size']} entries of {record['origin']}"
    if "entry" in record:
        entry = record["entry"]
        whole = (
            f"{record['file']}: entry {entry['sequence']} ({entry['kind']} of {entry['execution']}, "
            f"{terminal_output.moment(entry['time'])}) is in {record['origin']} of {record['size']} entries"
        )
    lines = [f"verified: {whole}" if record["authenticated"] else f"agrees with itself: {whole}"]
    if not record["authenticated"]:
        lines.append("by no key: anybody may have made it; name the log's key with --key")
    if (payload := record.get("payload")) is not None:
        # Prefixed on each line: the text may itself contain "verified: …".
        lines += [f"payload: {line}" for line in payload.split("\n")]
    elif "payload" in record:
        lines.append("its payload is not in the proof: it was withheld, or is erased")
    return [*lines, *_loss_lines(record), *_missing_lines(record), *_key_lines(record), *_elsewhere_lines(record)]


def _loss_lines(record: VerdictRecord) -> list[str]:
    """Lines about recorded entries that the log itself says were lost."""
    lines = []
    for row in record.get("losses", ()):
        when = terminal_output.moment(row["time"])
        if row["restored"]:
            loss = f"restored {when} from a backup of its first {row['entry']} entries: what came later isn't in it"
        elif row["restored"] is None:
            loss = f"its end was lost, or it was restored from a backup, {when}: {row['entry']} entries were left"
        else:
            had = "" if row["had"] is None else f"; it had {row['had']}"
            loss = f"its end was lost: {row['entry']} entries were left{had}; that was accepted {when}"
        lines.append(f"{loss} (entry {row['entry']} says so)")
    return lines


def _missing_lines(record: VerdictRecord) -> list[str]:
    """Lines about payloads that were not checked."""
    lines = []
    if record.get("erased"):
        lines.append(f"{record['erased']} executions erased")
    if record.get("withheld"):
        lines.append(f"the payloads of {record['withheld']} entries are withheld: not in this file, and not erased")
    if record.get("artifacts"):
        lines.append(f"{record['artifacts']} artifacts are as they were when their executions ended")
    if not record.get("opened", True):
        lines.append("payloads and tables were not decrypted: the log's master key is not here")
    return lines


def _key_lines(record: VerdictRecord) -> list[str]:
    """Lines about keys that nobody vouches for."""
    lines = [
        f"the key {row['key']} was replaced as lost with entry {row['entry']}, by {row['by']}: anyone who "
        "trusts the old key needs the new one from you"
        for row in record.get("lost", ())
    ]
    if (foreign := record.get("foreign_public_key")) is not None:
        lines.append(
            f"checkpoint.pub has another key, {foreign}: who trusts that file needs the one `audit key` prints"
        )
    return lines


def _elsewhere_lines(record: VerdictRecord) -> list[str]:
    """Lines about other observers: kept checkpoints, witnesses, targets."""
    targets = record.get("targets", ())
    agreeing = [row for row in targets if row["status"] == "agrees"]
    lines = []
    if record.get("compared"):
        lines.append(f"agrees with {record['compared']} checkpoints that were stored elsewhere")
    elif "entry" not in record and record["authenticated"] and not record["witnesses"] and not agreeing:
        lines.append(
            "not checked against a checkpoint stored elsewhere: anyone with the log's key could have rewritten it"
        )
    lines += [_cosigned_line(row, record["size"]) for row in record["witnesses"]]
    lines += [f"cosigned nothing of this: {key.partition('+')[0]}" for key in record["silent"]]
    lines += [f"agrees with the {row['target']}, which has seen {row['size']} entries" for row in agreeing]
    for row in targets:
        if row["error"] is not None:
            lines.append(f"NOT compared with the {row['target']}: {row['error']['message']}")
        elif row["status"] == "empty":
            lines.append(f"NOT compared with the {row['target']}: it holds no checkpoint of this log yet")
    if record.get("offline"):
        lines.append("none of [[ledger.publish]] was asked (--offline): a roll-back to an earlier time isn't found so")
    return lines


def _cosigned_line(row: WitnessRecord, size: int) -> str:
    whose = row["key"].partition("+")[0]
    what = f"all {size} entries" if row["size"] == size else f"the first {row['size']} of {size} entries"
    return f"cosigned by {whose}: {what}, {terminal_output.moment(row['time'])}"
