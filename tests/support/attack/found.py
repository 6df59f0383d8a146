"""What the campaigns have found besides the six defects that they were made for, as small as it could be made.

Each failed when it was found. They are tried by name, since no seed promises to come by them again.
"""

from __future__ import annotations

from typing import Any

from .arguments import Hidden, Text
from .generator import Attack, Case, Change


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def policy(*rules: dict[str, Any], preset: str = "open", trust_hints: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"preset": preset, "rules": list(rules), "trust_hints": list(trust_hints)}


def case(listing: list[dict[str, Any]], rules: dict[str, Any], *attacks: Attack, **more: Any) -> Case:
    return Case(0, "bank", listing, rules, more.pop("person", True), list(attacks), more.pop("kind", "script"), **more)


IS_ON = {"tree": ("==", ("ref", "TKMODE"), ("lit", True)), "when": "$TKMODE == True"}
MODE = Text((Hidden("TKMODE"),))
"""A name, behind a reference: a pattern of the operator's takes it for sensitive."""

WIPE = tool("wipe", TKMODE={"type": "boolean", "default": False})
RENAMED = Change("slow", "before", [tool("wipe-out")])

FOUND = {
    # The default was put in beside the name that stood behind a reference: the rule saw the one, and the tool got the
    # other, of a registered tool; of a server's tool the default got the better of what the caller had written.
    "a default beside a name behind a reference": case(
        [WIPE],
        policy({"tools": ["local.wipe"], "effect": "deny", **IS_ON}),
        Attack("call", "local", "wipe", {"path": "/", MODE: True}),
    ),
    "a default in the place of what was given": case(
        [tool("wipe", TKMODE={"type": "boolean", "default": True})],
        policy({"tools": ["bank.wipe"], "effect": "deny", **IS_ON}),
        Attack("call", "bank", "wipe", {MODE: False}),
    ),
    # While the tools were listed anew for one call, another was decided by the old listing.
    "two calls while a listing changes": case(
        [tool("wipe")], policy(), Attack("map", "bank", "wipe", {}, change=RENAMED), kind="programs"
    ),
    # A script that goes on after its host has died had forgotten what its programs had used of its limits.
    "a limit that a death lifts": case(
        [WIPE],
        policy({"tools": ["bank.wipe"], "effect": "approve", "max_calls": 1}),
        Attack("session", "bank", "wipe", {}),
        ending="broken off",
    ),
}
