"""Runs a script in Node, and stands between Node and the host.

Node has the channel's frames on pipes of its own. What it and its processes print is captured here, by a process that
is never busy: so it is sent while the script computes, and in order with the frames. An end of Node without a result
(a signal, its heap's limit) becomes this process's own.
"""

import _thread
import errno
import functools
import json
import os
import resource
import signal
import time

from mcp_bridge.guest.channel import OWN_IDS, READ_BYTES, Channel
from mcp_bridge.guest.files import inputs, unfetched_inputs
from mcp_bridge.guest.files.left_files import FOLDER, LeftFiles, keep_file
from mcp_bridge.guest.host_requests import MCPError, call_host
from mcp_bridge.guest.javascript.module_texts import BOOT, MODULES
from mcp_bridge.guest.javascript.node_pipe import NodePipe
from mcp_bridge.guest.output import Capture
from mcp_bridge.guest.runner import guarded
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.annotations import Any, Callable, NoReturn
from mcp_bridge.wire.errors import WireError
from mcp_bridge.wire.framing import LineDecoder
from mcp_bridge.wire.messages import (
    NAMES,
    ActivityAsk,
    ArtifactWrite,
    CallId,
    ExecutionFinish,
    ExecutionStart,
    ProgramResume,
    ProgramStart,
    RequestCancel,
    encode_params,
    notification,
)

SIGNAL_SECONDS = 1.0
"""How long this process waits for a signal that ends it."""

NODE = "/usr/local/bin/node"

IN, OUT, DONE = 3, 4, 5
"""Node's descriptors: frames from the host, frames for it, and what it waits for while nothing else runs in it: a byte
for each empty line that it writes, or an answer."""

HEAP_SHARE = 0.75
"""The part of the sandbox's memory that Node's heap may take. What else Node needs takes 60 MiB."""

MOVED = 60
"""From here on descriptors are numbered while they are moved."""

LEAST_HEAP = 32 << 20
DEFAULT_MEMORY = 512 << 20

LAST_ID = 2**53
"""The id of the one request that this process makes itself, when Node is gone."""

HEAP_EXHAUSTED_MARKER = b"\n<--- Last few GCs --->\n"
"""How V8's report of an exhausted heap begins. It ends with a stack of V8's own, which tells nobody anything."""

HEAP_EXHAUSTED = b"JavaScript heap out of memory"
"""In that report."""

WAITS_FOR_DEBUGGER = b"Waiting for the debugger to disconnect...\n"
"""What a session's Node prints when it ends: its debugger is the thread that interrupts its cells."""

OWN = b"!"
"""How a line begins that is for this process: a JSON array, of what it is about and its values."""

ANSWER = b'{"jsonrpc":"2.0","id":'
"""How the host begins its answers."""

ID_DIGITS = 20

METHOD_HEAD = 120
"""Where the method's name is in a frame: before its parameters."""


class Node:
    """A script that runs in Node.

    Args:
        channel: The channel.
        capture: The captured output.
    """

    def __init__(self, channel: Channel, capture: Capture) -> None:
        self._channel = channel
        self._capture = capture
        capture.last_words = HEAP_EXHAUSTED_MARKER, WAITS_FOR_DEBUGGER
        self._finish: int | None = None
        self._is_ending = False
        """Whether Node has sent the script's result: it reads nothing from then on."""
        self._interrupted_at: float | None = None
        """When a session's cell was first interrupted, by `monotonic`."""
        self._left = LeftFiles(functools.partial(keep_file, channel))
        self._frames: NodePipe
        """Made when Node is started."""
        self._done = -1
        self._asking: list[object] = []
        """What is being asked of the host here because Node has asked for it."""
        self._drives: Any = None
        """The programs that are driven here; None until the script asks for one."""

    def run_script(self, start: ExecutionStart) -> NoReturn:
        """Run the script to its end. Never returns."""
        make_folders(start)
        to_node, from_node, done = os.pipe(), os.pipe(), os.pipe()
        self._frames, self._done = NodePipe(to_node[1]), done[1]
        try:
            descriptors = {IN: to_node[0], OUT: from_node[1], DONE: done[0]}
            pid = self._spawn(descriptors, flags_for(start.memory or DEFAULT_MEMORY))
        except OSError as exc:
            self._refuse(exc)
        for fd in (to_node[0], from_node[1], done[0]):
            os.close(fd)
        self._channel.lend(self._forward)
        self._frames.write(bundle() + jsonrpc.encode(notification(start)))
        self._pass_on(from_node[0])
        self._end(pid)

    def _spawn(self, descriptors: dict[int, int], flags: list[str]) -> int:
        actions: list[tuple[int, ...]] = []
        # They may be numbered as Node's are: all are moved away first.
        for target, fd in descriptors.items():
            actions.append((os.POSIX_SPAWN_DUP2, fd, MOVED + target))
        for target in descriptors:
            actions.append((os.POSIX_SPAWN_DUP2, MOVED + target, target))
            actions.append((os.POSIX_SPAWN_CLOSE, MOVED + target))
        # V8 reserves memory for code, which counts where no control group counts what is touched.
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        return os.posix_spawn(
            NODE,
            ["node", *flags, "-e", BOOT],
            {**os.environ, "NODE_NO_WARNINGS": "1"},
            file_actions=actions,
            setsigdef=[signal.SIGPIPE],
        )

    def _refuse(self, exc: OSError) -> NoReturn:
        """End because there is no Node to run."""
        message = f"{NODE} can't be started: {os.strerror(exc.errno or 0)}"
        if exc.errno == errno.ENOENT:
            message = "the sandbox's image has no Node"
        error = {"type": "NodeMissing", "message": message, "line": None, "traceback": message}
        self._channel.request(ExecutionFinish(1, error=error))
        os._exit(0)

    # --- from the host ---

    def _forward(self, line: bytes) -> bool:
        """Pass a frame on to Node (called by the channel's reader); False if it is for this process."""
        if is_notification(line, ActivityAsk):
            return False
        if not self._is_ending:
            return self._take_answer(line)
        message = jsonrpc.decode(line)
        if not isinstance(message, (jsonrpc.Response, jsonrpc.ErrorResponse)):
            return True
        if message.id == self._finish:
            os._exit(0)
        return message.id <= OWN_IDS

    def _take_answer(self, line: bytes) -> bool:
        """Take a frame that may be an answer to the script's; False if it answers this process."""
        number = answered(line)
        if number > OWN_IDS:
            return False
        if self._drives is None or not self._drives.take(number, line):
            self._frames.write(line + b"\n")
            self._frames.wait()
        return True

    # --- from Node ---

    def _pass_on(self, reader: int) -> None:
        """Pass Node's frames on to the host, until it has ended."""
        decoder = LineDecoder()
        while chunk := os.read(reader, READ_BYTES):
            try:
                lines = decoder.feed(chunk)
            except WireError:
                # The host says what is wrong with it, and ends the sandbox.
                self._channel.send_line(decoder.incomplete + chunk)
                continue
            for line in lines:
                self._take_line(line)
        if decoder.incomplete:
            self._channel.send_line(decoder.incomplete)

    def _take_line(self, line: bytes) -> None:
        """Take a line that Node has written."""
        # What was printed before it goes before it.
        self._capture.drain()
        if not line:
            os.write(self._done, b".")
        elif line.startswith(OWN):
            self._do(line[len(OWN) :])
        elif self._watch(line):
            self._channel.send_line(line + b"\n")

    def _watch(self, line: bytes) -> bool:
        """Notice what this process has a part in; return whether the host gets the frame."""
        if not any(method in line[:METHOD_HEAD] for method in _WATCHED):
            return True
        try:
            message = jsonrpc.decode(line)
        except WireError:
            return True
        if isinstance(message, jsonrpc.Request):
            self._watch_request(message)
        elif isinstance(message, jsonrpc.Notification) and message.method == NAMES[RequestCancel]:
            number = message.params.get("id")
            return self._drives is None or not isinstance(number, int) or not self._drives.cancel(number)
        return True

    def _watch_request(self, message: jsonrpc.Request) -> None:
        if message.method in {NAMES[ProgramStart], NAMES[ProgramResume]}:
            if self._drives is None:
                # Imported late, with the kernel: most scripts run no program.
                from mcp_bridge.guest.javascript.programs import ProgramDriver

                self._drives = ProgramDriver(self._channel, self._frames.write)
            self._drives.expect(message.id)
        elif message.method == NAMES[ExecutionFinish] and not self._is_ending:
            self._is_ending = True
            # Whatever is wrong with these, it isn't the script's end.
            guarded(lambda: self._left.keep_all(lambda: self._interrupted_at))
            self._capture.finish()
            self._finish = message.id

    def _do(self, asked: bytes) -> None:
        """Do what Node asks this process for. What our own code wouldn't ask for is ignored.

        `kept`: the script itself has kept a file; its path, and the numbers of `key_of` as texts. The others begin with
        the id of the answer. `fetch`: copy an input; the name, and the call's. `keep`: keep a part of an artifact; the
        name, nothing, the content in base64, and whether it is the first and the last part. `steps`: what steps of
        programs there are, as text.
        """
        try:
            what, *values = json.loads(asked)
            if what == "kept":
                self._left.was_kept(values[0], tuple(map(int, values[1:])))
            elif what == "fetch":
                name, call = str(values[1]), CallId(values[2])
                self._ask(int(values[0]), lambda: inputs.of(self._channel).fetch(name, call))
            elif what == "keep":
                part = ArtifactWrite(str(values[1]), str(values[3]), bool(values[4]), bool(values[5]))
                self._ask(int(values[0]), lambda: call_host(self._channel, part).get("uri"))
            elif what == "steps":
                from mcp_bridge.guest.programs import STEPS

                self._give_answer(int(values[0]), {"result": STEPS})
        except (ValueError, TypeError, LookupError, RecursionError):
            pass

    def _ask(self, number: int, work: Callable[[], Any]) -> None:
        """Do what asks the host, on a thread; answer with what it gives: in a frame, or at once if `number` is 0."""
        self._asking.append(work)
        _thread.start_new_thread(self._answer, (number, work))

    def _answer(self, number: int, work: Callable[[], Any]) -> None:
        try:
            self._give_answer(number, {"result": work()})
        except (MCPError, OSError) as exc:
            data = {"code": exc.code, **exc.details} if isinstance(exc, MCPError) else {}
            self._give_answer(number, {"error": {"code": -32000, "message": str(exc), "data": data}})
        finally:
            self._asking.remove(work)

    def _give_answer(self, number: int, answer: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": number, **answer}).encode()
        if number:
            self._frames.write(body + b"\n")
        else:
            write_all(self._done, b"%012d" % len(body) + body)

    # --- the end ---

    def _end(self, pid: int) -> NoReturn:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        is_exhausted = code == -signal.SIGABRT and self._capture.take_held(HEAP_EXHAUSTED)
        self._capture.take_held(WAITS_FOR_DEBUGGER)
        self._capture.finish()
        if self._finish is not None:
            # The reader ends this process when the host has acknowledged the result.
            signal.pause()
        if is_exhausted:
            self._tell_exhaustion()
        if code < 0:
            try:
                signal.signal(-code, signal.SIG_DFL)
            except (OSError, ValueError):
                pass  # SIGKILL has no handler; and a session's thread may set none, where the default is in place.
            os.kill(os.getpid(), -code)
            # In a session another thread may get it, a moment later.
            time.sleep(SIGNAL_SECONDS)
        os._exit(code if code >= 0 else 128 - code)

    def _tell_exhaustion(self) -> NoReturn:
        self._is_ending = True
        message = "JavaScript heap out of memory"
        error = {"type": "RangeError", "message": message, "line": None, "traceback": f"RangeError: {message}"}
        error["out_of_memory"] = True  # type: ignore[assignment]
        self._finish = LAST_ID
        params = encode_params(ExecutionFinish(134, error=error))
        self._channel.send_line(jsonrpc.encode(jsonrpc.Request(LAST_ID, NAMES[ExecutionFinish], params)))
        while True:
            signal.pause()


_WATCHED = tuple(
    f'"{NAMES[method]}"'.encode() for method in (ExecutionFinish, ProgramStart, ProgramResume, RequestCancel)
)


def is_notification(line: bytes, *methods: type[Any]) -> bool:
    """Whether a frame of the host's has one of these methods, of which an answer may have the name in its value."""
    return not answered(line) and any(f'"{NAMES[method]}"'.encode() in line[:METHOD_HEAD] for method in methods)


def answered(line: bytes) -> int:
    """The id of the request that a frame of the host's answers; 0 for any other frame. The rest isn't looked at."""
    if not line.startswith(ANSWER):
        return 0
    number = line[len(ANSWER) : line.find(b",", len(ANSWER), len(ANSWER) + ID_DIGITS)]
    return int(number) if number.isdigit() else 0


def write_all(fd: int, data: bytes) -> None:
    """Write to Node, if it is still there."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        pass  # Node has ended: how, is told where its own frames end.


def make_folders(start: ExecutionStart) -> None:
    """Make the folders of /workspace that a script or a session has."""
    for folder in (FOLDER, unfetched_inputs.FOLDER) if start.has_inputs else (FOLDER,):
        try:
            os.mkdir(folder)
        except OSError:
            pass  # As for Python: something else is in its place, or no room.


def flags_for(memory: int) -> list[str]:
    """Node's flags in a sandbox with so much memory, in bytes."""
    return [
        f"--max-old-space-size={max(LEAST_HEAP, int(memory * HEAP_SHARE)) >> 20}",
        # Its parser tells which expression is the last.
        "--expose-internals",
        "--disable-warning=ExperimentalWarning",
    ]


def bundle() -> bytes:
    """What `boot.js` reads."""
    payload = json.dumps(MODULES).encode()
    return b"%012d" % len(payload) + payload
