"""Sensitive values told by their shape: what is looked for, and the checks that keep order numbers out of it.

| name | what | by default |
|---|---|---|
| `card` | payment card numbers: issuer's prefix, length, grouping, check digit | yes |
| `iban` | bank accounts: length of the country, check digits | yes |
| `api_key` | keys of well-known services, told by their prefixes | yes |
| `jwt` | signed JSON web tokens | yes |
| `private_key` | private keys in PEM | yes |
| `email` | mail addresses | no: much of what agents do is with them |
| `phone` | telephone numbers, with +country or in the North American form | no: many ids look like one |
| `us_ssn` | US social security numbers, with their dashes | no: nothing in one can be checked |

Text is looked at as it is: a value that is encoded is not found, save in JSON, where its escapes are allowed for.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, field_validator

from mcp_bridge.policy.redaction.bounded_regex import compile_bounded
from mcp_bridge.policy.redaction.check_digits import iban_length, is_card_number, is_iban
from mcp_bridge.policy.redaction.windows import NARROW_CHARS, WINDOW_CHARS, matches
from mcp_bridge.toml_files.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

PatternName = Literal["card", "iban", "api_key", "jwt", "private_key", "email", "phone", "us_ssn"]

NAMES: tuple[PatternName, ...] = get_args(PatternName)

DEFAULT: tuple[PatternName, ...] = ("card", "iban", "api_key", "jwt", "private_key")

MAX_CUSTOM_PATTERNS = 100

MAX_PEM_CHARS = 32 << 10

MAX_VALUES = 100_000
"""Sensitive values that are looked for in one text: an execution can't have more references."""


class Span(NamedTuple):
    """Where something is in a text: from `start` up to `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of sensitive value.

    Attributes:
        name: Its name in the configuration.
        regex: What a candidate looks like, in time linear in the text; as `windows.matches` takes it.
        values: Where values are, given the text and a candidate.
        hint: A text without which there is no candidate.
        window: Characters of a long text that are searched at once.
    """

    name: str
    regex: re.Pattern[str]
    values: Callable[[str, re.Match[str]], Iterable[Span]]
    hint: str = ""
    window: int = WINDOW_CHARS


class TooManyValuesError(ValueError):
    """A text holds more sensitive values than anybody looks for."""


def find(patterns: Iterable[Pattern], text: str) -> list[Span]:
    """Where values of any of the patterns are, in order; of those that overlap, the first, and of these the longest.

    Raises:
        TooManyValuesError: There are more than MAX_VALUES.
    """
    spans: list[Span] = []
    for pattern in patterns:
        # One search for the first costs less than to iterate, and mostly there is none.
        if pattern.hint in text and (len(text) > pattern.window or pattern.regex.search(text)):
            for match in matches(pattern.regex, text, pattern.window):
                spans.extend(pattern.values(text, match))
                if len(spans) > MAX_VALUES:
                    raise TooManyValuesError(f"a text holds more than {MAX_VALUES} sensitive values")
    spans.sort(key=lambda span: (span.start, -span.end))
    disjoint: list[Span] = []
    for span in spans:
        if not disjoint or span.start >= disjoint[-1].end:
            disjoint.append(span)
    return disjoint


# Between the groups of a number: also those spaces and hyphens by which pages and documents keep a number on one line,
# and these as JSON in ASCII has them.
_SPACES = " \u00a0\u2000-\u200a\u202f\u205f\u3000"
_HYPHENS = "\u2010-\u2013\u2212-"
_ESCAPED = r"\\u(?:00[aA]0|20(?:0[0-9aA]|1[0-3]|2[fF]|5[fF])|2212|3000)"
_BY = rf"(?:[{_SPACES}{_HYPHENS}]|{_ESCAPED})"
_BETWEEN = re.compile(_BY)

_JSON_ESCAPE = re.compile(r"\\(?:[nrt]|u[0-9A-Fa-f]{4})\Z")
"""After a backslash, n, r and t are a line break or a tab of JSON, and u and four digits any character."""


def _begins(text: str, start: int) -> bool:
    """Whether a word may begin here."""
    before = text[start - 1 : start]
    return not (before == "_" or before.isalnum()) or bool(_JSON_ESCAPE.search(text[max(start - 6, 0) : start]))


def _ends(text: str, end: int) -> bool:
    after = text[end : end + 1]
    return not (after == "_" or after.isalnum())


# Bare, or in groups as on cards: fours, 4-6-5 and 4-6-4, 6-13.
_CARD = re.compile(
    r"[2-68](?:(?<![0-9][2-68])|(?<=\\u[0-9A-Fa-f]{4}[2-68]))(?=[0-9]{3}(?:"
    r"(?P<bare>[0-9]{10,15}+)"
    rf"|(?P<by>{_BY})"
    r"(?:(?P<sixes>[0-9]{6}(?P=by)[0-9]{4,5}+)|(?P<fours>[0-9]{4}(?P=by)[0-9]{4}(?P=by)[0-9]{4}+)"
    r"(?:(?P=by)(?P<rest>[0-9]{1,3}+)(?![0-9]))?)"
    rf"|(?P<thirteen>[0-9]{{2}}{_BY}[0-9]{{13}}+)"
    r"))"
)


def _cards(text: str, match: re.Match[str]) -> Iterator[Span]:
    start = match.start()
    if not _begins(text, start) or (text[start - 1 : start] == "." and _digit(text, start - 2)):
        return
    for layout in ("bare", "sixes", "fours", "rest", "thirteen"):
        end = match.end(layout)
        if end < 0 or not _ends(text, end) or _goes_on(text, end):
            continue
        if is_card_number(_BETWEEN.sub("", text[start:end])) and not (
            layout in {"fours", "rest"} and _in_row(text, Span(start, end), match["by"])
        ):
            yield Span(start, end)


def _digit(text: str, index: int) -> bool:
    return index >= 0 and text[index : index + 1].isdigit()


def _goes_on(text: str, end: int) -> bool:
    """Whether a decimal point follows, and more than the zero of a number that was taken for a measure."""
    fraction = text[end : end + 3]
    return fraction[:1] == "." and fraction[1:2].isdigit() and not (fraction[1] == "0" and _ends(text, end + 2))


# After the number, in four digits: month and year, or the year.
_EXPIRY = re.compile("(?:0[1-9]|1[0-2])[0-9]{2}|20[0-9]{2}")


def _in_row(text: str, span: Span, by: str) -> bool:
    """Whether groups of four are a part of a longer row of such groups, which is a table or a dump."""
    reach, by = 10 + 2 * len(by), re.escape(by)
    before, after = text[max(span.start - reach, 0) : span.start], text[span.end : span.end + reach]
    if re.search(rf"(?<![0-9A-Za-z_])[0-9]{{4}}{by}\Z", before):
        return True
    follower = re.match(rf"{by}([0-9]{{4}})(?![0-9A-Za-z_])({by}[0-9]{{4}})?", after)
    return follower is not None and (follower[2] is not None or _EXPIRY.fullmatch(follower[1]) is None)


def _ibans(text: str, match: re.Match[str]) -> Iterator[Span]:
    start = match.start()
    length = iban_length(match[0][:2])
    if length is None or not _begins(text, start):
        return
    # As in print, in groups of four, or without spaces.
    by = match["by"] or ""
    end = start + length + (length - 1) // 4 * len(by)
    written = text[start:end]
    compact = written.replace(by, "")
    if written != by.join(compact[at : at + 4] for at in range(0, len(compact), 4)):
        return
    if _IBAN_CHARS.fullmatch(compact) and _ends(text, end) and is_iban(compact):
        yield Span(start, end)


_IBAN_CHARS = re.compile("[A-Z0-9]+")


def _api_keys(text: str, match: re.Match[str]) -> Iterator[Span]:
    key = match[0]
    if not _begins(text, match.start()):
        return
    # Names of CSS classes begin with "sk-", too.
    if key.startswith("sk-") and not (any(map(str.isdigit, key)) and any(map(str.isupper, key))):
        return
    yield Span(*match.span())


def _jwts(text: str, match: re.Match[str]) -> Iterator[Span]:
    """Only what has a header that is one (RFC 7519 section 5, RFC 7515 section 4.1.1)."""
    # A token has any length. The parts of two candidates are never the same text, so that the work stays linear.
    whole = _TOKEN.match(text, match.start())
    if whole is None:
        return
    header = whole[0].partition(".")[0]
    try:
        read = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    except (ValueError, RecursionError):
        return
    if isinstance(read, dict) and ("alg" in read or "enc" in read):
        yield Span(*whole.span())


def _whole(_: str, match: re.Match[str]) -> Iterator[Span]:
    yield Span(*match.span())


_TOKEN = re.compile(r"eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+")


# A line break, in a file or escaped in JSON; and what may stand between lines.
_BREAK = r"(?:\s|\\[rn]){0,4}+"

# Headers of RFC 1421 and of OpenPGP (RFC 9580 section 6.2.2), those whose values are no free text.
_PEM_HEADERS = re.compile(
    rf"(?:{_BREAK}(?:Proc-Type: 4,[A-Z-]{{5,20}}|DEK-Info: [A-Z0-9-]{{3,30}},[0-9A-Fa-f]{{8,64}}"
    rf"|Version: [A-Za-z]{{3,20}} v?[0-9.]{{1,20}}(?: \([A-Za-z0-9 ./-]{{1,40}}\))?))*+"
)

# All of it, or the beginning of one that was cut short.
_PEM_BODY = re.compile(rf"(?:{_BREAK}[A-Za-z0-9+/]{{4,}}+={{0,2}})++(?:{_BREAK}=[A-Za-z0-9+/]{{4}}(?![A-Za-z0-9+/=]))?")

_NO_BASE64 = re.compile(r"\\[rn]|[^A-Za-z0-9+/]")

_MIN_PEM_CHARS = 40
"""Least characters of a key's base64: the shortest, an Ed25519 key in PKCS #8, has 64."""


def _private_keys(text: str, match: re.Match[str]) -> Iterator[Span]:
    start, begun = match.span()
    headers = _PEM_HEADERS.match(text, begun, begun + MAX_PEM_CHARS)
    begins = headers.end() if headers else begun
    body = _PEM_BODY.match(text, begins, begun + MAX_PEM_CHARS)
    if body is None or not _is_key(match[0], text[begun:begins], _NO_BASE64.sub("", body[0])):
        return
    end = re.compile(rf"{_BREAK}-----END [A-Z0-9 ]{{0,70}}-----").match(text, body.end())
    yield Span(start, end.end() if end else body.end())


def _is_key(label: str, headers: str, body: str) -> bool:
    """Whether base64 is, or begins as, a key of the label's kind: its first bytes say so."""
    if len(body) < _MIN_PEM_CHARS:
        return False
    data = base64.b64decode(body[: len(body) // 4 * 4])
    if "DEK-Info" in headers:
        return True
    if "PGP" in label:
        # A packet's first bit is set (RFC 9580 section 4.2); of a key the tag is 5.
        return data[0] in {0x94, 0x95, 0x96, 0xC5}
    if "OPENSSH" in label:
        return data.startswith(b"openssh-key-v1\0")
    # A SEQUENCE in DER (X.690), which begins with a version, an algorithm, or both.
    return data[:1] == b"\x30" and data[1] not in {0, 0x80} and bool({0x02, 0x30} & set(data[2:6]))


# logo@2x.png, getty@tty1.service, name@archive.tar.gz
_FILE_ENDING = re.compile(
    "avif|bmp|css|gif|gz|html|ico|jpe?g|jsx?|json|lock|md|mjs|mount|png|service|slice|socket|svg|target|tgz|timer"
    "|tiff?|tsx?|txt|webp|xml|ya?ml",
    re.IGNORECASE,
)


def _emails(text: str, match: re.Match[str]) -> Iterator[Span]:
    file = _FILE_ENDING.fullmatch(match[0].rpartition(".")[2])
    # git@github.com:owner/name.git and ssh://user@host.name are places; x@weights.mean() is a product of matrices.
    place = match[0].startswith("git@") or text.endswith("//", 0, match.start())
    if not file and not place and text[match.end() : match.end() + 1] != "(":
        yield Span(*match.span())


MAX_PHONE_DIGITS = 15
"""Most digits of an international number with its country code (ITU-T E.164)."""

MIN_PHONE_DIGITS = 8


_IN_THOUSANDS = re.compile(r"\+[0-9]{1,3}(?:(?:[\u2009\u202f]|\\u20(?:09|2[fF]))[0-9]{3})+")
"""A positive number as French and the SI write it. No telephone number is written so."""


def _phones(text: str, match: re.Match[str]) -> Iterator[Span]:
    digits = sum(map(str.isdigit, _BETWEEN.sub("", match[0])))
    fits = MIN_PHONE_DIGITS <= digits <= MAX_PHONE_DIGITS and not _IN_THOUSANDS.fullmatch(match[0])
    if fits and _begins(text, match.start()) and text[match.start() - 1 : match.start()] not in {"+", "-", "."}:
        yield Span(*match.span())


def _us_ssns(text: str, match: re.Match[str]) -> Iterator[Span]:
    area, group, serial = _BETWEEN.split(match[0])
    # What is never given out: https://www.ssa.gov/employer/randomization.html
    is_issued = area not in {"000", "666"} and area[0] != "9" and group != "00" and serial != "0000"
    if is_issued and _begins(text, match.start()) and text[match.start() - 1 : match.start()] != "-":
        yield Span(*match.span())


# Each expression begins with a character or a class of them, which is what `re` can scan for; where a word begins is
# looked at afterwards. What has no bound is possessive, and begins where it can't begin again in what it has taken.
BUILT_IN: dict[PatternName, Pattern] = {
    "card": Pattern("card", _CARD, _cards),
    "iban": Pattern("iban", re.compile(rf"[A-Z]{{2}}[0-9]{{2}}(?=(?P<by>{_BY})?[A-Z0-9]{{4}})"), _ibans),
    "api_key": Pattern(
        "api_key",
        re.compile(
            r"gh[pousr]_[A-Za-z0-9]{36,255}+|github_pat_[A-Za-z0-9_]{22,255}+|glpat-[A-Za-z0-9_.-]{20,255}+"
            r"|sk-[A-Za-z0-9_-]{20,255}+|[sr]k_(?:live|test)_[A-Za-z0-9]{16,255}+|whsec_[A-Za-z0-9+/=]{24,255}+"
            r"|A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])|AIza[A-Za-z0-9_-]{35}|xox[abeoprs]-[A-Za-z0-9-]{10,255}+"
            r"|xapp-[A-Za-z0-9-]{20,255}+|npm_[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{50,255}+|hf_[A-Za-z0-9]{34,255}+"
            r"|SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}|dop_v1_[0-9a-f]{64}"
            # A principal's token (`governance.principal_tokens`).
            r"|mcpb_[0-9a-f]{16}_[A-Za-z0-9_-]{43}"
        ),
        _api_keys,
    ),
    "jwt": Pattern(
        "jwt",
        re.compile(r"eyJ(?:(?<![A-Za-z0-9_-]eyJ)|(?<=\\[nrt]eyJ))(?=[A-Za-z0-9_-]{8})"),
        _jwts,
        hint="eyJ",
    ),
    "private_key": Pattern(
        "private_key",
        re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
        _private_keys,
        hint="PRIVATE KEY",
    ),
    "email": Pattern(
        "email",
        re.compile(
            r"(?:(?<=\\[nrt])|(?<![A-Za-z0-9._%+\-\\]))[A-Za-z0-9_](?:[A-Za-z0-9._%+'-]{0,62}[A-Za-z0-9_+-])?+@"
            r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}(?!-?[A-Za-z0-9])"
        ),
        _emails,
        hint="@",
    ),
    "phone": Pattern(
        "phone",
        re.compile(
            rf"\+[1-9][0-9]{{0,2}}+(?:(?:\.|{_BY})?\(?[0-9]{{1,5}}+\)?){{2,6}}+(?![A-Za-z0-9_])"
            rf"|\([2-9][0-9]{{2}}\){_BY}?[2-9][0-9]{{2}}(?:\.|{_BY})[0-9]{{4}}(?![A-Za-z0-9_-])"
            rf"|[2-9][0-9]{{2}}(\.|{_BY})[2-9][0-9]{{2}}\1[0-9]{{4}}(?![A-Za-z0-9_-])"
        ),
        _phones,
    ),
    "us_ssn": Pattern(
        "us_ssn", re.compile(rf"[0-9]{{3}}([{_HYPHENS}])[0-9]{{2}}\1[0-9]{{4}}(?![A-Za-z0-9_-])"), _us_ssns
    ),
}


def _own(name: str, regex: re.Pattern[str]) -> Pattern:
    return Pattern(name, regex, _whole, window=NARROW_CHARS)


class ProjectionConfig(BaseModel):
    """The `[projection]` table.

    Attributes:
        patterns: Which of the built-in patterns are on.
        custom: More patterns, as regular expressions by name. What `bounded_regex` refuses is refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    patterns: tuple[PatternName, ...] = DEFAULT
    custom: dict[str, str] = {}

    @field_validator("patterns", mode="before")
    @classmethod
    def _array(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("custom")
    @classmethod
    def _usable(cls, custom: dict[str, str]) -> dict[str, str]:
        if len(custom) > MAX_CUSTOM_PATTERNS:
            raise ValueError(f"there may be {MAX_CUSTOM_PATTERNS} patterns")
        for name, regex in custom.items():
            if name in NAMES:
                raise ValueError(f"{name} is the name of a built-in pattern")
            try:
                compile_bounded(regex)
            except ValueError as exc:
                raise ValueError(f"the pattern {name} can't be used: {exc}") from None
        return custom

    def compiled(self) -> tuple[Pattern, ...]:
        """The patterns that are on."""
        own = (_own(name, compile_bounded(regex)) for name, regex in sorted(self.custom.items()))
        return (*(BUILT_IN[name] for name in dict.fromkeys(self.patterns)), *own)


def projection_from_toml(table: Any, file: Path | None) -> ProjectionConfig:
    """Decode the `[projection]` table.

    Args:
        table: `projection`, as the TOML reader gives it.
        file: Where it came from, for messages.

    Raises:
        BridgeError: `bad_config`.
    """
    return decode(ProjectionConfig, table, file, "projection")
