"""Sessions made at random from a seed: cells with calls at once, in tasks, threads and programs, errors, memories and randomness.

Each cell does the same whenever it is run, and each of its effects has a text of its own. The tools are those of
`script_host.py`.
"""

DIGEST = """
import hashlib
def canonical(value):
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(repr, map(canonical, value)))]
    if isinstance(value, dict):
        return ["dict", *[[canonical(key), canonical(one)] for key, one in value.items()]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(canonical, value)]
    if hasattr(value, "__dict__") and type(value).__module__ == "__main__":
        return [type(value).__name__, canonical(vars(value))]
    return repr(value)
def digest(names):
    plain = (int, float, str, bytes, list, tuple, dict, set, type(None), Base)
    kept = {name: canonical(one) for name, one in names.items() if not name.startswith("_") and isinstance(one, plain)}
    for ours in ("mcp_servers", "LOADED_MCP_SERVERS", "__last_value__"):
        kept.pop(ours, None)
    return hashlib.sha256(repr(sorted(kept.items())).encode()).hexdigest()
print(digest(globals()), len(log), [one for one in texts])
"""

FIRST = """
import random, uuid, threading, secrets
from concurrent.futures import ThreadPoolExecutor
from mcp import programs
from mcp.sync.servers import local as blocking
class Base:
    def __init__(self, **fields): self.__dict__.update(fields)
log, texts, things = [], set(), {}
def note(value):
    log.append(value)
    texts.add(str(value))
    return value
"""


class Cells:
    """Makes the cells of a session.

    Attributes:
        effects: For each cell, the tools and texts of its calls, as a host is told where to die.
    """

    def __init__(self, rng):
        self._rng = rng
        self._steps = 0
        self.effects = []

    def cells(self, count):
        """The cells: the first, so many, and one that prints the digest of all names."""
        kinds = (
            *("one", "gather", "threads", "pool", "program", "error", "exit"),
            *("chance", "memory", "thing", "loop", "redefine"),
        )
        made = [FIRST]
        self.effects.append([])
        for _ in range(count):
            self.effects.append([])
            made.append(
                "".join(getattr(self, f"_{kind}")() for kind in self._rng.sample(kinds, self._rng.randint(1, 3)))
            )
        self.effects.append([])
        return [*made, DIGEST]

    def _call(self, tool=None, server="local"):
        self._steps += 1
        tool, text = tool or self._rng.choice(("once", "again")), f"e{self._steps}"
        self.effects[-1].append(f"{tool} {text}")
        return f'{server}.{tool}(text="{text}")'

    def _one(self):
        return f"note(await {self._call()})\n"

    def _gather(self):
        calls = ", ".join(self._call() for _ in range(self._rng.randint(2, 4)))
        return f"note(list(await asyncio.gather({calls})))\n"

    def _threads(self):
        call = self._call(server="blocking")
        return f"got = []\nt = threading.Thread(target=lambda: got.append({call}))\nt.start(); t.join(); note(got)\n"

    def _pool(self):
        one, other = self._call(server="blocking"), self._call(server="blocking")
        return (
            f"with ThreadPoolExecutor(2) as pool:\n    note([f.result() for f in [pool.submit(lambda: {one}),"
            f" pool.submit(lambda: {other})]])\n"
        )

    def _program(self):
        # Nobody settles what of a program is in doubt; where hosts die is named by the script's own calls.
        self._steps += 2
        steps = [
            {"id": "a", "type": "tool", "tool": "again", "args": {"text": f"e{self._steps - 1}"}},
            {"id": "b", "type": "tool", "tool": "again", "args": {"text": f"e{self._steps} of $a"}},
        ]
        return f"trace = await programs.run({{'steps': {steps}}})\nnote([trace.status, trace.output])\n"

    def _error(self):
        return f"note(await {self._call()})\nif len(log) % 2: raise ValueError(len(log))\n"

    def _exit(self):
        return "import sys\nnote(len(log))\nif len(log) % 3 == 0: sys.exit(2)\n"

    def _chance(self):
        return "note(random.random()); note(uuid.uuid4().hex); note(secrets.token_hex(4)); note(random.Random().random())\n"

    def _memory(self):
        self._steps += 1
        return f"await runtime.save_memory('m{self._steps}', len(log)); note(await runtime.load_memory('m{self._steps}'))\n"

    def _thing(self):
        return "things[len(things)] = Base(n=len(log), own=set('abc'), more=[dict(a=1)])\n"

    def _loop(self):
        return "for n in set('abcdefgh'): note(n + hex(hash(n)))\n"

    def _redefine(self):
        return "old = note\ndef note(value, old=old):\n    return old(value)\n"
