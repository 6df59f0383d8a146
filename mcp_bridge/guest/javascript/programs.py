"""Programs of scripts in JavaScript: they are driven here, by the kernel that drives those of Python's scripts.

Node asks the host to start or resume a program, as for anything else. Where the host's answer is a program to drive, it
is kept from Node, which gets the program's record as the answer when the program has ended.
"""

import _thread
import functools
import json
from _queue import SimpleQueue

from mcp_bridge.guest.channel import Answer, Channel, RequestError
from mcp_bridge.guest.programs import Driver
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.annotations import Any, Callable, NoReturn
from mcp_bridge.wire.errors import LocalMessageError


class ProgramDriver:
    """The programs that one script, or a session, has under way. One thread drives them all.

    Args:
        channel: The channel.
        give: Writes a frame to Node.
    """

    def __init__(self, channel: Channel, give: Callable[[bytes], None]) -> None:
        self._channel = channel
        self._give = give
        self._expected: set[int] = set()
        """Node's requests whose answer may be a program to drive."""
        self._driven: dict[int, Driver | None] = {}
        """The programs, by the numbers of Node's requests; None before the first step."""
        self._finishing: dict[int, int] = {}
        """The numbers of the requests that report a program's end."""
        self._work: SimpleQueue[tuple[int, Callable[[], None]]] = SimpleQueue()
        _thread.start_new_thread(self._run, ())

    @property
    def has_any(self) -> bool:
        """Whether a program is under way."""
        return bool(self._driven)

    def expect(self, number: int) -> None:
        """Note that Node is about to ask for a program, by a request of this number."""
        self._expected.add(number)

    def take(self, number: int, line: bytes) -> bool:
        """Take the host's answer to a request of Node's; False if it is Node's. Called by the channel's reader."""
        if number not in self._expected:
            return False
        self._expected.discard(number)
        message = jsonrpc.decode(line)
        if not isinstance(message, jsonrpc.Response) or "execution" not in message.result:
            return False
        self._driven[number] = None
        self._work.put((number, functools.partial(self._begin, number, message.result)))
        return True

    def cancel(self, number: int) -> bool:
        """Leave the program that a request of Node's has begun; False if it has begun none: the host cancels it."""
        self._expected.discard(number)
        if number not in self._driven:
            return False
        self._work.put((number, functools.partial(self._leave, number)))
        return True

    # --- the thread ---

    def _run(self) -> NoReturn:
        while True:
            number, work = self._work.get()
            try:
                work()
            except Exception as exc:  # noqa: BLE001  (the script's, which waits for it)
                self._fail(number, exc)

    def _begin(self, number: int, started: dict[str, Any]) -> None:
        def take(effect: int, answer: Answer) -> None:
            self._work.put((number, functools.partial(self._apply, number, effect, answer)))

        self._driven[number] = driver = Driver(self._channel, started, take)
        self._report(number, driver)

    def _apply(self, number: int, effect: int, answer: Answer) -> None:
        driver = self._driven.get(number)
        if driver is not None and number not in self._finishing:
            driver.take(effect, answer)
            self._report(number, driver)

    def _report(self, number: int, driver: Driver) -> None:
        """If the program has ended, tell the host."""
        if driver.done:
            self._finishing[number] = self._channel.send(driver.finish(), functools.partial(self._end, number, driver))
            if number not in self._driven:
                # The answer was there before this was noted.
                self._finishing.pop(number, None)

    def _end(self, number: int, driver: Driver, answer: Answer) -> None:
        """Give Node the record.

        Called by the channel's reader: what the host answers later reaches Node later.
        """
        if self._driven.pop(number, None) is None:
            return
        self._finishing.pop(number, None)
        if isinstance(answer, jsonrpc.ErrorResponse):
            self._give_error(number, answer.message, answer.data)
            self._work.put((number, driver.leave))
        else:
            self._give_frame(number, {"result": {"record": driver.record(answer.result)}})

    def _leave(self, number: int) -> None:
        driver = self._driven.pop(number, None)
        if (finishing := self._finishing.pop(number, None)) is not None:
            self._channel.forget(finishing)
        if driver is not None:
            driver.leave()

    def _fail(self, number: int, exc: Exception) -> None:
        if number not in self._driven:
            return
        try:
            self._leave(number)
        except (RequestError, LocalMessageError):
            pass  # The cell has ended: so have its programs.
        if isinstance(exc, RequestError):
            self._give_error(number, exc.message, exc.data)
        else:
            self._give_error(number, str(exc), {"code": exc.code} if isinstance(exc, LocalMessageError) else {})

    def _give_error(self, number: int, message: str, data: dict[str, Any]) -> None:
        self._give_frame(number, {"error": {"code": -32000, "message": message, "data": data}})

    def _give_frame(self, number: int, answer: dict[str, Any]) -> None:
        self._give(json.dumps({"jsonrpc": "2.0", "id": number, **answer}).encode() + b"\n")
