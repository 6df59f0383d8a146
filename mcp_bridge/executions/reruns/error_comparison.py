"""Whether a script that is run again has failed as it did: what is compared of its error, and what may differ."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mcp_bridge.policy.secrets.value_references import equal_by_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_bridge.policy.secrets.known_values import Scalar

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b|(?<=started )\d{9,20}(?=\)>)|(?<=started daemon )\d{9,20}(?=\)>)")
"""An object's address, as its `repr` shows it: another in every process. A thread's shows its number, which is one."""

_PYTHON = re.compile(r"\bpython3\.\d+")
"""Where a library is, as an error of an import has it: elsewhere with another version of Python."""

_CUT = re.compile(r"\n… \d+ characters cut …\n")
"""Where the guest has shortened a text. How much is left depends on the advice that follows it."""

_OFFERED = re.compile(r"; (?:nearest|there are|write): .*|\. It is [\w.]+\(.*", re.DOTALL)
"""What our modules offer for a name that isn't there: it depends on the tools that there are."""

_UNFIT = re.compile(r"([\w.]+\(\) ).*\. It is [\w.]+\(.*", re.DOTALL)
"""What our modules say of a call that doesn't fit its tool. It is in no record, and the tool may be another by now."""

_NO_TOOL = re.compile(r"""["']?server \\?'[^'\n]*' has no tool \\?(['"]).*?\1""")
"""How our modules begin the message for a name that is no tool's. Other versions word what follows otherwise."""

_OURS = frozenset({"MCPError", "ToolError", "EventTimeoutError", "NotAwaitedError", "UnknownToolError"})
"""Types of errors whose text is the bridge's, or recorded. Another version may word it otherwise."""

_ADVICE = re.compile(r"(?:\n.*)?", re.DOTALL)
"""What follows an exception's own text: advice, which depends on tools and packages."""

_FORGOTTEN = re.compile(r" \([^\n]* was never awaited, so it never ran; write: [^\n]*\)\Z")
"""A note on a forgotten call, which follows the text and its advice, whether there is advice or not."""


def without_addresses(value: Any) -> Any:
    """A text without the addresses in it; any other value as it is."""
    return _ADDRESS.sub("0x", value) if isinstance(value, str) else value


def is_same_error(
    recorded: Mapping[str, Any],
    now: Mapping[str, Any],
    values_behind: Callable[[Any], Mapping[str, Scalar]],
    *,
    is_same_version: bool = True,
) -> bool:
    """Whether two errors with which a script has ended are the same.

    Compared are the code and, of an exception, its type, its line and its own text; of a syntax error its type alone.
    Of other errors the text isn't: it has limits and places of now. Another version of the bridge finds another line in
    the same stack, and words its own errors otherwise: then neither is compared.

    Args:
        recorded: The recorded error, projected.
        now: That of the run again, projected. No advice follows it (`messages.ExecutionStart.advises`).
        values_behind: The values behind the references in a value.
        is_same_version: Whether both are told by the same version (`RENDERING_VERSION`).
    """
    if recorded.get("code") != now.get("code"):
        return False
    # Another version of a language, or of ours, words what it doesn't understand otherwise, and names another line.
    is_syntax = recorded.get("code") == "syntax_error"
    # What an older version hasn't recorded can't be compared.
    if any(
        name in recorded and recorded[name] != now.get(name)
        for name in ("type", *(("line",) if is_same_version and not is_syntax else ()))
    ):
        return False
    if "type" not in recorded or is_syntax:
        return True
    before, after = str(recorded.get("message", "")), str(now.get("message", ""))
    unfit_now = _UNFIT.match(after) if recorded["type"] == "TypeError" else None
    if unfit_now and (unfit := _UNFIT.match(before)):
        # What doesn't fit depends on the tool; which tool it is doesn't.
        return unfit[1] == unfit_now[1]
    if not is_same_version and (unfit_now or recorded["type"] in _OURS):
        return True
    if not is_same_version and (unknown := _NO_TOOL.match(before)):
        return after.startswith(unknown[0])
    return _is_same_text(before, after, values_behind)


def shown_error(error: Mapping[str, Any] | None) -> str | None:
    """An error for people: its type, text and line."""
    if error is None:
        return None
    kind, line = error.get("type"), error.get("line")
    named = f"{kind}: " if kind else ""
    return f"{named}{error.get('message', '')}{f' (line {line})' if line else ''}"


def _is_same_text(recorded: str, now: str, values_behind: Callable[[Any], Mapping[str, Scalar]]) -> bool:
    before, after = map(_comparable, (recorded, now))
    if _CUT.search(recorded) or _CUT.search(now):
        # Their beginnings, which are long.
        size = min(len(_CUT.split(text)[0]) for text in (before, after))
        before, after = before[:size], after[:size]
    # A sensitive value that the script itself makes has another reference each time, which is as long.
    own, rest = before[: len(after)], before[len(after) :]
    return _ADVICE.fullmatch(rest) is not None and equal_by_values(own, after, values_behind([own, after]))


def _comparable(text: str) -> str:
    return _OFFERED.sub("", _PYTHON.sub("python3", without_addresses(_FORGOTTEN.sub("", text))))
