"""Replays recorded histories with nothing but the kernel and the standard library, on any Python.

    PYTHONPATH=. python tests/golden/replay.py [FILE…]

Prints a line for each state that isn't the recorded one, and at the end how many histories and states were looked at;
the exit status is 1 if one differs.
"""

import hashlib
import json
import sys
from pathlib import Path

from mcp_bridge.kernel.awaited_effects import VERSION
from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome, Redo, Resume, Usage
from mcp_bridge.kernel.language.program_parser import unbundle
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.state import dump, restore

FOLDER = Path(__file__).resolve().parent
KINDS = {"outcome": Outcome, "resume": Resume, "cancel": Cancel, "redo": Redo}


def event_of(data):
    """An event from `{"event": "outcome"|"resume"|"cancel"|"redo", …}`."""
    fields = {name: value for name, value in data.items() if name not in {"event", "refused"}}
    if "usage" in fields:
        fields["usage"] = Usage(**fields["usage"])
    return KINDS[data["event"]](**fields)


def take(machine, data):
    """Apply an event; the code of the refusal, or None."""
    try:
        machine.apply(event_of(data))
    except IllegalEventError as exc:
        return exc.code
    return None


def states_of(history):
    """The bytes of the state at the start and after each event.

    Raises:
        ValueError: An event is refused that shouldn't be, or the other way round.
    """
    program = unbundle({"program": history["program"], "uses": history.get("uses", [])})
    # One that is about to be recorded has none.
    version = json.loads(history["states"][0]["bytes"])["version"] if history.get("states") else VERSION
    machine = Machine(program, history["context"], version)
    yield dump(machine)
    for number, data in enumerate(history["events"], 1):
        refused = take(machine, data)
        if refused != data.get("refused"):
            raise ValueError(f"event {number}: refused as {refused}, and not as {data.get('refused')}")
        yield dump(machine)


def recorded(data):
    """A state as it stands in a file."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": data.decode()}


def faults(history):
    """Where a machine departs from its recorded history: once in one go, once read back from each recorded state."""
    try:
        found = [recorded(data) for data in states_of(history)]
    except ValueError as exc:
        yield str(exc)
        return
    states = history["states"]
    if len(found) != len(states):
        yield f"there are {len(states)} recorded states, and not {len(found)}"
        return
    for number, (now, then) in enumerate(zip(found, states, strict=True)):
        if now != then:
            yield f"after event {number}: {now['bytes']} where {then['bytes']} was"
    program = unbundle({"program": history["program"], "uses": history.get("uses", [])})
    for number, data in enumerate(history["events"]):
        machine = restore(program, states[number]["bytes"].encode())
        take(machine, data)
        if recorded(dump(machine)) != states[number + 1]:
            yield f"read back after event {number}, and then event {number + 1}: {dump(machine).decode()}"


def files():
    """All recorded histories."""
    return sorted(FOLDER.glob("*.json"))


def read(path):
    """The history in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def main():
    failed = states = 0
    paths = [Path(name) for name in sys.argv[1:]] or files()
    for path in paths:
        history = read(path)
        states += len(history["states"])
        for fault in faults(history):
            failed += 1
            print(ascii(f"{path.name}: {fault}"))
    print(f"{len(paths)} histories, {states} states, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
