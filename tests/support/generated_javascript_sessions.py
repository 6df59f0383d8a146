"""As `generated_sessions`, in JavaScript."""

DIGEST = """
const canonical = (value) => {
  if (value instanceof Map) return ["map", ...[...value].map((pair) => pair.map(canonical))];
  if (value instanceof Set) return ["set", ...[...value].map(canonical)];
  if (Array.isArray(value)) return value.map(canonical);
  if (value !== null && typeof value === "object") return Object.entries(value).map(([key, one]) => [key, canonical(one)]);
  return typeof value === "function" ? value.name : String(value);
};
console.log(JSON.stringify(canonical({ log, texts, things, depth: typeof depth === "undefined" ? 0 : depth })));
"""

FIRST = """
import { programs } from "mcp";
import crypto, { randomUUID } from "node:crypto";
const log = [], texts = new Set(), things = new Map();
class Thing { constructor(fields) { Object.assign(this, fields) } get size() { return this.more.length } }
function note(value) { log.push(value); texts.add(String(value)); return value }
"""


class JavascriptCells:
    """Makes the cells of a session. As `generated_sessions.Cells`."""

    def __init__(self, rng):
        self._rng = rng
        self._steps = 0
        self.effects = []

    def cells(self, count):
        """The cells: the first, so many, and one that prints all that they have noted."""
        kinds = (
            "one",
            "together",
            "nested",
            "timers",
            "program",
            "error",
            "exit",
            "chance",
            "memory",
            "thing",
            "redefine",
            "left",
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

    def _call(self):
        self._steps += 1
        tool, text = self._rng.choice(("once", "again")), f"e{self._steps}"
        self.effects[-1].append(f"{tool} {text}")
        return f'local.{tool}({{ text: "{text}" }})'

    def _one(self):
        return f"note(await {self._call()})\n"

    def _together(self):
        calls = ", ".join(self._call() for _ in range(self._rng.randint(2, 4)))
        return f"note(await Promise.all([{calls}]))\n"

    def _nested(self):
        one, other = self._call(), self._call()
        return f"note(await Promise.all([(async () => [await {one}, Math.random() < 2])(), (async () => await {other})()]))\n"

    def _timers(self):
        return f"note(await new Promise((done, fail) => setTimeout(() => {self._call()}.then(done, fail), 5)))\n"

    def _program(self):
        self._steps += 2
        steps = [
            {"id": "a", "type": "tool", "tool": "again", "args": {"text": f"e{self._steps - 1}"}},
            {"id": "b", "type": "tool", "tool": "again", "args": {"text": f"e{self._steps} of $a"}},
        ]
        return f"{{ const trace = await programs.run({{ steps: {steps} }}); note([trace.status, trace.output]) }}\n"

    def _error(self):
        return f"note(await {self._call()})\nif (log.length % 2) throw new RangeError(`${{log.length}}`)\n"

    def _exit(self):
        return "note(log.length)\nif (log.length % 3 === 0) process.exit(2)\n"

    def _chance(self):
        return "note(Math.random()); note(randomUUID()); note(crypto.randomBytes(4).toString('hex')); note(crypto.randomInt(99))\n"

    def _memory(self):
        self._steps += 1
        return f"await runtime.save_memory('m{self._steps}', log.length); note(await runtime.load_memory('m{self._steps}'))\n"

    def _thing(self):
        return "things.set(things.size, new Thing({ n: log.length, more: [{ a: 1 }] }))\n"

    def _redefine(self):
        self._steps += 1
        return (
            f"const old{self._steps} = note\nlet depth = (typeof depth === 'number' ? depth : 0) + 1\n"
            f"note = (value) => old{self._steps}(value)\n"
        )

    def _left(self):
        return "await new Promise((done) => setTimeout(() => done(note('timer')), 3))\n"
