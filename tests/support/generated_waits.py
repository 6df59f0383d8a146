"""Scripts made at random from a seed, that wait for times and events between calls, in tasks and in threads.

Each does the same whenever it is run, and each of its effects has a text of its own. The tools are those of
`script_host.py`.
"""

FIRST = """
import time, threading
from mcp.sync.servers import local as blocking
"""


class Waiting:
    """Makes one script.

    Attributes:
        effects: The tools and texts of its calls, as a host is told where to die.
        events: The events that it waits for, with their payloads, in the order of the code.
    """

    def __init__(self, rng):
        self._rng = rng
        self._steps = 0
        self.effects = []
        self.events = []

    def script(self, count=3):
        """The code, of so many pieces."""
        kinds = ("sleep", "event", "gather", "beside", "first", "thread", "timed_out", "past", "short")
        pieces = [getattr(self, f"_{kind}")() for kind in self._rng.sample(kinds, count)]
        return FIRST + "".join(piece + self._one() for piece in ("", *pieces))

    def _call(self, server="local"):
        self._steps += 1
        tool, text = self._rng.choice(("once", "again")), f"e{self._steps}"
        self.effects.append(f"{tool} {text}")
        return f'{server}.{tool}(text="{text}")'

    def _named(self):
        self._steps += 1
        name = f"n{self._steps}"
        self.events.append((name, {"of": name}))
        return name

    def _until(self):
        return f"time.time() + {self._rng.choice((0.15, 0.3, 0.5))}"

    def _one(self):
        return f"print(await {self._call()})\n"

    def _past(self):
        return "print(await runtime.sleep_until(time.time() - 1))\n"

    def _short(self):
        return "print(await runtime.sleep_until(time.time() + 0.01))\n"

    def _sleep(self):
        return f"print(await runtime.sleep_until({self._until()}))\n"

    def _event(self):
        return f"print(await runtime.wait_event('{self._named()}'))\n"

    def _timed_out(self):
        return (
            f"try:\n    print(await runtime.wait_event('never', timeout={self._rng.choice((0.1, 0.4))}))\n"
            "except TimeoutError as exc:\n    print(exc)\n"
        )

    def _gather(self):
        one, other = self._named(), self._named()
        return (
            f"print(await asyncio.gather(runtime.wait_event('{one}'), runtime.sleep_until({self._until()}),"
            f" runtime.wait_event('{other}'), {self._call()}))\n"
        )

    def _beside(self):
        name = f"work{self._steps}"
        return (
            f"async def {name}():\n    await runtime.sleep_until({self._until()})\n"
            f"    return [await {self._call()}, await {self._call()}]\n"
            f"print(await asyncio.gather({name}(), runtime.wait_event('{self._named()}'), {self._call()}))\n"
        )

    def _first(self):
        # What is taken back is no wait: its time is far enough for the event to come first.
        name = self._named()
        return (
            f"both = [asyncio.ensure_future(w) for w in (runtime.wait_event('{name}'),"
            " runtime.sleep_until(time.time() + 3600))]\n"
            "done, left = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)\n"
            "for one in left: one.cancel()\nawait asyncio.wait(left)\nprint([one.result() for one in done])\n"
        )

    def _thread(self):
        return (
            "got = []\n"
            f"t = threading.Thread(target=lambda: got.append(runtime.wait_event_sync('{self._named()}')))\n"
            f"t.start(); t.join(); got.append(blocking.{self._call().partition('.')[2]}); print(got)\n"
        )
