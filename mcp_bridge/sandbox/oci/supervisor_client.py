"""The supervisor of the sandboxes, as its bridge sees it: started, asked for sandboxes, waited for, killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.engine_errors import os_failure
from mcp_bridge.sandbox.oci import host_resources
from mcp_bridge.sandbox.ownership import UNKNOWN, Owner, host_id, start_time

if TYPE_CHECKING:
    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice

SUPERVISOR = Path(__file__).with_name("supervisor.py")

SUPERVISOR_SECONDS = 20.0
"""How long the supervisor may take to be ready: an interpreter's start, and newuidmap."""

EXIT_SECONDS = 20.0
"""How long the supervisor may take to kill and remove a sandbox: it may still be starting (`START_SECONDS` there)."""

MESSAGE_BYTES = 4096


class SupervisorEndedError(Exception):
    """The supervisor ended before it accepted a request."""


class Supervisor:
    """The process that starts sandboxes. It ends, and they with it, when this object is gone.

    Attributes:
        owner: The process, as in a container's label.
    """

    def __init__(self, control: int, pidfd: int) -> None:
        self._control = control
        self._pidfd = pidfd
        self._turn = anyio.Lock()
        weakref.finalize(self, _close_all, control, pidfd)
        pid = next(
            int(line.split()[1])
            for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
            if line.startswith("Pid:")
        )
        self.owner = Owner(host_id(), pid, start_time(pid) or UNKNOWN)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, or is about to."""
        poll = select.poll()
        poll.register(self._control, 0)
        return bool(poll.poll(0))

    async def send(self, request: dict[str, str], descriptors: list[int]) -> None:
        """Request a sandbox.

        Raises:
            SupervisorEndedError: It has ended.
        """
        data = json.dumps(request).encode()
        control = socket.socket(fileno=self._control)
        try:
            while True:
                try:
                    socket.send_fds(control, [data], descriptors)
                except BlockingIOError:
                    async with self._turn:
                        await anyio.wait_writable(self._control)
                    continue
                except (BrokenPipeError, ConnectionResetError):
                    raise SupervisorEndedError from None
                return
        finally:
            control.detach()

    async def wait(self) -> None:
        """Wait until it has ended, and all processes of its sandboxes have."""
        with anyio.move_on_after(EXIT_SECONDS):
            async with self._turn:
                await anyio.wait_readable(self._pidfd)

    def kill(self) -> None:
        """Kill it, and with it all its sandboxes."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _close_all(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


async def start_supervisor(choice: RuntimeChoice, directory: Path) -> Supervisor:
    """Start a supervisor.

    Args:
        choice: The runtime.
        directory: The driver's directory.

    Raises:
        BridgeError: `no_runtime`, `sandbox_start_failed`, `disk_full`.
    """
    if not os.access(choice.path, os.X_OK):
        raise BridgeError(
            "no_runtime",
            f"The OCI runtime {choice.path} is gone.",
            hint="Run `mcp-bridge doctor` to choose another.",
        )
    try:
        plan = json.dumps(host_resources.plan(choice, directory))
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except LookupError as error:
        raise BridgeError("sandbox_start_failed", f"{error.args[0]}.", hint="Run `mcp-bridge doctor`.") from error
    except OSError as error:
        raise os_failure(error, "The sandboxes' supervisor can't be started") from error
    with control, theirs:
        control.setblocking(False)  # noqa: FBT003 - positional only
        try:
            with (directory / "supervisor.log").open("wb") as log:
                launcher = subprocess.Popen(  # noqa: ASYNC220 - it is reaped below, since it leaves at once
                    [sys.executable, "-I", "-S", str(SUPERVISOR), plan, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=[theirs.fileno()],
                    env={"PATH": os.environ.get("PATH", os.defpath)},
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            raise os_failure(error, "The sandboxes' supervisor can't be started") from error
        theirs.close()
        pidfd, said, is_ready = -1, "", False
        try:
            with anyio.fail_after(SUPERVISOR_SECONDS):
                while True:
                    await anyio.wait_readable(control)
                    data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
                    if descriptors:
                        pidfd = descriptors[0]
                        # Python 3.11's recv_fds passes no flags on, MSG_CMSG_CLOEXEC among them.
                        os.set_inheritable(pidfd, False)  # noqa: FBT003 - positional only
                    message: dict[str, Any] = json.loads(data or b'{"error": "it ended"}')
                    is_ready = is_ready or bool(message.get("ready"))
                    said = message.get("error", "")
                    # The two come from two processes, and in any order.
                    if said or (is_ready and pidfd >= 0):
                        break
        except TimeoutError:
            said = f"it was not ready within {SUPERVISOR_SECONDS:.0f} s"
        finally:
            if said or pidfd < 0 or sys.exc_info()[0]:
                launcher.kill()
                if pidfd >= 0:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    os.close(pidfd)
            # It leaves before its child is ready.
            launcher.wait()
        if said:
            raise BridgeError(
                "sandbox_start_failed",
                f"The sandboxes' namespaces can't be made: {said}.",
                hint="Run `mcp-bridge doctor`.",
                output=said,
            )
        return Supervisor(control.detach(), pidfd)
