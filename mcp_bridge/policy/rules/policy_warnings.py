"""Warnings about a valid policy that is probably not what was meant, for `policy check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.language.conditions import Condition
from mcp_bridge.kernel.language.references import written_path
from mcp_bridge.near_names import nearest
from mcp_bridge.policy.rules.globs import ToolGlob, ToolNames
from mcp_bridge.policy.rules.policy_settings import UNKNOWN_SOURCE, is_hash, shown_place
from mcp_bridge.policy.rules.schema_defaults import declared, reach

if TYPE_CHECKING:
    from collections.abc import Iterator

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

Listed = Mapping[str, Sequence[tuple[ToolNames, Mapping[str, Any]]]]
"""Tools of servers, by the servers' configured names: each tool's names, and the JSON Schema of its arguments."""


def warnings(
    policy: Policy,
    source: Source = UNKNOWN_SOURCE,
    *,
    programs: Mapping[str, str] | None = None,
    servers: Mapping[str, str] | None = None,
    tools: Listed | None = None,
) -> list[PolicyWarning]:
    """The warnings about a policy.

    Args:
        policy: The policy, as configured.
        source: Its place in a file.
        programs: The hashes of the operator's programs, by name; None if unknown.
        servers: The aliases of all servers, `local` included, by their configured names; None if unknown.
        tools: The tools of those servers whose tools are known; None if unknown.
    """
    globs = [[ToolGlob(text) for text in rule.tools] for rule in policy.rules]
    findings: list[_Found] = [
        *_unreachable(policy.rules, globs),
        *_pointless(policy),
        *(_unpinned(policy.rules, programs) if programs is not None else ()),
        *(_unknown_servers(policy, globs, servers) if servers is not None else ()),
    ]
    if servers is not None and tools is not None:
        for index, rule in enumerate(policy.rules):
            findings += _unknown_tools(index, rule, globs[index], servers, tools)
            findings += _unknown_arguments(index, rule, globs[index], servers, tools)
    return [
        PolicyWarning(f"{shown_place(path)}: {text}{'' if text.endswith('?') else '.'}", source.file, source.line(path))
        for text, path in findings
    ]


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
    # Where the condition fails, a `program` rule denies.
    is_same = other.effect == "deny" and rule.effect != "program" and other.when == rule.when
    is_narrower = other.when is not None and not is_same
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
        reading = _reading(rule)
        for glob in globs[index]:
            if not any(glob.may_fit(server, alias, reading) for server, alias in servers.items()):
                yield f"{glob.text!r} fits no server that is configured", ("rules", index, "tools")


def _reading(rule: Rule) -> Reading:
    return "narrow" if rule.effect == "allow" else "broad"


def _unknown_tools(
    index: int, rule: Rule, globs: list[ToolGlob], servers: Mapping[str, str], tools: Listed
) -> Iterator[_Found]:
    """Globs that match no tool, although all the servers that they match are listed."""
    for glob in globs:
        meant = _meant(rule, [glob], servers)
        if meant and all(server in tools for server in meant) and not _matched(rule, [glob], meant, tools):
            yield f"{glob.text!r} fits no tool of {', '.join(meant)}", ("rules", index, "tools")


def _unknown_arguments(
    index: int, rule: Rule, globs: list[ToolGlob], servers: Mapping[str, str], tools: Listed
) -> Iterator[_Found]:
    """References to what no tool of a rule can be given: they are None in each call, which decides it otherwise."""
    meant = _meant(rule, globs, servers)
    if rule.when is None or any(server not in tools for server in meant):
        return
    schemas = _matched(rule, globs, meant, tools)
    for root, path in sorted(Condition(rule.when).references) if schemas else ():
        names = (root, *path)
        reached = max(reach(schema, names) for schema in schemas)
        if reached == 0:
            close = nearest(root, sorted({name for schema in schemas for name in declared(schema)}))
            hint = f": did you mean {written_path(close)}?" if close else ""
            yield f"no tool that it is for has an argument {root!r}{hint}", ("rules", index, "when")
        elif reached < len(names):
            there, name = written_path(names[:reached]), names[reached]
            yield f"{there} has no {name!r} in any tool that it is for", ("rules", index, "when")


def _meant(rule: Rule, globs: list[ToolGlob], servers: Mapping[str, str]) -> list[str]:
    """The servers that may have a tool that one of the globs matches."""
    reading = _reading(rule)
    return [name for name, alias in servers.items() if any(glob.may_fit(name, alias, reading) for glob in globs)]


def _matched(rule: Rule, globs: list[ToolGlob], servers: list[str], tools: Listed) -> list[Mapping[str, Any]]:
    """The schemas of the servers' tools that one of the globs matches."""
    fits = ToolGlob.names if rule.effect == "allow" else ToolGlob.covers
    return [schema for server in servers for names, schema in tools[server] if any(fits(glob, names) for glob in globs)]
