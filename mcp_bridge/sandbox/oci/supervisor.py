"""The process under which a bridge's sandboxes run; process 1 of a pid namespace of its own.

It is started as a program, `python3 -I -S supervisor.py`, and imports the standard library only. One such process
serves a bridge: it starts the OCI runtime for each sandbox, is the parent of each sandbox's process 1 once the runtime
has left, and so gets its exit status. No process stays beside a sandbox, and nothing relays its streams.

Everything that it starts is in its pid namespace. When it ends, for whatever reason, the kernel kills all of it: no
sandbox and no half-made one outlives it. When its control socket closes, which is when its bridge has ended, it kills
and removes its sandboxes and ends.

Its mount namespace has five differences from the host's: its own /proc; device nodes, mounted read-only; the images,
mounted read-only where the sandboxes' users may look them up (a state directory is closed to all but its owner); the
runtime, mounted read-only beside them; and, beside version 1 control groups, no version 2 hierarchy, with which crun
refuses to work.

Protocol (`SOCK_SEQPACKET`, a JSON object a message). On the control socket: `{"ready": true}` or `{"error": …}` with a
pidfd of this process, then from the bridge `{"id", "folder", "image", "name"}` with the descriptors of the sandbox's
stdin, stdout and stderr and of a socket. On that socket: from here `{"started"}`, `{"failed": status}` or
`{"ended": status, "oom_kills": count}`, then its end, when nothing is left of the sandbox; from the bridge any message,
or its end, which kill the sandbox.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import shutil
import signal
import socket
import sys
import time

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x0002_0000, 0x1000_0000, 0x2000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
MNT_DETACH = 2

START_SECONDS = 10.0
"""How long the runtime may take to finish starting a sandbox that is to be killed, whose process isn't known yet."""

NEAR_LIMIT_BYTES = 4 << 20
"""Control groups v1 don't count how often their own limit was reached. It was if the maximum usage is this near it."""

LEAVE_SECONDS = 5.0
"""How long the removal of all sandboxes may take after the bridge has ended. The kernel kills what is left then."""

BUSY_ATTEMPTS, BUSY_SECONDS = 50, 0.002
"""For a control group that the kernel hasn't yet emptied after its last process was reaped."""

MESSAGE_BYTES = 65536
DESCRIPTORS = 4

DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
"""The device nodes of the host that the runtime binds into a sandbox."""

IS_READ_ONLY = {"_LIBCONTAINER_CLONED_BINARY": "1"}
"""Tells crun that it is on a read-only mount, so no sandbox can overwrite it (CVE-2019-5736). Otherwise every start
makes such a mount by itself, on a file in /tmp that stays if crun is killed, and executes crun a second time."""

libc = ctypes.CDLL(None, use_errno=True)


class Plan:
    """The supervisor's configuration; its attributes are the keys of the program's first argument.

    Attributes:
        runtime: The runtime's executable and its global arguments. An executable that is replaced meanwhile is used by
            the next supervisor.
        state: The runtime's state directory (`--root`).
        mounts: A directory of the host over which the images are mounted.
        cgroups: The mount points of the control group hierarchies in which sandboxes get groups.
        covered: Mount points of version 2 control groups beside version 1.
        users, groups: Lines of a user namespace to make first, as arguments of newuidmap and newgidmap; empty as root.
    """

    runtime: list[str]
    state: str
    mounts: str
    cgroups: list[str]
    covered: list[str]
    users: list[str]
    groups: list[str]

    def __init__(self, text: str) -> None:
        self.__dict__.update(json.loads(text))


class Sandbox:
    """One sandbox, from its request until nothing is left of it."""

    def __init__(self, name: str, folder: str, events: socket.socket) -> None:
        self.name = name
        self.folder = folder
        self.events = events
        self.runtime = 0
        """The runtime's process id while it starts the sandbox, else 0."""
        self.first = 0
        """The process id of the sandbox's process 1 while it lives, else 0."""
        self.deadline = 0.0
        """When the runtime is killed, if the sandbox is to be killed and isn't started yet (monotonic seconds)."""

    def tell(self, **message: object) -> None:
        try:
            self.events.send(json.dumps(message).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            pass  # The bridge has closed its end, or reads nothing: either way it learns of the end by EOF.


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())


# --- the namespaces ---


def enter_user_namespace(plan: Plan) -> None:
    """Create a user namespace with subordinate ids, and become its root."""
    parent = os.getpid()
    reader, writer = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        # newuidmap must be run from outside the new namespace, by the same user.
        os.close(writer)
        os.read(reader, 1)
        for program, rows in (("newuidmap", plan.users), ("newgidmap", plan.groups)):
            try:
                status = os.spawnlp(os.P_WAIT, program, program, str(parent), *rows)
            except OSError:
                status = 127
            if status:
                os._exit(1)
        os._exit(0)
    os.close(reader)
    try:
        call("unshare", CLONE_NEWUSER)
    finally:
        os.close(writer)
        status = os.waitpid(mapper, 0)[1]
    if status:
        raise OSError("newuidmap or newgidmap has refused the subordinate ids")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def arrange_mounts(plan: Plan) -> None:
    # A slave: what is unmounted on the host is unmounted here, too, and nothing of ours gets out.
    mount("none", "/", "", MS_REC | MS_SLAVE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in plan.covered:
        if libc.umount2(path.encode(), MNT_DETACH) < 0:
            # Mounts that came with a user namespace are locked together; one can still be covered.
            mount("none", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in DEVICES:
        # What the runtime binds inherits it. A writable mount would let a sandbox set the times of the host's nodes,
        # which all others see. Devices are written to as before.
        path = f"/dev/{name}"
        if not os.path.exists(path):
            continue
        mount(path, path, "", MS_BIND)
        mount("none", path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC)
    mount("images", plan.mounts, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755,size=1m")
    with open(executable(plan), "xb"):
        pass
    mount_read_only(plan.runtime[0], executable(plan))


def executable(plan: Plan) -> str:
    """The path at which the runtime is mounted. No image has such a name."""
    return f"{plan.mounts}/{os.path.basename(plan.runtime[0])}"


def mount_read_only(source: str, target: str) -> None:
    mount(source, target, "", MS_BIND)
    mount("none", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def mount_image(plan: Plan, name: str, image: str) -> None:
    target = f"{plan.mounts}/{name}"
    if os.path.ismount(target):
        if os.path.samefile(target, image):
            return
        # It was removed and made again since: what is mounted is what was removed.
        call("umount2", target.encode(), MNT_DETACH)
    os.makedirs(target, 0o755, exist_ok=True)
    mount_read_only(image, target)


# --- the sandboxes ---


class Supervisor:
    """Starts, reaps and removes sandboxes until the bridge has ended."""

    def __init__(self, plan: Plan, control: socket.socket) -> None:
        self.plan = plan
        self.control = control
        self.poll = select.epoll()
        self.sandboxes: dict[int, Sandbox] = {}
        """By the descriptor of their socket."""
        self.by_process: dict[int, Sandbox] = {}
        """By the id of the runtime's process, or of process 1."""
        self.orphans: dict[int, int] = {}
        """Statuses of reaped processes that belong to no known sandbox: those of a process 1 whose runtime hasn't been
        reaped yet. Cleared when no runtime is running."""
        self.has_failed = False
        """Whether a runtime has failed, which may have left processes without a control group."""
        self.busy: list[Sandbox] = []
        """Sandboxes that have ended, and whose control groups couldn't be removed in time."""

    def serve(self) -> None:
        wake, writer = os.pipe()
        for descriptor in (wake, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.poll.register(wake, select.EPOLLIN)
        self.poll.register(self.control, select.EPOLLIN)
        until = None
        while until is None or (self.sandboxes and time.monotonic() < until):
            for descriptor, _ in self.poll.poll(self.patience() if until is None else LEAVE_SECONDS):
                if descriptor == wake:
                    os.read(wake, 4096)
                    self.reap()
                elif descriptor == self.control.fileno():
                    if not self.accept():
                        self.poll.unregister(self.control)
                        until = time.monotonic() + LEAVE_SECONDS
                        self.kill_all()
                elif descriptor in self.sandboxes:
                    self.hear(self.sandboxes[descriptor])
            self.end_hanging_runtimes()
        deadline = time.monotonic() + LEAVE_SECONDS
        while self.busy and time.monotonic() < deadline:
            self.remove_busy()

    def kill_all(self) -> None:
        for sandbox in self.sandboxes.values():
            sandbox.deadline = time.monotonic()
            if sandbox.first:
                kill(sandbox.first)

    def accept(self) -> bool:
        """Start a requested sandbox; False if the bridge has ended."""
        data, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, DESCRIPTORS)
        for descriptor in descriptors:
            # Python 3.11's recv_fds passes no flags on, MSG_CMSG_CLOEXEC among them.
            os.set_inheritable(descriptor, False)  # noqa: FBT003 - positional only
        if not data:
            return False
        if len(descriptors) != DESCRIPTORS:
            # This process may have no more. The bridge sees the sandbox's socket close.
            for descriptor in descriptors:
                os.close(descriptor)
            return True
        *streams, event_socket = descriptors
        events = socket.socket(fileno=event_socket)
        request = json.loads(data)
        sandbox = Sandbox(request["id"], request["folder"], events)
        try:
            mount_image(self.plan, request["name"], request["image"])
            sandbox.runtime = self.spawn(sandbox, streams)
        except OSError as error:
            os.write(streams[2], f"{error.strerror or error}\n".encode())
            sandbox.tell(failed=1)
            self.remove(sandbox)
            return True
        finally:
            for stream in streams:
                os.close(stream)
        self.by_process[sandbox.runtime] = sandbox
        self.sandboxes[events.fileno()] = sandbox
        self.poll.register(events, select.EPOLLIN)
        return True

    def spawn(self, sandbox: Sandbox, streams: list[int]) -> int:
        argv = [*self.plan.runtime, "--root", self.plan.state, "run", "--detach", "--bundle", sandbox.folder]
        argv += ["--pid-file", pid_file(sandbox), sandbox.name]
        return os.posix_spawn(
            executable(self.plan),
            argv,
            {"PATH": os.environ.get("PATH", os.defpath)} | IS_READ_ONLY,
            file_actions=[(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)],
            # Whatever the bridge ignores or blocks, nohup's SIGHUP for example, would be inherited.
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            setsigmask=[],
            setsid=True,
        )

    def hear(self, sandbox: Sandbox) -> None:
        """Kill a sandbox: a bridge's only message to one."""
        try:
            if not sandbox.events.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT):
                self.poll.unregister(sandbox.events)
        except BlockingIOError:
            return
        except OSError:
            self.poll.unregister(sandbox.events)
        if sandbox.first:
            os.kill(sandbox.first, signal.SIGKILL)
        elif not sandbox.deadline:
            sandbox.deadline = time.monotonic() + START_SECONDS

    def reap(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if process == 0:
                break
            sandbox = self.by_process.pop(process, None)
            if sandbox is None:
                self.orphans[process] = status
            elif process == sandbox.runtime:
                self.runtime_left(sandbox, status)
            else:
                self.ended(sandbox, status)
        if not any(sandbox.runtime for sandbox in self.sandboxes.values()):
            self.orphans.clear()
            if self.has_failed:
                self.has_failed = False
                for process in numbers("/proc/1/task/1/children"):
                    if process not in self.by_process:
                        kill(process)

    def runtime_left(self, sandbox: Sandbox, status: int) -> None:
        sandbox.runtime = 0
        try:
            with open(pid_file(sandbox)) as file:
                first = int(file.read())
        except (OSError, ValueError):
            first = 0
        if status or not first:
            end_all_of(sandbox)
            if first and is_child(first):
                kill(first)
            self.has_failed = True
            sandbox.tell(failed=exit_code(status) or 1)
            self.remove(sandbox)
            return
        sandbox.tell(started=True)
        sandbox.first = first
        ended = self.orphans.pop(first, None)
        if ended is not None and not is_child(first):
            self.ended(sandbox, ended)
            return
        self.by_process[first] = sandbox
        if sandbox.deadline:
            kill(first)

    def ended(self, sandbox: Sandbox, status: int) -> None:
        sandbox.first = 0
        # Before the control group with its counter is removed.
        sandbox.tell(ended=exit_code(status), oom_kills=self.oom_kills(sandbox))
        self.remove(sandbox)

    def oom_kills(self, sandbox: Sandbox) -> int:
        """How many processes of a sandbox the kernel has killed for memory.

        0 if the sandbox's own limit was never reached: then it was the machine that had no memory.
        """
        for mount_point in self.plan.cgroups:
            memory = f"{mount_point}/{group(sandbox)}/memory"
            if events := counters(f"{memory}.events"):
                return events.get("oom_kill", 0) if events.get("oom") else 0
            if events := counters(f"{memory}.oom_control"):
                most, limit = numbers(f"{memory}.max_usage_in_bytes"), numbers(f"{memory}.limit_in_bytes")
                is_reached = bool(most and limit) and most[0] >= limit[0] - NEAR_LIMIT_BYTES
                return events.get("oom_kill", 0) if is_reached else 0
        return 0

    def remove(self, sandbox: Sandbox) -> None:
        """Remove what is left of a sandbox that has ended, then close its socket."""
        self.remove_busy()
        shutil.rmtree(f"{self.plan.state}/{sandbox.name}", ignore_errors=True)
        if not self.remove_files(sandbox):
            self.busy.append(sandbox)
        self.sandboxes.pop(sandbox.events.fileno(), None)
        sandbox.events.close()

    def remove_busy(self) -> None:
        # Reaping beside it may add to the list.
        tried, self.busy = self.busy, []
        # One look each: a group that stays busy mustn't hold up those that are removed after it.
        self.busy += [sandbox for sandbox in tried if not self.remove_files(sandbox, attempts=1)]

    def remove_files(self, sandbox: Sandbox, attempts: int = BUSY_ATTEMPTS) -> bool:
        """Remove a sandbox's control groups, then its folder, by which a sweep finds them. Returns whether all went."""
        groups = [f"{mount_point}/{group(sandbox)}" for mount_point in self.plan.cgroups]
        are_gone = [self.remove_group(path, attempts) for path in groups]
        if not all(are_gone):
            return False
        shutil.rmtree(sandbox.folder, ignore_errors=True)
        return True

    def remove_group(self, path: str, attempts: int) -> bool:
        for below, _, _ in os.walk(path, topdown=False):
            for _ in range(attempts):
                try:
                    os.rmdir(below)
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        break
                    # A process of a runtime that was killed; it is now a child of this process.
                    for process in numbers(f"{below}/cgroup.procs"):
                        kill(process)
                    time.sleep(BUSY_SECONDS)
                    self.reap()
                else:
                    break
        return not os.path.exists(path)

    def patience(self) -> float | None:
        deadlines = [sandbox.deadline for sandbox in self.sandboxes.values() if sandbox.runtime and sandbox.deadline]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def end_hanging_runtimes(self) -> None:
        now = time.monotonic()
        for sandbox in self.sandboxes.values():
            if sandbox.runtime and sandbox.deadline and now >= sandbox.deadline:
                for process in reversed(processes_of(sandbox)):
                    kill(process)


def pid_file(sandbox: Sandbox) -> str:
    return f"{sandbox.folder}/pid"


def group(sandbox: Sandbox) -> str:
    return f"mcp-bridge-{sandbox.name}"


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def is_child(process: int) -> bool:
    """Whether a process is a child that hasn't been reaped: its id may have been that of an earlier one."""
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        pass


def end_all_of(sandbox: Sandbox) -> None:
    """Kill the processes that an ended runtime has left: they might create control groups that nobody would remove."""
    while left := processes_of(sandbox):
        for process in left:
            kill(process)
        for process in left:
            try:
                os.waitpid(process, 0)
            except ChildProcessError:
                pass  # its parent has it, and has been killed


def processes_of(sandbox: Sandbox) -> list[int]:
    """The processes of a sandbox's runtime: its own, its workers', and their children.

    crun's worker has left its parent, so it is a child of this process; its command line is the runtime's still.
    """
    word = sandbox.name.encode()
    found = [process for process in numbers("/proc/1/task/1/children") if word in command_line(process)]
    for one in found:
        found += numbers(f"/proc/{one}/task/{one}/children")
    return found


def command_line(process: int) -> list[bytes]:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def counters(path: str) -> dict[str, int]:
    """The named numbers in a file of a control group, a line each; empty if it can't be read."""
    try:
        with open(path) as file:
            return {name: int(count) for name, count in (line.split() for line in file)}
    except (OSError, ValueError):
        return {}


def numbers(path: str) -> list[int]:
    """The numbers in a file of the kernel, such as process ids."""
    try:
        with open(path) as file:
            return [int(number) for number in file.read().split()]
    except OSError:
        return []


def main() -> None:
    plan = Plan(sys.argv[1])
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)  # the runtime has no use for it
    # A sandbox's user enters the image and reads its control groups, which are made with the bridge's umask otherwise.
    # What only the owner may read is in folders that are closed already.
    os.umask(0o022)
    try:
        if plan.users:
            enter_user_namespace(plan)
        call("unshare", CLONE_NEWNS | CLONE_NEWPID)
        process = os.fork()
        if process:
            # The bridge gets a pidfd, which can't come to mean another process, and this process ends.
            socket.send_fds(control, [b"{}"], [os.pidfd_open(process)])
            os._exit(0)
        os.setsid()
        arrange_mounts(plan)
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        os._exit(1)
    control.send(b'{"ready": true}')
    Supervisor(plan, control).serve()


if __name__ == "__main__":
    main()
