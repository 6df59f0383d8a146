"""The tokens of principals: only hashes are kept, and none is good but the whole one, while it is."""

import json
import re
import stat
import string
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.principal_tokens import MAX_TOKENS, TOKEN, TokenStore, find

NOW = 1_800_000_000.0


@pytest.fixture
def store(tmp_path):
    return Clocked(tmp_path / "state")


class Clocked(TokenStore):
    def __init__(self, state_dir):
        self.now = NOW
        super().__init__(state_dir, lambda: self.now)

    def whose(self, text):
        found = find(self.read(), text, self.now)
        return found and found[1].principal


def test_a_token_is_its_principals_and_only_its_hash_is_kept(store, tmp_path):
    made = store.add("anna", restricted=True)

    whole = TOKEN.fullmatch(made.text)
    assert whole
    assert store.whose(made.text) == "anna"
    (file,) = (path for path in (tmp_path / "state").iterdir() if not path.name.endswith(".lock"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert whole[2] not in file.read_text()
    assert made.text not in repr(made.record)


def test_two_tokens_are_never_the_same(store):
    assert len({store.add("anna", restricted=False).text for _ in range(20)}) == 20


def test_a_principal_may_have_several_tokens_and_each_ends_by_itself(store):
    laptop, phone = (store.add("anna", restricted=False) for _ in range(2))

    assert store.revoke("anna", laptop.id) == 1

    assert store.whose(laptop.text) is None
    assert store.whose(phone.text) == "anna"


def test_what_is_revoked_is_nobodys(store):
    made = [store.add("anna", restricted=False) for _ in range(2)]
    other = store.add("ben", restricted=False)

    assert store.revoke("anna") == 2

    assert [store.whose(token.text) for token in made] == [None, None]
    assert store.whose(other.text) == "ben"


def test_a_token_ends_when_it_expires(store):
    made = store.add("anna", seconds=10, restricted=False)

    store.now += 9.9
    assert store.whose(made.text) == "anna"
    store.now += 0.1
    assert store.whose(made.text) is None


def test_an_expired_token_is_forgotten_at_the_next_change(store):
    store.add("anna", seconds=10, restricted=False)
    store.now += 11
    made = store.add("ben", restricted=False)

    assert list(store.read()) == [made.id]


def test_a_token_that_replaces_another_ends_it_at_once(store):
    old = store.add("anna", restricted=False)

    new, replaced = store.rotate("anna", restricted=False)

    assert replaced == 1
    assert store.whose(old.text) is None
    assert store.whose(new.text) == "anna"


def test_a_token_that_is_replaced_may_stay_good_for_a_while_and_never_longer_than_it_was(store):
    old = store.add("anna", restricted=False)
    short = store.add("anna", seconds=5, restricted=False)

    new, replaced = store.rotate("anna", grace=60, restricted=False)

    assert replaced == 2
    assert store.whose(old.text) == store.whose(short.text) == "anna"
    store.now += 6
    assert store.whose(short.text) is None
    assert store.whose(old.text) == "anna"
    store.now += 60
    assert store.whose(old.text) is None
    assert store.whose(new.text) == "anna"


@pytest.mark.parametrize("change", [lambda s: s.rotate("ben", restricted=False), lambda s: s.revoke("ben")])
def test_who_has_no_token_has_none_to_change(store, change):
    made = store.add("anna", restricted=False)

    with pytest.raises(BridgeError) as raised:
        change(store)

    assert raised.value.code == "unknown_principal"
    assert list(store.read()) == [made.id]


def test_another_principals_token_is_not_revoked_by_its_id(store):
    made = store.add("anna", restricted=False)
    store.add("ben", restricted=False)

    with pytest.raises(BridgeError) as raised:
        store.revoke("ben", made.id)

    assert raised.value.code == "unknown_principal"
    assert store.whose(made.text) == "anna"


def test_there_is_a_most_number_of_tokens(store, monkeypatch):
    monkeypatch.setattr("mcp_bridge.governance.principal_tokens.MAX_TOKENS", 3)
    for _ in range(3):
        store.add("anna", restricted=False)

    with pytest.raises(BridgeError) as raised:
        store.add("anna", restricted=False)

    assert raised.value.code == "too_many_tokens"
    assert len(store.read()) == 3
    assert MAX_TOKENS >= 1000


def test_processes_that_make_tokens_at_once_lose_none(tmp_path):
    made = []

    def work():
        made.extend(TokenStore(tmp_path / "state").add("anna", restricted=False).id for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(TokenStore(tmp_path / "state").read()) == set(made)
    assert len(made) == 40


@pytest.mark.parametrize(
    "change",
    [
        {"principal": "../local"},
        {"sha256": "x"},
        {"expires": "never"},
        {"expires": True},
        {"another": 1},
        {"restricted": 1},
    ],
)
def test_a_file_that_somebody_has_changed_is_refused_whole(store, change):
    made = store.add("anna", restricted=False)
    file = store._file.path
    content = json.loads(file.read_text())
    content["secrets"][made.id] = json.dumps(json.loads(content["secrets"][made.id]) | change)
    file.write_text(json.dumps(content))

    with pytest.raises(BridgeError) as raised:
        store.read()

    assert raised.value.code == "secrets_file_damaged"


def test_a_file_that_others_can_read_is_refused(store):
    store.add("anna", restricted=False)
    store._file.path.chmod(0o644)

    with pytest.raises(BridgeError) as raised:
        store.read()

    assert raised.value.code == "secrets_file_unsafe"


ALPHABET = string.ascii_letters + string.digits + "-_. \n\t\x00äé=+/"


@given(data=st.data())
def test_a_token_that_differs_anywhere_is_nobodys(tmp_path_factory, data):
    store = TokenStore(tmp_path_factory.mktemp("tokens"))
    made = store.add("anna", restricted=False)
    tokens = store.read()
    at = data.draw(st.integers(0, len(made.text)))
    end = data.draw(st.integers(at, len(made.text)))
    changed = made.text[:at] + data.draw(st.text(ALPHABET, max_size=4)) + made.text[end:]

    found = find(tokens, changed, NOW)

    assert (found is not None) == (changed == made.text)


@given(st.text(max_size=200) | st.from_regex(re.compile(TOKEN.pattern), fullmatch=True))
def test_what_was_never_made_is_nobodys(text):
    assert find({}, text, NOW) is None


def test_a_token_that_replaces_one_that_ends_is_good_for_as_long_as_that_was_made_for(store):
    store.add("anna", seconds=1000, restricted=False)
    store.now += 900
    for _ in range(2):
        # The second time with an old one that has been given an earlier end.
        new, _ = store.rotate("anna", grace=60, restricted=False)
        assert new.record.expires == store.now + 1000
        assert store.read()[new.id].expires == new.record.expires
        store.now += 10
    assert store.rotate("anna", seconds=5, restricted=False)[0].record.expires == store.now + 5
