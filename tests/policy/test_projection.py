"""Projections: what is sensitive becomes a reference for everybody but the tool that is called, and nothing else does."""

import email
import hashlib
import http
import json
import random
import re
import string
import sys
import tracemalloc
import uuid
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mcp_bridge.errors import BridgeError
from mcp_bridge.gate.gate import projected
from mcp_bridge.policy.redaction import projection as projection_module
from mcp_bridge.policy.redaction.bounded_regex import MAX_STEPS, compile_bounded
from mcp_bridge.policy.redaction.check_digits import is_card_number, is_iban
from mcp_bridge.policy.redaction.json_texts import is_document
from mcp_bridge.policy.redaction.json_walk import TooDeepError, leaves, rebuild
from mcp_bridge.policy.redaction.patterns import BUILT_IN, DEFAULT, NAMES, ProjectionConfig, find, projection_from_toml
from mcp_bridge.policy.redaction.projection import MAX_DEPTH, OVERSIZE, Projector
from mcp_bridge.policy.rules.globs import ToolGlob, ToolNames
from mcp_bridge.policy.secrets import known_values, reference_limits
from mcp_bridge.policy.secrets.known_values import MAX_SHAPES, KnownValues
from mcp_bridge.policy.secrets.value_references import MemoryReferences, equal_by_values, ids_of, renamed
from mcp_bridge.policy.secrets.vault import Secrets
from mcp_bridge.policy.secrets.vault_uris import REDACTED, TOMBSTONE, find_references, reference_uri

TOOL = ToolNames("shop", "pay", "shop", "pay")
OTHER = ToolNames("mail", "send", "mail", "send")

CARD = "4242424242424242"
TOKEN = "ghs4Kd93Lm20xPqR7vTz81Yb"  # noqa: S105
ALL = ProjectionConfig(patterns=NAMES)

PEM = (
    "-----BEGIN EC PRIVATE KEY-----\n"
    + "MHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY\n" * 3
    + "-----END EC PRIVATE KEY-----"
)
MCPB = f"mcpb_{'01ab' * 4}_{'A-_' * 14}z"

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"


LATEST = [MemoryReferences()]
"""The references that a test has made last."""


def references():
    LATEST[:] = [MemoryReferences()]
    return LATEST[0]


def projector(config=ALL, secrets=None, **options):
    return Projector(secrets or Secrets(), references(), config.compiled(), **options)


def granted(**plaintexts):
    """Secrets that the tool `shop.pay` may receive."""
    return Secrets(plaintexts, dict.fromkeys(plaintexts, (ToolGlob("shop.pay"),)))


def reference(value):
    return LATEST[0].put(value)


def name_of(value):
    return reference(value).rpartition("/")[2]


def found(text, *names):
    patterns = [BUILT_IN[name] for name in names or NAMES]
    return [text[span.start : span.end] for span in find(patterns, text)]


def refused(code, function, *arguments):
    with pytest.raises(BridgeError) as caught:
        function(*arguments)
    assert caught.value.code == code
    return caught.value


# --- what the patterns find ---


@pytest.mark.parametrize(
    "number",
    [
        "4242424242424242",
        "4242 4242 4242 4242",
        "4242-4242-4242-4242",
        "5555555555554444",
        "5555-5555-5555-4444",
        "2223003122003222",
        "378282246310005",
        "3782 822463 10005",
        "3782-822463-10005",
        "30569309025904",
        "3056 930902 5904",
        "6011111111111117",
        "3530111333300000",
        "6200 0000 0000 0005",
        "6304 0000 0000 0000 00",
        "4000000000000000006",
        "4000 0000 0000 0000 006",
    ],
)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "card: {}.",
        "({})",
        '{{"card":"{}"}}',
        '{{\\"card\\":\\"{}\\"}}',
        "one\\n{}\\ntwo",
        "<td>{}</td>",
        "{} 12/27 123",
        "{}, 1 EUR",
        "x={}&y=1",
        "no. 7: {}",
        "é{{}}: {}…",
    ],
)
def test_a_card_number_is_found_as_people_and_programs_write_it(number, around):
    assert found(around.format(number), "card") == [number]


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        (f"{CARD},5555555555554444", [CARD, "5555555555554444"]),
        (f"{CARD} 5555555555554444", [CARD, "5555555555554444"]),
        (f"{CARD}-5555555555554444", [CARD, "5555555555554444"]),
        (f"{CARD}.0,{CARD}.00,{CARD}.5", [CARD]),
        ("4242 4242 4242 4242 1227 123", ["4242 4242 4242 4242"]),
        ("4242 4242 4242 4242 2029", ["4242 4242 4242 4242"]),
        ("3782 822463 10005 1234", ["3782 822463 10005"]),
        ("x1 4242 4242 4242 4242", ["4242 4242 4242 4242"]),
        ("2345 678901 4242 4242 4242 4242", ["4242 4242 4242 4242"]),
        ("1 4242424242424242 2", [CARD]),
    ],
)
def test_card_numbers_are_told_from_what_stands_beside_them(text, cards):
    assert found(text, "card") == cards


@pytest.mark.parametrize(
    "text",
    [
        "4242424242424241",
        "1234567812345670",
        "9999999999999995",
        "42424242424242",
        "4222222222222",
        "4006381333931",
        "1700000000000",
        "1700000000123456",
        "1700000000123456789",
        "20240115103000123",
        "2024-01-15 10:30:00 2024-01-16",
        f"x{CARD}",
        f"{CARD}x",
        f"_{CARD}",
        f"{CARD}0",
        f"0{CARD}",
        f"é{CARD}",
        f"0.{CARD}",
        f"{CARD}.25",
        "4242 4242 4242",
        "4242-4242 4242-4242",
        "4242  4242  4242  4242",
        "42 42 42 42 42 42 42 42",
        "1111 4242 4242 4242 4242",
        "4242 4242 4242 4242 5678",
        "4242 4242 4242 4242 1227 4242",
        "4242 4242 4242 4242 4242 4242 4242 4242",
        "+1 415 555 2671 4242",
        "550e8400-e29b-41d4-a716-446655440000",
        "a1b2c3d4-4242-4242-4242-4242aaaaaaaa",
        "v4.2.4.2-4242",
        "ISBN 978-3-16-148410-0",
        "0x4242424242424242",
    ],
)
def test_a_number_that_is_no_cards_is_left(text):
    assert found(text, "card") == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("DE89370400440532013000", ["DE89370400440532013000"]),
        ("IBAN DE89 3704 0044 0532 0130 00, BIC X", ["DE89 3704 0044 0532 0130 00"]),
        ("GB29 NWBK 6016 1331 9268 19.", ["GB29 NWBK 6016 1331 9268 19"]),
        ("NO9386011117947", ["NO9386011117947"]),
        ("MT84MALT011000012345MTLCAST001S", ["MT84MALT011000012345MTLCAST001S"]),
        ("\\nDE89370400440532013000\\n", ["DE89370400440532013000"]),
        ("DE89370400440532013001", []),
        ("DE8937040044053201300", []),
        ("DE893704004405320130000", []),
        ("XDE89370400440532013000", []),
        ("DE89 37040 0440 5320 1300 0", []),
        ("XX89370400440532013000", []),
        ("AB12 CD34 EF56", []),
    ],
)
def test_a_bank_account_is_found_in_print_and_without_spaces(text, values):
    assert found(text, "iban") == values


@pytest.mark.parametrize("by", ["\u00a0", "\u202f", "\u2009", "\u2007", "\u2011", "\u2013"])
@pytest.mark.parametrize("escape", [str, lambda text: json.dumps(text)[1:-1]], ids=["text", "json"])
def test_groups_may_be_kept_together_as_pages_and_documents_do(by, escape):
    def written(text):
        return escape(text.replace(" ", by))

    for name, value in (
        ("card", "4242 4242 4242 4242"),
        ("card", "3782 822463 10005"),
        ("card", "4000 0000 0000 0000 006"),
        ("iban", "DE89 3704 0044 0532 0130 00"),
        ("iban", "GB29 NWBK 6016 1331 9268 19"),
        ("phone", "+1 415 555 2671"),
        ("phone", "415 555 2671"),
    ):
        for around in ("{}", "no.: {}.", f"of{by}{{}}{by}x", '{{"a": "{}"}}'):
            assert found(escape(around).replace("{}", written(value)), name) == [written(value)]
    for name, value in (
        ("card", "4242 4242 4242 4241"),
        ("card", "1111 4242 4242 4242 4242"),
        ("card", "4242 4242 4242 4242 5678"),
        ("iban", "DE89 3704 0044 0532 0130 01"),
        ("phone", "1234 5678"),
    ):
        assert found(written(value), name) == []


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("email", "Write to anna.b+tag@mail.example.com.", ["anna.b+tag@mail.example.com"]),
        ("email", '<a href="mailto:o\'neil@example.org">', ["o'neil@example.org"]),
        ("email", "a@b.co,c@d.io", ["a@b.co", "c@d.io"]),
        ("email", "\\nanna@example.com\\n", ["anna@example.com"]),
        ("email", "https://user@example.com/", []),
        ("email", "git@github.com:owner/name.git", []),
        ("email", "user@localhost @decorator logo@2x.png getty@tty1.service", []),
        ("email", "sd_IN@devanagari.UTF-8", []),
        ("email", "x = weights@values.mean()", []),
        ("email", "npm i @types/node@20.1.2 left-pad@1.3.0", []),
        ("phone", "+1 415 555 2671 or (415) 555-2671", ["+1 415 555 2671", "(415) 555-2671"]),
        ("phone", "415-555-2671, +49 (30) 123456", ["415-555-2671", "+49 (30) 123456"]),
        ("phone", "1+2+3 2024-01-15 10:20:30 192.168.100.200 10-20-30", []),
        ("phone", "order 415555267 1700000000", []),
        ("phone", "rose by +12\u202f345\u202f678\u00a0EUR, +1\u2009234\u2009567\u2009890 m", []),
        ("phone", r"rose by +12\u202f345\u202f678\u00a0EUR", []),
        ("phone", "+33\u202f6\u202f12\u202f34\u202f56\u202f78", ["+33\u202f6\u202f12\u202f34\u202f56\u202f78"]),
        ("us_ssn", "SSN 123-45-6789.", ["123-45-6789"]),
        ("us_ssn", "SSN 123\u201145\u20116789.", ["123\u201145\u20116789"]),
        ("us_ssn", "000-12-3456 666-12-3456 900-12-3456 123-00-4567 123-45-0000 1123-45-6789 123-45-67890", []),
        ("jwt", f"Bearer {JWT}", [JWT]),
        ("jwt", f'{{"t":"{JWT}"}}', [JWT]),
        ("jwt", "eyJhbGciOiJIUzI1NiJ9", []),
        ("api_key", f"token ghp_{'a1B2' * 9}!", [f"ghp_{'a1B2' * 9}"]),
        (
            "api_key",
            "AKIAIOSFODNN7EXAMPLE and sk-ant-Api03-abcdefGHIJ1234",
            ["AKIAIOSFODNN7EXAMPLE", "sk-ant-Api03-abcdefGHIJ1234"],
        ),
        ("api_key", f"Bearer {MCPB} and mcpb_short", [MCPB]),
        ("api_key", '<i class="sk-loading-indicator-wrapper"> task-risk-sk_live', []),
        ("private_key", f"key:\n{PEM}\nend", [PEM]),
        ("private_key", json.dumps(PEM), [json.dumps(PEM)[1:-1]]),
        ("private_key", PEM[:120], [PEM[:120].rstrip("\n")]),
        ("private_key", "A file begins with -----BEGIN PRIVATE KEY----- and ends with -----END PRIVATE KEY-----.", []),
        ("private_key", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", []),
    ],
)
def test_each_pattern_finds_what_it_is_for(name, text, values):
    assert found(text, name) == values


def test_most_patterns_of_which_ids_have_the_shape_are_off_by_default():
    assert set(NAMES) - set(DEFAULT) == {"email", "phone", "us_ssn"}
    assert [pattern.name for pattern in ProjectionConfig().compiled()] == list(DEFAULT)


def test_of_overlapping_values_the_first_and_longest_is_taken():
    patterns = ProjectionConfig(patterns=(), custom={"a": "ab{1,5}", "b": "abb", "c": "bbc"}).compiled()
    assert find(patterns, "xabbbc") == [(1, 5)]


# --- what they leave alone ---


def corpus():
    """Text as agents see it, in which there is nothing to hide."""
    chance = random.Random(7)  # noqa: S311
    stamp = 1_700_000_000
    yield "\n".join(str(uuid.UUID(int=chance.getrandbits(128), version=4)) for _ in range(5000))
    yield "\n".join(hashlib.sha1(bytes([n % 256, n >> 8]), usedforsecurity=False).hexdigest() for n in range(5000))
    yield "\n".join(hashlib.sha256(str(n).encode()).hexdigest()[: chance.choice([7, 8, 12, 64])] for n in range(5000))
    yield json.dumps([chance.random() * 10 ** chance.randrange(-8, 8) for _ in range(20_000)])
    yield json.dumps([chance.randrange(10 ** chance.randrange(1, 13)) for _ in range(20_000)])
    yield "\n".join(f"{stamp + n} {stamp * 1000 + n} {stamp * 10**6 + n} {stamp * 10**9 + n}" for n in range(3000))
    yield "\n".join(" ".join(str(chance.randrange(1000, 9999)) for _ in range(12)) for _ in range(2000))
    yield "\n".join(" ".join(f"{chance.randrange(256):3}" for _ in range(24)) for _ in range(2000))
    yield "\n".join(
        f"2026-01-{n % 28 + 1:02} 10:{n % 60:02}:00,{n % 1000:03} INFO [pid {n}] GET /orders/{n:08}/items?page={n} 200 "
        f"{n * 37 % 9999}ms trace={chance.getrandbits(64):016x} ip=10.{n % 256}.0.{n % 255} v1.{n % 20}.{n % 7}"
        for n in range(5000)
    )
    yield "\n".join(f"40{chance.randrange(10**11):011} | barcode" for _ in range(3000))


def test_ids_hashes_times_tables_logs_and_numbers_hold_nothing_that_is_sensitive():
    default = [BUILT_IN[name] for name in DEFAULT]
    for text in corpus():
        assert [text[a - 10 : b + 10] for a, b in find(default, text)] == []


def test_source_code_holds_nothing_that_is_sensitive():
    default = [BUILT_IN[name] for name in DEFAULT]
    folders = [Path(module.__file__).parent for module in (json, email, http)]
    files = [file for folder in [*folders, Path(__file__).parents[2] / "mcp_bridge"] for file in folder.rglob("*.py")]
    assert len(files) > 150
    for file in files:
        text = file.read_text("utf-8")
        values = [] if file.name != "check_digits.py" else found(text, "iban")  # its list of countries and lengths
        assert [(file.name, text[a:b]) for a, b in find(default, text) if text[a:b] not in values] == []


def test_of_random_long_numbers_few_are_taken_for_a_cards():
    chance = random.Random(3)  # noqa: S311
    numbers = [str(chance.randrange(10**15, 10**16)) for _ in range(20_000)]
    assert sum(map(is_card_number, numbers)) < 0.04 * len(numbers)


# --- check digits ---


@given(
    number=st.text("0123456789", min_size=16, max_size=16),
    place=st.integers(0, 15),
    digit=st.sampled_from("0123456789"),
)
def test_one_wrong_digit_makes_a_card_number_no_card_number(number, place, digit):
    number = CARD[:6] + number[6:]
    numbers = [number[:-1] + last for last in "0123456789"]
    (valid,) = filter(is_card_number, numbers)
    changed = valid[:place] + digit + valid[place + 1 :]
    assert is_card_number(changed) == (changed == valid) or not changed.startswith("4")


@given(account=st.text("0123456789", min_size=18, max_size=18))
def test_an_account_has_check_digits_that_fit(account):
    fitting = [f"DE{check:02}{account}" for check in range(2, 99) if is_iban(f"DE{check:02}{account}")]
    assert len(fitting) == 1


# --- configuration ---


def test_the_operator_chooses_patterns_and_adds_to_them():
    config = projection_from_toml({"patterns": ["email"], "custom": {"staff": "E-[0-9]{4}"}}, None)
    project = projector(config)
    assert project.output("E-1234 a@b.co 4242424242424242") == f"{reference('E-1234')} {reference('a@b.co')} {CARD}"
    assert projector(projection_from_toml({"patterns": []}, None)).output(CARD) is CARD


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"patterns": ["emial"]}, "'email', 'phone' or 'us_ssn'"),
        ({"pattern": []}, "pattern"),
        ({"patterns": "email"}, "patterns"),
        ({"custom": {"card": "x"}}, "built-in"),
        ({"custom": {"mine": "(a+)+b"}}, "upper bound"),
        ({"custom": {"mine": "["}}, "no regular expression"),
        ({"custom": {"mine": 5}}, "mine"),
        ({"custom": {f"n{index}": "abc" for index in range(101)}}, "100"),
        ([], "projection"),
    ],
)
def test_a_configuration_that_cant_be_used_is_refused(table, said):
    error = refused("bad_config", projection_from_toml, table, None)
    assert said in str(error)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bE-[0-9]{4,6}\b",
        r"(?i)staff[ -]?no\.? ?[0-9]{3,8}",
        r"(?:AB|CD)[0-9]{2}x?",
        r"(?<![0-9])[0-9]{3}(?![0-9])",
        r"(?>a{1,30})b",
        r"[a-z]{1,64}+@corp",
        r"(?P<name>x{1,3}y){2}",
        r"a{1,64}?b",
    ],
)
def test_a_bounded_pattern_is_taken(pattern):
    assert compile_bounded(pattern).pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(\w+)+!", "upper bound"),
        (r"a*b", "upper bound"),
        (r"a{2,}", "upper bound"),
        (r".*secret", "upper bound"),
        (r"(?:a{1,30}){1,30}b", "steps"),
        (r"(?:a|a){1,9}c", "steps"),
        (r"(?:a|aa){1,30}c", "steps"),
        (r"(?:a|){20}c", "steps"),
        (r"(?:a?){10}a{10}", "steps"),
        (r"a{1,5000}c", "steps"),
        (r"[ab]{0,30}[ab]{0,30}c", "steps"),
        (r"(a)\1", "refers back"),
        (r"(?P<x>a)(?P=x)", "refers back"),
        (r"(a)?(?(1)b|c)", "refers back"),
        (r"^a", "edge"),
        (r"a$", "edge"),
        (r"\Aa", "edge"),
        ("", "nothing"),
        ("a?", "nothing"),
        (r"\b", "nothing"),
        ("(?=a)", "nothing"),
        ("(", "no regular expression"),
        ("a{9999999999}", "no regular expression"),
        ("(?<=a{1,3})b", "no regular expression"),
        ("[[a]", "no regular expression"),
        ("x" * 1001, "longer"),
    ],
)
def test_a_pattern_that_could_take_long_or_means_nothing_is_refused(pattern, said):
    with pytest.raises(ValueError, match=said):
        compile_bounded(pattern)


REGEX = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", r"\w", "ab"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.tuples(inner, st.integers(0, 6), st.integers(0, 6)).map(lambda t: f"(?:{t[0]}){{{t[1]},{t[1] + t[2]}}}"),
    ),
    max_leaves=6,
)


class Tries:
    """How many characters a backtracking search looks at from one place: slow and obvious."""

    def __init__(self):
        self.count = 0

    def ways(self, tree, text, at):
        """Every end that a pattern can have from a place, in the order of the tries."""
        ends = [at]
        for op, argument in tree:
            ends = [end for start in ends for end in self.item(str(op), argument, text, start)]
            self.count += len(ends)
        return ends

    def item(self, op, argument, text, at):
        match op:
            case "BRANCH":
                return [end for branch in argument[1] for end in self.ways(branch, text, at)]
            case "SUBPATTERN":
                return self.ways(argument[-1], text, at)
            case "MAX_REPEAT":
                least, most, inner = argument
                ends, reached = [at] if least == 0 else [], [at]
                for count in range(1, most + 1):
                    reached = [end for start in reached for end in self.ways(inner, text, start)]
                    ends += reached if count >= least else []
                return ends
        return [at + 1] if at < len(text) else []


@settings(max_examples=300, deadline=None)
@given(pattern=REGEX)
@example(pattern="(?:a|a){2,6}")
@example(pattern="(?:(?:a){0,6}){0,6}")
def test_what_is_accepted_has_no_more_tries_than_the_limit_allows(pattern):
    try:
        compile_bounded(pattern)
    except ValueError:
        return
    tries = Tries()
    # The worst text: every character fits everywhere.
    tries.ways(sys.modules["re._parser"].parse(pattern), "a" * 200, 0)
    assert tries.count <= 4 * MAX_STEPS


# --- references ---


def test_equal_values_of_an_execution_have_equal_references_and_others_none_that_tell():
    kept = references()
    assert kept.put("a@b.co") == kept.put("a@b.co")
    assert len({kept.put(value) for value in ("1", 1, 1.0, "a@b.co", "A@b.co")}) == 5
    assert references().put("a@b.co") != kept.put("a@b.co")


def test_a_value_that_was_met_elsewhere_keeps_the_reference_that_it_was_given_first():
    kept = references()
    kept.adopt({"a" * 16: "a@b.co", "b" * 16: "a@b.co", "c" * 16: None})
    assert kept.put("a@b.co") == reference_uri("a" * 16)
    assert kept.resolve("b" * 16) == "a@b.co"
    assert kept.is_erased("c" * 16)
    kept.erase("a" * 16)
    assert kept.put("a@b.co") not in {reference_uri("a" * 16), reference_uri("b" * 16)}


def test_an_execution_goes_on_with_the_references_that_it_has_had():
    own = ids_of({"a" * 16: "x", "b" * 16: None, "c" * 16: 1})
    behind = {"d" * 16: "x", "e" * 16: 1.0, "c" * 16: 1, "f" * 16: "y"}
    value = {f"<{reference_uri('d' * 16)}>": [reference_uri(name * 16) for name in "decf"]}
    assert renamed(value, behind, own) == {
        f"<{reference_uri('a' * 16)}>": [reference_uri(name * 16) for name in "aecf"]
    }
    assert renamed(value, behind, {}) is value


A, B, C, D = (reference_uri(name * 16) for name in "abcd")


@pytest.mark.parametrize(
    ("recorded", "now", "values", "same"),
    [
        ({"x": [1, A]}, {"x": [1, A]}, {}, True),
        (1, True, {}, False),
        ([A, "<" + B], [C, "<" + D], {"a": "x", "c": "x", "b": 5, "d": 5}, True),
        ([A], [C], {"a": "x", "c": "y"}, False),
        ([A], [C], {"a": 1, "c": "1"}, False),
        # Nothing is known any more of what is recorded: it is the same one everywhere.
        ([A, "<" + A, B], [C, "<" + C, D], {"c": "x", "d": "y"}, True),
        ([A, A], [A, C], {"c": "x"}, True),
        ([A, A], [C, D], {"c": "x", "d": "y"}, False),
        ([A, B], [C, C], {"c": "x"}, False),
        # What stands for one value that was recorded never stands for another one.
        ([A, B], [A, A], {}, False),
        ([A, B], [B, B], {}, False),
        ([A, B], [B, A], {}, False),
        ([A, B], [B, C], {"c": "x"}, False),
        ({"from": A, "to": B}, {"from": B, "to": B}, {}, False),
        ([A, A, B], [A, C, B], {"c": "x"}, True),
        ([A, B], [C, D], {"b": "y", "c": "x", "d": "y"}, True),
        ([A, B], [C, D], {"b": "y", "c": "y", "d": "x"}, False),
        ([A], ["x"], {"a": "y"}, False),
        ([A], [f"{C}!"], {}, False),
        ({A: 1, B: 2}, {C: 1, D: 2}, {"a": "x", "c": "x", "b": "y", "d": "y"}, True),
    ],
)
def test_what_is_asked_for_again_is_the_same_by_the_values_and_not_by_their_references(recorded, now, values, same):
    assert equal_by_values(recorded, now, {name * 16: value for name, value in values.items()}) is same


def test_a_lone_surrogate_has_a_reference_too():
    kept = references()
    (mention,) = find_references(kept.put("\ud800"), ())
    assert kept.resolve(mention.reference) == "\ud800"


def test_an_unknown_reference_is_an_error():
    error = refused("reference_unknown", references().resolve, "a" * 16)
    assert "vault://ref/aaaaaaaaaaaaaaaa" in error.message


def test_an_erased_value_is_forgotten_and_stays_so():
    kept = references()
    name = kept.put(CARD, "anna").rpartition("/")[2]
    kept.put("a@b.co", "anna")
    kept.put("c@d.io", "bert")
    assert kept.erase(name)
    assert not kept.erase(name)
    assert kept.is_erased(name)
    assert name in kept
    assert kept.resolve(name) == TOMBSTONE
    assert not kept.put(CARD, "anna").endswith(name), "nothing is known of it by which it could be told"
    assert kept.resolve(name) == TOMBSTONE
    assert kept.erase_subject("anna") == 2
    assert kept.erase_subject("nobody") == 0
    assert not kept.is_erased(name_of("c@d.io"))
    assert not references().is_erased(name)
    assert CARD not in repr(vars(kept))


def test_what_one_execution_may_have_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(reference_limits, "MAX_REFERENCES", 3)
    kept = references()
    for number in range(3):
        kept.put(number)
    assert kept.put(0) == reference(0)
    refused("too_many_references", kept.put, "one more")
    monkeypatch.setattr(reference_limits, "MAX_REFERENCE_CHARS", 10)
    kept = references()
    kept.put("12345678")
    refused("too_many_references", kept.put, "123")
    kept.erase(name_of("12345678"))
    kept.put("123")


# --- output and trace ---


VALUE = {
    "customer": {"mail": "anna@example.com", "age": 42, "vip": True, "note": None},
    "cards": ["4242 4242 4242 4242", 4242424242424242, "none", 4242424242424242.0],
    "by_mail": {"anna@example.com": 3},
    "text": "Write to anna@example.com, or bert@example.com.",
}


def test_sensitive_values_become_references_wherever_they_are():
    project = projector()
    shown = project.output(VALUE)
    anna, bert = reference("anna@example.com"), reference("bert@example.com")
    assert shown == {
        "customer": {"mail": anna, "age": 42, "vip": True, "note": None},
        "cards": [reference("4242 4242 4242 4242"), reference(4242424242424242), "none", reference(4242424242424242.0)],
        "by_mail": {anna: 3},
        "text": f"Write to {anna}, or {bert}.",
    }
    assert VALUE["customer"]["mail"] == "anna@example.com", "what is projected is never changed"
    assert project.trace(VALUE) == project.model(VALUE) == shown


def test_only_the_tool_gets_the_values_and_gets_them_as_they_were():
    project = projector()
    got = project.tool(project.output(VALUE), TOOL)
    assert got == VALUE
    assert [type(card) for card in got["cards"]] == [str, int, str, float]


def test_an_argument_may_have_references_amidst_text():
    project = projector()
    shown = project.output("anna@example.com")
    assert project.tool([f"To: {shown}!", {"x": shown * 2}], TOOL) == [
        "To: anna@example.com!",
        {"x": "anna@example.com" * 2},
    ]


@pytest.mark.parametrize("value", [VALUE["customer"]["age"], None, True, 1.5, "", [], {}, ["plain", {"a": [1, 2]}]])
def test_what_holds_nothing_to_hide_is_returned_itself(value):
    project = projector(secrets=granted(key=TOKEN))
    assert project.output(value) is value
    assert project.trace(value) is value
    assert project.model(value) is value
    assert project.tool(value, TOOL) is value


def test_a_number_has_the_same_projection_wherever_it_stands():
    project = projector(ProjectionConfig(custom={"cvv": r"\b[0-9]{3}\b"}))
    alone, together = project.output([123]), project.output([123, "123"])
    assert alone == [reference(123)]
    assert together == [reference(123), reference("123")]
    assert project.output([True, 7]) == [True, 7]
    assert projector().output([123, -999, 0]) == [123, -999, 0]


def test_a_negative_number_comes_back_as_a_number():
    project = projector()
    shown = project.output(-4242424242424242)
    assert shown == reference(-4242424242424242)
    assert project.tool(shown, TOOL) == -4242424242424242


def test_bytes_are_looked_at_as_text_and_byte_by_byte_if_they_are_none():
    project = projector(secrets=granted(key="pässword-ünique"))
    card = reference(CARD).encode()
    assert project.output(f"é {CARD} €\n".encode()) == "é ".encode() + card + " €\n".encode()
    assert project.output(b"\xff\xfe " + CARD.encode() + b" \xe9\x00") == b"\xff\xfe " + card + b" \xe9\x00"
    assert project.output(b"\xff " + "pässword-ünique".encode()) == b"\xff vault://secret/key"
    assert project.output(b"\x80" * 100) == b"\x80" * 100


def test_a_value_that_was_split_in_parts_of_a_text_is_whole_when_it_is_looked_at():
    # Output is projected once all of it is there: a part alone would show nothing to hide.
    project = projector()
    parts = [b"card 4242 42", b"42 4242 4242\n"]
    assert [project.output(part) for part in parts] == parts
    assert project.output(b"".join(parts)) == b"card " + reference("4242 4242 4242 4242").encode() + b"\n"


def test_nesting_of_any_depth_is_projected():
    value = CARD
    for _ in range(20_000):
        value = [value]
    shown = projector().output({"deep": value})["deep"]
    for _ in range(20_000):
        (shown,) = shown
    assert shown == reference(CARD)


AMEX = "378282246310005"


class Full(MemoryReferences):
    """References that are all taken."""

    def put(self, value, subject=None):
        raise BridgeError("too_many_references", "full")


def test_a_json_document_in_a_text_stays_one():
    text = json.dumps({"card": int(CARD), "note": f"of {CARD}", "of": [int(AMEX), [int(CARD)]], "n": 5, CARD: None})
    asked = projector(secrets=granted(pin="86420135792468017"))
    for form in (text, f"\n {text}\t", json.dumps(json.loads(text), indent=2)):
        shown = asked.output(form)
        card = reference(int(CARD))
        assert json.loads(shown) == {
            "card": card, "note": f"of {reference(CARD)}", "of": [reference(int(AMEX)), [card]], "n": 5, reference(CARD): None,
        }  # fmt: skip
        assert CARD not in shown
        assert AMEX not in shown
        assert asked.output(shown) is shown
        assert asked.tool(json.loads(shown)["of"], TOOL) == [int(AMEX), [int(CARD)]]
    assert json.loads(asked.output('{"pin":86420135792468017}')) == {"pin": "vault://secret/pin"}
    assert json.loads(asked.output(f"[-{CARD}]")) == [f"-{reference(CARD)}"]
    full = Projector(Secrets(), Full(), ALL.compiled())
    assert json.loads(full.output(f"[{CARD}]")) == [REDACTED]


@pytest.mark.parametrize(
    "text",
    [
        f"card {CARD}",
        f"[a link] of {CARD}",
        f"{{'card': {CARD}}}",
        f"{{card: {CARD}}}",
        f'["cut {CARD}',
        f"[{CARD}] and",
    ],
)
def test_what_is_no_json_document_gets_no_quotes(text):
    asked = projector()
    assert asked.output(text) == text.replace(CARD, reference(CARD))


@given(
    st.recursive(
        st.sampled_from([int(CARD), CARD, int(AMEX), -int(CARD), 1, 1.5, True, None, '\\ " [', f'" {CARD}', "é"]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", CARD]), inner),
        max_leaves=20,
    ).filter(lambda value: isinstance(value, (list, dict))),
    st.sampled_from([None, 2]),
)
def test_any_json_document_in_a_text_stays_one_and_shows_no_more(value, indent):
    asked = projector()
    text = json.dumps(value, indent=indent)
    shown = asked.output(text)
    document = json.loads(shown)
    assert CARD not in shown
    assert AMEX not in shown
    assert [type(leaf) for leaf in leaves(document) if leaf in (1, 1.5, True)] == [
        type(leaf) for leaf in leaves(value) if leaf in (1, 1.5, True)
    ]
    assert asked.output(shown) is shown


@pytest.mark.parametrize("value", [{"a": {1, 2}}, object(), [b"x"], {"a": (1, object())}])
def test_what_is_no_json_is_a_fault_of_the_caller(value):
    with pytest.raises(TypeError):
        projector().output(value)


def test_secrets_and_sensitive_values_are_told_apart():
    project = projector(secrets=granted(key=TOKEN, card=CARD))
    shown = project.output(f"{TOKEN} {CARD} 5555555555554444")
    assert shown == f"vault://secret/key vault://secret/card {reference('5555555555554444')}"
    assert project.tool(shown, TOOL) == f"{TOKEN} {CARD} 5555555555554444"


def test_a_number_that_is_a_secret_is_shown_as_text():
    project = projector(secrets=granted(pin="93721845"))
    assert project.output({"pin": 93721845, "93721845": 1}) == {"pin": "vault://secret/pin", "vault://secret/pin": 1}


def test_a_reference_that_is_known_is_left_and_any_other_is_text():
    project = projector(ProjectionConfig(custom={"id": "[a-z2-7]{16}"}))
    known = project.output(CARD)
    assert project.output(f"{known} {CARD}{known}") == f"{known} {known}{known}"
    forged = f"vault://ref/{'a' * 16}"
    assert project.output(forged) == f"vault://ref/{reference('a' * 16)}"


def test_a_pattern_that_finds_more_at_each_edge_that_it_makes_comes_to_an_end():
    project = projector(ProjectionConfig(custom={"last": "a(?!a)"}))
    for count in range(1, 12):
        text = f"x{'a' * count}, y"
        shown = project.output(text)
        assert re.fullmatch("x?(vault://ref/[a-z2-7]{16})+, y", shown)
        assert project.output(shown) == shown
        assert project.tool(shown, TOOL) == text


def test_an_error_is_projected_in_all_that_is_shown_of_it():
    project = projector(secrets=granted(key=TOKEN))
    error = BridgeError(
        "tool_error", f"no {TOKEN}", hint=f"Ask {CARD}.", private={"log": TOKEN}, seen=[TOKEN, CARD], content={CARD: 1}
    )
    shown = projected(error, project)
    assert TOKEN not in str(shown.record())
    assert CARD not in str(shown.record())
    assert str(shown) == f"no vault://secret/key Ask {reference(CARD)}."
    assert shown.code == "tool_error"


# --- tool ---


def test_a_tool_without_the_grant_gets_an_error_and_no_value():
    project = projector(secrets=granted(key=TOKEN))
    for arguments in ({"a": "vault://secret/key"}, {"a": ["x vault://secret/key y"]}):
        assert TOKEN not in str(refused("secret_denied", project.tool, arguments, OTHER).record())
    refused("secret_missing", project.tool, "vault://secret/nobody", TOOL)
    refused("reference_unknown", project.tool, [f"vault://ref/{'a' * 16}"], TOOL)


GIVEN = {
    "card": CARD,
    "grouped": "4242 4242 4242 4242",
    "iban": "DE89370400440532013000",
    "email": "anna.k@example.org",
    "jwt": JWT,
    "private_key": PEM,
    "number": int(CARD),
}


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("before", ["x", "_", "1", "é", "-", "a=", "\n", ""])
@pytest.mark.parametrize("after", ["y", "_", "7", "é", ".5", "-9", ""])
def test_what_a_tool_was_given_is_hidden_whatever_stands_beside_it(kind, before, after):
    values, value = projector(), GIVEN[kind]
    shown = values.output({"value": value})["value"]
    assert values.tool({"to": shown}, TOOL) == {"to": value}
    text = f"{before}{value}{after}"
    for told in (text, json.dumps([text]), json.dumps({text: 1}, ensure_ascii=False), text.encode()):
        hidden = values.answer(told)
        as_text = hidden if isinstance(hidden, str) else hidden.decode()
        # Another value may begin beside it, and be hidden as a whole.
        assert str(value)[:40] not in as_text.replace("\\n", "\n")
        assert values.answer(hidden) == values.output(hidden) == hidden
        back = values.tool({"text": as_text}, TOOL)["text"]
        assert back == (told if isinstance(told, str) else told.decode())


def test_what_no_tool_was_given_is_hidden_by_its_shape_alone():
    values = projector()
    values.output(CARD)
    values.person({"to": reference(CARD)}, TOOL)
    values.judged({"to": reference(CARD)}, TOOL)
    assert values.answer(f"x{CARD}") == f"x{CARD}"
    values.tool({"to": reference(CARD)}, TOOL)
    assert values.answer({f"x{CARD}": [f"{CARD}y", 7]}) == {f"x{reference(CARD)}": [f"{reference(CARD)}y", 7]}


def test_what_is_compared_does_not_depend_on_what_was_given():
    values = projector()
    before = values.trace({"label": f"x{CARD}", "card": CARD})
    values.tool(before, TOOL)
    assert values.trace({"label": f"x{CARD}", "card": CARD}) == before
    assert values.is_plain({"label": f"x{CARD}"})


def test_what_was_given_is_hidden_in_another_process_too_and_not_after_it_was_erased():
    before = projector()
    shown = before.output(CARD)
    kept = LATEST[0].values_behind(shown)
    values = projector()
    LATEST[0].adopt(kept)
    assert values.answer(f"x{CARD}") == f"x{shown}"
    LATEST[0].erase(name_of(CARD))
    assert values.answer(f"x{CARD}") == f"x{CARD}"


def test_a_number_with_a_given_value_in_it_is_hidden():
    values = projector()
    values.tool({"to": values.output(CARD)}, TOOL)
    number = int(f"1{CARD}")
    assert values.answer({"n": number}) == {"n": reference(number)}


def test_a_value_that_stands_escaped_is_put_back_as_it_stands():
    values = projector(ProjectionConfig(patterns=(), custom={"note": 'note: "[a-z]{8,20}"'}))
    values.tool({"to": values.output('note: "abcdefghi"')}, TOOL)
    told = json.dumps({"text": 'note: "abcdefghi"'})
    hidden = values.answer(told)
    assert "abcdefghi" not in hidden
    assert values.tool({"text": hidden}, TOOL) == {"text": told}


def test_more_values_than_anybody_looks_for_are_shown_to_nobody(monkeypatch):
    monkeypatch.setattr(projection_module, "MAX_VALUES", 10)
    values = projector()
    values.tool({"to": values.output(CARD)}, TOOL)
    assert values.answer(f"x{CARD}" * 11) == OVERSIZE


def test_of_the_places_and_lengths_that_share_an_anchor_only_so_many_are_looked_for():
    known = KnownValues()
    values = [f"{'a' * number}@example.org" for number in range(1, 2 * MAX_SHAPES)]
    for number, value in enumerate(values):
        known.add(str(number), value)
    assert [found.reference for found in known.find(f"x{values[0]}")] == ["0"]
    sought = [
        number for number, value in enumerate(values) if str(number) in {each.reference for each in known.find(value)}
    ]
    assert sought == [*range(MAX_SHAPES)]
    for number, value in enumerate(values):
        known.remove(str(number), value)
    assert not [*known.find(" ".join(values))]
    # Nothing is left of them, nor counts any longer.
    assert not known._shapes
    known.add("last", values[-1])
    assert [found.reference for found in known.find(values[-1])] == ["last"]


def test_a_text_that_two_references_stand_for_is_found_until_both_are_gone():
    known = KnownValues()
    known.add("text", CARD)
    known.add("number", int(CARD))
    known.remove("text", CARD)
    assert [found.reference for found in known.find(f"x{CARD}")] == ["number"]
    known.remove("number", int(CARD))
    assert not [*known.find(f"x{CARD}")]


def test_what_is_added_while_a_text_is_searched_is_found_in_the_next(monkeypatch):
    known = KnownValues()
    known.add("1", "4242424242424242")
    make = known_values._scan

    def slow(heads):
        known.add("2", "anna@example.org")
        return make(heads)

    monkeypatch.setattr(known_values, "_scan", slow)
    assert [found.reference for found in known.find("x4242424242424242")] == ["1"]
    assert [found.reference for found in known.find("xanna@example.orgx")] == ["2"]


def test_what_is_too_short_or_too_long_is_not_looked_for():
    known = KnownValues()
    for value in ("1234567", 1234567, "1" * 5000):
        known.add("a", value)
        known.remove("a", value)
        known.add("a", value)
    assert not [*known.find(f"1234567 {'1' * 6000}")]


def test_many_anchors_are_searched_for_by_their_first_characters(monkeypatch):
    monkeypatch.setattr(known_values, "_MAX_HEADS", 2)
    known = KnownValues()
    values = ["4242424242424242", "3782 822463 10005", "anna@example.org", "]^-\\]]]]"]
    for value in values:
        known.add(value, value)
    assert [found.reference for found in known.find("x".join(values)) if found.reference] == values


@given(st.lists(st.text(string.ascii_letters + string.digits + "@.-]^\\ \n", min_size=8, max_size=20)), st.text())
def test_every_known_value_is_found_wherever_it_is(values, beside):
    known = KnownValues()
    for value in values:
        known.add(value, value)
    for value in values:
        found = [(each.start, each.end) for each in known.find(f"{beside}{value}{beside}") if each.reference == value]
        assert (len(beside), len(beside) + len(value)) in found


def test_keys_get_their_values_back_and_no_secret():
    project = projector(secrets=granted(key=TOKEN))
    anna = project.output("anna@example.com")
    arguments = {anna: 1, f"x-{anna}": 2, "vault://secret/key": 3}
    assert project.tool(arguments, TOOL) == {"anna@example.com": 1, "x-anna@example.com": 2, "vault://secret/key": 3}


def test_a_value_that_looks_like_a_reference_is_not_resolved_again():
    project = projector(ProjectionConfig(custom={"odd": "odd:[a-z:/]{1,30}"}), granted(key=TOKEN))
    shown = project.output("odd:vault://secret/key")
    assert shown.startswith("vault://ref/") or "vault://secret/key" in shown
    nested = Projector(granted(outer="x vault-ish /secret/key"), references())
    assert nested.tool("vault://secret/outer", TOOL) == "x vault-ish /secret/key"


def test_arguments_that_nest_too_deep_are_refused():
    value = "x"
    for _ in range(MAX_DEPTH):
        value = [value]
    assert projector().tool(value, TOOL) is value
    refused("arguments_too_deep", projector().tool, [value], TOOL)


# --- erased ---


def test_what_is_erased_is_a_tombstone_for_models_and_an_error_for_tools_and_leaves_the_trace_as_it_was():
    kept = references()
    project = Projector(Secrets(), kept, ALL.compiled())
    before = project.trace(VALUE)
    kept.erase(name_of("anna@example.com"))
    assert project.trace(before) == project.output(before) == before
    shown = project.model(before)
    assert shown["customer"]["mail"] == TOMBSTONE == "[REDACTED_TOMBSTONE]"
    assert shown["by_mail"] == {TOMBSTONE: 3}
    assert shown["text"] == f"Write to {TOMBSTONE}, or {reference('bert@example.com')}."
    assert project.model(shown) == shown
    assert project.model(before["text"].encode()) == shown["text"].encode()
    error = refused("reference_erased", project.tool, before, TOOL)
    assert "anna" not in str(error.record())


def test_a_tombstone_in_a_text_is_left_alone():
    project = projector(ProjectionConfig(custom={"caps": r"[A-Z_]{3,30}"}))
    for marker in (TOMBSTONE, REDACTED, OVERSIZE):
        assert project.output(f"x {marker} y") == f"x {marker} y"


# --- limits ---


def test_a_value_that_is_too_large_is_shown_to_nobody():
    project = projector(max_chars=1000)
    assert project.output("x" * 1000) == "x" * 1000
    assert project.output("x" * 1001) == OVERSIZE
    assert project.output({"a": ["x" * 600, "y" * 600]}) == OVERSIZE
    assert project.output(b"x" * 1001) == OVERSIZE.encode()
    assert project.model("x" * 1001) == OVERSIZE
    assert project.output(OVERSIZE) == OVERSIZE


def test_a_projection_that_grows_too_large_is_shown_to_nobody():
    project = projector(ProjectionConfig(custom={"pair": "ab"}), max_chars=1000)
    assert project.output("ab " * 30).count("vault://ref/") == 30
    assert project.output("ab " * 300) == OVERSIZE
    assert project.output(["ab"] * 300) == OVERSIZE


def test_what_no_reference_can_be_made_for_is_hidden_all_the_same(monkeypatch):
    monkeypatch.setattr(reference_limits, "MAX_REFERENCES", 1)
    project = projector()
    assert project.output(["a@b.co", "c@d.io", 4242424242424242]) == [reference("a@b.co"), REDACTED, REDACTED]


@pytest.mark.parametrize(
    "flood",
    [
        "0 ",
        "4242 ",
        "4242-",
        "4",
        "4242424242424241,",
        "DE89 3704 0044 0532 0130 01 ",
        "AB12",
        "eyJ",
        "a@",
        "a@a.",
        "+1 ",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n",
        "sk-",
        "vault://ref/",
        "vault://ref/aaaaaaaaaaaaaaaa",
        "vault://secret/key",
        "[REDACTED]",
        "anna@example.com ",
        f"{CARD} ",
    ],
)
def test_a_flood_of_what_could_begin_something_takes_time_in_proportion(flood):
    steps = []
    for size in (20_000, 40_000):
        project = projector(secrets=granted(key=TOKEN))
        steps.append(lines_run(project.output, flood * (size // len(flood))))
    assert steps[1] <= 2.5 * steps[0] + 1000
    assert steps[1] <= 40 * 40_000


def lines_run(function, *arguments):
    """A measure of work that no load of the machine changes: Python's lines. What `re` does inside is not counted."""
    count = 0

    def tracer(frame, event, _):
        nonlocal count
        count += event == "line"
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count


def test_a_megabyte_of_ordinary_text_takes_few_steps_and_little_memory():
    text = "The 7 quick brown foxes jump over 12 lazy dogs, 2024-01-15.\n" * 18_000
    project = projector(secrets=granted(key=TOKEN))
    assert lines_run(project.output, text) < 500
    assert lines_run(project.output, {"rows": text.splitlines()}) < 20 * 18_000
    tracemalloc.start()
    assert project.output(text) is text
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


def test_a_sensitive_value_in_a_megabyte_is_found():
    text = "x " * 300_000 + CARD + " y" * 300_000
    assert projector().output(text) == text.replace(CARD, reference(CARD))


# --- properties ---

PIECES = st.one_of(
    st.sampled_from(
        [
            CARD,
            "4242 4242 4242 4242",
            "3782-822463-10005",
            "anna@example.com",
            "DE89 3704 0044 0532 0130 00",
            "+1 415 555 2671",
            "123-45-6789",
            JWT,
            PEM,
            TOKEN,
            "vault://secret/key",
            "vault://ref/aaaaaaaaaaaaaaaa",
            "vault://ref/",
            reference(CARD),
            TOMBSTONE,
            REDACTED,
            "4242",
            "@example.com",
            "\\n",
            "staff-12",
        ]
    ),
    st.text(string.ascii_letters + string.digits + " .,-_@+/:\\\"'[]{}\n\0", max_size=6),
    st.text(max_size=4),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([int(CARD), -int(CARD), float(CARD)]),
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
CUSTOM = ProjectionConfig(patterns=NAMES, custom={"staff": "staff-[0-9]{2}"})
ODD = ProjectionConfig(patterns=NAMES, custom={"scheme": "lt:/{1,2}[a-z]{3}", "id": "[a-z2-7]{16}"})
"""Finds parts of what references look like, too."""


def fresh(config=CUSTOM):
    project = projector(config, granted(key=TOKEN))
    project.output(CARD)
    return project


@settings(max_examples=400, deadline=None)
@given(value=JSON, config=st.sampled_from([CUSTOM, ODD]))
def test_projecting_a_projection_changes_nothing(value, config):
    project = fresh(config)
    shown = project.output(value)
    assert project.output(shown) == shown
    assert project.model(value) == project.model(shown) == shown


@settings(max_examples=400, deadline=None)
@given(value=JSON)
def test_a_projection_depends_on_the_value_alone(value):
    project = fresh()
    shown = project.output(value)
    other = fresh()
    again = other.output(value)
    # But for the references, which are by chance.
    assert renamed(again, other._references.values_behind(again), ids_of(project._references._values)) == shown
    if isinstance(value, list):
        assert project.output(value[::-1]) == shown[::-1]
        assert [project.output(item) for item in value] == shown
    if isinstance(value, dict):
        assert {project.output(name): project.output(item) for name, item in value.items()} == shown


@settings(max_examples=400, deadline=None)
@given(value=JSON)
def test_nothing_that_is_sensitive_is_left_outside_of_references(value):
    project = fresh()
    shown = project.output(value)
    patterns = CUSTOM.compiled()
    for leaf in leaves(shown):
        if isinstance(leaf, str):
            assert TOKEN not in leaf
            rest = [leaf]
            for mention in find_references(leaf, {"key"}):
                if mention.known or mention.reference in project._references:
                    tail = rest.pop()
                    cut = len(leaf) - len(tail)
                    rest += [tail[: mention.start - cut], tail[mention.end - cut :]]
            for piece in rest:
                for part in piece.replace(TOMBSTONE, "\0").replace(REDACTED, "\0").split("\0"):
                    assert find(patterns, part) == []


@settings(max_examples=400, deadline=None)
@given(value=JSON)
def test_a_tool_gets_back_what_was_projected(value):
    project = fresh()
    # What was a reference before is another matter, and no secret is put back into a key.
    assume("vault:" not in json.dumps(value) and not any(TOKEN in name for name in keys(value)))
    # Nor a document's number, which is a text afterwards.
    assume(not any(is_document(text) and CARD in text for text in leaves(value) if isinstance(text, str)))
    got = project.tool(project.output(value), TOOL)
    assert json.dumps(got) == json.dumps(value)


def keys(value):
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys(item)


@settings(max_examples=300, deadline=None)
@given(data=st.one_of(st.binary(max_size=40), TEXTS.map(lambda text: text.encode("utf-8", "replace"))))
def test_bytes_are_projected_as_the_text_that_they_are(data):
    project = fresh()
    shown = project.output(data)
    assert project.output(shown) == shown
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    assert shown.decode() == project.output(text)


@settings(max_examples=300, deadline=None)
@given(value=JSON)
def test_a_walk_rebuilds_what_changes_and_nothing_else(value):
    assert rebuild(value, lambda leaf: leaf, lambda key: key) is value
    changed = rebuild(value, lambda leaf: leaf * 2 if isinstance(leaf, str) else leaf)
    assert json.dumps(changed) == json.dumps(doubled(value))


def doubled(value):
    if isinstance(value, list):
        return [doubled(item) for item in value]
    if isinstance(value, dict):
        return {name: doubled(item) for name, item in value.items()}
    return value * 2 if isinstance(value, str) else value


def test_a_walk_counts_levels_as_people_do():
    assert rebuild([[1]], lambda leaf: leaf, max_depth=2) == [[1]]
    assert rebuild(1, lambda leaf: leaf, max_depth=0) == 1
    for value in ([[[1]]], {"a": {"b": {}}}, [[[]]]):
        with pytest.raises(TooDeepError):
            rebuild(value, lambda leaf: leaf, max_depth=2)
