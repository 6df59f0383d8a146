"""Warnings about a valid policy that is probably not what was meant, for `policy check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.kernel.language.conditions import Condition
from mcp_bridge.policy.rules.globs import ToolGlob
from mcp_bridge.policy.rules.policy_settings import NOWHERE, is_hash, shown_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mcp_bridge.policy.rules.globs import Reading
    from mcp_bridge.policy.rules.policy_settings import Policy, Rule, Source


@dataclass(frozen=True, slots=True)
class PolicyWarning:
    """A warning about a policy.

    Attributes:
        message: The warning, with the key.
        file: The configuration file, or None.
        line: The line, from 1, or None.
    """

    message: str
    file: str | None
    line: int | None

    def __str__(self) -> str:
        where = f"{self.file}, line {self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return where + self.message


_Found = tuple[str, tuple[str | int, ...]]


def warnings(
    policy: Policy,
    source: Source = NOWHERE,
    *,
    programs: Mapping[str, str] | None = None,
    servers: Mapping[str, str] | None = None,
) -> list[PolicyWarning]:
    """The warnings about a policy.

    Args:
        policy: The policy, as configured.
        source: Its place in a file.
        programs: The hashes of the operator's programs, by name; None if unknown.
        servers: The aliases of all servers, `local` included, by their configured names; None if unknown.
    """
    globs = [[ToolGlob(text) for text in rule.tools] for rule in policy.rules]
    findings: list[_Found] = [
        *_unreachable(policy.rules, globs),
        *_pointless(policy),
        *(_unpinned(policy.rules, programs) if programs is not None else ()),
        *(_unknown_servers(policy, globs, servers) if servers is not None else ()),
    ]
    return [PolicyWarning(f"{shown_place(path)}: {text}.", source.file, source.line(path)) for text, path in findings]


def _unreachable(rules: tuple[Rule, ...], globs: list[list[ToolGlob]]) -> Iterator[_Found]:
    for index, rule in enumerate(rules):
        for number, other in enumerate(rules, 1):
            covered = all(any(wide.includes(glob) for wide in globs[number - 1]) for glob in globs[index])
            if covered and _outranks(other, rule, earlier=number <= index):
                yield (
                    f"it never decides a call: rule {number} ({other.effect}) covers all of its tools",
                    ("rules", index),
                )
                break


def _outranks(other: Rule, rule: Rule, *, earlier: bool) -> bool:
    """Whether one of two rules for a tool always decides before the other can."""
    is_narrower = other.when not in ({None, rule.when} if other.effect == "deny" else {None})
    if other is rule or (is_narrower and other.effect != "program"):
        return False
    if other.effect == "deny":
        return earlier or rule.effect != "deny"
    return earlier and rule.effect != "deny"


def _pointless(policy: Policy) -> Iterator[_Found]:
    for index, rule in enumerate(policy.rules):
        if rule.when is not None and not Condition(rule.when).roots:
            yield "it refers to no argument: it is the same for every call", ("rules", index, "when")
        restricted = any(later.effect in {"approve", "program"} for later in policy.rules[index + 1 :])
        if policy.preset == "open" and rule.effect == "allow" and rule.max_calls is None and not restricted:
            yield 'it changes nothing: the preset "open" allows what no rule denies', ("rules", index)


def _unpinned(rules: tuple[Rule, ...], programs: Mapping[str, str]) -> Iterator[_Found]:
    for index, rule in enumerate(rules):
        for program in rule.programs:
            if is_hash(program) and program not in programs.values():
                yield f"no program in [programs] has the hash {program}", ("rules", index, "programs")


def _unknown_servers(policy: Policy, globs: list[list[ToolGlob]], servers: Mapping[str, str]) -> Iterator[_Found]:
    for server in policy.trust_hints:
        if server not in servers:
            yield f"there is no server {server!r}", ("trust_hints",)
    for index, rule in enumerate(policy.rules):
        reading: Reading = "narrow" if rule.effect == "allow" else "broad"
        for glob in globs[index]:
            if not any(glob.may_fit(server, alias, reading) for server, alias in servers.items()):
                yield f"{glob.text!r} fits no server that is configured", ("rules", index, "tools")
