"""The guest's main function: receives an execution from the host, runs it, and exits once the host has acknowledged.

The guest is forked from process 1 when the host's first frame is there, and shares its memory. The frame may be a
heartbeat, which the host sends when a request has come: it lets the guest copy that memory and start its threads before
it has its execution.
"""

import builtins
import errno
import os
import sys
from _queue import SimpleQueue  # `queue` itself would cost each waiting container memory

from mcp_bridge.guest import call_ids, runner
from mcp_bridge.guest.channel import READ_BYTES, Channel
from mcp_bridge.guest.execution_environment import SITE_PACKAGES, ExecutionEnvironment
from mcp_bridge.guest.output import Capture
from mcp_bridge.guest.unsent_output import Unsent
from mcp_bridge.wire import jsonrpc, sandbox_exits
from mcp_bridge.wire.annotations import Any, NoReturn
from mcp_bridge.wire.errors import WireError
from mcp_bridge.wire.messages import (
    NAMES,
    ActivityAsk,
    ExecutionBegun,
    ExecutionFinish,
    ExecutionInterrupt,
    ExecutionStart,
    HostBeat,
    decode_params,
    encode_params,
    method_params,
    notification,
)

SHELL = "/bin/sh"

OWN_FOLDERS = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108 - the sandbox's
"""The folders in which a script keeps files."""

PRIVATE_FD = 100
"""The channel's descriptors are this and the next, away from those that a script opens and closes."""


def main(
    outputs: tuple[tuple[int, int], tuple[int, int]], unsent: tuple[Unsent, Unsent], frames: Any, begun: int
) -> NoReturn:
    """Run one execution, or the cells of a session. Never returns.

    Args:
        outputs: The pipes behind descriptors 1 and 2.
        unsent: Shared memory for output that isn't sent yet.
        frames: Counts the frames from the host.
        begun: A descriptor that is closed when there is an execution: process 1 watches the host's silence from then.
    """
    read_fd = os.dup2(0, PRIVATE_FD, inheritable=False)
    write_fd = os.dup2(1, PRIVATE_FD + 1, inheritable=False)
    _redirect(outputs)
    starts: SimpleQueue[ExecutionStart] = SimpleQueue()
    interrupts: list[Any] = []

    def on_notification(method: str, params: dict[str, Any]) -> None:
        try:
            message = decode_params(method_params(method), params)
        except WireError:
            os._exit(sandbox_exits.BAD_FRAME)
        if isinstance(message, ExecutionStart):
            starts.put(message)
        elif isinstance(message, ExecutionInterrupt):
            for interrupt in interrupts:
                interrupt(message.execution)
        elif isinstance(message, ActivityAsk):
            # Imported late: most scripts don't wait.
            from mcp_bridge.guest.waits import activity

            activity.tell(message.number, channel)
        elif not isinstance(message, HostBeat):
            os._exit(sandbox_exits.BAD_FRAME)

    first = os.read(read_fd, READ_BYTES)
    channel = Channel(read_fd, write_fd, on_notification, frames)
    capture = Capture(channel, (outputs[0][0], outputs[1][0]), unsent)
    channel.take(first)
    channel.start()
    capture.start()
    _prepare_interpreter()
    if starts.empty():
        _rehearse()
    start = starts.get()
    os.close(begun)
    if start.seed is not None:
        session = _session(channel, capture, start)
        interrupts.append(session.interrupt)
        while True:
            session.run(start)
            start = starts.get()
    channel.notify(ExecutionBegun())
    if start.language == "javascript":
        from mcp_bridge.guest.javascript.node import Node

        Node(channel, capture).run_script(start)
    execute(channel, capture, start)
    os._exit(0)


def _session(channel: Channel, capture: Capture, first: ExecutionStart) -> Any:
    """What runs the cells of a session, in its language. Imported late: most containers run one script."""
    if first.language == "javascript":
        from mcp_bridge.guest.javascript.cells import NodeSession

        return NodeSession(channel, capture, first)
    from mcp_bridge.guest.session.cells import Session

    return Session(channel, capture, first)


def _rehearse() -> None:
    """Do what every execution does first, without any effect: the first time takes twice as long."""
    line = jsonrpc.encode(notification(ExecutionStart("", "None", [], 0)))
    message = jsonrpc.decode(line)
    assert isinstance(message, jsonrpc.Notification)  # for the type checker
    decode_params(method_params(message.method), message.params)
    jsonrpc.encode(jsonrpc.Request(1, NAMES[ExecutionFinish], encode_params(ExecutionFinish(0))))
    exec(runner.compile_script("None", lambda _code, _exc: None), {})  # noqa: S102


def execute(channel: Channel, capture: Capture, start: ExecutionStart) -> None:
    """Run the script and send its outcome; return when the host has acknowledged it."""
    channel.replays = start.replays
    source = runner.Source(start.code)
    call_ids.begin()
    environment = ExecutionEnvironment(channel, capture, start, {"linecache": source.register_in_linecache})
    environment.finish(runner.run(source, environment.names(), environment.hooks()))


def _redirect(outputs: tuple[tuple[int, int], tuple[int, int]]) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    for fd, (_, writer) in zip((1, 2), outputs, strict=True):
        os.dup2(writer, fd)
        os.close(writer)
    os.close(null)
    for fd in (0, 1, 2):
        os.set_inheritable(fd, True)  # noqa: FBT003


def _prepare_interpreter() -> None:
    """Do what `site` and a usual interpreter start would have done, as far as scripts can tell."""
    sys.argv = ["script"]
    sys.path[:] = ["/workspace", *(path for path in sys.path if path not in {"", "/workspace"})]
    if os.path.isdir(SITE_PACKAGES):
        sys.path.append(SITE_PACKAGES)
    try:
        os.chdir("/workspace")
    except OSError:
        pass
    for folder in OWN_FOLDERS:
        # As old as the execution, however long the container has waited.
        try:
            os.utime(folder)
        except OSError:
            pass
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    if not os.path.exists(SHELL):
        os.system = no_shell  # type: ignore[assignment]
    builtins.help = _help  # type: ignore[assignment]


def no_shell(command: str) -> int:  # noqa: ARG001
    """Replaces `os.system`, for there is no shell: raises an error as `os.popen` and `subprocess` do.

    Raises:
        FileNotFoundError: Always.
    """
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), SHELL)


def _help(*args: Any, **kwargs: Any) -> None:
    """The interpreter's `help` with plain output."""
    import pydoc

    pydoc.pager = pydoc.plainpager
    pydoc.help(*args, **kwargs)
