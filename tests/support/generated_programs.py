"""Programs made at random from a seed, and llm-nano-vm to run them on."""

import json
import os
import random
import subprocess
from pathlib import Path

from kernel_driver import Script, drive

from mcp_bridge.kernel.events import Outcome, Redo, Resume, Usage
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import HUMAN_DECIDED_CODES, Machine

HERE = Path(__file__).resolve().parent


class NanoVM:
    """llm-nano-vm 0.8.9 in a process of its own."""

    def __init__(self):
        told = os.environ.get("MCP_BRIDGE_NANO_VM")
        environment = Path(told) if told else HERE.parents[1] / ".cache/peers/llm-nano-vm"
        python = environment / "bin/python"
        if not python.exists():
            raise RuntimeError(
                f"there is no {python}: make an environment with llm-nano-vm 0.8.9, and name it in $MCP_BRIDGE_NANO_VM"
            )
        peer = HERE / "peers/nano_vm_peer.py"
        # What asyncio says when the peer recurses too deeply is no news.
        self._process = subprocess.Popen(
            [python, peer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, job):
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the peer ended with status {self._process.wait()}")
        return json.loads(answer)

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class HangingScript(Script):
    """Also answers `{"hang": true}`: by the time-out that would come."""

    def __init__(self, script):
        quick = {
            name: [answer if "hang" not in answer else {"value": _HANGS} for answer in answers]
            for name, answers in script.items()
        }
        super().__init__(quick)

    def outcome(self, effect):
        outcome = super().outcome(effect)
        if outcome is not None and outcome.value == _HANGS:
            return Outcome(effect.id, "timeout")
        return outcome


_HANGS = "-hangs-"


def run_here(job):
    """What the peer tells of a job, of our machine; with the machine."""
    script = HangingScript(job["script"])
    machine = drive(Machine(parse(job["program"]), job["context"]), script, job.get("resumes", ()))
    return {
        "status": machine.status,
        "output": machine.output,
        "steps": [[row.id, row.status, row.output, row.retries] for row in machine.rows],
        "asked": script.asked,
        "error": machine.error,
    }, machine


# --- programs that llm-nano-vm knows too --------------------------------------------------------------------------------

# No two are the same text (the peer compares texts), no float without a fraction, objects with their names in order:
# each of these is a documented difference with a test of its own.
VALUES = [1, 0, 2, True, False, None, "ok", "no", "a b", {"k": 1, "n": {"m": "x"}}, {"output": 5}, [1, 2], 1.5, ""]
PEER_ODD = [
    "it's", 'say "no"', "it's \"both\"", "é\n\t\\", "👩\u200d👧", "\x00\x7f\u00a0\u2028", "$user", "$s0", "100$", "PENDING ",
    "  no ", -1, 10**20, 1e30, 1e-7, 0.1, [], {}, [[1], {"é": [None, True, "it's"]}], {"k": {"k": {"k": "deep"}}, "output": {"k": 2}},
]  # fmt: skip
CONTEXT = {"flag": "ok", "n": 1, "user": "u"}
PATHS = ["", "", ".output", ".output.k", ".k", ".output.n.m", ".n.m"]


class PeerJobs:
    """Makes jobs for the peer: a program, a script, a context, resumes.

    Args:
        seed: The same seed gives the same job.
    """

    def __init__(self, seed):
        self._random = chance(seed)
        self._script = {}
        self._names = []
        self._children = []

    def job(self):
        kind = self._random.choice(["any", "any", "any", "forward", "suspending"])
        program = self._suspending() if kind == "suspending" else self._flow(forward=kind == "forward")
        resumes = [self._value() for _ in range(self._random.randint(0, 3))] if kind == "suspending" else []
        return {"program": program, "script": self._script, "context": CONTEXT, "resumes": resumes}

    def _chance(self, share):
        return self._random.random() < share

    def _value(self):
        return self._random.choice(PEER_ODD if self._chance(0.15) else VALUES)

    def _answers(self, failing=0.08):
        count = self._random.randint(1, 4)
        return [{"error": "boom"} if self._chance(failing) else {"value": self._value()} for _ in range(count)]

    def _reference(self):
        if self._names and self._chance(0.7):
            return f"${self._random.choice(self._names + self._children)}{self._random.choice(PATHS)}"
        return self._random.choice(
            ["$user", "$n", "$missing", "$missing.a", "$flag", "$__webhook__", "$__webhook_source__"]
        )

    def _argument(self):
        choice = self._random.randrange(5)
        if choice == 0:
            return self._value()
        if choice == 1:
            return self._reference()
        if choice == 2:
            return f"{self._random.choice(['v=', 'é', ' ', '$ ', '((', '{', '.'])}{self._reference()}{self._random.choice([';', '.', '-', '$', ' x', '}', '..a'])}"
        return (
            self._random.choice(["plain", "", "5", "it's", {"a": [1, {"b": "x"}]}])
            if choice == 3
            else f"{self._reference()} {self._reference()}."
        )

    def _comparison(self):
        if self._names and self._chance(0.7):
            names = self._names + self._children
            left = f"${self._random.choice(names)}.output{self._random.choice(['', '.k', '.n.m'])}"
        else:
            left = self._random.choice(["$user", "$n", "$missing", "$flag", "$n.k", "$n.output"])
        choice = self._random.randrange(16)
        if choice == 0:
            return f"'o' in {left}"
        if choice == 1:
            return f"'o' not in {left}"
        if choice <= 4:
            return left
        sign = self._random.choice(["=="] * 6 + ["!="] * 3 + [">", "<", ">=", "<="])
        right = self._random.choice(
            ["1", "-2", "1.5", "'ok'", '"ok"', "True", "False", "None", "0", "''", "'a b'", "$n", "$flag"]
        )
        return f"{left} {sign} {right}"

    def _condition(self):
        text = ("not " if self._chance(0.15) else "") + self._comparison()
        word = self._random.choice([" and ", " or "])
        for _ in range(self._random.choice([0, 0, 0, 1, 2])):
            text += word + self._comparison()
        return text

    def _suspending(self):
        """In a line, some tools of which suspend, and nothing refers to those."""
        steps = []
        for number in range(self._random.randint(1, 6)):
            name = f"s{number}"
            if self._chance(0.4):
                self._script[name] = [{"value": "PENDING"}]
                steps.append({"id": name, "type": "tool", "tool": name, "args": {"a": self._argument()}})
            else:
                step = self._step(name)
                step.pop("next_step", None)
                step.pop("is_terminal", None)
                steps.append(step)
                self._names.append(name)
        self._script.setdefault("llm", [{"value": "yes"}])
        return {"steps": steps}

    def _flow(self, *, forward):
        names = [f"s{number}" for number in range(self._random.randint(1, 7))]
        if not forward:
            self._names = names
        steps = []
        for place, name in enumerate(names):
            later = names[place + 1 :] if forward else names
            if later and self._chance(0.3):
                steps.append(self._branch(name, later))
            else:
                steps.append(self._step(name, later))
            if forward:
                self._names.append(name)
        program = {"steps": steps}
        self._script["llm"] = [
            {"error": "down"}
            if self._chance(0.1)
            else {"value": self._random.choice(["yes", " no\n", "YES", "PENDING"])}
            for _ in range(self._random.randint(1, 4))
        ]
        # Only steps in line have the time-out that ends what hangs.
        if self._chance(0.1) and not any(
            child["type"] == "llm" for step in steps for child in step.get("parallel_steps", ())
        ):
            self._script["llm"].append({"hang": True})
        if not forward:
            program["max_steps"] = self._random.choice([5, 20, 40])
        elif self._chance(0.3):
            program["max_steps"] = self._random.randint(0, 9)
        conditions = {step["id"] for step in steps if step["type"] == "condition"}
        # From a condition to a condition the peer begins a run of its own, and counts anew.
        chained = any(step.get(side) in conditions for step in steps for side in ("then", "otherwise"))
        if self._chance(0.25) and not chained:
            program["max_stalled_steps"] = self._random.randint(0, 3)
        if self._chance(0.15):
            program["max_tokens"] = self._random.randint(0, 12)
        return program

    def _branch(self, name, later):
        step = {"id": name, "type": "condition", "condition": self._condition()}
        sides = self._random.choice([("then",), ("otherwise",), ("then", "otherwise"), ("then", "otherwise")])
        step |= {side: self._random.choice(later) for side in sides}
        if self._chance(0.1):
            step["on_error"] = "skip"
        return step | self._common(later, names=("x", "flag"))

    def _step(self, name, later=()):
        choice = self._random.random()
        step = {"id": name}
        if choice < 0.6:
            args = {"a": self._argument()} if self._chance(0.7) else {}
            step |= {"type": "tool", "tool": name, "args": args}
            self._script[name] = self._answers()
            if later and self._chance(0.05):
                self._script[name].append({"value": "PENDING"})
        elif choice < 0.8:
            step |= {"type": "llm", "prompt": f"p {self._argument()}"}
            if self._chance(0.5):
                step["allowed_outputs"] = ["yes", "no"]
            # What hangs has to end; what answers does so at once, before any timer.
            step["timeout_seconds"] = 0.001
            if self._chance(0.5):
                step["on_timeout"] = self._random.choice(["fail", "fallback"])
        else:
            return self._parallel(step, later)
        if self._chance(0.3):
            step["on_error"] = self._random.choice(["fail", "skip", "retry"])
        if self._chance(0.2):
            step["max_retries"] = self._random.randint(0, 4)
        return step | self._common(later, names=("x", "flag", "n", "s0"))

    def _parallel(self, step, later):
        children = []
        for number in range(self._random.randint(1, 3)):
            name = f"{step['id']}_{number}"
            if self._chance(0.2):
                children.append({"id": name, "type": "llm", "prompt": f"p {self._argument()}"})
                continue
            children.append({"id": name, "type": "tool", "tool": name, "args": {"a": self._argument()}})
            self._script[name] = self._answers(0.05)
        self._children += [child["id"] for child in children]
        step |= {"type": "parallel", "parallel_steps": children}
        if self._chance(0.3):
            step["on_error"] = "skip"
        if self._chance(0.3):
            step["max_concurrency"] = self._random.randint(1, 3)
        return step | self._common(later, names=("x",))

    def _common(self, later, names):
        found = {}
        if self._chance(0.15):
            found["is_terminal"] = True
        if later and self._chance(0.25):
            found["next_step"] = self._random.choice(later)
        if self._chance(0.3):
            found["output_key"] = self._random.choice(names)
        return found


# --- programs with everything that ours know ----------------------------------------------------------------------------

ODD = [
    "",
    "$",
    "$$",
    'it\'s "so"',
    "é\u00ad\u2028",
    "👩\u200d👩\u200d👧",
    chr(0x1FAE8),
    "a\nb\tc\\",
    "PENDING",
    "\x00\x7f",
]
ALL_VALUES = [
    *VALUES,
    *ODD,
    2**53 + 1,
    -(10**30),
    1e-7,
    1e21,
    0.1,
    [[], {}, [None]],
    {"b": [1], "a": {"é": ODD}},
    [1, 2, 3],
]
ALL_CONTEXT = {"flag": "ok", "n": 1, "user": {"name": "ü", "b": 1, "a": 2}, "items": [1, "two", {"k": [3]}], "odd": ODD}
STEP_TYPES = ("tool", "llm", "condition", "parallel", "approval", "wait", "map", "program")


def chance(seed):
    """A generator that gives the same again for the same seed."""
    return random.Random(seed)  # noqa: S311


class Programs:
    """Makes programs of all types of steps, nested up to three deep.

    Args:
        rng: A `random.Random`; its choices are the program.
        budgets: Whether some have budgets of tokens.
        deadlines: Whether groups and nested programs may have time-outs.
        concurrent_programs: Whether map steps may run programs beside each other.
    """

    def __init__(self, rng, *, budgets=True, deadlines=True, concurrent_programs=True):
        self._rng = rng
        self._budgets = budgets
        self._deadlines = deadlines
        self._concurrent_programs = concurrent_programs

    def program(self, depth=0):
        rng = self._rng
        count = rng.randint(1, 5 if depth == 0 else 3)
        names = [f"{'abc'[depth]}{number}" for number in range(count)]
        steps = [self._step(names, place, depth) for place in range(count)]
        program = {"name": f"p{depth}", "steps": steps, "max_steps": rng.choice([3, 8, 15])}
        if self._chance(0.15):
            program["max_stalled_steps"] = rng.randint(0, 3)
        if self._budgets and self._chance(0.3):
            program["max_tokens"] = rng.choice([0, 3, 7, 20])
        return program

    def _chance(self, share):
        return self._rng.random() < share

    def _reference(self, names):
        roots = [*names, "user", "n", "items", "missing", "ctx", "item", "index", "__webhook__", "odd"]
        return f"${self._rng.choice(roots)}{self._rng.choice(['', '', '.output', '.k', '.name', '.0', '.output.n.m'])}"

    def _value(self, names, depth=0):
        rng = self._rng
        choice = rng.randrange(6 if depth < 2 else 4)
        if choice == 0:
            return rng.choice(ALL_VALUES)
        if choice == 1:
            return self._reference(names)
        if choice == 2:
            return f"<{self._reference(names)}> $$ {self._reference(names)}"
        if choice == 3:
            return rng.choice(ODD)
        if choice == 4:
            return [self._value(names, depth + 1) for _ in range(rng.randint(0, 2))]
        return {name: self._value(names, depth + 1) for name in rng.sample(["z", "é", "a"], rng.randint(0, 2))}

    def _step(self, names, place, depth):
        rng = self._rng
        kind = rng.choice(STEP_TYPES if depth < 2 else STEP_TYPES[:-2])
        step = {"id": names[place]} | self._body(kind, names, names[place], depth)
        if kind == "condition":
            for side in rng.choice([("then",), ("otherwise",), ("then", "otherwise")]):
                step[side] = rng.choice(names)
        if kind == "approval" and self._chance(0.4):
            step["otherwise"] = rng.choice(names)
        if self._chance(0.2):
            step["next_step"] = rng.choice(names)
        if self._chance(0.1):
            step["is_terminal"] = True
        return step

    def _body(self, kind, names, name, depth):
        step = {"type": kind} | getattr(self, f"_{kind}")(names, name, depth)
        if kind in {"parallel", "map"} and self._chance(0.4):
            step["max_concurrency"] = self._rng.randint(1, 2)
        if kind == "map" and step["step"]["type"] == "program" and not self._concurrent_programs:
            step["max_concurrency"] = 1
        return step | self._common(kind)

    def _tool(self, names, name, _depth):
        step = {"tool": name, "args": {"x": self._value(names), "y": self._value(names)}}
        if self._chance(0.5):
            step["compensate"] = {"tool": f"undo_{name}", "args": {"of": f"${name}", "v": self._value(names)}}
        return step

    def _llm(self, names, _name, _depth):
        step = {"prompt": f"ask {self._reference(names)}"}
        if self._chance(0.5):
            step["allowed_outputs"] = ["yes", "no", chr(0x1FAE8)]
        if self._chance(0.3):
            step |= {"system": self._reference(names), "on_timeout": self._rng.choice(["fail", "fallback"])}
        return step

    def _condition(self, names, _name, _depth):
        rng = self._rng
        left = self._reference(names)
        right = rng.choice(["1", "'ok'", "None", "True", "2.5", "[1, 'ok']", self._reference(names)])
        text = f"{left} {rng.choice([*['=='] * 4, *['!='] * 3, '>', '<=', 'in', 'not in', 'contains'])} {right}"
        if self._chance(0.3):
            text = f"not ({text}) {rng.choice(['and', 'or'])} {self._reference(names)}"
        return {"condition": text}

    def _parallel(self, names, name, depth):
        children = [f"{name}_{number}" for number in range(self._rng.randint(1, 3))]
        kinds = ["tool", "tool", "llm"]
        return {
            "parallel_steps": [
                {"id": child} | self._body(self._rng.choice(kinds), names, child, depth) for child in children
            ]
        }

    def _approval(self, names, _name, _depth):
        return {"message": self._reference(names), "details": self._value(names)}

    def _wait(self, _names, _name, _depth):
        return self._rng.choice([{"seconds": 0.5}, {"seconds": "$n"}, {"event": "paid"}, {"event": "paid"}])

    def _map(self, names, name, depth):
        rng = self._rng
        step = {"over": rng.choice(["$items", "$items", "$items", [1, self._value(names)], [], "$user"])}
        body = rng.choice(["tool", "llm", "program"] if depth < 2 else ["tool", "llm"])
        step["step"] = self._body(body, [*names, "item"], name, depth)
        if self._chance(0.2):
            step["as"] = "user"
        return step

    def _program(self, names, _name, depth):
        return {"program": self.program(depth + 1), "context": {"n": self._value(names), "items": [1, "$n"]}}

    def _common(self, kind):
        rng = self._rng
        found = {}
        if kind not in {"approval", "wait"}:
            if self._chance(0.4):
                found["on_error"] = rng.choice(["fail", "skip", "retry"])
            if self._chance(0.2):
                found["retry"] = rng.choice(
                    [{"schedule": [0.5, 1]}, {"max_attempts": 2}, {"delay_seconds": 0.1, "multiplier": 3}]
                )
        if self._chance(0.2) and (self._deadlines or kind in {"tool", "llm", "approval", "wait"}):
            found["timeout_seconds"] = rng.choice([1, 2.5])
        if self._chance(0.2):
            found["output_key"] = rng.choice(["n", "user", "x"])
        return found


class Host:
    """Ends effects in any order and in any way that a host may.

    Args:
        rng: Its choices.
        suspends: Whether effects may become pending.
        deadlines: Whether deadlines may pass.
    """

    def __init__(self, rng, *, suspends=True, deadlines=True):
        self._rng = rng
        self._suspends = suspends
        self._deadlines = deadlines

    def event(self, machine):
        """An event that a machine in this state has a transition for."""
        rng = self._rng
        awaited = machine.awaited()
        waiting = [row for row in awaited if row[0].id not in machine.deadlines]
        late = [row for row in awaited if row[0].id in machine.deadlines]
        if late and self._deadlines and rng.random() < 0.05:
            return Outcome(rng.choice(late)[0].id, "ok")
        effect, pending = rng.choice(waiting)
        code = machine.pending.get(effect.id)
        if code == "in_doubt" and rng.random() < 0.4:
            return Redo(effect.id)
        if code == "approval" and rng.random() < 0.2:
            return Outcome(effect.id, "pending", code="in_doubt")
        if pending and code not in HUMAN_DECIDED_CODES and effect.kind in {"tool", "event"} and rng.random() < 0.7:
            return Resume(rng.choice(ALL_VALUES), rng.choice(["WEBHOOK", "OPERATOR"]), effect.id)
        return self.outcome(effect, suspend=self._suspends and not pending and rng.random() < 0.15)

    def outcome(self, effect, *, suspend=False):
        rng = self._rng
        if suspend and effect.kind != "llm":
            if effect.kind == "tool" and rng.random() < 0.5:
                if rng.random() < 0.5:
                    return Outcome(effect.id, "pending", code=rng.choice(sorted(HUMAN_DECIDED_CODES)))
                return Outcome(effect.id, "ok", "PENDING")
            return Outcome(effect.id, "pending")
        usage = Usage(1, 2, 3, rng.choice([0, 0.5, 0.1])) if effect.kind == "llm" else None
        if rng.random() < (0.05 if effect.kind == "wait" else 0.15):
            status = rng.choice(["failed", "timeout", "denied"])
            code = rng.choice(["", "tool_error", "interrupted"]) if status == "failed" else ""
            return Outcome(effect.id, status, None, code, rng.choice(["", "bröken"]), usage)
        if effect.kind == "llm":
            return Outcome(effect.id, "ok", rng.choice(["yes", " no\n", "YES", chr(0x1FAE8), "free text"]), usage=usage)
        if effect.kind == "approval":
            return Outcome(effect.id, "ok", {"approved": rng.random() < 0.6, "by": "somebody"})
        value = rng.choice(ALL_VALUES)
        return Outcome(effect.id, "ok", value if value != "PENDING" else "done")
