"""Process 1 of the container: starts the guest, reaps orphans, and reports what the guest can't report itself.

A container that was started ahead waits for its execution here. The guest is forked when the host's first frame comes,
from a process that has imported its modules, so that both share their memory: what runs the script is as old as its
execution, whenever the container was started.

It never runs the agent's code and so never waits for that code's interpreter lock: its heartbeat is reliable even while
the guest is busy in C code. It watches the host's end of the channel: when the host is gone, the whole sandbox ends,
even if the guest hangs. Process 1 can't be killed from inside its own namespace.
"""

import gc
import mmap
import os
import resource
import select
import sys
import time

from mcp_bridge.guest.unsent_output import Unsent
from mcp_bridge.guest.waits.processor_time import processor_seconds
from mcp_bridge.wire import jsonrpc, sandbox_exits
from mcp_bridge.wire.annotations import TYPE_CHECKING, NoReturn
from mcp_bridge.wire.messages import GuestReady, InitBeat, InitExited, OutputWrite, notification

if TYPE_CHECKING:
    import signal
else:
    # Without the enumerations that `signal` makes of all its constants.
    import _signal as signal

BEAT_SECONDS = 5.0
"""The heartbeat's interval."""

FIRST_BEAT_SECONDS = 0.02
"""How long process 1 is quiet after it has made the guest, and how long after an execution begins the first heartbeat
comes. Many a script is over by then, and has the processors to itself."""

GRACE_SECONDS = 1.0
"""How long the guest may take to exit by itself after the host has closed the channel."""

OUT = "/workspace/out"
MAX_LEFT_FILES = 1000
"""Names that are looked at there."""

PR_SET_DUMPABLE = 4

OOM_KILLS = (
    ("/sys/fs/cgroup/memory.events", "oom_kill"),
    ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
)
"""Counters of processes that the kernel has killed for memory, for control groups v2 and v1."""

LIMIT_HITS = (("/sys/fs/cgroup/memory.events", "oom"),)
"""Counters of how often this control group's own limit was reached (v2)."""

MEMORY_V1 = "/sys/fs/cgroup/memory/memory."

NEAR_LIMIT_BYTES = 4 << 20
"""Control groups v1 have no such counter: the limit was reached if the maximum usage is within this distance of it."""


class Settings:
    """The command-line arguments: `memory pids silence waiting reserved`.

    Attributes:
        memory: The memory limit in bytes to enforce by rlimits, or 0 if a control group enforces it.
        pids: The limit on processes and threads to enforce by rlimits, or 0 if a control group enforces it.
        silence: Seconds without a frame from the host after which the sandbox exits.
        waiting: Seconds to wait for an execution before the sandbox exits.
        reserved: Bytes of private memory that an interpreter reserves beyond the limit, and hardly touches.
    """

    def __init__(self, words: list[str]) -> None:
        self.memory = int(words[0]) if words else 0
        self.pids = int(words[1]) if len(words) > 1 else 0
        self.silence = float(words[2]) if len(words) > 2 else 120.0
        self.waiting = float(words[3]) if len(words) > 3 else 120.0
        self.reserved = int(words[4]) if len(words) > 4 else 0


class FrameCounter:
    """A counter of frames received from the host, in memory shared with the guest."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def mark(self) -> None:
        """Count one frame (called by the guest)."""
        self._page[0] = (self._page[0] + 1) & 0xFF

    def count(self) -> int:
        """The count modulo 256: only changes are meaningful."""
        return self._page[0]


class UnsentOutput:
    """Output that the guest wrote and did not send before it died: a crash loses no earlier output.

    Args:
        readers: The read ends of the two output pipes.
        unsent: The bytes that the guest had read from them.
        counts_memory: Whether the sandbox has a memory control group of its own; otherwise its counters include other
            processes.
    """

    def __init__(self, readers: list[int], unsent: tuple[Unsent, Unsent], *, counts_memory: bool) -> None:
        self._readers = readers
        self._unsent = unsent
        self.counts_memory = counts_memory

    def send(self) -> None:
        """Send the output once no process is left that could write to the pipes."""
        for stream, reader, unsent in zip(("stdout", "stderr"), self._readers, self._unsent, strict=True):
            offset, chunk = unsent.rest()
            os.set_blocking(reader, False)
            while True:
                if chunk:
                    _report(OutputWrite(stream, base64=_base64(chunk), offset=offset))  # type: ignore[arg-type]
                    offset += len(chunk)
                try:
                    chunk = os.read(reader, 65536)
                except BlockingIOError:
                    break
                if not chunk:
                    break


def main(words: list[str]) -> NoReturn:
    """Run as process 1. Never returns; the exit status is the guest's, or 128 + n for signal n."""
    settings = Settings(words)
    _limit(settings)
    frames = FrameCounter()
    outputs = (os.pipe(), os.pipe())
    unsent = (Unsent(), Unsent())
    begun = os.pipe()
    from mcp_bridge.guest import main as guest
    from mcp_bridge.guest import runner

    # The first compilation allocates what later ones use again.
    runner.compile_script("None", lambda _code, _exc: None)
    _trim()
    gc.enable()
    os.write(1, jsonrpc.encode(notification(GuestReady("{}.{}.{}".format(*sys.version_info)))))
    # Otherwise the first collection of garbage in either process would copy every page with an object on it.
    gc.freeze()
    # The script is to find no way to interfere with this process, from its first moment on.
    _set_dumpable(0)
    # Python installs a handler for SIGINT, through which any process in here, or `podman kill`, could end this process.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    left = UnsentOutput([reader for reader, _ in outputs], unsent, counts_memory=not settings.memory)
    if not _await_host(settings.waiting):
        _end(0, sandbox_exits.HOST_SILENT, 0, left)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, interrupt)
        _set_dumpable(1)
        os.close(begun[0])
        guest.main(outputs, unsent, frames, begun[1])
    _leave_alone(child)
    os.close(begun[1])
    # EOF on the channel must mean that the guest has exited: this process keeps no write end of it open.
    os.dup2(2, 1)
    for _, writer in outputs:
        os.close(writer)
    _supervise(child, settings, frames, left, begun[0])


def _await_host(seconds: float) -> bool:
    """Wait for the host's first frame, or its end, which is the guest's to read. False if neither comes in time."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _leave_alone(child: int) -> None:
    """Touch nothing in the guest's first moments, unless it ends in them: what is shared with it would be copied."""
    try:
        ended = os.pidfd_open(child)
    except (OSError, AttributeError):
        return  # the system has no such call, or this Python none
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.poll(FIRST_BEAT_SECONDS * 1000)
    os.close(ended)


def _trim() -> None:
    """Return free memory to the system: a container may wait for long. Only the GNU C library has a function for it."""
    _call_c("malloc_trim", 0)


def _set_dumpable(value: int) -> None:
    """Make this process's memory inaccessible to others of its user, or accessible again.

    Process 1 is inaccessible: the guest has the same user, and could stop the watchdog. Uses prctl(2), which Python
    doesn't wrap. Without it process 1 continues unprotected: nothing outside the container trusts it.
    """
    # The /proc entries of a non-dumpable process belong to root: no `mem`, no descriptors, no ptrace.
    _call_c("prctl", PR_SET_DUMPABLE, value, 0, 0, 0)


def _call_c(name: str, *arguments: int) -> None:
    """Call a function of the C library, if it is there. `_ctypes` alone loads in a fraction of the time of `ctypes`."""
    try:
        import _ctypes

        library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
        _ctypes.call_function(_ctypes.dlsym(library, name), arguments)
    except (ImportError, AttributeError, OSError):
        pass


def _limit(settings: Settings) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if settings.pids:
        # The engine can't set it: it would apply to the OCI runtime while that still counts as the engine's user.
        _lower(resource.RLIMIT_NPROC, settings.pids)
    if memory := settings.memory:
        # Private writable memory is what a program uses. Address space is limited too, but more loosely, because
        # libraries reserve much that they never touch.
        # The interpreter that reserves more raises its soft limit.
        _lower(resource.RLIMIT_DATA, memory + settings.reserved)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (min(memory, hard), hard))
        _lower(resource.RLIMIT_AS, 2 * memory + (1 << 30) + settings.reserved)


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or hard > value:
        resource.setrlimit(which, (value, value))


def _supervise(child: int, settings: Settings, frames: FrameCounter, left: UnsentOutput, begun: int) -> NoReturn:
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.write(wake_write, b".")  # the guest may have ended before there was a handler
    poller = select.poll()
    poller.register(0, 0)
    poller.register(wake_read, select.POLLIN)
    poller.register(begun, 0)
    is_waiting = True
    last_count, last_heard = frames.count(), time.monotonic()
    # While it waits for an execution there is no heartbeat: a container that is idle takes no processor time.
    next_beat = time.monotonic() + settings.waiting
    watched_in = 0
    used = used_before = 0.0
    while True:
        events = dict(poller.poll(max(0.0, next_beat - time.monotonic()) * 1000))
        now = time.monotonic()
        if wake_read in events:
            _empty(wake_read)
        status = _reap(child)
        if status is not None:
            _exit_with(status, left)
        if is_waiting and (begun in events or now >= next_beat):
            if begun not in events:
                _end(child, sandbox_exits.HOST_SILENT, 0, left)
            is_waiting = False
            poller.unregister(begun)
            os.close(begun)
            last_heard, next_beat = now, now + FIRST_BEAT_SECONDS
        if events.get(0, 0) & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            _host_gone(child, left)
        if events.get(0, 0) & select.POLLIN:
            # Unread input also counts as a frame from the host. Look again at the next beat: polling would spin.
            last_heard = now
            watched_in = 0
            poller.modify(0, watched_in)
        if now >= next_beat:
            next_beat = now + BEAT_SECONDS
            used = _processor(used)
            used_before = used_before or used
            _report(InitBeat(_count(OOM_KILLS) if left.counts_memory else -1, max(0.0, used - used_before)))
            if frames.count() != last_count:
                last_count, last_heard = frames.count(), now
            if now - last_heard > settings.silence:
                _end(child, sandbox_exits.HOST_SILENT, 0, left)
            if not watched_in:
                watched_in = select.POLLIN
                poller.modify(0, watched_in)


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _reap(child: int) -> int | None:
    """Reap ended processes; return the guest's wait status if it was among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


def _host_gone(child: int, left: UnsentOutput) -> NoReturn:
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        status = _reap(child)
        if status is not None:
            _exit_with(status, left)
        time.sleep(0.01)
    _end(child, 128 + signal.SIGKILL, signal.SIGKILL, left)


def _exit_with(status: int, left: UnsentOutput) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    _end(0, code if code >= 0 else 128 - code, max(0, -code), left)


def _end(child: int, code: int, signum: int, left: UnsentOutput) -> NoReturn:
    if os.getpid() == 1:
        # Only as process 1 of a namespace: elsewhere this would kill processes outside the sandbox.
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
    elif child:
        os.kill(child, signal.SIGKILL)
    if child:
        os.waitpid(child, 0)
    left.send()
    files = _left_files()
    if left.counts_memory:
        _report(InitExited(code, signum, _count(OOM_KILLS), _limit_hits(), files))
    else:
        _report(InitExited(code, signum, -1, left_files=files))
    # Exit status 137 of process 1 would tell the engine that the kernel killed it for memory.
    os._exit(sandbox_exits.GUEST_KILLED if code == 128 + signal.SIGKILL else code)


def _left_files() -> int:
    """How many files are in `OUT`, of the first names there."""
    found = looked = 0
    waiting = [OUT]
    while waiting and looked < MAX_LEFT_FILES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    looked += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        found += 1
                    if looked >= MAX_LEFT_FILES:
                        break
        except OSError:
            pass  # It isn't there, or can't be read.
    return found


def _base64(data: bytes) -> str:
    import binascii

    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _processor(known: float) -> float:
    """The sandbox's processor time; as it was known if it can't be read just now, which must not end this process."""
    try:
        return processor_seconds()
    except OSError:
        return known


def _count(counters: tuple[tuple[str, str], ...]) -> int:
    """The first counter that exists, or -1. Without a name the counter is the whole content of its file."""
    for path, key in counters:
        try:
            with open(path) as file:
                for line in file:
                    name, _, count = line.rpartition(" ")
                    if name == key:
                        return int(count)
        except (OSError, ValueError):
            continue
    return -1


def _limit_hits() -> int:
    if (hits := _count(LIMIT_HITS)) >= 0:
        return hits
    most, limit = (_count(((MEMORY_V1 + name, ""),)) for name in ("max_usage_in_bytes", "limit_in_bytes"))
    return int(most >= limit - NEAR_LIMIT_BYTES) if most >= 0 and limit >= 0 else -1


def _report(params: InitBeat | InitExited | OutputWrite) -> None:
    data = jsonrpc.encode(notification(params))
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        pass  # The host no longer reads: this is noticed on standard input.
