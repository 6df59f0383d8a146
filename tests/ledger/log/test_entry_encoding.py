"""Entries as bytes: one form each, whether all of its texts are plain ASCII or not."""

from dataclasses import replace

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.entry_encoding import MAX_NUMBER, MAX_TEXT_CHARS, Leaf, decode, encode

HASH = "0123456789abcdef" * 4
PLAIN = Leaf(HASH, "e1", "intent", "p", HASH, "q", 7, "s1", 1_700_000_000_000_000)
ESCAPED = replace(PLAIN, policy='quoted "p"')
FOREIGN = replace(PLAIN, policy="Zürich")

LEAVES = pytest.mark.parametrize("leaf", [PLAIN, ESCAPED, FOREIGN], ids=["plain", "escaped", "foreign"])


@LEAVES
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"previous": None, "program": None, "step": None},
        {"sequence": 0, "time": 0},
        {"sequence": MAX_NUMBER, "time": MAX_NUMBER},
        {"step": "s" * MAX_TEXT_CHARS, "program": ""},
        {"step": " !#[]~/{}:,null"},
        {"step": "back\\slash"},
        {"execution": "null", "kind": "end"},
    ],
    ids=str,
)
def test_an_entry_is_decoded_from_its_own_bytes(leaf, values):
    wanted = replace(leaf, **values)
    assert decode(encode(wanted)) == wanted


@LEAVES
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"kind":"intent"', b'"kind":"intents"'),
        (b'"kind":"intent"', b'"kind":null'),
        (b'"sequence":7', b'"sequence":07'),
        (b'"sequence":7', b'"sequence":-7'),
        (b'"sequence":7', b'"sequence":7.0'),
        (b'"sequence":7', b'"sequence":"7"'),
        (b'"sequence":7', b'"sequence":null'),
        (b'"sequence":7', b'"sequence":9007199254740992'),
        (b'"time":1700000000000000', b'"time":9007199254740992'),
        (b'"time":1700000000000000', b'"time":17000000000000000'),
        (b'"previous":"0', b'"previous":"A'),
        (b'"previous":"0', b'"previous":"'),
        (b'"commitment":"0', b'"commitment":"00'),
        (b'"execution":"e1"', b'"execution":""'),
        (b'"execution":"e1"', b'"execution":null'),
        (b'"program":"q"', b'"program":null '),
        (b'"step":"s1"', b'"step":"s\x7f"'),
        (b'"step":"s1"', b'"step":"s\n"'),
        (b'"step":"s1"', b'"step":"\\u0073"'),
        (b'"step":"s1"', b'"step":"' + b"s" * (MAX_TEXT_CHARS + 1) + b'"'),
        (b'"step":"s1"', b'"step":"\xff"'),
        (b'"step":"s1"', b'"step":"s1","step":"s1"'),
        (b"{", b" {"),
        (b"}", b"}\n"),
        (b"}", b""),
    ],
    ids=repr,
)
def test_other_bytes_are_refused(leaf, old, new):
    data = encode(leaf)
    assert old in data
    with pytest.raises(BridgeError) as raised:
        decode(data.replace(old, new))
    assert raised.value.code == "bad_entry"
