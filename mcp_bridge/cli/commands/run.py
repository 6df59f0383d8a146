"""`mcp-bridge run`: runs one script, for CI and for trials; prints its output and returns its exit status."""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mcp_bridge import escaping
from mcp_bridge.cli import command_runner, configuration_loading, exit_statuses, terminal_prompts
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.record import PREVIOUS_RESULT_NOTICE
from mcp_bridge.executions.scripts.live_output import STREAMS, LiveOutput
from mcp_bridge.sandbox.languages import language_of_file
from mcp_bridge.server.answers import displays

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.sandbox.languages import Language
    from mcp_bridge.wire.messages import Stream

logger = logging.getLogger(__name__)

WAYS = "Write `mcp-bridge run FILE`, `mcp-bridge run -c 'print(6 * 7)'`, or `mcp-bridge run -` for standard input."
"""The ways to pass a script."""

LIVE_SECONDS = 0.1
"""How often a terminal displays new output."""


class Terminal:
    """Displays a script's output while it runs, on streams that are terminals, and tracks what was displayed."""

    def __init__(self) -> None:
        self._streams = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._shown = dict.fromkeys(STREAMS, "")
        self.is_one = any(stream.isatty() for stream in self._streams.values())

    def show(self, stream: Stream, text: str) -> None:
        """Display new output."""
        if self._streams[stream].isatty():
            self._shown[stream] += text
            self._streams[stream].buffer.write(text.encode())
            self._streams[stream].buffer.flush()

    def rest(self, stream: Stream, printed: bytes) -> bytes:
        """The part of a stream's whole output that isn't displayed yet."""
        shown = self._shown[stream]
        whole = printed.decode("utf-8", "backslashreplace")
        if not shown:
            return printed
        if whole.startswith(shown):
            return whole[len(shown) :].encode()
        # Masking may have replaced text at the end that was displayed while the script ran.
        return b"\nmcp-bridge: all of the output, as it is recorded:\n" + printed


def read_script(file: str | None, code: str | None, language: Language = "python") -> str:
    """The script's text.

    Raises:
        BridgeError: `script_missing`: no file, or a file and -c; `bad_code`: it is not in its encoding; `empty_code`.
    """
    if code is not None and file is not None:
        raise BridgeError(
            "script_missing",
            "Give either a file or -c, not both.",
            hint="Code goes in quotes: mcp-bridge run -c 'print(6 * 7)'.",
        )
    if code is None and file is None and sys.stdin.isatty():
        raise BridgeError("script_missing", "There is no script.", hint=WAYS)
    script = _read(file, language) if code is None else code
    if not script.strip():
        raise BridgeError("empty_code", "There is no code to run.", hint=WAYS)
    return script


def _read(file: str | None, language: Language) -> str:
    from mcp_bridge.host.bridge import MAX_CODE_BYTES

    # More than is run, so that a bridge says what is a little too long; what is longer still may have no end.
    most = 2 * MAX_CODE_BYTES
    try:
        if file in {None, "-"}:
            data = sys.stdin.buffer.read(most + 1)
        else:
            with open(str(file), "rb") as opened:  # noqa: PTH123
                data = opened.read(most + 1)
        if len(data) > most:
            raise BridgeError(
                "code_too_large",
                f"{file or 'standard input'} is longer than {most >> 20} MiB.",
                hint="Name a file that holds the script; a script reads data with [files].",
            )
        return _decoded(data, language)
    except OSError as exc:
        hint = "Name a file that holds the script; code itself goes after -c."
        raise BridgeError("script_missing", f"{file} can't be read: {exc.strerror}.", hint=hint) from None
    except UnicodeDecodeError as exc:
        hint = "Give it source, in UTF-8."
        message = f"{file or 'standard input'} is not {exc.encoding.upper()} text."
        raise BridgeError("bad_code", message, hint=hint) from None
    except SyntaxError as exc:
        hint = "Give it source, in UTF-8 or in the encoding that one of its first two lines names (PEP 263)."
        raise BridgeError("bad_code", f"{file or 'standard input'}: {exc.msg}.", hint=hint) from None


def _decoded(data: bytes, language: Language) -> str:
    """Source as its language takes a file: a mark of the byte order may come first; Python's may name its encoding.

    Raises:
        UnicodeDecodeError, SyntaxError: It isn't in its encoding, or that is unknown, or none of source.
    """
    # The declaration is looked for only in what can have one: the tokenizer takes a while to import.
    if language != "python" or b"coding" not in b"".join(data.split(b"\n", 2)[:2]):
        return data.decode("utf-8-sig")
    import io
    import tokenize

    try:
        # From Python 3.14 on this tries the encoding, too.
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        if encoding in {"utf-8", "utf-8-sig"}:
            return text
        # UTF-16, which the declaration isn't written in, reads anything, and as something else.
        is_named = tokenize.detect_encoding(io.BytesIO(text.encode()).readline)[0] == encoding
    except (UnicodeDecodeError, SyntaxError):
        raise
    except (LookupError, UnicodeError):
        is_named = False
    if not is_named:
        raise SyntaxError("It names an encoding that source can't have")
    return text


def run(
    config: Path | None,
    file: str | None,
    code: str | None,
    *,
    servers: list[str],
    timeout: float | None,
    key: str | None = None,
    session: str | None = None,
    fork: str | None = None,
    dry_run: bool = False,
    files: list[str] | None = None,
    packages: Sequence[str] = (),
    language: Language | None = None,
    as_json: bool,
) -> int:
    """Run a script; return the exit status."""
    terminal = Terminal()
    live = LiveOutput(terminal.show, LIVE_SECONDS) if terminal.is_one and not as_json else None
    try:
        written_in = language or language_of_file(file or "")
        script = read_script(file, code, written_in)
        configuration = configuration_loading.configure(config)
        configuration_loading.refuse_nesting(configuration)
        named = _Named(key, session, fork, dry_run, files, packages, written_in)
        record = anyio.run(_run, configuration, script, servers, timeout, named, live)
    except BridgeError as exc:
        if as_json:
            status = exit_statuses.exit_code(exc)
            _print_json(exit_statuses.error_record(exc, status))
            return status
        return exit_statuses.print_error(exc)
    except KeyboardInterrupt:
        return 130
    if record is None:
        return 128 + signal.SIGTERM
    record.exit_code = exit_statuses.of_run(record)
    if record.limits_not_enforced:
        logger.info("this host does not enforce: %s", ", ".join(record.limits_not_enforced))
    if as_json:
        _print_json(record.to_json() | ({"is_previous_result": True} if record.is_previous_result else {}))
    else:
        print_run(record, terminal)
    return record.exit_code


class _Named(NamedTuple):
    """How a script is run, and under which names: as `Bridge.run`."""

    key: str | None
    session: str | None
    fork: str | None
    dry_run: bool
    files: list[str] | None
    packages: Sequence[str]
    language: Language


async def _run(
    configuration: configuration_loading.Configuration,
    script: str,
    servers: list[str],
    timeout: float | None,  # noqa: ASYNC109
    named: _Named,
    live: LiveOutput | None,
) -> ExecutionRecord | None:
    """The record; None if SIGTERM ended the run.

    Raises:
        BridgeError: As `Bridge.run`.
    """

    async def work(bridge: Bridge) -> ExecutionRecord:
        asker = terminal_prompts.terminal()
        return await bridge.run(
            script,
            servers=servers or None,
            timeout=timeout,
            key=named.key,
            session=named.session,
            fork=named.fork,
            dry_run=named.dry_run,
            files=named.files or None,
            packages=named.packages,
            language=named.language,
            starter="operator",
            notify=_print_progress,
            asker=asker,
            live=live,
            # Progress is for people at a terminal: a log contains the script's output only.
            on_server_message=_print_progress if sys.stderr.isatty() else None,
        )

    return await command_runner.with_bridge(configuration, work)


def _print_progress(message: str) -> None:
    print(escaping.escape_controls(f"mcp-bridge: {message}"), file=sys.stderr)  # noqa: T201


def _print_json(record: dict[str, Any]) -> None:
    # A lone surrogate is escaped, which is valid JSON too.
    sys.stdout.buffer.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


def print_run(record: ExecutionRecord, terminal: Terminal, *, is_others: bool = False) -> None:
    """Print the script's output unchanged and its displays; to stderr errors, notices, displays that can't be printed.

    Output that the terminal has already displayed is left out.

    Args:
        record: The record.
        terminal: What has displayed a part of the output.
        is_others: Whether somebody else may have written the script, such as an agent. Then its output is escaped on a
            terminal, which it would control; a pipe or a file gets it unchanged.
    """
    # What follows is written past their buffers.
    for text_stream in (sys.stdout, sys.stderr):
        text_stream.flush()
    out, err = [], []
    for shown in displays.checked(record.displays):
        match shown:
            case displays.Text():
                out.append(shown.text.removesuffix("\n"))
            case displays.Image():
                err.append(f"[{shown.mime_type}, {shown.size} bytes: --json has it]")
            case displays.Omitted():
                err.append(str(shown))
    if record.value is not None:
        out.append(record.value)
    if (error := record.error) is not None and record.status != "exit":
        hint = f" {error['hint']}" if error.get("hint") else ""
        if record.planned:
            # What was asked for.
            out.append(error["message"])
            err.append(f"mcp-bridge:{hint}")
        else:
            err.append(str(error.get("traceback") or f"mcp-bridge: {error['code']}: {error['message']}{hint}"))
    err += [f"mcp-bridge: {notice}" for notice in record.notices]
    if record.is_previous_result:
        err.append(f"mcp-bridge: {PREVIOUS_RESULT_NOTICE.format(record.execution)}")
    err += [f"artifact {row['name']}: {row['path']}" for row in record.artifacts]
    printed_out, printed_err = terminal.rest("stdout", record.stdout), terminal.rest("stderr", record.stderr)
    for stream, printed, texts in ((sys.stdout, printed_out, out), (sys.stderr, printed_err, err)):
        own = "".join(escaping.escape_controls(text) + "\n" for text in texts).encode()
        stream.buffer.write((_escaped(printed) if is_others and stream.isatty() else printed) + own)
        stream.buffer.flush()


def _escaped(printed: bytes) -> bytes:
    return escaping.escape_controls(printed.decode("utf-8", "backslashreplace")).encode()
