"""`mcp-bridge run`: one script, its output, its exit status. For CI and for trying things out."""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.cli import asking, common, opening
from mcp_bridge.errors import BridgeError
from mcp_bridge.server import displays

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.bridge.record import ExecutionRecord
    from mcp_bridge.bridge.service import Bridge


logger = logging.getLogger(__name__)


def read_script(file: str | None, code: str | None) -> str:
    """The script's text.

    Raises:
        BridgeError: `script_missing`: no file, no text, not UTF-8, or both a file and -c.
    """
    if code is not None and file is not None:
        raise BridgeError("script_missing", "Give either a file or -c, not both.")
    if code is not None:
        return code
    if file is None and sys.stdin.isatty():
        raise BridgeError("script_missing", "There is no script.", hint="Give a file, - for stdin, or -c CODE.")
    try:
        if file in {None, "-"}:
            return sys.stdin.buffer.read().decode("utf-8")
        with open(str(file), "rb") as opened:  # noqa: PTH123
            return opened.read().decode("utf-8")
    except OSError as exc:
        raise BridgeError("script_missing", f"{file} can't be read: {exc.strerror}.") from None
    except UnicodeDecodeError:
        raise BridgeError("script_missing", f"{file or 'standard input'} is not UTF-8 text.") from None


def run(
    config: Path | None,
    file: str | None,
    code: str | None,
    *,
    servers: list[str],
    timeout: float | None,
    key: str | None = None,
    as_json: bool,
) -> int:
    """Run a script; the exit status."""
    try:
        script = read_script(file, code)
        configuration = common.configure(config)
        common.refuse_nesting(configuration)
        record = anyio.run(_run, configuration, script, servers, timeout, key)
    except BridgeError as exc:
        if as_json:
            _print_json({"status": "refused", "exit_code": common.exit_code(exc), "error": exc.record()})
            return common.exit_code(exc)
        return common.complain(exc)
    except KeyboardInterrupt:
        return 130
    if record is None:
        return 128 + signal.SIGTERM
    if record.error is not None and record.error["code"] == "sandbox_start_timeout":
        # No script ran, whatever its status would be.
        record.exit_code = common.NO_SANDBOX
    if record.limits_not_enforced:
        logger.info("this host does not enforce: %s", ", ".join(record.limits_not_enforced))
    if as_json:
        _print_json(record.to_json())
    else:
        _print(record)
    return record.exit_code


async def _run(
    configuration: common.Configuration,
    script: str,
    servers: list[str],
    timeout: float | None,  # noqa: ASYNC109
    key: str | None,
) -> ExecutionRecord | None:
    """The record; None when SIGTERM ended the run.

    Raises:
        BridgeError: As `Bridge.run`.
    """

    async def work(bridge: Bridge) -> ExecutionRecord:
        asker = asking.terminal()
        return await bridge.run(
            script,
            servers=servers or None,
            timeout=timeout,
            key=key,
            starter="operator",
            notify=_say,
            asker=asker,
            # For whoever watches: a log has what the script prints, and no more.
            news=_say if sys.stderr.isatty() else None,
        )

    return await opening.with_bridge(configuration, work)


def _say(message: str) -> None:
    print(common.printable(f"mcp-bridge: {message}"), file=sys.stderr)  # noqa: T201


def _print_json(record: dict[str, Any]) -> None:
    # A lone surrogate becomes its escape, which is JSON too.
    sys.stdout.buffer.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
    sys.stdout.buffer.flush()


def _print(record: ExecutionRecord) -> None:
    """What the script printed, byte for byte, and showed; what went wrong, and what can't be shown, on stderr."""
    out, err = [], []
    for shown in displays.checked(record.displays):
        match shown:
            case displays.Text():
                out.append(shown.text.removesuffix("\n"))
            case displays.Image():
                err.append(f"[{shown.mime_type}, {shown.size} bytes: --json has it]")
            case displays.LeftOut():
                err.append(str(shown))
    if record.value is not None:
        out.append(record.value)
    if (error := record.error) is not None and record.status != "exit":
        hint = f" {error['hint']}" if error.get("hint") else ""
        err.append(str(error.get("traceback") or f"mcp-bridge: {error['code']}: {error['message']}{hint}"))
    err += [f"artifact {row['name']}: {row['path']}" for row in record.artifacts]
    for stream, printed, texts in ((sys.stdout.buffer, record.stdout, out), (sys.stderr.buffer, record.stderr, err)):
        stream.write(printed + "".join(common.printable(text) + "\n" for text in texts).encode())
        stream.flush()
