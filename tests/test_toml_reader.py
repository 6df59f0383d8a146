"""TOML of folders is read before anybody trusts them."""

import tomllib

import pytest

from mcp_bridge.toml_files.reader import MAX_KEY_PARTS, loads

LONG = ".".join(["a"] * 32_000)
QUOTED = " . ".join(['"a#"', "'b\"'"] * 9000)

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("key", [LONG, QUOTED], ids=["bare", "quoted"])
@pytest.mark.parametrize(
    "before", ["", "x = 1\n[", "[[", "x = {", "x='a#'\n", 'x="""a"""""\n', "x='''\\'''\n", 'x="\\""#"\n']
)
def test_a_key_that_the_parser_takes_minutes_for_is_refused(before, key):
    with pytest.raises(tomllib.TOMLDecodeError, match=r"more than 32 parts \(at line"):
        loads(f"{before}{key} = 1")


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * MAX_KEY_PARTS) + " = 1",
        f'x = "{LONG}"\ny = """\n"{LONG}"""""\n# {LONG}\n',
        f"z = '''{LONG}''''\n",
        "[a.\"b.c\".'d']\nx = 1979-05-27 00:32:00.1\ny = 0xff\r\n",
    ],
)
def test_anything_else_is_what_it_is_in_toml(text):
    assert loads(text) == tomllib.loads(text)


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000])
def test_a_number_that_nobody_can_print_is_invalid(number):
    with pytest.raises(tomllib.TOMLDecodeError, match="too long"):
        loads(f"x = {number}")


@pytest.mark.parametrize("part", ['"', "'", '"\\', '"" ', "'a'.", "a .\t", "0x", '"""', "''''"])
def test_what_is_never_closed_is_looked_at_once(part):
    with pytest.raises(tomllib.TOMLDecodeError):
        loads(part * 300_000)
