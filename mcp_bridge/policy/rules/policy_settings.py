"""The operator's `[policy]` table: its schema, decoded into types; errors name file, line and how to fix it.

    [policy]
    preset = "open"                   # open | read-only | approve-writes | locked
    trust_hints = ["files"]           # servers whose own readOnlyHint, destructiveHint, idempotentHint are believed
    [policy.limits]                   # of one execution
    calls = 500
    [policy.limits.principal]         # of one principal, over all restarts; of `local`, since the bridge was started
    model_cost_usd = 5.0
    [[policy.rules]]
    tools = ["local.capture_payment"] # globs over server.tool: see `globs`
    effect = "program"                # deny | allow | approve | program
    programs = ["payment_pipeline"]   # of the operator's; or SHA-256 hashes
    when = "$amount <= 500"
    max_calls = 1                     # in one execution

What the rules mean together is in `decision`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.language.conditions import Condition
from mcp_bridge.near_names import suggestion
from mcp_bridge.policy.rules.globs import ToolGlob
from mcp_bridge.toml_files.refused_values import said

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_core import ErrorDetails

Preset = Literal["open", "read-only", "approve-writes", "locked"]
"""What happens to a call that no rule decides: it is allowed; allowed if it is believed to be read-only; allowed if so,
and otherwise a person is asked; denied."""

Effect = Literal["deny", "allow", "approve", "program"]

MAX_LIMIT = 2**53
"""The largest limit: JSON parsers don't agree on larger numbers."""

_MAX_NAME_CHARS = 100
_MAX_REASON_CHARS = 500

_HASH = re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a policy in a file, for errors.

    Attributes:
        file: The configuration file, or None.
        line_of: From the path of a key (`"policy", "rules", 1, "when"`; the numbers are indexes) to its line, counted
            from 1, or None.
    """

    file: str | None = None
    line_of: Callable[..., int | None] = lambda *_: None

    def line(self, path: tuple[str | int, ...]) -> int | None:
        """The line of a key beneath `[policy]`."""
        return self.line_of("policy", *path) if self.file else None

    def error(self, message: str, *path: str | int, hint: str | None = None) -> BridgeError:
        """`bad_config`, with file, line and key."""
        line = self.line(path)
        where = f"{self.file}, line {line}: " if line else f"{self.file}: " if self.file else ""
        names = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
        return BridgeError(
            "bad_config",
            f"{where}{shown_place(path)}: {message}.",
            hint=hint or _example(path),
            file=self.file,
            line=line,
            key="policy" + "".join(names),
        )


_EXAMPLES = {
    "preset": '"read-only"',
    "trust_hints": '["git"]',
    "tools": '["github.delete_*"]',
    "effect": '"deny"',
    "programs": '["payment_pipeline"]',
    "when": '"$amount <= 500"',
    "max_calls": "1",
    "name": '"no-deletes"',
    "reason": '"ask the release team"',
    "calls": "500",
    "bytes": "1000000",
    "model_tokens": "20000",
    "model_cost_usd": "1.5",
}
"""An example value for each key, in TOML."""


def _example(path: tuple[str | int, ...]) -> str | None:
    key = str(path[-1]) if path else ""
    return f"Write {key} = {_EXAMPLES[key]}." if key in _EXAMPLES else None


UNKNOWN_SOURCE = Source()
"""The source of a policy that isn't from a file."""


def shown_place(path: tuple[str | int, ...]) -> str:
    """A key beneath `[policy]` as text for people; rules are counted from 1."""
    match path:
        case ("rules", int(index), *rest):
            keys = [str(part) for part in rest if isinstance(part, str)]
            return ", ".join((f"policy rule {index + 1}", *keys))
    return ".".join(("policy", *(str(part) for part in path if isinstance(part, str))))


def _fault(message: str, *path: str | int, hint: str | None = None) -> PydanticCustomError:
    """The error for a validator to raise; `path` is relative to the model that it validates."""
    return PydanticCustomError("policy", "{message}", {"message": message, "path": path, "hint": hint})


def _glob(text: str) -> str:
    try:
        return ToolGlob(text).text
    except ValueError as exc:
        raise _fault(str(exc)) from None


def _condition(text: str) -> str:
    try:
        return Condition(text).text
    except ValueError as exc:
        raise _fault(f"not a condition: {exc}") from None


def _program(text: str) -> str:
    if not text:
        raise _fault("a program's name is empty")
    match = _HASH.fullmatch(text)
    return match[1].lower() if match else text


def _line_of_text(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise _fault("must be one line of printable text")
    return text


def _as_set(values: tuple[str, ...]) -> tuple[str, ...]:
    """Sorted and without duplicates, so that equal policies have equal hashes."""
    return tuple(sorted(set(values)))


def is_hash(program: str) -> bool:
    """Whether an entry of a rule's `programs` is a hash, and not a name."""
    return _HASH.fullmatch(program) is not None


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Limit = Annotated[StrictInt, Field(ge=0, le=MAX_LIMIT)] | None


class Limits(_Model):
    """Limits; None is unlimited.

    Attributes:
        calls: Tool calls.
        bytes: Bytes of arguments and results, as JSON.
        model_tokens: Tokens of prompts and answers together.
        model_cost_usd: Cost of models, in US dollars.
    """

    calls: _Limit = None
    bytes: _Limit = None
    model_tokens: _Limit = None
    model_cost_usd: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] | None = None


class PolicyLimits(Limits):
    """The limits of one execution, and under `principal` those of all executions of one principal."""

    principal: Limits = Limits()


class Rule(_Model):
    """One of `[[policy.rules]]`.

    Attributes:
        tools: Globs over `server.tool`; the rule applies to tools that match one of them.
        effect: `deny`; `allow`; `approve`: a person is asked; `program`: only as a step of one of `programs`.
        programs: Names of the operator's programs, or SHA-256 hashes in lower-case hexadecimal.
        when: A condition on the arguments by their names, or None.
        max_calls: Most calls that the rule allows in one execution, or None.
        name: Shown in denials, or None.
        reason: Shown in denials, or None.
    """

    tools: Annotated[
        tuple[Annotated[StrictStr, AfterValidator(_glob)], ...], Field(min_length=1), AfterValidator(_as_set)
    ]
    effect: Effect
    programs: Annotated[tuple[Annotated[StrictStr, AfterValidator(_program)], ...], AfterValidator(_as_set)] = ()
    when: Annotated[StrictStr, AfterValidator(_condition)] | None = None
    max_calls: Annotated[StrictInt, Field(ge=1, le=MAX_LIMIT)] | None = None
    name: Annotated[StrictStr, Field(max_length=_MAX_NAME_CHARS), AfterValidator(_line_of_text)] | None = None
    reason: Annotated[StrictStr, Field(max_length=_MAX_REASON_CHARS), AfterValidator(_line_of_text)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.effect == "program" and not self.programs:
            raise _fault("the effect 'program' needs the programs: programs = [\"NAME\"]", "programs")
        if self.effect != "program" and self.programs:
            raise _fault(f"only the effect 'program' takes programs, and this one is {self.effect!r}", "programs")
        if self.effect == "deny" and self.max_calls is not None:
            raise _fault("a rule that denies lets no calls through, so it can't bound them", "max_calls")
        return self


_OVERRULING: Mapping[Effect, tuple[Effect, ...]] = {"approve": ("allow", "program"), "program": ("allow", "approve")}
"""From the effect of a rule that restricts to those of an earlier rule that decides instead, and is no stricter."""


class Policy(_Model):
    """`[policy]`, decoded.

    Attributes:
        preset: What happens to calls that no rule decides.
        rules: In the order of the file.
        limits: The limits of each execution, and of each principal.
        trust_hints: Configured names of the servers whose hints are trusted.
    """

    preset: Preset = "open"
    rules: tuple[Rule, ...] = ()
    limits: PolicyLimits = PolicyLimits()
    trust_hints: Annotated[tuple[Annotated[StrictStr, Field(min_length=1)], ...], AfterValidator(_as_set)] = ()

    @model_validator(mode="after")
    def _restrictions_hold(self) -> Self:
        """Refuse a restriction that an earlier rule for the same calls leaves without any effect.

        Where the stricter of two such rules is the one that decides, they are taken: a file that is refused while a
        bridge serves would leave what it forbids allowed. `policy check` warns of the other one.
        """
        seen: dict[tuple[tuple[str, ...], str | None], int] = {}
        for index, rule in enumerate(self.rules):
            if rule.effect == "deny":
                continue
            first = seen.setdefault((rule.tools, rule.when), index)
            if (other := self.rules[first].effect) in _OVERRULING.get(rule.effect, ()):
                same = "the same tools and the same condition" if rule.when else "the same tools"
                raise _fault(
                    f"{rule.effect!r}, and rule {first + 1} is {other!r} for {same}",
                    *("rules", index, "effect"),
                    hint=f"Rule {first + 1} decides: remove one of the two.",
                )
        return self


_MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    (): Policy,
    ("rules",): Rule,
    ("limits",): PolicyLimits,
    ("limits", "principal"): Limits,
}
_CHOICES = {"preset": get_args(Preset), "effect": get_args(Effect)}


def read(table: object, source: Source = UNKNOWN_SOURCE) -> Policy:
    """Decode `[policy]` as the TOML reader gives it.

    Raises:
        BridgeError: `bad_config`: an unknown key, a value of the wrong type, an invalid glob or condition, rules that
            contradict themselves or each other.
    """
    if not isinstance(table, Mapping):
        raise source.error("must be a table: write [policy]")
    try:
        return Policy.model_validate(dict(table))
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        # A misspelt key also makes the right one missing: the misspelling is reported.
        misspelt = [error for error in errors if error["type"] == "extra_forbidden"]
        raise _from_validation((misspelt or errors)[0], source) from None


def _from_validation(error: ErrorDetails, source: Source) -> BridgeError:
    context: dict[str, Any] = error.get("ctx", {})
    path = (*error["loc"], *context.get("path", ()))
    tables = tuple(part for part in path[:-1] if isinstance(part, str))
    key = str(path[-1]) if path else ""
    match error["type"]:
        case "extra_forbidden":
            return source.error("there is no such key", *path, hint=suggestion(key, _MODELS[tables].model_fields))
        case "missing":
            return source.error(f"has no {key!r}", *path[:-1], hint=_example(path))
        case "literal_error":
            hint = suggestion(str(error["input"]), _CHOICES[key])
            return source.error(f"must be {context['expected']}", *path, hint=hint)
        case "tuple_type" | "model_type" | "model_attributes_type" if "rules" in path and len(path) <= len(
            ("rules", 0)
        ):
            return source.error("must be an array of tables: write [[policy.rules]]", *path)
        case "tuple_type":
            return source.error("must be an array of texts", *path)
        case "model_type" | "model_attributes_type":
            return source.error(f"must be a table: write [{shown_place(path)}]", *path)
        case "too_short":
            return source.error("is empty: name what the rule is for", *path)
    return source.error(said(error), *path, hint=context.get("hint"))
