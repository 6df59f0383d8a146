"""What was seen of a case, held against the reference."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .arguments import Hidden, Secret, UnsendableError, in_the_clear, meant, parts
from .generator import GRANTS, LOCAL_TOOLS, SECRETS, SERVERS, SOURCE_TOOLS
from .programs import MESSAGE
from .reference import Called, completed, decisions, glob_fits, same, valid, veil
from .shown import CUT

if TYPE_CHECKING:
    from .generator import Attack, Case
    from .harness import Arrival, Outcome, Seen

REFERENCE = re.compile(r"vault://ref/[a-z2-7]{16}")

MAX_SHOWN_CHARS = 2000
"""Arguments up to this can be shown whole in any question."""

MAX_CHECKED_CHARS = 100_000
"""Arguments up to this are checked, and so may be refused for nothing but their form."""


TIMES = {"together": 2, "map": 2}
"""How often an attack by a path makes its call, if not once."""


@dataclass(frozen=True)
class Violation:
    """A promise that was broken.

    Attributes:
        kind: Which.
        told: The circumstances.
    """

    kind: str
    told: str


def judge(case: Case, outcome: Outcome) -> list[Violation]:
    """Everything that went wrong in a case."""
    return _Judge(case, outcome).violations()


class _Judge:
    def __init__(self, case: Case, outcome: Outcome) -> None:
        self.case = case
        self.outcome = outcome
        self.found: list[Violation] = []
        self.made: dict[int, Counter[int]] = {}

    def violations(self) -> list[Violation]:
        if self.outcome.again:
            self.fault("done twice", f"{self.outcome.again}")
        if self.outcome.passed_off:
            self.fault("passed off", f"as the operator's ops0: {self.outcome.passed_off!a}")
        if self.outcome.refused:
            self.fault("refused", f"{self.outcome.refused}")
        if self.outcome.mistaken:
            self.fault("mistaken", f"taken for something sensitive: {self.outcome.mistaken}")
        if self.outcome.spent:
            # Whatever else this run should have done, it hasn't.
            self.fault("key spent", "the operator's run was given an agent's execution")
        for seen in self.outcome.seen:
            reached = [arrival for arrival in seen.arrivals if arrival.server != "src"]
            for arrival in seen.arrivals:
                self.arrival(seen, arrival)
            self.record(seen)
            kept_away = self.outcome.narrowed and seen is self.outcome.seen[0]
            if not reached and not self.outcome.spent and not kept_away:
                self.missing(seen)
            elif len(reached) > TIMES.get(seen.attack.path, 1):
                self.fault("done twice", f"{reached}")
        return self.found

    def fault(self, kind: str, told: str) -> None:
        self.found.append(Violation(kind, told))

    # --- what has arrived ---

    def arrival(self, seen: Seen, arrival: Arrival) -> None:
        name = f"{arrival.server}.{arrival.tool}"
        listed = {tool["name"]: tool for tool in self.listed(arrival.server, arrival.listed)}
        tool = listed.get(arrival.tool)
        if tool is None:
            self.fault("another tool", f"{name} was called, and isn't listed: {sorted(listed)}")
            tool = {"name": arrival.tool}
        if REFERENCE.search(str(arrival.arguments)):
            self.fault("reference sent", f"{name} got {arrival.arguments}")
        self.secrets(arrival)
        if self.case.servers is not None and arrival.server not in self.case.servers:
            self.fault("narrowed", f"{name} was called by what may use {self.case.servers}")
        if seen.attack.path == "asked first" and arrival.server != "src":
            self.asked_first(seen, arrival)
        schema = tool.get("inputSchema", {})
        if not valid(schema, arrival.arguments):
            self.fault("unchecked", f"{name} got {str(arrival.arguments)[:500]}, which its schema doesn't allow")
        called = self.called(seen, arrival.server, tool, sorted(listed), arrival.arguments)
        possible = decisions(seen.policy, called)
        made = self.made.setdefault(seen.scope, Counter())
        # Only what surely counts.
        made.update(set.intersection(*(set(counted) for _, counted in possible)))
        effects = {effect for effect, _ in possible}
        shown = f"{name} with {str(arrival.arguments)[:500]}"
        if effects == {"deny"}:
            self.fault("denied", shown)
        if "allow" not in effects and "approve" in effects:
            self.approved(seen, arrival, shown)

    def called(self, seen: Seen, server: str, tool: dict[str, Any], listed: list[str], arguments: Any) -> Called:
        return Called(
            server,
            tool["name"],
            SERVERS,
            listed,
            veil(completed(tool.get("inputSchema", {}), arguments), SECRETS),
            tool.get("inputSchema", {}),
            tool.get("annotations", {}),
            seen.program,
            dict(self.made.get(seen.scope, {})),
        )

    def listed(self, server: str, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return {"local": LOCAL_TOOLS, "src": SOURCE_TOOLS}.get(server, tools)

    def secrets(self, arrival: Arrival) -> None:
        for name, plaintext in SECRETS.items():
            granted = any(glob_fits(glob, f"{arrival.server}.{arrival.tool}") for glob in GRANTS[name])
            if plaintext in str(arrival.arguments) and not granted:
                self.fault("secret leaked", f"{arrival.server}.{arrival.tool} got {name}")

    def approved(self, seen: Seen, arrival: Arrival, told: str) -> None:
        """A person must have been shown exactly this call, and have approved it; each approval is for one call."""
        name, arguments = f"{arrival.server}.{arrival.tool}", hidden(arrival.arguments)
        waiting = [shown for shown in seen.shown if shown.approved and not shown.used]
        for shown in waiting:
            if shown.tool == name and shown.arguments is not CUT and alike(shown.arguments, arguments):
                shown.used = True
                self.decided(seen, arrival, told)
                return
        if any(shown.arguments is CUT for shown in waiting):
            self.fault("cut question", told)
        elif waiting:
            self.fault("another question", f"{told}; shown: {[(s.tool, str(s.arguments)[:500]) for s in waiting]}")
        else:
            self.fault("unasked", told)

    def asked_first(self, seen: Seen, arrival: Arrival) -> None:
        """A step has asked a person before: what it had to show has been shown whole."""
        said = [shown for shown in seen.shown if shown.tool == MESSAGE and shown.approved]
        wanted = in_the_clear(seen.attack.arguments)
        if not any(shown.arguments is not CUT and same(shown.arguments, wanted) for shown in said):
            self.fault("cut question", f"a step's, before {arrival.server}.{arrival.tool} with {str(wanted)[:500]}")

    # --- what is recorded ---

    def decided(self, seen: Seen, arrival: Arrival, told: str) -> None:
        rows = self.recorded(seen, "decision")
        if not any(row[2].get("approved") is True and self.is_of(row, arrival) for row in rows):
            self.fault("decision not recorded", f"{told}; recorded: {[row[:2] for row in rows]}"[:1500])

    def record(self, seen: Seen) -> None:
        """Each call has an intent of its own, in which it stands as it was made."""
        rows = self.recorded(seen, "intent")
        for arrival in seen.arrivals:
            mine = next((row for row in rows if self.is_of(row, arrival)), None)
            if mine is None:
                what = f"{arrival.server}.{arrival.tool} with {str(arrival.arguments)[:500]}"
                self.fault("not recorded", f"{what}; recorded: {[str(row[:2])[:300] for row in rows]}")
            else:
                rows.remove(mine)

    def recorded(self, seen: Seen, kind: str) -> list[tuple[str, Any, dict[str, Any]]]:
        found = []
        for execution in seen.executions:
            values = self.outcome.values[execution]
            for row in self.outcome.entries[execution]:
                payload = row.entry.payload
                if row.entry.kind == kind and "arguments" in payload and payload.get("kind", "tool") == "tool":
                    given = payload.get("sent", payload["arguments"])
                    found.append((payload["tool"], resolved(given, values), payload))
        return found

    def is_of(self, row: tuple[str, Any, dict[str, Any]], arrival: Arrival) -> bool:
        return row[0] == f"{arrival.server}.{arrival.tool}" and alike(row[1], hidden(arrival.arguments))

    # --- what should have arrived ---

    def missing(self, seen: Seen) -> None:
        """A call that everything allows is made: a gate that refuses all breaks no rule, and is none."""
        if (wanted := self.wanted(seen)) is None:
            return
        called, size = wanted
        effects = {effect for effect, _ in decisions(seen.policy, called)}
        asked = self.case.person is True and size <= MAX_SHOWN_CHARS
        if (effects == {"allow"} or (effects == {"approve"} and asked)) and self.is_reachable(seen):
            self.fault("refused", f"{called.server}.{called.tool} with {str(called.arguments)[:500]}: {seen.error}")

    def wanted(self, seen: Seen) -> tuple[Called, int] | None:
        """The call that should have been made; None where there may be reasons not to make it."""
        attack = seen.attack
        tools = self.listed(attack.server, self.case.tools)
        tool = next((row for row in tools if row["name"] == attack.tool), None)
        if seen.tampered or tool is None or attack.server not in {*SERVERS, "local"} or self.case.servers is not None:
            return None
        if attack.path == "asked first" and (
            self.case.person is not True or len(str(attack.arguments)) > MAX_SHOWN_CHARS
        ):
            return None
        if any("max_calls" in rule for rule in seen.policy["rules"]):
            return None
        if parts(attack.arguments, Secret) and any(s.name == "beta" for s in parts(attack.arguments, Secret)):
            return None
        if any(isinstance(p.value, int) for p in parts(attack.arguments, Hidden)):
            return None  # the type that it has in the end depends on how it was put in
        try:
            arguments = meant(attack.arguments, SECRETS)
        except UnsendableError:
            return None
        schema = tool["inputSchema"]
        size = len(str(arguments))
        if not valid(schema, arguments) or size > MAX_CHECKED_CHARS or "[" * 9 in str(arguments):
            return None
        return self.called(seen, attack.server, tool, [row["name"] for row in tools], arguments), size

    def is_reachable(self, seen: Seen) -> bool:
        """Whether the attack's path leads to the call, whatever else stands on it."""
        helpers = {"compensation": ["give", "fail"], "parallel": ["give"], "echoed": ["give"]}.get(seen.attack.path, [])
        for name in helpers:
            tool = next(row for row in SOURCE_TOOLS if row["name"] == name)
            called = self.called(seen, "src", tool, ["give", "fail"], {"value": "x"})
            if {effect for effect, _ in decisions(seen.policy, called)} != {"allow"}:
                return False
        # Of two policies both would have to allow it.
        return self.case.later is None


def without_null(arguments: Any) -> Any:
    """Arguments without those that are null: to a rule and to a person those are as if left out."""
    return (
        {name: value for name, value in arguments.items() if value is not None}
        if isinstance(arguments, dict)
        else arguments
    )


def alike(one: Any, other: Any) -> bool:
    """Whether two calls' arguments are the same."""
    return same(without_null(one), without_null(other))


def hidden(arguments: Any) -> Any:
    """What a tool got, with the references to secrets in the place of their plaintexts."""
    if isinstance(arguments, str):
        for name, plaintext in SECRETS.items():
            arguments = arguments.replace(plaintext, f"vault://secret/{name}")
        return arguments
    if isinstance(arguments, dict):
        return {name: hidden(value) for name, value in arguments.items()}
    return [hidden(value) for value in arguments] if isinstance(arguments, list) else arguments


def resolved(recorded: Any, values: dict[str, Any]) -> Any:
    """What is recorded, with the values behind its references, as far as they are kept."""

    def value(match: re.Match[str]) -> str:
        kept = values.get(match[0].rpartition("/")[2])
        return match[0] if kept is None else str(kept)

    if isinstance(recorded, str):
        if REFERENCE.fullmatch(recorded):
            kept = values.get(recorded.rpartition("/")[2])
            return recorded if kept is None else kept
        return REFERENCE.sub(value, recorded)
    if isinstance(recorded, dict):
        return {str(resolved(name, values)): resolved(item, values) for name, item in recorded.items()}
    return [resolved(item, values) for item in recorded] if isinstance(recorded, list) else recorded


def told(attack: Attack) -> str:
    """An attack in a line."""
    return f"{attack.path} {attack.server}.{attack.tool} {str(in_the_clear(attack.arguments))[:300]}"
