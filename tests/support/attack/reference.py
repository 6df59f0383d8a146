"""What the policy says of a call that has reached a tool, decided a second time.

Nothing of `mcp_bridge` is imported: what is here follows from docs/ and SECURITY.md, and works on the
policy as it was written and on what the tool got. Where the pages leave a choice, every answer that they allow is
possible: an answer here is a set.

- A condition gives yes, no, or no answer (`None`). It has none for values of types that it doesn't expect, nor where the
  text of a secret would decide.
- What a tool gets is completed by its defaults: they are what it will work with.
"""

from __future__ import annotations

import itertools
import keyword
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

YES = frozenset({True})
NO = frozenset({False})
UNANSWERED = frozenset({None})
ANY = YES | NO | UNANSWERED


# --- texts that hold a secret ---


@dataclass(frozen=True)
class Veiled:
    """A text in which a secret stands.

    Attributes:
        known: The parts that are known, in order, with a secret between each two.
        text: The text with the reference to the secret in its place.
    """

    known: tuple[str, ...]
    text: str

    def may_be(self, text: str) -> bool:
        """Whether some secret would make it this text."""
        return re.fullmatch(".+".join(map(re.escape, self.known)), text, re.DOTALL) is not None

    def surely_holds(self, text: str) -> bool:
        return any(text in part for part in self.known)


def veil(value: Any, plaintexts: dict[str, str]) -> Any:
    """A value with what is secret in it unknown. Keys aren't looked at: no secret is ever put there."""
    if isinstance(value, str):
        parts, text = [value], value
        for name, plaintext in plaintexts.items():
            parts = [piece for part in parts for piece in part.split(plaintext)]
            text = text.replace(plaintext, f"vault://secret/{name}")
        return value if len(parts) == 1 else Veiled(tuple(parts), text)
    if isinstance(value, dict):
        return {name: veil(item, plaintexts) for name, item in value.items()}
    return [veil(item, plaintexts) for item in value] if isinstance(value, list) else value


def is_veiled(value: Any) -> bool:
    """Whether there is a secret in a value."""
    if isinstance(value, dict):
        return any(is_veiled(item) for item in value.values())
    return any(map(is_veiled, value)) if isinstance(value, list) else isinstance(value, Veiled)


# --- JSON ---


def kind(value: Any) -> str:
    """The type of a value in JSON."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, (str, Veiled)):
        return "string"
    return "null" if value is None else "array" if isinstance(value, list) else "object"


def same(one: Any, other: Any) -> bool:
    """Whether two values are one in JSON, in which `1` is `1.0` and not `true`."""
    if kind(one) != kind(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def valid(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits as much of JSON Schema as the cases use."""
    wanted = schema.get("type")
    fits = (
        wanted is None
        or wanted == kind(value)
        or (wanted == "integer" and kind(value) == "number" and value == int(value))
    )
    if "anyOf" in schema and not any(valid(each, value) for each in schema["anyOf"]):
        return False
    if not fits or ("enum" in schema and not any(same(value, each) for each in schema["enum"])):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if any(name not in value for name in schema.get("required", ())):
            return False
        if schema.get("additionalProperties") is False and value.keys() - known.keys():
            return False
        return all(valid(known[name], item) for name, item in value.items() if name in known)
    if isinstance(value, list) and "items" in schema:
        return all(valid(schema["items"], item) for item in value)
    return True


def completed(schema: dict[str, Any], value: Any) -> Any:
    """A value with the defaults of what was left out, in every object that is there."""
    if not isinstance(value, dict):
        return value
    out = dict(value)
    for name, inner in schema.get("properties", {}).items():
        if name in out:
            out[name] = completed(inner, out[name])
        elif "default" in inner:
            out[name] = inner["default"]
    return out


# --- names ---


def alias(name: str, *, lower: bool = False) -> str:
    """The Python identifier that a name has when there is no other near it."""
    if lower:
        name = unicodedata.normalize("NFKC", name.lower())
    if not name.isidentifier() or unicodedata.normalize("NFKC", name) != name:
        name = "".join(sign if sign.isascii() and (sign.isalnum() or sign == "_") else "_" for sign in name)
    if name.startswith("__"):
        name = "_" + name.lstrip("_")
    if not name.strip("_"):
        name = "unnamed"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def aliases(names: list[str], *, lower: bool = False) -> dict[str, str]:
    """The identifiers that names have beside each other: those that are one keep it, others make way."""
    out = {name: name for name in names if alias(name, lower=lower) == name}
    for name in sorted(set(names) - out.keys()):
        base = candidate = alias(name, lower=lower)
        number = 1
        while candidate in out.values():
            number += 1
            candidate = f"{base}_{number}" if not base.endswith("_") else f"{base}{number}"
        out[name] = candidate
    return out


def glob_fits(glob: str, text: str) -> bool:
    """`*`, `?` and sets in brackets, sign by sign."""
    if not glob:
        return not text
    if glob[0] == "*":
        return any(glob_fits(glob[1:], text[skipped:]) for skipped in range(len(text) + 1))
    if not text:
        return False
    if glob[0] == "[" and "]" in glob[2:]:
        end = glob.index("]", 2)
        members = glob[1:end]
        fits = text[0] not in members[1:] if members[0] == "!" else text[0] in members
        return fits and glob_fits(glob[end + 1 :], text[1:])
    return glob[0] in {"?", text[0]} and glob_fits(glob[1:], text[1:])


def folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


# --- conditions, as the trees that they were generated as ---


def follow(path: str, arguments: Any) -> Any:
    """What a reference leads to; None where it leads nowhere."""
    return _followed(path, arguments)[0]


def _followed(path: str, arguments: Any) -> tuple[Any, bool]:
    """As `follow`, and whether it has led into what has no such parts: a server may see some in it."""
    value = arguments
    for name in path.split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            is_index = name.isascii() and name.isdecimal()
            has_such = isinstance(value, list) if is_index else isinstance(value, dict)
            return None, value is not None and not has_such
    return value, False


def _leads_astray(tree: Any, arguments: Any) -> bool:
    """Whether a reference in an operand has led into what has no parts."""
    match tree:
        case ("ref", path):
            return _followed(path, arguments)[1]
        case ("text" | "list", *pieces):
            return any(_leads_astray(piece, arguments) for piece in pieces if not isinstance(piece, str))
    return False


def written(value: Any) -> str:
    """A scalar within a text."""
    return str(value)


def operand(tree: Any, arguments: Any) -> Any:
    match tree:
        case ("ref", path):
            return follow(path, arguments)
        case ("lit", value):
            return value
        case ("list", *items):
            return [operand(item, arguments) for item in items]
        case ("text", *pieces):
            found, text = [""], ""
            for piece in pieces:
                value = piece if isinstance(piece, str) else follow(piece[1], arguments)
                if value is None and not isinstance(piece, str):
                    value = f"${piece[1]}"
                known = value.known if isinstance(value, Veiled) else (written(value),)
                text += value.text if isinstance(value, Veiled) else known[0]
                found[-1] += known[0]
                found += known[1:]
            return text if len(found) == 1 else Veiled(tuple(found), text)
    raise AssertionError(tree)


def _writes_out(tree: Any, arguments: Any) -> bool:
    """Whether a list or an object is written out within a text: how is not for us to say."""
    pieces = tree[1:] if tree[0] == "text" else ()
    return any(isinstance(follow(piece[1], arguments), (list, dict)) for piece in pieces if not isinstance(piece, str))


def announces_list(schema: dict[str, Any], path: str) -> bool:
    """Whether a tool's schema says that there is a list where a reference leads."""
    for name in path.split("."):
        schema = schema.get("properties", {}).get(name, schema.get("items", {}) if name.isdecimal() else {})
    return schema.get("type") == "array"


def answers(tree: Any, arguments: Any, schema: dict[str, Any]) -> frozenset[bool | None]:
    """Every answer that a condition on arguments of a schema may give."""
    match tree:
        case ("and" | "or" as word, one, other):
            return _joined(answers(one, arguments, schema), answers(other, arguments, schema), decides=word == "or")
        case ("not", one):
            return _negated(answers(one, arguments, schema))
        case ("ref" | "lit" | "text", *_):
            value = operand(tree, arguments)
            unsure = UNANSWERED if _leads_astray(tree, arguments) or _is_word(value) else frozenset[bool | None]()
            return YES | UNANSWERED if is_veiled(value) else unsure | {bool(value)}
        case (_, one, other) if _writes_out(one, arguments) or _writes_out(other, arguments):
            return ANY
        case (sign, one, other):
            unsure = UNANSWERED if _leads_astray(one, arguments) or _leads_astray(other, arguments) else frozenset()
            left, right = operand(one, arguments), operand(other, arguments)
            if sign in {"in", "not in"} and other[0] == "ref" and isinstance(right, list):
                found = contains(right, left, announced=announces_list(schema, other[1]))
                return unsure | (found if sign == "in" else _negated(found))
            if sign == "contains" and one[0] == "ref":
                return unsure | contains(left, right, announced=announces_list(schema, one[1]))
            return unsure | compare(sign, left, right)
    raise AssertionError(tree)


def _is_word(value: Any) -> bool:
    """Whether a text may be read as a boolean, and so be true where it is false."""
    return isinstance(value, str) and value.strip().casefold() in {
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
        "t",
        "f",
        "y",
        "n",
        "0",
        "1",
    }


def _negated(found: frozenset[bool | None]) -> frozenset[bool | None]:
    return frozenset(None if each is None else not each for each in found)


def _joined(first: frozenset[Any], second: frozenset[Any], *, decides: bool) -> frozenset[bool | None]:
    out: set[bool | None] = set()
    for each in first:
        if each is decides:
            out.add(decides)
        elif each is None:
            # Whether the other side may still decide is nobody's promise.
            out |= {None} | (second & {decides})
        else:
            out |= second
    return frozenset(out)


def compare(sign: str, one: Any, other: Any) -> frozenset[bool | None]:
    """Every answer that a comparison may give."""
    match sign:
        case "==":
            return equal(one, other)
        case "!=":
            return _negated(equal(one, other))
        case "contains":
            return contains(one, other)
        case "in":
            return among(one, other)
        case "not in":
            return _negated(among(one, other))
    return ordered(sign, one, other)


def equal(one: Any, other: Any) -> frozenset[bool | None]:
    if isinstance(one, Veiled) and isinstance(other, Veiled):
        return UNANSWERED
    if isinstance(other, Veiled):
        one, other = other, one
    if isinstance(one, Veiled):
        if other == one.text:
            return YES | UNANSWERED  # which secret it is was written there, and is none
        return UNANSWERED if isinstance(other, str) and one.may_be(other) else NO | UNANSWERED
    if is_veiled(one) or is_veiled(other):
        return NO | UNANSWERED
    if kind(one) == kind(other) or one is None or other is None:
        strict = same(one, other)
        unsure = UNANSWERED if not strict and isinstance(one, (list, dict)) else frozenset[bool | None]()
        return unsure | {strict} if strict == (one == other) else ANY
    return ANY if one == other else NO | UNANSWERED


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *(leaf for item in value.values() for leaf in _leaves(item))]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


def contains(one: Any, other: Any, *, announced: bool = False) -> frozenset[bool | None]:
    """`one contains other`: it must not be got past by wrapping a text into a list or an object.

    Of a list that is `announced` it asks for one of the list's values.
    """
    if isinstance(one, (list, dict)):
        if is_veiled(one) or is_veiled(other):
            return YES | UNANSWERED
        if announced:
            return UNANSWERED | {any(same(item, other) for item in one)}
        leaves = _leaves(one)
        hit = any(
            same(leaf, other) or (isinstance(leaf, str) and isinstance(other, str) and other in leaf) for leaf in leaves
        )
        return YES | UNANSWERED if hit else NO | UNANSWERED
    if kind(one) != "string" or kind(other) != "string":
        return UNANSWERED
    if isinstance(one, Veiled):
        return YES | UNANSWERED if isinstance(other, str) and one.surely_holds(other) else UNANSWERED
    if isinstance(other, Veiled):
        return UNANSWERED if all(part in one for part in other.known) else NO | UNANSWERED
    return frozenset({other in one})


def among(one: Any, other: Any) -> frozenset[bool | None]:
    """`one in other`."""
    if isinstance(other, (str, Veiled)):
        return contains(other, one)
    if isinstance(other, dict):
        return ANY
    if not isinstance(other, list):
        return UNANSWERED
    if is_veiled(other):
        return ANY
    if isinstance(one, Veiled):
        if one.text in other:
            return YES | UNANSWERED
        may = any(isinstance(item, str) and one.may_be(item) for item in other)
        return UNANSWERED if may else NO | UNANSWERED
    if is_veiled(one):
        return NO | UNANSWERED
    if any(same(one, item) for item in other):
        return YES
    if one in other:
        return ANY
    return NO if one is None or any(kind(one) == kind(item) for item in other) else NO | UNANSWERED


def ordered(sign: str, one: Any, other: Any) -> frozenset[bool | None]:
    if is_veiled(one) or is_veiled(other):
        decided = any(isinstance(each, Veiled) and not each.known[0] for each in (one, other))
        return UNANSWERED if decided else ANY
    kinds = {kind(one), kind(other)}
    if kinds in ({"number"}, {"string"}):
        found = {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign]
        return frozenset({found})
    return ANY if kinds <= {"number", "boolean"} or kinds == {"array"} else UNANSWERED


# --- the decision ---


@dataclass
class Called:
    """A call that is to be judged.

    Attributes:
        server, tool: The names under which it reached somebody.
        servers: The configured names of all servers.
        listed: The names of all tools that the server has listed.
        arguments: What it got, completed by its defaults, secrets veiled.
        schema: Of the tool's arguments.
        hints: The tool's annotations.
        program: The operator's program in whose text the step stands; None for anybody else's, and a script's own call.
        made: How many calls each rule has let through before in this execution, at least.
    """

    server: str
    tool: str
    servers: list[str]
    listed: list[str]
    arguments: Any
    schema: dict[str, Any] = field(default_factory=dict)
    hints: dict[str, Any] = field(default_factory=dict)
    program: str | None = None
    made: dict[int, int] = field(default_factory=dict)

    @property
    def forms(self) -> set[str]:
        """Every name by which a rule that restricts knows the tool, whatever else is listed beside it."""
        server_names = {self.server, aliases([*self.servers, self.server], lower=True)[self.server]}
        return {f"{server}.{tool}" for server in server_names for tool in self.tool_names}

    @property
    def other_forms(self) -> set[str]:
        """Names by which it may know it, too: that of a server which the operator has given another's alias."""
        return {f"{alias(self.server, lower=True)}.{tool}" for tool in self.tool_names}

    @property
    def tool_names(self) -> set[str]:
        return {self.tool, alias(self.tool), aliases([*self.listed, self.tool])[self.tool]}


def covers(rule: dict[str, Any], forms: set[str]) -> bool:
    return any(
        glob_fits(glob, form) or glob_fits(folded(glob), folded(form)) for glob in rule["tools"] for form in forms
    )


def names_exactly(rule: dict[str, Any], called: Called) -> bool:
    for glob in rule["tools"]:
        server, _, tool = glob.partition(".")
        if glob_fits(server, called.server) and glob_fits(tool, called.tool):
            return True
    return False


NOT_FOR_IT = "not for it"

Effects = frozenset[tuple[str, tuple[int, ...]]]


def decisions(policy: dict[str, Any], called: Called) -> Effects:
    """Every decision that the policy may come to: what it does, and the rules whose `max_calls` the call counts for."""
    forms, others = called.forms, called.other_forms
    fitting, possible = [], []
    for number, rule in enumerate(policy["rules"], 1):
        surely = covers(rule, forms)
        if surely or covers(rule, others):
            said: set[Any] = set(answers(rule["tree"], called.arguments, called.schema)) if "tree" in rule else {True}
            fitting.append((number, rule))
            possible.append(said if surely else said | {NOT_FOR_IT})
    return frozenset(_decision(policy, fitting, combination, called) for combination in itertools.product(*possible))


def effects(policy: dict[str, Any], called: Called) -> set[str]:
    """As `decisions`, only what is done."""
    return {effect for effect, _ in decisions(policy, called)}


def _decision(
    policy: dict[str, Any], fitting: list[tuple[int, dict[str, Any]]], known: tuple[bool | None, ...], called: Called
) -> tuple[str, tuple[int, ...]]:
    rows = [(*row, said) for row, said in zip(fitting, known, strict=True) if said != NOT_FOR_IT]
    if any(rule["effect"] == "deny" and said is not False for _, rule, said in rows):
        return "deny", ()
    asking: list[int] = []
    effect, involved = _preset(policy, called), []
    for number, rule, said in rows:
        found = _by_rule(number, rule, said, called)
        if found == "at least approve":
            asking = asking or [number]
        elif found != "pass":
            effect, involved = found, [number]
            break
    if effect == "allow" and asking:
        effect, involved = "approve", [*asking, *involved]
    counted = tuple(number for number in involved if "max_calls" in policy["rules"][number - 1])
    return effect, () if effect == "deny" else counted


def _by_rule(number: int, rule: dict[str, Any], said: Any, called: Called) -> str:
    used_up = "max_calls" in rule and called.made.get(number, 0) >= rule["max_calls"]
    match rule["effect"]:
        case "deny":
            return "pass"
        case "program":
            permitted = called.program in rule["programs"] and said is True and not used_up
            return "allow" if permitted else "deny"
        case "approve":
            if said is False:
                return "pass"
            return "deny" if used_up else "approve" if said else "at least approve"
    if said is not True:
        return "pass"
    if not names_exactly(rule, called):
        return "deny" if "max_calls" in rule else "pass"
    return "deny" if used_up else "allow"


def _preset(policy: dict[str, Any], called: Called) -> str:
    believed = called.server in policy["trust_hints"] and called.hints.get("readOnlyHint") is True
    if (
        policy["preset"] in {"read-only", "approve-writes"}
        and believed
        and called.hints.get("destructiveHint") is not True
    ):
        return "allow"
    return {"open": "allow", "locked": "deny", "read-only": "deny", "approve-writes": "approve"}[policy["preset"]]
