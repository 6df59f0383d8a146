"""Programs made at random from a seed, and llm-nano-vm to run them on."""

import json
import os
import random
import subprocess
from pathlib import Path

from kernel_driver import Script, drive

from mcp_bridge.kernel.events import Outcome
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.program import parse

HERE = Path(__file__).resolve().parent


class NanoVM:
    """llm-nano-vm 0.8.9 in a process of its own."""

    def __init__(self):
        told = os.environ.get("MCP_BRIDGE_NANO_VM")
        environment = Path(told) if told else HERE.parent / ".cache/peers/llm-nano-vm"
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
CONTEXT = {"flag": "ok", "n": 1, "user": "u"}
PATHS = ["", "", ".output", ".output.k", ".k", ".output.n.m", ".n.m"]


class PeerJobs:
    """Makes jobs for the peer: a program, a script, a context, resumes.

    Args:
        seed: The same seed gives the same job.
    """

    def __init__(self, seed):
        self._random = random.Random(seed)  # noqa: S311 - the same again for the same seed
        self._script = {}
        self._names = []

    def job(self):
        kind = self._random.choice(["any", "any", "any", "forward", "suspending"])
        program = self._suspending() if kind == "suspending" else self._flow(forward=kind == "forward")
        resumes = [self._value() for _ in range(self._random.randint(0, 3))] if kind == "suspending" else []
        return {"program": program, "script": self._script, "context": CONTEXT, "resumes": resumes}

    def _chance(self, share):
        return self._random.random() < share

    def _value(self):
        return self._random.choice(VALUES)

    def _answers(self, failing=0.08):
        count = self._random.randint(1, 4)
        return [{"error": "boom"} if self._chance(failing) else {"value": self._value()} for _ in range(count)]

    def _reference(self):
        if self._names and self._chance(0.7):
            return f"${self._random.choice(self._names)}{self._random.choice(PATHS)}"
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
            return f"v={self._reference()};"
        return "plain" if choice == 3 else f"{self._reference()} {self._reference()}."

    def _comparison(self):
        if self._names and self._chance(0.7):
            left = f"${self._random.choice(self._names)}.output{self._random.choice(['', '.k', '.n.m'])}"
        else:
            left = self._random.choice(["$user", "$n", "$missing", "$flag", "$n.k"])
        choice = self._random.randrange(16)
        if choice == 0:
            return f"'o' in {left}"
        if choice == 1:
            return f"'o' not in {left}"
        if choice <= 4:
            return left
        sign = self._random.choice(["=="] * 6 + ["!="] * 3 + [">", "<", ">=", "<="])
        return f"{left} {sign} {self._random.choice(['1', '-2', '1.5', chr(39) + 'ok' + chr(39), 'True', 'None', '0'])}"

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
        if self._chance(0.1):
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
        return step | self._common(later, names=("x", "flag", "n"))

    def _parallel(self, step, later):
        children = []
        for number in range(self._random.randint(1, 3)):
            child = {"id": f"{step['id']}_{number}", "type": "tool", "args": {"a": self._argument()}}
            child["tool"] = child["id"]
            self._script[child["id"]] = self._answers(0.05)
            children.append(child)
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
