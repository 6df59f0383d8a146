"""Masking: no form of a secret's plaintext gets through, and nothing else is touched."""

import base64
import contextlib
import html
import json
import random
import string
import sys
import tracemalloc
import urllib.parse

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mcp_bridge.policy.redaction.encodings import base64_forms, decoded
from mcp_bridge.policy.redaction.literals import GRAM, Literals
from mcp_bridge.policy.redaction.masking import MIN_SUBSTRING_CHARS, Masker

PLAIN = "Zq7-w0rd/Kx+9=\"é\\n€ 'tail<&%41>"
TOKEN = "ghs4Kd93Lm20xPqR7vTz81Yb"  # noqa: S105

REFERENCE = "vault://secret/key"


def inside(text):
    """A JSON or Python literal without its quotes."""
    return text[1:-1]


def utf16_escapes(text):
    units = memoryview(text.encode("utf-16-le")).cast("H")
    return "".join(f"\\u{unit:04x}" for unit in units)


def percent(text):
    return "".join(f"%{byte:02x}" for byte in text.encode())


def mime(text):
    return base64.encodebytes(b"some bytes before it, of " * 5 + text.encode() + b" and after").decode()


ESCAPED = {
    "as it is": str,
    "JSON": lambda text: inside(json.dumps(text)),
    "JSON in UTF-8": lambda text: inside(json.dumps(text, ensure_ascii=False)),
    "JSON with escaped slashes": lambda text: inside(json.dumps(text)).replace("/", "\\/"),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "JSON in JSON in JSON": lambda text: json.dumps(json.dumps(json.dumps(text))),
    "JSON, every character": utf16_escapes,
    "JSON, every character, capitals": lambda text: utf16_escapes(text).upper().replace("\\U", "\\u"),
    "Python": lambda text: inside(repr(text)),
    "Python, in ASCII": lambda text: inside(ascii(text)),
    "Python's bytes": lambda text: repr(text.encode())[2:-1],
    "octal": lambda text: "".join(f"\\{byte:03o}" if byte > 127 or byte == 92 else chr(byte) for byte in text.encode()),
    "URL": lambda text: urllib.parse.quote(text, safe=""),
    "URL with slashes": urllib.parse.quote,
    "URL, every byte": percent,
    "URL, every byte, twice": lambda text: urllib.parse.quote(percent(text)),
    "form": urllib.parse.quote_plus,
    "IRI": lambda text: "".join(char if ord(char) > 127 else urllib.parse.quote(char, safe="") for char in text),
    "HTML": html.escape,
    "HTML in HTML": lambda text: html.escape(html.escape(text)),
    "HTML, every character": lambda text: "".join(f"&#{ord(char)};" for char in text),
    "HTML, every character, hexadecimal": lambda text: "".join(f"&#x{ord(char):X};" for char in text),
    "JSON in a URL": lambda text: urllib.parse.quote(json.dumps(text)),
    "JSON in HTML": lambda text: html.escape(json.dumps(text)),
}

PACKED = {
    "hexadecimal": lambda text: text.encode().hex(),
    "HEXADECIMAL": lambda text: text.encode().hex().upper(),
    "HexaDecimal": lambda text: "".join(
        char.upper() if place % 3 else char for place, char in enumerate(text.encode().hex())
    ),
    "hexadecimal with colons": lambda text: text.encode().hex(":"),
    "hexadecimal with spaces": lambda text: text.encode().hex(" ").upper(),
    "hexadecimal with hyphens": lambda text: text.encode().hex("-", 2),
    "hexadecimal in groups": lambda text: text.encode().hex(" ", -4),
    "hexadecimal as C has it": lambda text: ", ".join(f"0x{byte:02X}" for byte in text.encode()),
    "hexadecimal with prefixes alone": lambda text: "".join(f"0x{byte:02x}" for byte in text.encode()),
    "hexadecimal in lines": lambda text: ":\n    ".join(
        text.encode()[at : at + 5].hex(":") for at in range(0, len(text.encode()), 5)
    ),
    "hexadecimal in lines in JSON": lambda text: json.dumps(
        "\n".join(text.encode()[at : at + 7].hex(" ") for at in range(0, len(text.encode()), 7))
    ),
    "hexadecimal of UTF-16": lambda text: text.encode("utf-16-le").hex(" "),
    "hexadecimal of UTF-16, the other byte order": lambda text: text.encode("utf-16-be").hex(),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "base32 in lower case, without padding": lambda text: base64.b32encode(text.encode()).decode().lower().rstrip("="),
    "base32 after three bytes": lambda text: base64.b32encode(b"abc" + text.encode() + b"d").decode(),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
    "base64 of UTF-16 amidst others": lambda text: base64.b64encode(f"-{text}-".encode("utf-16-be")).decode(),
    "base64 of base64": lambda text: base64.b64encode(base64.b64encode(text.encode())).decode(),
    "base64 of base64 amidst others": lambda text: base64.b64encode(
        b'{"auth":"' + base64.b64encode(b"user:" + text.encode()) + b'"}'
    ).decode(),
    "base64 of base64 for URLs": lambda text: base64.urlsafe_b64encode(
        base64.urlsafe_b64encode(b"u:" + text.encode() + b"\xff")
    ).decode(),
    "UTF-16": lambda text: text.encode("utf-16-be").decode("latin-1"),
    "UTF-16 in JSON": lambda text: json.dumps(text.encode("utf-16-le").decode("latin-1")),
    "backwards": lambda text: text[::-1],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base64 without padding": lambda text: base64.b64encode(text.encode()).decode().rstrip("="),
    "base64 after one byte": lambda text: base64.b64encode(b":" + text.encode()).decode(),
    "base64 after two bytes": lambda text: base64.b64encode(b"x:" + text.encode() + b"z").decode(),
    "base64 for URLs amidst others": lambda text: base64.urlsafe_b64encode(
        b"u:" + text.encode() + b"\xff\xfe"
    ).decode(),
    "base64 of JSON": lambda text: base64.b64encode(json.dumps({"k": text}).encode()).decode(),
    "base64 in a URL": lambda text: urllib.parse.quote(base64.b64encode(text.encode()).decode(), safe=""),
    "base64 in a form, unescaped": lambda text: base64.b64encode(text.encode()).decode().replace("+", " "),
    "base64 in JSON": lambda text: base64.b64encode(text.encode()).decode().replace("/", "\\/"),
    "base64 in lines": mime,
    "base64 in lines in JSON": lambda text: json.dumps(mime(text)),
    "base64 in lines for mail": lambda text: mime(text).replace("\n", "\r\n"),
}

ENCODINGS = ESCAPED | PACKED


def reads(text, plaintext):
    """Whether the plaintext can be got back from a text by undoing encodings, whole or in part: slow and obvious."""
    seen, todo = set(), [text]
    while todo and len(seen) < 400:
        text = todo.pop()
        if text in seen:
            continue
        seen.add(text)
        if plaintext in text:
            return True
        todo += [html.unescape(text), urllib.parse.unquote(text), urllib.parse.unquote_plus(text)]
        todo.append(text.replace("\\/", "/").replace('\\"', '"').replace("\\'", "'").replace("\\\\", "\\"))
        with contextlib.suppress(UnicodeDecodeError):
            todo.append(text.encode("latin-1", "backslashreplace").decode("unicode_escape"))
    return False


@pytest.mark.parametrize("plaintext", [PLAIN, TOKEN], ids=["hard", "token"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_secret_is_masked_in_every_encoding(encoding, plaintext):
    encoded = ENCODINGS[encoding](plaintext)
    masked = Masker({"key": plaintext}).mask(f'before "{encoded}", after')
    assert REFERENCE in masked
    assert encoded not in masked
    assert not reads(masked, plaintext)
    assert masked.startswith('before "')
    assert masked.endswith(", after")


@pytest.mark.parametrize("encoding", ESCAPED)
def test_no_more_than_the_secret_is_taken(encoding):
    encoded = ESCAPED[encoding](PLAIN)
    masked = Masker({"key": PLAIN}).mask(f"before: {encoded} :after")
    shown = ESCAPED[encoding](REFERENCE) if encoding.startswith("JSON in JSON") else REFERENCE
    assert masked.replace("&quot;", "").replace("%22", "") == f"before: {shown} :after"


@pytest.mark.parametrize("before", range(7))
def test_base64_is_masked_at_every_place_in_something_longer(before):
    for after in range(7):
        data = bytes(range(100, 100 + before)) + TOKEN.encode() + bytes(range(200, 200 + after))
        for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data), base64.b64encode(data).rstrip(b"=")):
            masked = Masker({"key": TOKEN}).mask(encoded.decode())
            assert REFERENCE in masked
            # Not even the characters that hold some bits of the secret are left.
            rest = masked.replace(REFERENCE, "").rstrip("=")
            assert len(rest) <= 4 * before // 3 + 4 * after // 3 + 1


def test_the_bits_at_the_edges_of_base64_go_too():
    shown = {
        Masker({"key": text}).mask(base64.b64encode(f"x{text}".encode()).decode()) for text in (TOKEN, "h" + TOKEN[1:])
    }
    assert len(shown) == 1


def test_bytes_of_any_kind_between_text_are_left_alone():
    text = bytes(range(256)).decode("latin-1")
    masked = Masker({"key": PLAIN}).mask(text + PLAIN.encode().decode("latin-1") + text)
    assert masked == text + REFERENCE + text


@pytest.mark.parametrize("before", range(6))
def test_base32_and_base64_of_base64_are_masked_at_every_place_in_something_longer(before):
    for after in range(6):
        data = bytes(range(100, 100 + before)) + TOKEN.encode() + bytes(range(200, 200 + after))
        inside = base64.b64encode(data)
        for encoded, most in (
            (base64.b32encode(data), 8 * before // 5 + 8 * after // 5 + 1),
            *(
                (base64.b64encode(bytes(some) + inside), 16 * before // 9 + 16 * after // 9 + 4 * some // 3 + 8)
                for some in range(3)
            ),
        ):
            masked = Masker({"key": TOKEN}).mask(encoded.decode())
            assert REFERENCE in masked
            assert len(masked.replace(REFERENCE, "").rstrip("=")) <= most


def test_the_bits_at_the_edges_of_base64_of_base64_go_too():
    def shown(text):
        return Masker({"key": text}).mask(base64.b64encode(base64.b64encode(f"x{text}y".encode())).decode())

    assert len({shown(text) for text in (TOKEN, f"h{TOKEN[1:]}", f"{TOKEN[:-1]}c")}) == 1


@pytest.mark.parametrize("digits", ["of other bytes", "of a part of it", "with a byte between", "too far apart"])
def test_hexadecimal_of_anything_else_is_left_alone(digits):
    data = TOKEN.encode()
    text = {
        "of other bytes": data[::-1].hex(":"),
        "of a part of it": data[:-1].hex(" "),
        "with a byte between": f"{data[:9].hex(':')}:00:{data[9:].hex(':')}",
        "too far apart": (" " * 40).join(f"{byte:02x}" for byte in data),
    }[digits]
    assert Masker({"key": TOKEN}).mask(text) is text


# --- several secrets ---


def test_of_a_secret_and_one_that_begins_with_it_the_longer_is_named():
    masker = Masker({"short": TOKEN[:12], "long": TOKEN})
    assert masker.mask(f"{TOKEN}, {TOKEN[:12]}") == "vault://secret/long, vault://secret/short"


def test_secrets_that_overlap_leave_nothing_of_either():
    one, other = "AAAAbbbbCCCCdddd", "CCCCddddEEEEffff"
    masked = Masker({"one": one, "other": other}).mask("<AAAAbbbbCCCCddddEEEEffff>")
    assert masked == "<vault://secret/one>"


def test_secrets_side_by_side_are_both_named():
    masked = Masker({"one": TOKEN, "other": PLAIN}).mask(TOKEN + PLAIN + TOKEN)
    assert masked == "vault://secret/onevault://secret/othervault://secret/one"


def test_two_names_for_one_value_give_the_first():
    assert Masker({"b": TOKEN, "a": TOKEN}).mask(TOKEN) == "vault://secret/a"


def test_a_secret_that_repeats_itself_is_masked_wherever_it_starts():
    masked = Masker({"key": "abababab"}).mask("x" + "ab" * 20 + "a")
    assert "ab" not in masked
    assert masked.startswith("xvault://secret/key")


# --- references ---


def test_masking_twice_changes_nothing():
    masker = Masker({"key": PLAIN, "other": TOKEN})
    once = masker.mask(f"{PLAIN}{TOKEN} {json.dumps(PLAIN)} {base64.b64encode(TOKEN.encode()).decode()}")
    assert masker.mask(once) == once


def test_a_name_in_a_reference_is_no_plaintext():
    masker = Masker({"key": "github-token"}, ids={"github-token"})
    assert masker.mask("vault://secret/github-token") == "vault://secret/github-token"
    assert masker.mask("the github-token") == "the vault://secret/key"


def test_what_looks_like_a_reference_hides_no_plaintext():
    masker = Masker({"key": TOKEN})
    assert TOKEN not in masker.mask(f"vault://secret/{TOKEN}")
    assert TOKEN not in masker.mask(f"vault://ref/{TOKEN}")
    assert TOKEN not in masker.mask(f"vault://secret/key{TOKEN}")


# --- short secrets ---


@pytest.mark.parametrize(
    "text", ["pin 4711.", "4711", '{"pin": "4711"}', "pin=4711&x", "%34%37%31%31", "(NDcxMQ==)", "x 34373131"]
)
def test_a_short_secret_is_masked_as_a_word(text):
    masked = Masker({"pin": "4711"}).mask(text)
    assert "vault://secret/pin" in masked
    assert not reads(masked, "4711")


@pytest.mark.parametrize("text", ["1647110", "order_4711", "4711a", "é4711", "aNDcxMQ", "0x343731310"])
def test_a_short_secret_is_not_looked_for_inside_of_words(text):
    assert Masker({"pin": "4711"}).mask(text) is text


def test_spaces_around_a_secret_are_not_needed_to_find_it():
    assert Masker({"key": f"{TOKEN}\n"}).mask(f"Bearer {TOKEN}") == "Bearer vault://secret/key"


# --- what stays ---


@pytest.mark.parametrize("text", ["", "plain", '{"a": "\\u00e9\\n", "b": "100%25"}', "a+b &amp; \\x41" * 100])
def test_text_without_secrets_is_returned_itself(text):
    assert Masker({"key": PLAIN, "other": TOKEN}).mask(text) is text


def test_without_secrets_nothing_is_done():
    assert Masker({}).mask(TOKEN) is not None
    assert Masker({}, ids={"missing"}).mask(TOKEN) is TOKEN


def test_parts_of_a_secret_are_no_secret():
    masker = Masker({"key": TOKEN})
    for text in (TOKEN[:-1], TOKEN[1:], TOKEN[:10] + " " + TOKEN[10:], TOKEN.swapcase()):
        assert masker.mask(text) is text


# --- edges that an escape has taken ---


def test_a_secret_whose_first_characters_are_taken_by_an_escape_before_it_is_masked():
    masker = Masker({"key": 'ab"cdefghijklmnop'})
    assert masker.mask('100%ab\\"cdefghijklmnop!') == "100%vault://secret/key!"


def test_a_secret_whose_last_characters_begin_an_escape_with_what_follows_is_masked():
    masker = Masker({"key": 'abcdefghijklm"op%4'})
    assert masker.mask('<abcdefghijklm\\"op%41>') == "<vault://secret/key1>"


# --- properties ---

HARD = "%\\&\"'+/<>41nux;0ab \n"
RANDOM_SECRETS = st.one_of(
    st.text(string.ascii_letters + string.digits + "-_", min_size=12, max_size=40),
    st.text(string.printable[:95], min_size=12, max_size=40),
    st.text(HARD, min_size=12, max_size=40),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=12, max_size=30),
).filter(lambda text: len(text.strip()) >= 12 and len(set(text.strip())) > 2 and "vault:" not in text)

AROUND = st.one_of(st.just(""), st.text(string.printable[:95], max_size=12), st.text(HARD, max_size=12))


def embedded(secret, encoding, before, after):
    encoded = ENCODINGS[encoding](secret.strip())
    # A backslash before escapes of backslashes makes other ones of them all: no longer that encoding.
    return f"{before.rstrip(chr(92))}{encoded}{after}", encoded


@settings(max_examples=600, deadline=None)
@given(
    secret=RANDOM_SECRETS,
    other=RANDOM_SECRETS,
    encoding=st.sampled_from(sorted(ENCODINGS)),
    before=AROUND,
    after=AROUND,
)
def test_no_random_secret_survives_in_any_encoding_in_any_text(secret, other, encoding, before, after):
    text, encoded = embedded(secret, encoding, before, after)
    masker = Masker({"key": secret, "other": other})
    masked = masker.mask(text)
    assert "vault://secret/" in masked
    assert encoded not in masked
    assert secret not in masked
    assert masker.mask(masked) == masked


@settings(max_examples=300, deadline=None)
@given(secret=RANDOM_SECRETS, seed=st.integers(0, 1 << 30), before=AROUND, after=AROUND)
def test_no_secret_survives_with_each_character_escaped_in_its_own_way(secret, seed, before, after):
    chance = random.Random(seed)  # noqa: S311
    ways = [
        lambda char: inside(json.dumps(char)),
        lambda char: "".join(f"%{byte:02X}" for byte in char.encode()),
        lambda char: f"&#{ord(char)};",
        lambda char: html.escape(char) if char != "\\" else "\\\\",
        lambda char: char if char.isalnum() else urllib.parse.quote(char, safe=""),
    ]
    text = before.rstrip("\\") + "".join(chance.choice(ways)(char) for char in secret.strip()) + after
    masked = Masker({"key": secret}).mask(text)
    assert REFERENCE in masked


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=200), secret=RANDOM_SECRETS)
@example(text="\ud800\udfff lone", secret=TOKEN)
def test_other_text_is_never_changed(text, secret):
    # A text that shares no three characters with a secret, in no encoding that this could be, holds none of it.
    assume(not any(gram in text for gram in ("%", "\\", "&", "+", secret.strip()[:3])))
    assert Masker({"key": secret}).mask(text) is text


@settings(max_examples=300, deadline=None)
@given(data=st.binary(min_size=3, max_size=60), before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_the_forms_in_base64_are_what_the_bytes_are_wherever_they_stand(data, before, after):
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        text = data.hex()
    encoded = base64.b64encode(before + text.encode() + after).decode()
    assert any(form.text in encoded for form in base64_forms(text))


@settings(max_examples=300, deadline=None)
@given(text=st.text((string.printable + "é€😀").replace("&", ""), max_size=60))
def test_taking_escapes_off_keeps_account_of_where_everything_was(text):
    escaped = inside(json.dumps(text))
    layer = decoded(escaped)
    if layer is None:
        return
    assert layer.start_below(0) == 0
    assert layer.end_below(len(layer.text)) == len(escaped)
    for index in range(1, len(layer.text)):
        assert layer.start_below(index - 1) <= layer.start_below(index)
        assert layer.start_below(index) == layer.end_below(index)


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(st.text("ab12", min_size=GRAM, max_size=12), min_size=1, max_size=20, unique=True),
    text=st.text("ab12", max_size=80),
)
def test_the_search_for_many_texts_finds_what_a_search_for_each_finds(texts, text):
    expected = {(start, literal) for literal in texts for start in range(len(text)) if text.startswith(literal, start)}
    found = {
        (position - place, literal)
        for position, place, literal, _ in Literals(dict.fromkeys(texts)).candidates(text)
        if position >= place and text.startswith(literal, position - place)
    }
    assert found == expected


# --- what hostile text costs ---


@pytest.mark.parametrize(
    "flood",
    [
        "\\",
        "%",
        "&",
        "%4",
        "\\u00",
        "&a",
        "a",
        "\\u0041",
        "%25",
        "&amp;",
        "\r\n",
        f"{'A' * 64}\n",
        TOKEN[:-1],
        TOKEN[4:12],
        TOKEN[:-1].encode().hex(),
        f"{TOKEN[:-1].encode().hex(':')} ",
        TOKEN[4:6].encode().hex(" "),
        f"{TOKEN[8:10].encode().hex()} ",
        "0x",
        "7 ",
    ],
)
def test_a_flood_of_what_could_begin_something_takes_time_in_proportion(flood):
    masker = Masker({f"s{index}": f"{TOKEN[:20]}{index:04}" for index in range(50)})
    steps = []
    for size in (30_000, 60_000):
        text = flood * (size // len(flood))
        steps.append(lines_run(masker.mask, text))
    assert steps[1] <= 3 * steps[0] + 1000


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


def test_a_megabyte_of_escapes_takes_no_more_than_some_megabytes():
    masker = Masker({"key": TOKEN})
    text = "\\" * (1 << 20)
    tracemalloc.start()
    masker.mask(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80 << 20


def test_the_least_length_that_is_searched_for_inside_of_words_is_that():
    secret = TOKEN[:MIN_SUBSTRING_CHARS]
    assert Masker({"key": secret}).mask(f"xx{secret}xx") == "xxvault://secret/keyxx"
    assert Masker({"key": secret[:-1]}).mask(f"xx{secret[:-1]}xx") == f"xx{secret[:-1]}xx"
