"""Drives a machine to its end with scripted tools and a scripted model, as a host would, without waiting."""

from mcp_bridge.kernel.events import Outcome, Resume, Usage
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine


class Script:
    """Answers from lists, over and over: `{"value": …}` or `{"error": …}`."""

    def __init__(self, script):
        self._script = script
        self._calls = {}
        self.asked = []

    def outcome(self, effect):
        if effect.kind == "wait":
            return None if effect.name == "timeout" else Outcome(effect.id, "ok")
        if effect.kind == "cancel":
            return None
        if effect.kind in {"event", "approval"}:
            return Outcome(effect.id, "pending")
        name = effect.name or effect.kind
        self.asked.append([name, effect.arguments if effect.kind == "tool" else effect.arguments["prompt"]])
        usage = Usage(1, 2, 3) if effect.kind == "llm" else None
        if name not in self._script:
            return Outcome(effect.id, "failed", code="unknown_tool", message=f"no tool {name!r}")
        number = self._calls[name] = self._calls.get(name, -1) + 1
        answer = self._script[name][number % len(self._script[name])]
        if "error" in answer:
            return Outcome(effect.id, "failed", code="tool_error", message=answer["error"], usage=usage)
        return Outcome(effect.id, "ok", answer["value"], usage=usage)


def drive(machine, script, resumes=()):
    """To the end, or to a suspension that no further payload ends. Events are taken in the order of effects."""
    queue = list(machine.effects)
    resumes = list(resumes)
    while True:
        while queue:
            outcome = script.outcome(queue.pop(0))
            if outcome is not None:
                queue += machine.apply(outcome)
        if machine.status != "suspended" or not resumes:
            return machine
        queue += machine.apply(Resume(resumes.pop(0)))


def run(program, script=None, context=None, resumes=(), resolve=None):
    """A program as data, run to its end; `machine.asked` has what was asked of tools and model."""
    scripted = Script(script or {})
    machine = drive(Machine(parse(program, resolve), context), scripted, resumes)
    return machine, scripted.asked
