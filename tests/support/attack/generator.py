"""Cases: a server's listing, a policy, and attacks on what it forbids.

Everything follows from a seed and a number. Policies are made for the attacks that they meet, so that most rules are
for a tool that is called, and most conditions are about what it is given: a policy that nothing comes near finds nothing.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

from .arguments import Erased, Foreign, Hidden, Secret, Text, Unknown, in_the_clear

SERVERS = ["bank", "my-shop", "my_shop", "src"]
"""The configured servers. `src` has the tools `give` and `fail` and is not attacked."""

TARGETS = ["bank", "bank", "bank", "my-shop", "my_shop"]

SECRETS = {"alpha": "S3CRET-hq27fk1-alpha", "beta": "S3CRET-p93jd6z-beta"}
GRANTS = {"alpha": ["*.*"], "beta": ["my_shop.*"]}

TICKET = "TK[A-Z]{2,12}"
"""A pattern of the operator's own."""

PEM = "-----BEGIN PRIVATE KEY-----\n; DROP TABLE users; -- \nAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n-----END PRIVATE KEY-----"
GENUINE_PEM = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIDROP0S4jxMDROPx2vNnSVQzKq4yAI0Z9cXyGuYxYrFa\n-----END PRIVATE KEY-----"
SENSITIVE = [
    "DE89370400440532013000",
    "GB82WEST12345698765432",
    "4111 1111 1111 1111",
    4111111111111111,
    "ghp_abcDROPdefghijklmnopqrstuvwxyz012345",
    "TKDROP",
    "TKSAFE",
    "drop@evil.example",
    PEM,
    GENUINE_PEM,
]
PLAIN = ["DROP TABLE users", "SELECT 1", "safe", "drop", "", "/", "/tmp", "größe", "\uff24\uff32\uff2f\uff30", "D\u200bROP", "a $ b", "$path", "'\"", "\u202eDROP", "\n", "\U0001f4a3"]  # fmt: skip

BOOLEAN, STRING, INTEGER = {"type": "boolean"}, {"type": "string"}, {"type": "integer"}
OPTIONS = {
    "type": "object",
    "properties": {
        "deep": {"type": "boolean", "default": True},
        "target": STRING,
        "level": {"type": "integer", "default": 3},
        "more": {"type": "object", "properties": {"force": {"type": "boolean", "default": True}}},
    },
}
PROPERTIES: dict[str, list[dict[str, Any]]] = {
    "path": [STRING],
    "query": [STRING, STRING, {}],
    "iban": [STRING, STRING, {"type": "string", "default": "DE89370400440532013000"}],
    "recursive": [BOOLEAN, {"type": "boolean", "default": True}, {"type": "boolean", "default": False}],
    "force": [BOOLEAN, {"type": "boolean", "default": True}, {}],
    "amount": [INTEGER, {"type": "integer", "default": 1000}, {"type": "number", "default": 0.5}, {}],
    "tags": [{"type": "array", "items": STRING}, {"type": "array", "items": STRING, "default": ["DROP"]}, {}],
    "options": [OPTIONS],
    "mode": [{"type": "string", "enum": ["safe", "drop"], "default": "drop"}],
    "anything": [{}],
    "TKMODE": [STRING, {"type": "boolean", "default": True}],
}
FAMILIES = [
    ["wipe_all", "wipe-all", "wipe.all", "Wipe_All", "\uff57ipe_all", "wipe all"],
    ["transfer", "Transfer", "trans-fer", "trans_fer"],
    ["find", "find_2", "find-2"],
    ["größe", "GRÖSSE", "grosse"],
]
"""Names that are one to somebody: by their aliases, by case, by Unicode form."""

LOCAL_TOOLS: list[dict[str, Any]] = [
    {
        "name": "wipe",
        "inputSchema": {
            "type": "object",
            "properties": {
                "path": STRING,
                "recursive": {"type": "boolean", "default": True},
                "force": {"type": "boolean", "default": False},
                "TKMODE": {"type": "boolean", "default": False},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    },
    {
        "name": "pay",
        "inputSchema": {
            "type": "object",
            "properties": {"iban": STRING, "amount": {"type": "integer", "default": 1000}, "note_": {"type": "string", "default": "none"}},
            "required": ["iban"],
            "additionalProperties": False,
        },
    },
    {
        "name": "run-query",
        "inputSchema": {
            "type": "object",
            "properties": {"query": STRING, "tags": {"type": "array", "items": STRING, "default": ["all"]}, "options": {"anyOf": [{"type": "object"}, {"type": "null"}], "default": None}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
]  # fmt: skip
SOURCE_TOOLS: list[dict[str, Any]] = [
    {"name": "give", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "fail", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]

SCRIPT_PATHS = {"call": 12, "raw": 2, "session": 4, "echoed": 3, "together": 1, "left": 2}
"""How a script comes to a call: by itself; for the whole result; by a program that it drives; with what a tool echoed;
twice at the same time; by a program that it leaves suspended, and that somebody else goes on with."""

HOST_PATHS = {
    "step": 4,
    "nested": 2,
    "saved": 2,
    "operators": 4,
    "by a step": 2,
    "copied": 2,
    "map": 2,
    "parallel": 2,
    "compensation": 2,
    "resumed": 2,
    "suspended": 6,
    "asked first": 2,
}
"""How a program comes to a call. `operators` is one of the operator's, by its name, `by a step` run by an agent's,
`copied` an agent's that is the same word for word. `suspended` has nobody there to ask, and a decision taken elsewhere; `asked first`
has a step that asks a person, and shows what is going to be passed."""

KEY_PATHS = {"inline": 2, "by name": 2, "without a sandbox": 1, "narrowed": 1, "script": 1}
"""How an agent comes by a key that the operator uses as well: with a program that is the operator's, word for word, or
by its name; as the MCP tool that runs programs; with no servers; with a script."""

LOOK_ALIKES = dict.fromkeys(["save", "run"], 1)
"""How an agent passes a program off as the operator's: by the name that it is kept under, or by that in its text."""

ENDINGS = {"": 12, "run again": 1, "replayed": 1, "broken off": 2}
"""What becomes of a script with an idempotency key."""


@dataclass
class Change:
    """A listing that takes the place of the one before.

    Attributes:
        how: `announced`, `slow` (announced, and told after a while), `silent`, `restart` (the server is stopped, and started by the call).
        when: `before` the call, `asking` (while a person is asked), `suspended` (before its program is resumed).
        tools: The tools that there are then.
    """

    how: str
    when: str
    tools: list[dict[str, Any]]


@dataclass
class Attack:
    """One call that somebody would like to make.

    Attributes:
        path: How.
        server, tool: What is asked for, by these names.
        arguments: A tree as in `arguments`.
        written: Of a program: whether they stand in its text; else in its context.
        change: What changes meanwhile, or None.
    """

    path: str
    server: str
    tool: str
    arguments: dict[str, Any]
    written: bool = False
    change: Change | None = None


@dataclass
class Case:
    """Attacks under one policy.

    Attributes:
        number: Which.
        server: The server whose listing is the case's.
        tools: That listing.
        policy: `preset`, `trust_hints`, and `rules`, each as in the configuration, with the tree of its condition.
        person: What a person says who is asked: approve, deny, or nothing at all.
        attacks: One after the other.
        kind: `script`, `programs`, `keys`, `look-alikes`.
        ending: As ENDINGS.
        servers: Those that a script is given; None for all.
        alike: The name that an agent would like its program to have.
        later: The policy in force when something goes on; None for the same.
    """

    number: int
    server: str
    tools: list[dict[str, Any]]
    policy: dict[str, Any]
    person: bool | None
    attacks: list[Attack]
    kind: str
    ending: str = ""
    later: dict[str, Any] | None = None
    servers: list[str] | None = None
    alike: str = ""


FOCUSES = ["", "names", "look-alikes", "keys", "changes", "sizes", "types", "approvals"]
"""What there may be more of than by itself."""


def generate(seed: int, number: int, focus: str = "") -> Case:
    """The case of this seed and number, one of FOCUSES in mind."""
    return _Generator(random.Random(f"{seed}/{number}"), number, focus).case()  # noqa: S311 - for cases, not for secrets


@dataclass
class _Generator:
    rng: random.Random
    number: int
    focus: str
    server: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def weighted(self, weights: dict[str, int]) -> str:
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def case(self) -> Case:
        rng = self.rng
        self.server = rng.choice(TARGETS)
        self.tools = self.listing()
        kinds = {"script": 20, "programs": 16, "keys": 1, "look-alikes": 1}
        kind = self.focus if self.focus in kinds else self.weighted(kinds)
        paths = {"script": SCRIPT_PATHS, "programs": HOST_PATHS, "keys": KEY_PATHS, "look-alikes": LOOK_ALIKES}[kind]
        count = 1 if kind in {"keys", "look-alikes"} else rng.choice([1, 1, 2, 3])
        attacks = [self.attack(self.weighted(paths)) for _ in range(count)]
        person = rng.choice([True, True, True, False, None])
        ending = self.weighted(ENDINGS) if kind == "script" else ""
        later = self.policy(attacks) if (ending == "broken off" or kind == "programs") and self.chance(0.3) else None
        policy = self.policy(attacks)
        case = Case(self.number, self.server, self.tools, policy, person, attacks, kind, ending, later)
        if kind == "look-alikes":
            case.alike = alike(rng)
        if kind == "script" and self.chance(0.1):
            case.servers = rng.choice([[], ["src"], [self.server, "src"], ["local", "src"]])
        return case

    # --- listings ---

    def listing(self) -> list[dict[str, Any]]:
        family = self.rng.choice(FAMILIES)
        names = self.rng.sample(family, self.rng.choice([1, 1, 2, min(3, len(family))]))
        if self.chance(0.3):
            names.append(self.rng.choice([name for each in FAMILIES for name in each if name not in names]))
        return [self.tool(name) for name in names]

    def tool(self, name: str) -> dict[str, Any]:
        rng = self.rng
        chosen = rng.sample(sorted(PROPERTIES), rng.randint(2, 5))
        properties = {each: copy.deepcopy(rng.choice(PROPERTIES[each])) for each in chosen}
        if self.focus == "names":
            properties["TKMODE"] = {"type": "boolean", "default": True}
        if self.focus == "types":
            properties = {"query": {}, "force": {}, "anything": {}}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        required = [each for each in properties if "default" not in properties[each] and self.chance(0.3)]
        if required:
            schema["required"] = required
        if self.chance(0.3):
            schema["additionalProperties"] = False
        tool: dict[str, Any] = {"name": name, "inputSchema": schema}
        if self.chance(0.3):
            tool["annotations"] = {"readOnlyHint": True, **({"destructiveHint": True} if self.chance(0.3) else {})}
        return tool

    def change(self, tool: dict[str, Any], when: str) -> Change:
        """Another listing: with a neighbour, without the tool, with the tool under another name or of another form."""
        rng, tools = self.rng, copy.deepcopy(self.tools)
        family = next((each for each in FAMILIES if tool["name"] in each), FAMILIES[0])
        others = [name for name in family if name not in {row["name"] for row in tools}]
        ways = ["renamed", "renamed", "neighbour", "gone", "defaults", "defaults", "twins"]
        for way in rng.sample(ways, rng.choice([1, 1, 2])):
            mine = next((row for row in tools if row["name"] == tool["name"]), None)
            if way == "renamed" and mine and others:
                mine["name"] = others.pop()
            elif way == "neighbour" and others:
                tools.append(self.tool(others.pop()))
            elif way == "gone" and mine and len(tools) > 1:
                tools.remove(mine)
            elif way == "twins" and mine and others:
                tools.append({**copy.deepcopy(mine), "name": others.pop()})
            elif way == "defaults" and mine:
                self.other_defaults(mine["inputSchema"]["properties"])
        rng.shuffle(tools)
        how = rng.choice(["announced"] * 8 + ["silent"] * 3 + ["slow"]) if not self.chance(0.1) else "restart"
        return Change(how, when, tools)

    def other_defaults(self, properties: dict[str, Any]) -> None:
        for name, schema in properties.items():
            kinds = {"boolean": not schema.get("default", False), "integer": 7, "string": "DROP TABLE users"}
            if "enum" not in schema and schema.get("type") in kinds and self.chance(0.7):
                properties[name] = {**schema, "default": kinds[schema["type"]]}
        if self.chance(0.6):
            properties.setdefault("force", {"type": "boolean", "default": True})

    # --- attacks ---

    def attack(self, path: str) -> Attack:
        rng = self.rng
        local = self.chance(0.0 if self.focus == "changes" else 0.2)
        tool = rng.choice(LOCAL_TOOLS if local else self.tools)
        server = "local" if local else self.server
        arguments = self.arguments(tool["inputSchema"], path)
        change = None
        if not local and self.chance(0.9 if self.focus == "changes" else 0.2):
            change = self.change(
                tool, "suspended" if path == "suspended" else rng.choice(["before", "before", "asking"])
            )
        name = tool["name"]
        if self.chance(0.1):
            name = rng.choice([name.replace("-", "_").replace(".", "_").replace(" ", "_"), name.lower()])
        if self.chance(0.03):
            server = server.upper()
        return Attack(path, server, name, arguments, self.chance(0.3), change)

    def arguments(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        given: dict[str, Any] = {}
        odd = 0.6 if self.focus == "types" else 0.15
        for name, inner in schema.get("properties", {}).items():
            left_out = (
                0.5
                if "default" in inner and self.focus != "names"
                else 0.0
                if name in schema.get("required", ())
                else 0.3
            )
            if not self.chance(left_out):
                given[name] = self.odd(inner) if self.chance(odd) else self.value(inner)
        if "TKMODE" in given and self.chance(0.9 if self.focus == "names" else 0.5):
            # By a reference to the name, or twice, in one order or the other.
            value = given.pop("TKMODE")
            twice = [("TKMODE", self.value(schema["properties"]["TKMODE"]))] if self.chance(0.3) else []
            rows: list[tuple[Any, Any]] = [(Text((Hidden("TKMODE"),)), value), *twice]
            self.rng.shuffle(rows)
            given |= dict(rows)
        if self.chance(0.4 if self.focus == "sizes" else 0.02) and schema.get("additionalProperties") is not False:
            given["pad"] = "x" * self.rng.choice([5_000, 5_000, 20_000, 300_000])
        elif self.chance(0.02) and schema.get("additionalProperties") is not False:
            given["more"] = self.value({})
        return given

    def value(self, schema: dict[str, Any]) -> Any:
        rng = self.rng
        match schema.get("type"):
            case "boolean":
                return self.chance(0.5)
            case "integer":
                return rng.choice([0, 1, 500, 1000, 1000.0, 1001, -1, -0.0, 2**53 + 1, 10**20])
            case "number":
                return rng.choice([0, 0.5, 1.5, 1000, 1e21])
            case "array":
                return [self.text() for _ in range(rng.choice([0, 1, 2]))]
            case "object":
                inner = schema.get("properties", {})
                return {name: self.value(each) for name, each in inner.items() if self.chance(0.4)}
            case "string":
                return rng.choice(schema["enum"]) if "enum" in schema and self.chance(0.8) else self.text()
        choice = rng.randrange(6)
        if self.focus == "types" and choice > 1:
            return rng.choice([[self.text()], {"a": self.text()}, [[self.text()]]])
        if choice == 0:
            return {self.key(): self.value({}) for _ in range(rng.choice([1, 2]))}
        if choice == 1:
            return [self.value({}) for _ in range(rng.choice([1, 2]))]
        return rng.choice([self.text(), self.text(), None, True, 3, Text((Hidden(rng.choice(SENSITIVE)),))])

    def odd(self, schema: dict[str, Any]) -> Any:
        """What a condition, and mostly a schema, doesn't expect."""
        text = self.text()
        return self.rng.choice(
            [
                *("true", "True", 1, None, "1000", text, [text], [[text]]),
                *({"a": text}, {self.key(): 1}, self.value({}), nested(text, self.rng.choice([10, 45, 55, 100]))),
            ]
        )

    def key(self) -> Any:
        return self.rng.choice(
            ["a", "force", "größe", Text((Hidden("TKDROP"),)), Text(("k ", Hidden("4111 1111 1111 1111")))]
        )

    def text(self) -> Any:
        rng = self.rng
        choice = rng.random()
        if choice < 0.4:
            return rng.choice(PLAIN)
        hidden = Hidden(rng.choice(SENSITIVE))
        if choice < 0.6:
            return Text((hidden,))
        if choice < 0.8:
            return Text(
                (rng.choice(["", "SELECT 1 /* ", "to "]), hidden, rng.choice([" */", " ", " or ", "."]), hidden)
            )
        if choice < 0.9:
            return Text((Secret(rng.choice(sorted(SECRETS))),))
        if choice < 0.95:
            return Text((rng.choice(["token ", "x", "DROP "]), Secret("alpha"), rng.choice(["", " DROP", "\n"])))
        return Text(
            rng.choice(
                [
                    (Unknown("abcdefgh23456777"),),
                    ("x ", Unknown("zzzzzzzzzzzzzzzz")),
                    (Erased("TKGONE"),),
                    (Foreign("TKFOREIGN"),),
                ]
            )
        )

    # --- policies ---

    def policy(self, attacks: list[Attack]) -> dict[str, Any]:
        rules: list[dict[str, Any]] = []
        for _ in range(self.rng.choice([0, 1, 1, 2, 3])):
            rule = self.rule(self.rng.choice(attacks))
            if all((rule["tools"], rule.get("when")) != (other["tools"], other.get("when")) for other in rules):
                rules.append(rule)
        preset = self.weighted({"open": 12, "approve-writes": 3, "read-only": 1, "locked": 2})
        trust = [self.server] if self.chance(0.4) else []
        return {"preset": preset, "rules": rules, "trust_hints": trust}

    def rule(self, attack: Attack) -> dict[str, Any]:
        rng = self.rng
        asked = 40 if self.focus == "approvals" else 6
        effect = self.weighted({"deny": 9, "approve": asked, "allow": 5, "program": 2})
        rule: dict[str, Any] = {
            "tools": sorted({self.glob(attack) for _ in range(rng.choice([1, 1, 2]))}),
            "effect": effect,
        }
        if effect == "program":
            rule["programs"] = [rng.choice(["ops0", "ops1"])]
        if effect != "deny" and self.chance(0.15):
            rule["max_calls"] = rng.choice([1, 2])
        if self.chance(0.7):
            rule["tree"] = self.condition(attack)
            rule["when"] = rendered(rule["tree"])
        return rule

    def glob(self, attack: Attack) -> str:
        rng, server = self.rng, attack.server
        family = next((each for each in FAMILIES if attack.tool in each), [attack.tool])
        tool = rng.choice([attack.tool] * 4 + family)
        return rng.choice(
            [f"{server}.{tool}"] * 5
            + [
                f"{server}.*",
                f"*.{tool}",
                rng.choice(["*.*", f"{server}.*"]),
                f"{server}.{tool[:3]}*",
                f"{server.upper()}.{tool.upper()}",
            ]
            + [f"{server.replace('-', '_')}.{tool.replace('-', '_').replace('.', '_').replace(' ', '_')}"] * 3
        )

    def condition(self, attack: Attack) -> Any:
        first = self.comparison(attack)
        if self.chance(0.7):
            return first
        if self.chance(0.3):
            return ("not", first)
        return (self.rng.choice(["and", "or"]), first, self.comparison(attack))

    def comparison(self, attack: Attack) -> Any:
        rng = self.rng
        changed = attack.change.tools if attack.change else []
        listed = [tool for tool in [*self.tools, *LOCAL_TOOLS, *changed] if tool["name"] == attack.tool]
        known = {
            name: one for tool in listed or self.tools[:1] for name, one in tool["inputSchema"]["properties"].items()
        }
        given = in_the_clear(attack.arguments)
        name = rng.choice([*known, *given, *known])
        if self.focus == "changes" and listed and (new := _changed(listed[0], listed[-1])):
            # What the tool is going to make of a call that is decided by what it was.
            schema = known[new]
            return ("==", ("ref", new), ("lit", schema["default"]))
        schema, value = known.get(name, {}), given.get(name, known.get(name, {}).get("default"))
        path = name
        while isinstance(value, (dict, list)) and value and self.chance(0.1 if self.focus == "types" else 0.6):
            step = (
                rng.choice([each for each in value if str(each).isalnum()] or [""]) if isinstance(value, dict) else "0"
            )
            if not step or not step.isascii():
                break
            path, value = f"{path}.{step}", value[step] if isinstance(value, dict) else value[0]
        if name == "options" and self.chance(0.5):
            path, value = rng.choice(
                [("options.deep", True), ("options.level", 3), ("options.target", "DROP"), ("options.more.force", True)]
            )
        reference = ("ref", path)
        if isinstance(value, (dict, list)):
            value = next((leaf for leaf in _leaves(value) if leaf is not None), "DROP")
        if isinstance(value, bool) or schema.get("type") == "boolean":
            return rng.choice(
                [
                    ("==", reference, ("lit", self.chance(0.7))),
                    ("!=", reference, ("lit", self.chance(0.5))),
                    reference,
                    ("not", reference),
                ]
            )
        if isinstance(value, (int, float)) or schema.get("type") in {"integer", "number"}:
            number = value if isinstance(value, (int, float)) and abs(value) < 2**53 else rng.choice([0, 500, 1000])
            sign = rng.choice(["==", "!=", "<", "<=", ">", ">=", "in", "not in"])
            return (sign, reference, ("list", ("lit", number), ("lit", 1000)) if "in" in sign else ("lit", number))
        text = (
            value if isinstance(value, str) and len(value) <= 200 and _writable(value) else rng.choice(["DROP", "safe"])
        )
        piece = rng.choice(["DROP", "drop", text, text[: len(text) // 2] or "DROP", "4111", *SECRETS.values()])
        if self.focus == "types":
            return ("contains", reference, ("lit", text or "DROP"))
        return rng.choice(
            [
                ("==", reference, ("lit", text)),
                ("!=", reference, ("lit", text)),
                ("contains", reference, ("lit", piece)),
                ("contains", reference, ("lit", piece)),
                ("not", ("contains", reference, ("lit", piece))),
                ("in", reference, ("list", ("lit", text), ("lit", "safe"))),
                ("not in", reference, ("list", ("lit", text), ("lit", "safe"))),
                ("in", ("lit", piece), reference),
                ("in", ("lit", piece), ("text", "[", reference, "]")),
                ("==", ("text", reference), ("lit", text)),
                ("==", reference, ("lit", None)),
                (">=", reference, ("lit", "D")),
                reference,
            ]
        )


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """An argument that has another default than it had."""
    old, new = before["inputSchema"]["properties"], after["inputSchema"]["properties"]
    found = [name for name, schema in new.items() if "default" in schema and schema != old.get(name)]
    return found[0] if found else None


def alike(rng: random.Random) -> str:
    """A name that a person takes for `ops0`."""
    unseen = rng.choice(["\u200b", "\u200d", "\u00ad", "\u2060", "\ufe0f", "\u034f", "\u3164", "\U000e0020"])
    at = rng.randrange(5)
    return rng.choice(
        [
            f"{'ops0'[:at]}{unseen}{'ops0'[at:]}",
            *("ops0 ", " ops0", "ops0\u00a0", "OPS0", "Ops0", "\u043eps0", "o\u0440s0", "op\u04550", "opsO"),
            *("\uff4fps0", "ops\uff10", "\u03bfps0", "\U0001d428ps0", "ops\u2070", "opso"),
        ]
    )


def nested(value: Any, depth: int) -> Any:
    """A value within so many lists."""
    for _ in range(depth):
        value = [value]
    return value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


def _writable(text: str) -> bool:
    return not ("'" in text and '"' in text)


def rendered(tree: Any) -> str:
    """A condition as text."""
    match tree:
        case ("ref", path):
            return f"${path}"
        case ("lit", value):
            return _literal(value) if isinstance(value, str) else str(value)
        case ("list", *items):
            return f"[{', '.join(map(rendered, items))}]"
        case ("text", *pieces):
            inner = "".join(piece.replace("$", "$$") if isinstance(piece, str) else f"${piece[1]}" for piece in pieces)
            return f"'{inner}'"
        case ("not", one):
            return f"not ({rendered(one)})"
        case ("and" | "or" as word, one, other):
            return f"({rendered(one)}) {word} ({rendered(other)})"
        case (sign, one, other):
            return f"{rendered(one)} {sign} {rendered(other)}"
    raise AssertionError(tree)


def _literal(text: str) -> str:
    sign = '"' if "'" in text else "'"
    return f"{sign}{text.replace('$', '$$')}{sign}"
