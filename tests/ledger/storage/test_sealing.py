"""The master key, the keys of executions, and what is sealed with them."""

import base64
import os
import stat
import sys
import types
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge import system_keyring
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.ledger.keys import master_key_sources
from mcp_bridge.ledger.keys.master_key_sources import FILE_NAME, master_key
from mcp_bridge.ledger.storage import sealed_rows
from mcp_bridge.ledger.storage.sealed_rows import label_of, open_sealed, seal
from mcp_bridge.ledger.storage.sealing import DataKey, MasterKey
from mcp_bridge.private_files import KEY_BYTES

KEY = bytes(range(32))
SHOWN = (KEY.hex(), base64.b64encode(KEY).decode())


@pytest.fixture
def keyring(monkeypatch):
    """The part of the `keyring` library that is used, with a keyring in memory."""
    kept = {}
    module = types.ModuleType("keyring")
    module.get_password = lambda service, user: kept.get((service, user))
    module.set_password = lambda service, user, value: kept.update({(service, user): value})
    module.kept = kept
    monkeypatch.setitem(sys.modules, "keyring", module)
    return module


def failure(source, directory, *, make=False):
    with pytest.raises(BridgeError) as caught:
        master_key(source, directory, make=make)
    assert not any(key in f"{caught.value} {caught.value.record()} {caught.value.private}" for key in SHOWN)
    return caught.value


def printing(text):
    return [sys.executable, "-c", f"print({text!r})"]


# --- where the master key comes from ---


def test_a_file_is_made_once_for_this_user_alone_and_read_ever_after(tmp_path):
    before = os.umask(0)
    try:
        made = master_key("file", tmp_path, make=True)
    finally:
        os.umask(before)
    path = tmp_path / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes()) == KEY_BYTES
    assert [child.name for child in tmp_path.iterdir()] == [FILE_NAME]
    assert master_key("file", tmp_path, make=False).check == made.check
    assert master_key("file", tmp_path, make=True).check == made.check


def test_a_file_that_is_missing_is_not_made_unless_it_may_be(tmp_path):
    assert failure("file", tmp_path).code == "key_missing"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", KEY[:-1], KEY + b"\n", KEY.hex().encode()])
@pytest.mark.parametrize("make", [False, True])
def test_a_damaged_file_is_an_error_and_is_kept(tmp_path, content, make):
    (tmp_path / FILE_NAME).write_bytes(content)
    error = failure("file", tmp_path, make=make)
    assert error.code == "key_unusable"
    assert str(tmp_path / FILE_NAME) in error.message
    assert (tmp_path / FILE_NAME).read_bytes() == content


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_reach_is_refused(tmp_path, mode):
    master_key("file", tmp_path, make=True)
    (tmp_path / FILE_NAME).chmod(mode)
    error = failure("file", tmp_path, make=False)
    assert (error.code, f"{mode:04o}" in error.message) == ("key_unusable", True)


def test_the_keyring_has_a_key_made_for_it_once(tmp_path, keyring):
    assert failure("keyring", tmp_path).code == "key_missing"
    assert keyring.kept == {}
    made = master_key("keyring", tmp_path, make=True)
    ((place, kept),) = keyring.kept.items()
    assert place == (system_keyring.SERVICE, master_key_sources.KEYRING_NAME)
    assert MasterKey(bytes.fromhex(kept)).check == made.check
    for make in (False, True):
        assert master_key("keyring", tmp_path, make=make).check == made.check
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", ["", "no key", KEY.hex()[:-2], KEY, 0])
def test_what_the_keyring_has_and_is_no_key_is_said_and_kept(tmp_path, keyring, kept):
    keyring.set_password(system_keyring.SERVICE, master_key_sources.KEYRING_NAME, kept)
    assert failure("keyring", tmp_path, make=True).code == "key_unusable"
    assert list(keyring.kept.values()) == [kept]


@pytest.mark.parametrize("use", ["get_password", "set_password"])
def test_a_keyring_that_fails_is_an_error_without_its_words(tmp_path, keyring, use):
    def fail(*arguments):
        raise RuntimeError(f"locked {KEY.hex()}")

    setattr(keyring, use, fail)
    error = failure("keyring", tmp_path, make=True)
    assert (error.code, "RuntimeError" in error.message) == ("key_unusable", True)
    assert 'Unlock it, or set master_key = "file"' in error.hint


def test_without_the_library_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    error = failure("keyring", tmp_path, make=True)
    assert (error.code, "mcp-code-bridge[keyring]" in error.hint) == ("keyring_missing", True)


@pytest.mark.parametrize("text", [*SHOWN, KEY.hex().upper(), f"  {KEY.hex()}\r\n"])
def test_a_command_prints_the_key_in_hex_or_base64(tmp_path, text):
    assert master_key(printing(text), tmp_path, make=False).check == MasterKey(KEY).check
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        printing(KEY.hex()[:-2]),
        printing(KEY.hex() * 2),
        printing(""),
        printing("né"),
        [sys.executable, "-c", f"print({KEY.hex()!r}); raise SystemExit(3)"],
        [sys.executable, "-c", f"import sys; sys.stderr.write({KEY.hex()!r})"],
        "no-such-command-anywhere",
        ["a\0b"],
        [],
        "",
    ],
)
def test_a_command_that_prints_no_key_is_an_error_that_tells_nothing_of_its_output(tmp_path, command):
    assert failure(command, tmp_path, make=True).code == "key_unusable"
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_never_ends_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(master_key_sources, "COMMAND_SECONDS", 0.05)
    error = failure([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    assert (error.code, "TimeoutExpired" in error.message) == ("key_unusable", True)


# --- what it is good for ---


def test_the_check_tells_keys_apart_and_nothing_of_the_key():
    assert MasterKey(KEY).check == MasterKey(KEY).check
    assert MasterKey(KEY).check != MasterKey(KEY[::-1]).check
    assert KEY.hex() not in MasterKey(KEY).check


def test_a_data_key_is_opened_by_its_master_for_its_execution_alone():
    master = MasterKey(KEY)
    key, kept = master.new("one")
    sealed = key.seal(b"data", b"label")
    assert master.open("one", kept).open(sealed, b"label") == b"data"
    for other, execution in ((master, "two"), (MasterKey(KEY[::-1]), "one")):
        with pytest.raises(BridgeError, match="can't be opened") as caught:
            other.open(execution, kept)
        assert caught.value.code == "ledger_damaged"
    assert master.new("one")[1] != kept


def test_what_is_sealed_opens_nowhere_else():
    key, other = DataKey(KEY), DataKey(KEY[::-1])
    sealed = key.seal(b"data", b"one/state")
    assert key.open(sealed, b"one/state") == b"data"
    assert b"data" not in sealed
    for where, label in ((key, b"two/state"), (key, b"one/record"), (key, b""), (other, b"one/state")):
        with pytest.raises(BridgeError) as caught:
            where.open(sealed, label)
        assert caught.value.code == "ledger_damaged"


def test_every_changed_bit_and_every_cut_of_what_is_sealed_is_found():
    key = DataKey(KEY)
    sealed = key.seal(b"some data", b"label")
    changed = [
        sealed[:at] + bytes([sealed[at] ^ 1 << bit]) + sealed[at + 1 :] for at in range(len(sealed)) for bit in range(8)
    ]
    for bad in (*changed, *(sealed[:end] for end in range(len(sealed))), sealed + b"\0"):
        with pytest.raises(BridgeError) as caught:
            key.open(bad, b"label")
        assert caught.value.code == "ledger_damaged"


def test_the_same_is_never_sealed_the_same():
    key = DataKey(KEY)
    assert len({key.seal(b"data", b"label") for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "other",
    [
        ("table", 1, "1", None, b"a", 2.0),
        ("table", "1", 1, None, b"a", 2.0),
        ("table", 1, 1, "null", b"a", 2.0),
        ("table", 1, 1, None, "a", 2.0),
        ("table", 1, 1, None, b"b", 2.0),
        ("table", 1, 1, None, b"a", 2.5),
        ("other", 1, 1, None, b"a", 2.0),
        ("table", 1, 1, None, b"a"),
        ("table", 1, 1, None, b"a", 2.0, None),
    ],
)
def test_a_mac_tells_rows_apart(other):
    master, row = MasterKey(KEY), ("table", 1, 1, None, b"a", 2.0)
    assert master.mac(*row) == master.mac(*row)
    assert master.mac(*other) != master.mac(*row)
    assert MasterKey(KEY[::-1]).mac(*row) != master.mac(*row)


def test_a_subject_s_name_in_the_store_tells_nothing_without_the_key():
    name = MasterKey(KEY).subject("anna@example.org")
    assert name == MasterKey(KEY).subject("anna@example.org")
    assert name != MasterKey(KEY[::-1]).subject("anna@example.org")
    assert "anna" not in name


# --- values in rows ---

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=20),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
)
MEMBERS = st.dictionaries(st.text(), JSON_VALUES | st.binary(max_size=12))
VALUES = JSON_VALUES | st.dictionaries(st.text(), st.lists(MEMBERS) | MEMBERS | st.binary(max_size=12))
"""What a record has: bytes no deeper than in its displays."""


def read(value):
    """A value as it is read: what was bytes is text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {name: read(member) for name, member in value.items()}
    return [read(member) for member in value] if isinstance(value, list) else value


@given(VALUES)
def test_a_value_is_read_as_it_was_kept_with_its_large_texts_apart(value):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sealed_rows, "LARGE_TEXT_CHARS", 4)
        kept = seal("run", "record", value)
        assert open_sealed(DataKey(KEY), DataKey(KEY).seal(kept.data, kept.label), kept.label) == read(value)


@pytest.mark.parametrize(
    "printed", [b"p" * 1_000_003, b"\0" * 1_000_003, "ü\U0001f600\n".encode() * 150_000, os.urandom(999_999)]
)
def test_what_is_kept_of_large_output_takes_no_more_than_was_printed(printed):
    """As JSON it would take up to six times as much, and as text of what is no text four times."""
    record = ExecutionRecord("run", stdout=printed, displays=[{"text/plain": "d" * 70_000}])
    kept = seal("run", "record", record.to_keep())
    assert len(kept.data) < len(printed) * 1.02
    sealed = DataKey(KEY).seal(kept.data, kept.label)
    assert open_sealed(DataKey(KEY), sealed, label_of("run", "record")) == record.to_json()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\2", b"\2x", b"\2" + zlib.compress(b"\0\0\0\2{}"), b"\2" + zlib.compress(b"\0")]
)
def test_what_is_no_value_is_damage(data):
    with pytest.raises(BridgeError) as caught:
        open_sealed(DataKey(KEY), DataKey(KEY).seal(data, b"place"), b"place")
    assert caught.value.code == "ledger_damaged"
