"""Projection of values: which parts of a value the agent, the record, a model, a person and a tool may see.

| projection | for whom | secrets | sensitive values | erased values |
|---|---|---|---|---|
| `output` | the agent's code, the answer | `vault://secret/<id>` | `vault://ref/<id>` | their references |
| `answer` | the same, of what a tool has answered | as output | as output, and what tools were given | as output |
| `trace` | what is recorded | as output | as output | their references, so that hashes stay as they are |
| `model` | prompts | as output | as output | `[REDACTED_TOMBSTONE]` |
| `tool` | a tool that is about to be called | plaintext, where granted | the values | the call fails |
| `judged` | rules | not known | the values | not known |
| `person` | who is asked | as output | the values | the call fails |

A prompt shows references and not a blank, so that a model can tell two customers apart, and say which one is meant.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.redaction.json_texts import Numbers, is_document, quoted
from mcp_bridge.policy.redaction.json_walk import TooDeepError, leaves, rebuild
from mcp_bridge.policy.redaction.masking import Masker
from mcp_bridge.policy.redaction.patterns import BUILT_IN, MAX_VALUES, TooManyValuesError, find
from mcp_bridge.policy.rules.comparisons import Unknown
from mcp_bridge.policy.secrets.reference_limits import reference_or_blank
from mcp_bridge.policy.secrets.vault_uris import (
    MARKER,
    REDACTED,
    SCHEME,
    TOMBSTONE,
    ReferenceMatch,
    find_references,
    reference_uri,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp_bridge.policy.redaction.patterns import Pattern
    from mcp_bridge.policy.rules.globs import ToolNames
    from mcp_bridge.policy.secrets.known_values import Found, Scalar
    from mcp_bridge.policy.secrets.value_references import References
    from mcp_bridge.policy.secrets.vault import Secrets

MAX_DEPTH = 128
"""Nesting of a tool's arguments."""

MAX_CHARS = 64 << 20
"""Most characters of one value's text, before and after projection. A larger one is replaced by a marker."""

PLAIN_CONTAINERS = 32
"""Arrays and objects of arguments that are looked at once, to see that there is nothing to hide or to fill in."""

OVERSIZE = "[REDACTED_OVERSIZE]"

_MAX_PASSES = 4
"""How often a text is searched. After a value is replaced, another one may be recognised beside it."""

# In none of the text that is looked for, so that it holds apart what is joined with it.
_SEPARATOR = "\0"

# The smallest number that has as many digits as the shortest secret; the built-in patterns look for longer ones.
_SHORT_NUMBER = 1000

_MARKERS = re.compile("|".join(map(re.escape, (TOMBSTONE, OVERSIZE, REDACTED))))
_BLANKS = re.compile("|".join(map(re.escape, (OVERSIZE, REDACTED))))


class Projector:
    """Projects the values of one execution.

    The same value gives the same projection, save that a reference is told from other text once its value is known, and
    projecting a projection again changes nothing. `answer` also depends on what tools were given before. None but those
    for tools, rules and people raises; the others take any JSON value, or bytes, whatever they hold, and return the
    same object where there is nothing to hide. Work is linear in the value: up to some seconds for a megabyte that is
    all sensitive values or escapes, ten or twenty milliseconds for ordinary text.

    Args:
        secrets: The secrets.
        references: Stores the sensitive values.
        sensitive: The patterns of sensitive values.
        subject: The person whose values they are, for `References.erase_subject`.
        max_chars: As MAX_CHARS.
    """

    def __init__(
        self,
        secrets: Secrets,
        references: References,
        sensitive: tuple[Pattern, ...] = (),
        *,
        subject: str | None = None,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self._secrets = secrets
        self._ids = secrets.ids
        self._masker = Masker(secrets.hidden, self._ids)
        self._references = references
        self._patterns = sensitive
        self._subject = subject
        self._max_chars = max_chars
        # Only the operator's own patterns may look for what has fewer digits.
        self._least = _SHORT_NUMBER if all(pattern.name in BUILT_IN for pattern in sensitive) else 0

    @overload
    def output(self, value: bytes) -> bytes: ...
    @overload
    def output(self, value: Any) -> Any: ...
    def output(self, value: Any) -> Any:
        """For the agent's code and the answer.

        Args:
            value: JSON, keys of objects included, or bytes: those are looked at as UTF-8, and byte by byte if they
                aren't UTF-8. In place of a number that holds a sensitive value stands a reference to all of it; one
                that holds a secret becomes text. In a text that is a JSON document, too, which stays one.
        """
        return self._project(value, self._hidden, self._hidden_number, self._shows)

    @overload
    def answer(self, value: bytes) -> bytes: ...
    @overload
    def answer(self, value: Any) -> Any: ...
    def answer(self, value: Any) -> Any:
        """For what a tool has answered: as `output`, without what tools were given either, wherever it stands.

        Its projection depends on what has been given before. So it is for what is new, and not for what is compared.
        """
        shown = self.output(value)
        if not self._references.has_given:
            return shown
        return self._project(shown, self._without_given, self._without_given_number, self._shows_given)

    @overload
    def trace(self, value: bytes) -> bytes: ...
    @overload
    def trace(self, value: Any) -> Any: ...
    def trace(self, value: Any) -> Any:
        """For what is recorded; as `output`."""
        return self.output(value)

    @overload
    def model(self, value: bytes) -> bytes: ...
    @overload
    def model(self, value: Any) -> Any: ...
    def model(self, value: Any) -> Any:
        """For prompts; as `output`, with tombstones for erased values."""
        return self._project(
            self.output(value),
            self._with_tombstones,
            lambda number: number,
            lambda text: self._with_tombstones(text) is not text,
        )

    def tool(self, arguments: Any, tool: ToolNames) -> Any:
        """The arguments of a call with the values behind their references, just before it is made.

        A text that is nothing but a reference to a number becomes the number. References to secrets in the keys of
        objects are left as they are: what tells a server where something is should not be secret. Values are not
        looked at again: a reference inside a secret's plaintext stays.

        Args:
            arguments: JSON; not changed.
            tool: The names of the tool that is called.

        Raises:
            BridgeError: `secret_denied`, `secret_missing`, `reference_erased`, `reference_unknown`,
                `arguments_too_deep`.
        """
        return _rebuilt(
            arguments,
            lambda text: self._resolved(text, tool),
            lambda name: str(self._resolved(name, tool, key=True)),
            tool,
        )

    def named(self, arguments: Any, tool: ToolNames) -> Any:
        """The arguments with the values behind references in the keys of objects, and only there.

        Only by names that are no references can it be told what was left out, and whether something is given twice.

        Args:
            arguments: JSON; not changed.
            tool: The names of the tool that is called.

        Raises:
            BridgeError: `arguments_too_deep`; `bad_arguments`: two names of one object come to be the same.
        """
        named = _rebuilt(arguments, lambda text: text, lambda name: str(self._seen(name, key=True)), tool)
        if named is not arguments and _names(named) != _names(arguments):
            raise BridgeError(
                "bad_arguments",
                f"Two names in the arguments of {tool} are the same, one of them behind a reference.",
                hint="Give each name once.",
                tool=str(tool),
            )
        return named

    def judged(self, arguments: Any, tool: ToolNames) -> Any:
        """The arguments as rules see them: with the values behind references; a text that holds a secret is `Unknown`.

        So is one with a reference behind which there is no value, or none any more: `tool` refuses it.

        Args:
            arguments: JSON; not changed. Where nothing in it is `Unknown`, the result is what `tool` gives.
            tool: The names of the tool that is called.

        Raises:
            BridgeError: `arguments_too_deep`.
        """
        return _rebuilt(arguments, self._seen, lambda name: self._seen(name, key=True), tool)

    def person(self, arguments: Any, tool: ToolNames | str) -> Any:
        """The arguments for a person who is asked: as `judged`, with references in the place of secrets.

        Raises:
            BridgeError: `arguments_too_deep`.
        """

        def told(text: str) -> Any:
            seen = self._seen(text)
            whole = seen.text if isinstance(seen, Unknown) else seen
            return self._masker.mask(whole) if isinstance(whole, str) else whole

        return _rebuilt(arguments, told, lambda name: self._masker.mask(self._seen(name, key=True)), tool)

    def is_plain(self, arguments: Any) -> bool:
        """Whether all projections of a call's arguments are the arguments themselves.

        One look at all of their text says so of most: there is no secret, no sensitive value and no reference in them.

        Args:
            arguments: JSON, of at most PLAIN_CONTAINERS arrays and objects: others aren't looked at.
        """
        found = _small_texts(arguments, self._least)
        if found is None:
            return False
        joined = _SEPARATOR.join(found)
        try:
            return len(joined) <= self._max_chars and SCHEME not in joined and not self._shows(joined)
        except TooManyValuesError:
            return False

    def _seen(self, text: str, *, key: bool = False) -> Any:
        pieces: list[str] = []
        known: list[list[str]] = [[]]
        done = 0
        for mention in find_references(text, self._ids):
            value = self._value_seen(mention)
            if value is not None and mention.start == 0 and mention.end == len(text):
                return str(value) if key else value
            before, itself = text[done : mention.start], text[mention.start : mention.end]
            pieces += (before, itself if value is None else str(value))
            known[-1] += pieces[-2:] if value is not None else [before]
            if value is None:
                known.append([])
            done = mention.end
        pieces.append(text[done:])
        known[-1].append(text[done:])
        whole = "".join(pieces) if len(pieces) > 1 else text
        return whole if key or len(known) == 1 else Unknown(whole, tuple(map("".join, known)))

    def _value_seen(self, mention: ReferenceMatch) -> Scalar | None:
        reference = mention.reference
        if reference is None or reference not in self._references or self._references.is_erased(reference):
            return None
        return self._references.resolve(reference)

    def _resolved(self, text: str, tool: ToolNames, *, key: bool = False) -> Scalar:
        pieces: list[str] = []
        done = 0
        for mention in find_references(text, self._ids):
            if key and mention.secret is not None:
                continue
            value = self._value(mention, tool)
            if mention.start == 0 and mention.end == len(text):
                return value
            pieces += (text[done : mention.start], str(value))
            done = mention.end
        return "".join((*pieces, text[done:])) if pieces else text

    def _value(self, mention: ReferenceMatch, tool: ToolNames) -> Scalar:
        if mention.secret is not None:
            return self._secrets.reveal(mention.secret, tool)
        reference = mention.reference or ""
        value = self._references.give(reference)
        if self._references.is_erased(reference):
            raise BridgeError(
                "reference_erased",
                f"The value behind vault://ref/{reference} was erased, and {tool} can't be given it.",
                reference=reference,
                tool=str(tool),
            )
        return value

    def _project(
        self,
        value: Any,
        text: Callable[[str], str],
        number: Callable[[float], Scalar],
        shows: Callable[[str], bool],
    ) -> Any:
        """Apply `text` and `number` to the leaves of a value, of which `shows` says whether there is a reason to."""
        if isinstance(value, bytes):
            return _as_text(value, lambda read: self._bounded_text(read, text))
        # Most values contain nothing sensitive, and one search of all their texts is cheaper than one for each.
        joined = _SEPARATOR.join(_texts(value, self._least))
        if len(joined) > self._max_chars:
            return OVERSIZE
        try:
            if not shows(joined):
                return value
        except TooManyValuesError:
            return OVERSIZE

        def leaf(leaf: Any) -> Any:
            if isinstance(leaf, str):
                return text(leaf)
            return leaf if isinstance(leaf, bool) or leaf is None else number(leaf)

        return self._bounded(rebuild(value, leaf, text))

    def _bounded_text(self, read: str, text: Callable[[str], str]) -> str:
        if len(read) > self._max_chars:
            return OVERSIZE
        try:
            return str(self._bounded(text(read)))
        except TooManyValuesError:
            return OVERSIZE

    def _bounded(self, projected: Any) -> Any:
        return projected if sum(map(len, _texts(projected, self._least))) <= self._max_chars else OVERSIZE

    def _hidden(self, text: str) -> str:
        hidden = self._referred(self._masker.mask(text))
        # In the place of a number in JSON it is a text, as in a value: so the document can still be read.
        return quoted(hidden) if hidden is not text and is_document(text) else hidden

    def _shows(self, text: str) -> bool:
        if self._masker.mask(text) is not text:
            return True
        if SCHEME not in text and MARKER not in text:
            # Most have neither references nor markers, and are in one piece.
            return bool(find(self._patterns, text))
        return any(not finished and find(self._patterns, piece) for piece, finished in self._pieces(text))

    def _without_given(self, text: str) -> str:
        """The text with references for the values in it that tools were given."""
        parts: list[str] = []
        for piece, finished in self._pieces(text):
            done = 0
            for start, end, reference in () if finished else self._given(piece):
                if start >= done:
                    known = reference_uri(reference) if reference else self._put(piece[start:end])
                    parts += (piece[done:start], known)
                    done = end
            parts.append(piece[done:])
        hidden = "".join(parts)
        return text if hidden == text else quoted(hidden) if is_document(text) else hidden

    def _shows_given(self, text: str) -> bool:
        return any(not finished and self._given(piece) for piece, finished in self._pieces(text))

    def _without_given_number(self, number: float) -> Scalar:
        return self._put(number) if self._given(_written(number)) else number

    def _given(self, text: str) -> list[Found]:
        """The values in a text that tools were given: in order, those that begin together with the longest first.

        Raises:
            TooManyValuesError: There are more than MAX_VALUES.
        """
        found = list(islice(self._references.found(text), MAX_VALUES + 1))
        if len(found) > MAX_VALUES:
            raise TooManyValuesError(f"a text holds more than {MAX_VALUES} values that were given")
        return sorted(found, key=lambda each: (each.start, -each.end))

    def _hidden_number(self, number: float) -> Scalar:
        if -self._least < number < self._least:
            return number
        text = _written(number)
        if self._masker.mask(text) is not text:
            return self._hidden(text)
        # Whole, with its sign and a fraction of zero: a tool gets the number back.
        return self._put(number) if find(self._patterns, text) else number

    def _with_tombstones(self, text: str) -> str:
        pieces: list[str] = []
        done = 0
        for mention in find_references(text, self._ids):
            if mention.reference is not None and self._references.is_erased(mention.reference):
                pieces += (text[done : mention.start], TOMBSTONE)
                done = mention.end
        return "".join((*pieces, text[done:])) if pieces else text

    def _referred(self, text: str) -> str:
        """The text with references for what the patterns find outside of references."""
        pieces = list(self._pieces(text))
        numbers: Numbers | None = Numbers(text)
        for _ in range(_MAX_PASSES):
            parted = list(self._parted(pieces, numbers))
            # In later rounds the neighbours of a match differ from those in the text.
            numbers = None
            if len(parted) == len(pieces):
                break
            pieces = parted
        else:
            # The text was made to need many rounds: all that is left becomes one value.
            pieces = [
                (piece if finished or not find(self._patterns, piece) else self._put(piece), True)
                for piece, finished in pieces
            ]
        return "".join(piece for piece, _ in pieces) if len(pieces) > 1 else text

    def _pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text in pieces: those to search, and references and markers, which are finished."""
        protected = [
            (mention.start, mention.end)
            for mention in find_references(text, self._ids)
            if mention.known or mention.reference in self._references
        ]
        protected += [match.span() for match in _MARKERS.finditer(text)]
        done = 0
        for start, end in sorted(protected):
            yield text[done:start], False
            yield text[start:end], True
            done = end
        yield text[done:], False

    def _parted(self, pieces: list[tuple[str, bool]], numbers: Numbers | None) -> Iterator[tuple[str, bool]]:
        """The pieces with references for matches; with `numbers`, also for the numbers of a JSON document."""
        at = 0
        for text, finished in pieces:
            done = 0
            for span in () if finished else find(self._patterns, text):
                yield text[done : span.start], False
                number = numbers.value(at + span.start, at + span.end) if numbers else None
                yield self._put(text[span.start : span.end] if number is None else number), True
                done = span.end
            yield text[done:], finished
            at += len(text)

    def _put(self, value: Scalar) -> str:
        return reference_or_blank(self._references.put, value, self._subject)


def is_blanked(value: Any, projected: Any) -> bool:
    """Whether a projection of a value has blanks in the place of parts of it: other values have the same one, then.

    Names that have become the same count as well: one of them is lost.
    """
    if projected is value:
        return False
    return _blanks(projected) != _blanks(value) or _names(projected) != _names(value)


def _blanks(value: Any) -> int:
    return sum(len(_BLANKS.findall(leaf)) for leaf in leaves(value) if isinstance(leaf, str))


def _rebuilt(arguments: Any, text: Callable[[str], Any], key: Callable[[str], str], tool: ToolNames | str) -> Any:
    """Arguments with their texts and the keys of their objects replaced.

    Raises:
        BridgeError: `arguments_too_deep`.
    """
    try:
        return rebuild(arguments, lambda leaf: text(leaf) if isinstance(leaf, str) else leaf, key, max_depth=MAX_DEPTH)
    except TooDeepError:
        raise BridgeError(
            "arguments_too_deep", f"The arguments of {tool} nest deeper than {MAX_DEPTH} levels."
        ) from None


def _names(value: Any) -> int:
    """The number of keys of all objects in a value."""
    count, stack = 0, [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            count += len(node)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return count


def _texts(value: Any, least: float) -> Iterator[str]:
    """The text of a value, its keys and numbers from `least` on included; TypeError if it isn't JSON."""
    for leaf in leaves(value):
        if isinstance(leaf, str):
            yield leaf
        elif isinstance(leaf, (int, float)):
            if not (isinstance(leaf, bool) or -least < leaf < least):
                yield _written(leaf)
        elif leaf is not None:
            raise TypeError(f"{type(leaf).__name__} is no JSON")


def _small_texts(value: Any, least: float) -> list[str] | None:
    """As `_texts`; None for a value of more than PLAIN_CONTAINERS arrays and objects."""
    texts: list[str] = []
    stack = [value]
    containers = 0
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            texts.append(node)
        elif isinstance(node, (dict, list, tuple)):
            containers += 1
            if containers > PLAIN_CONTAINERS:
                return None
            if isinstance(node, dict):
                stack.extend(node)
                stack.extend(node.values())
            else:
                stack.extend(node)
        elif isinstance(node, (int, float)):
            if not (isinstance(node, bool) or -least < node < least):
                texts.append(_written(node))
        elif node is not None:
            raise TypeError(f"{type(node).__name__} is no JSON")
    return texts


def _written(number: float) -> str:
    try:
        return repr(number)
    except ValueError:
        # Python writes no integer of more than some thousand digits, and so JSON can't either.
        return ""


def _as_text(data: bytes, text: Callable[[str], str]) -> bytes:
    encoding = "utf-8"
    try:
        read = data.decode()
    except UnicodeDecodeError:
        encoding = "latin-1"
        read = data.decode(encoding)
    projected = text(read)
    return data if projected is read else projected.encode(encoding)
