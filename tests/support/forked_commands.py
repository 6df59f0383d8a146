"""The project's own commands, forked from a process that has imported what they need.

Most of what `mcp-bridge` computes in a test is its imports: a second of a slow processor, for each of some thousand starts. So `subprocess`
has a process fork that waits for this. A fork is a child of this process as any other: its process id, streams, folder, environment,
command line, end and exit status are as asked for, and it runs the installed command, or a script of `tests/support`, from its first line.

What a fork can't be given starts in the ordinary way, and so does everything where `MCP_BRIDGE_TEST_FORKED` is 0. What a start itself does,
which modules it imports and how it ends meanwhile, is tested in interpreters that no fork stands in for (`python -c`).
"""

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

COMMAND = str(Path(sys.executable).parent / "mcp-bridge")
SUPPORT = Path(__file__).parent

_MAX_MESSAGE = 100_000  # a packet of a socket
_FIRST_FREE = 500  # above every descriptor that anything here asks for by number
_SHOWN = 8_000  # bytes of a command line, and of an environment
_PR_SET_CHILD_SUBREAPER = 36
_MODULES = ("mcp_bridge.cli.app", "mcp_bridge.cli.commands.serve", "mcp_bridge.host.bridge", "mcp_bridge.server.app")

_start_process = subprocess._fork_exec
_lock = threading.Lock()


def install():
    """Have `subprocess` fork the project's commands from now on."""
    if os.environ.get("MCP_BRIDGE_TEST_FORKED") != "0":
        subprocess._fork_exec = _start


def _start(*given):
    """Stand in for `_posixsubprocess.fork_exec`."""
    if (asked := _request(*given)) is None:
        return _start_process(*given)
    locale, message, descriptors = asked
    with _lock:
        waiting = _waiting_process(locale, os.getpid())
        # The fork's parent ends at once, so that this process takes it over; not the rest of what is orphaned here.
        with _taking_orphans():
            socket.send_fds(waiting, [message], descriptors)
            return int(waiting.recv(100))


def _request(
    args, programs, close_fds, keep, cwd, env, stdin, _1, _2, stdout, _3, stderr, _4, failed, restored, session, group, gid, gids, uid, umask,
    before, *_,
):  # fmt: skip
    """What a fork is to become, and its descriptors; None for what has to be started in the ordinary way."""
    program, args = os.fsdecode(programs[0]), [os.fsdecode(arg) for arg in args]
    if program == sys.executable and len(args) > 1 and Path(args[1]).is_relative_to(SUPPORT):
        args = args[1:]
    elif program == COMMAND:
        args = [COMMAND, *args[1:]]
    else:
        return None
    if not close_fds or not restored or before is not None:
        return None
    if (gid, gids, uid) != (None, None, None) or not _has_streams_of_its_own(stdin, stdout, stderr):
        return None
    environment = os.environb if env is None else dict(entry.split(b"=", 1) for entry in env)
    environment = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    if _changes_start(environment) or not _can_be_entered(cwd):
        return None
    if any(signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        return None
    kept = [number for number in keep if number != failed]
    message = json.dumps(
        {
            "shown": [sys.executable, *args],
            "args": args,
            "cwd": os.fsdecode(cwd or Path.cwd()),
            "env": environment,
            "umask": umask if umask >= 0 else _umask(),
            "session": session,
            "group": group,
            "numbers": [0, 1, 2, *kept],
        }
    ).encode()
    if len(message) > _MAX_MESSAGE:
        return None
    standard = [default if given == -1 else given for default, given in enumerate((stdin, stdout, stderr))]
    return _of_locale(environment), message, [*standard, *kept]


def _has_streams_of_its_own(*given):
    """Whether each standard stream is one that is given, or open here."""
    try:
        for number, other in enumerate(given):
            os.fstat(number if other == -1 else other)
    except OSError:
        return False
    return True


def _changes_start(environment):
    """Whether an environment has what is read before the first line of a program, but for the locale."""
    return any(name.startswith(("PYTHON", "LD_", "MALLOC_")) for name in environment)


def _of_locale(environment):
    """The locale and the time zone of an environment, as sorted pairs."""
    return tuple(sorted((name, value) for name, value in environment.items() if name.startswith(("LC_", "LANG", "TZ"))))


def _can_be_entered(folder):
    return Path(os.fsdecode(folder or ".")).is_dir()


def _umask():
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("Umask:")).split()[1], 8)


@contextlib.contextmanager
def _taking_orphans():
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _waiting_process(locale, _process):
    """The socket of a process that forks, with this of a locale in its environment; it ends when this one, by whose id it is kept, has ended."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        os.set_inheritable(theirs.fileno(), True)  # noqa: FBT003 - it has no name
        os.posix_spawn(
            sys.executable,
            [sys.executable, __file__, str(theirs.fileno()), " " * _SHOWN],
            {**dict(locale), "ROOM": " " * _SHOWN},
            file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        )
    return ours


def _wait_and_fork(requests):
    """Fork for each request; return in the fork what it is to become, or None when there won't be another request."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MAX_MESSAGE, 64)
        if not message:
            return None
        told, telling = os.pipe()
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            child = os.fork()
            if child != 0:
                os.write(telling, str(child).encode())
                os._exit(0)
            while os.getppid() == parent:
                os.sched_yield()
            return json.loads(message), descriptors
        os.waitpid(between, 0)
        requests.send(os.read(told, 100))
        for number in (told, telling, *descriptors):
            os.close(number)


def _become(asked, descriptors):
    """Give this fork what was asked for, and nothing else."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked["session"]:
        os.setsid()
    if asked["group"] >= 0:
        os.setpgid(0, asked["group"])
    os.chdir(asked["cwd"])
    os.umask(asked["umask"])
    # None may be closed by taking the number of another.
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD, _FIRST_FREE) for number in descriptors]
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number not in aside:
            with contextlib.suppress(OSError):
                os.close(number)
    for number, other in zip(asked["numbers"], aside, strict=True):
        os.dup2(other, number)
        os.close(other)
    os.environ.clear()
    os.environ.update(asked["env"])
    _show(asked["shown"], [f"{name}={value}" for name, value in asked["env"].items()])
    sys.argv[:] = asked["args"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, "r", closefd=False)), sys.stdin.encoding, sys.stdin.errors
    )
    sys.stdout = sys.__stdout__ = _written(1, sys.stdout)
    sys.stderr = sys.__stderr__ = _written(2, sys.stderr)
    identity, own = sys.modules["mcp_bridge.bridge_identity"].INSTANCE_ID, os.urandom(16).hex()
    for module in list(sys.modules.values()):
        if getattr(module, "INSTANCE_ID", None) == identity:
            module.INSTANCE_ID = own


def _show(command_line, environment):
    """Have `/proc` show these, cut where there is no room for more."""
    # Fields 48 to 51 (proc_pid_stat(5)); the second field may have spaces.
    places = map(int, Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[45:49])
    for words, start, end in zip((command_line, environment), places, places, strict=True):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, min(len(text), end - start - 1))


def _written(number, before):
    stream = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    is_by_lines = number == 2 or os.isatty(number)
    return io.TextIOWrapper(stream, before.encoding, before.errors, line_buffering=is_by_lines)


if __name__ == "__main__":
    # What interrupts the tests ends this without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    if (asked := _wait_and_fork(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _become(*asked)
        runpy.run_path(sys.argv[0], run_name="__main__")
