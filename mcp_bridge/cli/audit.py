"""`mcp-bridge audit …`: what can be proven of what happened, here or from a file alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from mcp_bridge.cli import common, showing
from mcp_bridge.cli.opening import finish, in_record, print_json
from mcp_bridge.cli.options import Config, Json  # noqa: TC001  (typer reads the annotations)
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.ledger.database import Database
    from mcp_bridge.ledger.exports import Verdict
    from mcp_bridge.ledger.publisher import TargetState
    from mcp_bridge.ledger.sealing import MasterKey
    from mcp_bridge.ledger.signing import Verifier
    from mcp_bridge.settings import Settings

audit = typer.Typer(
    help="Verify the record of what happened, and prove it to others.",
    no_args_is_help=True,
    epilog="What a valid signature does and doesn't prove, and against whom, is in SECURITY.md.",
)

MAX_NOTES_BYTES = 64 << 20
"""Of a file with checkpoints: one a minute makes as much in half a year."""

_SQLITE = b"SQLite format 3\0"

MAX_KEYS_BYTES = 64 << 10
"""Of a file with public keys."""

Keys: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="VKEY|FILE", help="Trust this key of a log or a witness, or those in a file; repeatable."
    ),
]
Kept: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--checkpoint", metavar="NOTE", help="A checkpoint that was kept elsewhere; repeatable."),
]


Payloads: TypeAlias = Annotated[
    bool, typer.Option("--payloads", help="With arguments, results, code and outputs, in the clear.")
]
Acknowledge: TypeAlias = Annotated[
    bool, typer.Option("--acknowledge", help="Take away the alarms that `audit stats` shows: they were looked into.")
]
Lost: TypeAlias = Annotated[
    bool, typer.Option("--lost", help="The old key is lost: readers have to be told of the new one by other means.")
]


@audit.command(
    epilog="Examples:\n\nmcp-bridge audit verify --checkpoint /mnt/usb/checkpoints.txt\n\n"
    "mcp-bridge audit verify ledger.jsonl --key 'mcp-code-bridge/0a1b…+c2d3e4f5+AYr…'"
)
def verify(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="An export, a .tlog-proof or a copy of the ledger; the ledger itself without.")
    ] = None,
    key: Keys = None,
    checkpoint: Kept = None,
    config: Config = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Verify a ledger, an export or a proof: every entry, hash and signature.

    The ledger here is verified by its own key, unless --key names others. A file is verified by --key alone; without
    one it is only said whether it agrees with itself.
    """

    def work() -> int:
        keys = _verifiers(key)
        notes = [note for path in checkpoint or () for note in _notes(path)]
        if file is None:
            settings = common.load(config or ctx.obj).settings
            facts = _verified_here(settings, keys, notes)
        else:
            facts = _verified_file(file, keys, notes, lambda: common.load(config or ctx.obj).settings)
        if as_json:
            print_json({"status": "verified" if facts["authenticated"] else "unauthenticated", **facts})
        else:
            for line in _verdict_lines(facts):
                showing.tell(line)
        return common.OK

    finish(work, as_json=as_json)


@audit.command(
    epilog="Examples:\n\nmcp-bridge audit prove 42 --out 42.tlog-proof\n\n"
    "mcp-bridge audit prove 42 ledger.jsonl --key ledger.pub --out 42.tlog-proof"
)
def prove(
    ctx: typer.Context,
    entry: Annotated[
        int, typer.Argument(metavar="ENTRY", help="Its number, as `execution show` and `export` have it.")
    ],
    file: Annotated[
        Path | None, typer.Argument(help="An export or a copy of the ledger; the ledger itself without.")
    ] = None,
    key: Keys = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Instead of standard output.")] = None,
    payload: Annotated[bool, typer.Option(help="Disclose what the entry is about, and not its hash alone.")] = True,  # noqa: FBT002
    config: Config = None,
) -> None:
    """Write the proof that an entry is in the log, as a tlog-proof, for whoever has the key and `audit verify`.

    An export is verified by --key first; without one its proof is good for whoever has the key.
    """

    def work() -> int:
        from mcp_bridge.ledger import proofs  # noqa: PLC0415

        keys = _verifiers(key)
        if file is None:
            data = _proven_here(common.load(config or ctx.obj).settings, entry, payload=payload)
        else:
            data = _proven_by(file, keys, entry, lambda: common.load(config or ctx.obj).settings, payload=payload)
        if keys:
            proofs.verify(data, keys)
        _write(out, lambda file: file.write(data))
        return common.OK

    finish(work)


@audit.command(epilog="Example:\n\nmcp-bridge audit checkpoint >> /mnt/usb/checkpoints.txt")
def checkpoint(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:  # noqa: FBT002
    """Print the signed checkpoint of all entries: to be kept where this machine can't change it."""

    def work() -> int:
        from mcp_bridge.ledger.reading import open_ledger  # noqa: PLC0415

        with open_ledger(_path(common.load(config or ctx.obj).settings)) as ledger:
            note, size, vkey = ledger.head_note(), ledger.size, ledger.vkey
        if as_json:
            print_json({"checkpoint": note, "size": size, "key": vkey})
        else:
            # As it is: it is signed. And an empty line, so that others can follow it in one file.
            sys.stdout.flush()
            sys.stdout.buffer.write(note.encode() + b"\n")
        return common.OK

    finish(work, as_json=as_json)


@audit.command(epilog='Example:\n\nmcp-bridge audit verify ledger.jsonl --key "$(mcp-bridge audit key)"')
def key(ctx: typer.Context, config: Config = None) -> None:
    """Print the public key of the log, for whoever is to verify what it signs."""

    def work() -> int:
        from mcp_bridge.ledger.opening import own_vkey  # noqa: PLC0415

        showing.tell(own_vkey(_path(common.load(config or ctx.obj).settings)))
        return common.OK

    finish(work)


@audit.command(epilog="Example:\n\nmcp-bridge audit consistency monday.txt friday.txt")
def consistency(
    ctx: typer.Context,
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A checkpoint's note.")],
    new: Annotated[
        Path | None, typer.Argument(metavar="[NEW]", help="A later one; the log as it is now without.")
    ] = None,
    key: Keys = None,
    config: Config = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Show that the log of a checkpoint is the beginning of a later one: nothing was changed, removed or inserted."""

    def work() -> int:
        from mcp_bridge.ledger import audit as auditing  # noqa: PLC0415
        from mcp_bridge.ledger.opening import own_vkey  # noqa: PLC0415
        from mcp_bridge.ledger.reading import open_ledger  # noqa: PLC0415
        from mcp_bridge.ledger.signing import Verifier  # noqa: PLC0415

        settings = common.load(config or ctx.obj).settings
        (earlier,) = _notes(old)[-1:]
        later = _notes(new)[-1] if new is not None else None
        given = _verifiers(key)
        own = given or _own_keys(own_vkey(_path(settings)))
        with open_ledger(_path(settings)) as ledger:
            before = [] if given else [Verifier.parse(vkey) for vkey in ledger.vkeys()]
            found = auditing.consistency(ledger, earlier, later, own, before)
        if as_json:
            print_json({"status": "consistent", **found})
        else:
            showing.tell(f"consistent: the first {found['old']} of {found['new']} entries are those of {old}")
        return common.OK

    finish(work, as_json=as_json)


@audit.command(epilog="Example:\n\nmcp-bridge audit export ledger.jsonl --payloads")
def export(
    ctx: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The export; - for standard output.")],
    payloads: Payloads = False,  # noqa: FBT002
    config: Config = None,
) -> None:
    """Write the whole log as one file that can be verified anywhere with nothing but itself and the key."""

    def work() -> int:
        from mcp_bridge.ledger import audit as auditing  # noqa: PLC0415
        from mcp_bridge.ledger.reading import open_ledger, require  # noqa: PLC0415

        settings = common.load(config or ctx.obj).settings
        require(_path(settings))
        with open_ledger(_path(settings), _master(settings) if payloads else None) as ledger:
            size = ledger.size
            _write(None if str(out) == "-" else out, lambda file: auditing.export(ledger, file, payloads=payloads))
            vkey = ledger.vkey
        if str(out) != "-":
            showing.tell(f"{size} entries in {out}; verify it with --key '{vkey}'")
        return common.OK

    finish(work)


@audit.command()
def stats(ctx: typer.Context, config: Config = None, as_json: Json = False) -> None:  # noqa: FBT002
    """Count entries, executions and bytes; tell the log's name and key."""

    def work() -> int:
        from mcp_bridge.ledger import audit as auditing  # noqa: PLC0415
        from mcp_bridge.ledger.reading import open_ledger  # noqa: PLC0415

        with open_ledger(_path(common.load(config or ctx.obj).settings)) as ledger:
            facts = auditing.stats(ledger)
        if as_json:
            print_json(facts)
            return common.OK
        showing.tell(f"log {facts['origin']}, {facts['entries']} entries, key {facts['key']}")
        showing.tell(f"from {showing.moment(facts['first'])} to {showing.moment(facts['last'])}")
        showing.tell(f"payloads {facts['payload_bytes']} bytes, file {facts['file_bytes']} bytes")
        showing.table(("entries", "number"), [(kind, str(count)) for kind, count in facts["kinds"].items()])
        rows = [*facts["executions"].items()]
        showing.table(("executions", "number"), [(status, str(count)) for status, count in rows])
        for target, row in facts["published"].items():
            showing.tell(f"published to {target}: {row['size']} entries, {row['status']}")
            if row["conflict"]:
                when = showing.moment(row["conflict"]["time"])
                showing.tell(f"  ALARM of {when}: {row['conflict']['message']}")
        return common.OK

    finish(work, as_json=as_json)


@audit.command(epilog="Example:\n\nmcp-bridge audit publish")
def publish(
    ctx: typer.Context,
    acknowledge: Acknowledge = False,  # noqa: FBT002
    config: Config = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Send the newest checkpoint to all of [[ledger.publish]], now. A bridge that runs does so by itself."""

    def work() -> int:
        loaded = common.load(config or ctx.obj)
        if not loaded.settings.ledger.publish:
            raise BridgeError(
                "bad_argument", "Nothing is published: there is no [[ledger.publish]].", hint="See README.md."
            )

        async def published(database: Database) -> dict[str, TargetState]:
            from mcp_bridge.bridge import publishing as through  # noqa: PLC0415

            if acknowledge:
                await through.acknowledge(database)
            publishing = await through.publisher(database, loaded.settings.ledger, common.base_of(loaded))
            return dict(await publishing.publish_now())

        states = in_record(loaded.settings, published)
        if as_json:
            print_json({"targets": [state.record() for state in states.values()]})
        else:
            for state in states.values():
                why = f": {state.error['message']}" if state.error else ""
                showing.tell(f"{state.target}: {state.status}, {state.size} entries{why}")
        return common.OK if all(state.status == "ok" for state in states.values()) else common.FAILED

    finish(work, as_json=as_json)


@audit.command("rotate-key", epilog="Example:\n\nmcp-bridge audit rotate-key")
def rotate_key(
    ctx: typer.Context,
    lost: Lost = False,  # noqa: FBT002
    config: Config = None,
    as_json: Json = False,  # noqa: FBT002
) -> None:
    """Sign with a new key from here on; the log says so, signed by the old one."""

    def work() -> int:
        from mcp_bridge.ledger import rotation  # noqa: PLC0415

        settings = common.load(config or ctx.obj).settings
        if lost:
            vkey = rotation.replace_lost_key(_path(settings), settings.ledger.master_key)
        else:
            vkey = in_record(settings, rotation.rotate_key)
        if as_json:
            print_json({"key": vkey})
        else:
            showing.tell(f"new key: {vkey}")
        return common.OK

    finish(work, as_json=as_json)


@audit.command("accept-clock")
def accept_clock(ctx: typer.Context, config: Config = None) -> None:
    """Go on although the clock is behind the last entry: it is right now, and was ahead before."""

    def work() -> int:
        from mcp_bridge.cli.people import who  # noqa: PLC0415
        from mcp_bridge.ledger import rotation  # noqa: PLC0415

        async def accepted(database: Database) -> float:
            return await rotation.accept_clock(database, who())

        behind = in_record(common.load(config or ctx.obj).settings, accepted)
        showing.tell(f"accepted: the clock is {behind:.0f} s behind the entry before")
        return common.OK

    finish(work)


def _path(settings: Settings) -> Path:
    from mcp_bridge.ledger.schema import FILE_NAME  # noqa: PLC0415

    return settings.state_dir / FILE_NAME


def _master(settings: Settings) -> MasterKey:
    from mcp_bridge.ledger.sealing import master_key  # noqa: PLC0415

    return master_key(settings.ledger.master_key, settings.state_dir, make=False)


def _verifiers(keys: list[str] | None) -> list[Verifier] | None:
    from mcp_bridge.ledger.signing import Verifier  # noqa: PLC0415

    return [Verifier.parse(key) for given in keys for key in _key_texts(given)] if keys else None


def _key_texts(given: str) -> list[str]:
    """The public keys that somebody names: one, or a file's, one a line, `audit key`'s output for instance.

    Raises:
        BridgeError: `bad_argument`.
    """
    path = Path(given)
    try:
        if "\0" in given or not path.is_file():
            return [given.strip()]
        with path.open("rb") as file:
            text = file.read(MAX_KEYS_BYTES + 1).decode(errors="replace")
    except OSError as exc:
        raise BridgeError("bad_argument", f"{given:.200} can't be read: {exc.strerror}.") from None
    found = text.split() if len(text) <= MAX_KEYS_BYTES else []
    if not found:
        raise BridgeError("bad_argument", f"{path} is no file with public keys, one a line.")
    return found


def _own_keys(vkey: str) -> list[Verifier]:
    from mcp_bridge.ledger.signing import Verifier  # noqa: PLC0415

    return [Verifier.parse(vkey)]


def _notes(path: Path) -> list[str]:
    """The signed notes of a file: one, or several that were appended to each other.

    Raises:
        BridgeError: `bad_argument`.
    """
    from mcp_bridge.ledger.publishing_file import notes_in  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            data = file.read(MAX_NOTES_BYTES + 1)
        if len(data) > MAX_NOTES_BYTES:
            raise BridgeError("bad_argument", f"{path} has more than {MAX_NOTES_BYTES} bytes.")
    except OSError as exc:
        raise BridgeError("bad_argument", f"{path} can't be read: {exc.strerror}.") from None
    # What a crash has left of a note need be no text.
    found = notes_in(data.decode(errors="replace"))
    if not found:
        raise BridgeError("bad_argument", f"There is no checkpoint in {path}.")
    return found


def _write(path: Path | None, write: Any) -> None:
    """Write a file that isn't there yet, or standard output."""
    if path is None:
        try:
            sys.stdout.flush()
            write(sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # Whoever reads has enough.
            raise
        except OSError as exc:
            # Or Python would try once more when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise BridgeError("disk_full", f"Standard output can't be written: {exc.strerror}.") from None
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise BridgeError("bad_argument", f"{path} can't be made: {exc.strerror}.", hint="Name a new file.") from None
    try:
        with os.fdopen(fd, "wb") as file:
            write(file)
    except BaseException as exc:
        path.unlink(missing_ok=True)
        if isinstance(exc, OSError):
            raise BridgeError("disk_full", f"{path} can't be written: {exc.strerror}.") from None
        raise


def _verified_here(settings: Settings, keys: list[Verifier] | None, notes: list[str]) -> dict[str, Any]:
    from mcp_bridge.ledger.audit import verify_file  # noqa: PLC0415
    from mcp_bridge.ledger.opening import own_vkey  # noqa: PLC0415

    path = _path(settings)
    # The key that is here, and not the one that the file says: whoever changes the file can't have changed that.
    trusted = keys or _own_keys(own_vkey(path))
    found = verify_file(path, trusted, notes, _master(settings))
    return {"file": str(path), **_facts(found.log), "erased": found.erased, "opened": found.opened}


def _verified_file(file: Path, keys: list[Verifier] | None, notes: list[str], settings: Any) -> dict[str, Any]:
    from mcp_bridge.ledger import proofs  # noqa: PLC0415
    from mcp_bridge.ledger.exports import verify_export  # noqa: PLC0415

    try:
        with file.open("rb") as opened:
            beginning = opened.read(len(_SQLITE))
            opened.seek(0)
            if beginning == _SQLITE:
                return _verified_copy(file, keys, notes, settings)
            if beginning.startswith(b"c2sp.org/"):
                proved = proofs.verify(opened.read(proofs.MAX_PROOF_BYTES + 1), keys, notes)
                return {"file": str(file), **_proof_facts(proved), "compared": len(notes)}
            return {"file": str(file), **_facts(verify_export(opened, keys, notes))}
    except OSError as exc:
        raise BridgeError("bad_argument", f"{file} can't be read: {exc.strerror}.") from None


def _proven_here(settings: Settings, entry: int, *, payload: bool) -> bytes:
    from mcp_bridge.ledger import audit as auditing  # noqa: PLC0415
    from mcp_bridge.ledger.reading import open_ledger, require  # noqa: PLC0415

    require(_path(settings))
    with open_ledger(_path(settings), _master(settings) if payload else None) as ledger:
        return auditing.prove(ledger, entry, payload=payload)


def _proven_by(file: Path, keys: list[Verifier] | None, entry: int, settings: Any, *, payload: bool) -> bytes:
    from mcp_bridge.ledger import audit as auditing  # noqa: PLC0415
    from mcp_bridge.ledger.reading import open_ledger  # noqa: PLC0415

    try:
        with file.open("rb") as opened:
            if opened.read(len(_SQLITE)) != _SQLITE:
                opened.seek(0)
                return auditing.prove_exported(opened, keys, entry, payload=payload)
    except OSError as exc:
        raise BridgeError("bad_argument", f"{file} can't be read: {exc.strerror}.") from None
    with open_ledger(file, _master_of(file, settings)) as ledger:
        return auditing.prove(ledger, entry, payload=payload)


def _master_of(file: Path, settings: Any) -> MasterKey | None:
    """The master key here, if it is that of a copy; None for another machine's ledger: its payloads stay closed."""
    from mcp_bridge.ledger.beside import check_master  # noqa: PLC0415
    from mcp_bridge.ledger.reading import open_ledger  # noqa: PLC0415

    try:
        master = _master(settings())
        with open_ledger(file) as ledger:
            check_master(ledger.connection, master)
    except BridgeError as exc:
        if exc.code not in {"key_missing", "key_unusable"}:
            raise
        return None
    return master


def _verified_copy(file: Path, keys: list[Verifier] | None, notes: list[str], settings: Any) -> dict[str, Any]:
    from mcp_bridge.ledger.audit import verify_file  # noqa: PLC0415

    found = verify_file(file, keys, notes, _master_of(file, settings))
    return {"file": str(file), **_facts(found.log), "erased": found.erased, "opened": found.opened}


def _facts(found: Verdict) -> dict[str, Any]:
    return {
        "origin": found.origin,
        "size": found.size,
        "root": found.root.hex(),
        "authenticated": found.authenticated,
        "keys": list(found.keys),
        "executions": found.executions,
        "disclosed": found.disclosed,
        "undisclosed": found.undisclosed,
        "checkpoints": found.checkpoints,
        "compared": found.compared,
        "witnesses": [{"key": by.vkey, "time": time} for by, time in found.witnesses],
    }


def _proof_facts(found: Any) -> dict[str, Any]:
    leaf = found.leaf
    payload = found.disclosed.payload
    return {
        "origin": found.checkpoint.origin,
        "size": found.checkpoint.size,
        "root": found.checkpoint.root.hex(),
        "authenticated": found.authenticated,
        "keys": [by.vkey for by, _ in found.signatures],
        "entry": {
            "sequence": leaf.sequence,
            "kind": leaf.kind,
            "execution": leaf.execution,
            "step": leaf.step,
            "time": leaf.time / 1e6,
        },
        "payload": None if payload is None else payload.decode(),
    }


def _verdict_lines(facts: dict[str, Any]) -> list[str]:
    whole = f"{facts['file']}: {facts['size']} entries of {facts['origin']}"
    if "entry" in facts:
        entry = facts["entry"]
        whole = (
            f"{facts['file']}: entry {entry['sequence']} ({entry['kind']} of {entry['execution']}, "
            f"{showing.moment(entry['time'])}) is in {facts['origin']} of {facts['size']} entries"
        )
    lines = [f"verified: {whole}" if facts["authenticated"] else f"agrees with itself: {whole}"]
    if not facts["authenticated"]:
        lines.append("by no key: anybody may have made it; name the log's key with --key")
    if facts.get("payload") is not None:
        lines.append(f"payload: {facts['payload']}")
    if facts.get("compared"):
        lines.append(f"agrees with {facts['compared']} checkpoints that were kept elsewhere")
    elif "witnesses" in facts and facts["authenticated"] and not facts["witnesses"]:
        lines.append("held against no checkpoint that was kept elsewhere: whoever has its key may have rewritten it")
    lines += [f"cosigned by {row['key'].partition('+')[0]}" for row in facts.get("witnesses", ())]
    return lines
