"""A session in JavaScript: one Node runs its cells one after the other, and this stands between it and the host.

Between two cells nothing that Node sends is passed on: a cell's frames are those that follow its execution's name,
which is random and new. A cell whose time is up is asked to end; where Node doesn't hear that, a thread of it
interrupts its main one, wherever that is.
"""

import _thread
import os
from time import monotonic, sleep

from mcp_bridge.guest.channel import OWN_IDS, Channel
from mcp_bridge.guest.javascript.node import (
    DEFAULT_MEMORY,
    DONE,
    IN,
    OUT,
    Node,
    bundle,
    flags_for,
    is_notification,
    make_folders,
    write_all,
)
from mcp_bridge.guest.javascript.node_pipe import NodePipe
from mcp_bridge.guest.output import Capture
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.errors import WireError
from mcp_bridge.wire.messages import (
    ActivityAsk,
    ExecutionBegun,
    ExecutionInterrupt,
    ExecutionStart,
    notification,
)

INTERRUPT, INTERRUPTED = 6, 7
"""Node's further descriptors: a byte for each interruption, and one for each that has happened."""

BEGUN, ASKED = b">", b"?"
"""How lines begin that aren't for the host: the execution that Node begins with, and that it is to be interrupted."""

STOP = b"!\n"
"""Asks Node to end the cell."""

HEARD_SECONDS = 0.2
"""How long Node may take to hear that: it is interrupted then."""

TRIES_SECONDS = 3.5
"""How long a cell is interrupted: the host then ends the sandbox."""

_PASSED_BY = ExecutionStart, ExecutionInterrupt, ActivityAsk
"""Methods of the host's frames that are this process's."""


class NodeSession(Node):
    """As `guest.session.cells.Session`, for JavaScript.

    Args:
        channel: The channel.
        capture: The captured output.
        first: The first cell.
    """

    def __init__(self, channel: Channel, capture: Capture, first: ExecutionStart) -> None:
        super().__init__(channel, capture)
        self._running: str | None = None
        """The cell's execution, until Node has ended it."""
        self._has_begun = False
        """Whether Node has begun with it: before that, what it writes was left by an earlier one."""
        self._ended = _thread.allocate_lock()
        """Held until the host has acknowledged the cell's end."""
        self._ended.acquire()
        self._stopping = _thread.allocate_lock()
        """Held while a cell is made to end."""
        self._stopped: str | None = None
        """The execution that is being made to end, or will be as soon as what was done about the one before is over."""
        self._sent = self._happened = 0
        """Interruptions."""
        make_folders(first)
        self._pid = 0
        channel.lend(self._forward)
        self._start_node(first)

    def _start_node(self, first: ExecutionStart) -> None:
        to_node, from_node, done, interrupts, interrupted = (os.pipe() for _ in range(5))
        flags = flags_for(first.memory or DEFAULT_MEMORY)
        # An interrupted callback leaves Node's own stack of asynchronous contexts as it was: that isn't checked.
        flags.append("--no-force-async-hooks-checks")
        descriptors = {
            IN: to_node[0],
            OUT: from_node[1],
            DONE: done[0],
            INTERRUPT: interrupts[0],
            INTERRUPTED: interrupted[1],
        }
        try:
            self._pid = self._spawn(descriptors, flags)
        except OSError as exc:
            self._channel.notify(ExecutionBegun(first.execution))
            self._refuse(exc)
        for fd in descriptors.values():
            os.close(fd)
        self._frames, self._done, self._interrupts = NodePipe(to_node[1]), done[1], interrupts[1]
        self._frames.write(bundle())
        _thread.start_new_thread(self._read, (from_node[0],))
        _thread.start_new_thread(self._count, (interrupted[0],))

    def _read(self, reader: int) -> None:
        self._pass_on(reader)
        self._end(self._pid)

    def _count(self, reader: int) -> None:
        while data := os.read(reader, 64):
            self._happened += len(data)

    def run(self, start: ExecutionStart) -> None:
        """Run a cell and send its outcome; return when the host has acknowledged it."""
        self._capture.begin_cell()
        self._await_interruptions()
        while self._asking or (self._drives is not None and self._drives.has_any):
            # Those of an earlier cell, which get no answer any more; one may just have asked.
            self._channel.end_cell()
            sleep(0.005)
        self._channel.is_between = False
        self._has_begun = self._is_ending = False
        self._interrupted_at = None
        self._finish = None
        self._running = start.execution
        self._channel.notify(ExecutionBegun(start.execution))
        self._frames.write(jsonrpc.encode(notification(start)))
        self._ended.acquire()
        self._channel.end_cell()

    # --- from the host ---

    def _forward(self, line: bytes) -> bool:
        """Pass a frame on to Node (called by the channel's reader); False if it is for this process."""
        if is_notification(line, *_PASSED_BY):
            return False
        if self._running is not None and not self._is_ending:
            return self._take_answer(line)
        try:
            message = jsonrpc.decode(line)
        except WireError:
            return False
        if not isinstance(message, (jsonrpc.Response, jsonrpc.ErrorResponse)):
            return True
        if self._finish is not None and message.id == self._finish:
            self._finish = None
            self._ended.release()
        return message.id <= OWN_IDS

    # --- from Node ---

    def _take_line(self, line: bytes) -> None:
        if line.startswith(BEGUN):
            if not self._has_begun and line[1:].decode("utf-8", "replace") == self._running:
                self._has_begun = True
                write_all(self._done, line + b"\n")
        elif not line:
            super()._take_line(line)
        elif self._running is not None and self._has_begun:
            if line == ASKED:
                self._begin_stop(self._running, 0.0)
            else:
                super()._take_line(line)

    def _watch(self, line: bytes) -> bool:
        is_sent = super()._watch(line)
        if self._finish is not None:
            self._running = None
        return is_sent

    # --- interruptions ---

    def interrupt(self, execution: str) -> None:
        """Interrupt a cell, if it runs. Called by the thread that reads."""
        if self._running != execution:
            return
        if self._interrupted_at is None:
            self._interrupted_at = monotonic()
            # The host doesn't answer these any more, and Node can't be interrupted while it waits for an input. What is
            # asked for later has an answer: files are kept meanwhile.
            self._channel.refuse_waiting("the cell's time is up", "script_timeout")
        if self._runs(execution):
            self._begin_stop(execution, HEARD_SECONDS)

    def _runs(self, execution: str) -> bool:
        """Whether a cell still runs: Node hasn't sent its result."""
        return self._running == execution and not self._is_ending

    def _begin_stop(self, execution: str, patience: float) -> None:
        if self._stopped != execution:
            self._stopped = execution
            _thread.start_new_thread(self._stop, (execution, patience))

    def _stop(self, execution: str, patience: float) -> None:
        """Have a cell end.

        Args:
            execution: The cell's.
            patience: How long Node may take to hear it by itself.
        """
        self._stopping.acquire()
        try:
            until = monotonic() + TRIES_SECONDS
            while self._runs(execution) and monotonic() < until:
                if patience:
                    # Before that, it has to come after the cell's start.
                    (self._frames.write_first if self._has_begun else self._frames.write)(STOP)
                    self._wait(execution, patience)
                if self._runs(execution):
                    self._sent += 1
                    write_all(self._interrupts, b".")
                    self._await_interruptions()
                    patience = HEARD_SECONDS
        finally:
            if self._stopped == execution:
                self._stopped = None
            self._stopping.release()

    def _wait(self, execution: str, seconds: float) -> None:
        until = monotonic() + seconds
        while self._runs(execution) and monotonic() < until:
            sleep(0.005)

    def _await_interruptions(self) -> None:
        """Wait until no interruption is under way: it would be the next cell's."""
        until = monotonic() + TRIES_SECONDS
        while self._happened < self._sent and monotonic() < until:
            sleep(0.005)
            # Where Node was idle, the next that it does is interrupted: this.
            self._frames.write(b"\n")
