"""Mutate exports and proofs, and see that both verifiers refuse every one that isn't what was signed.

    python tests/support/fuzz_ledger.py --count 1000000 --seed 1

No exception but BridgeError (of the small verifier: ValueError), no false acceptance, both verifiers agree, and each input
takes little time and memory.
"""

import argparse
import base64
import functools
import io
import json
import random
import re
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass

from ledger_fixtures import erased, large_says, lost, parsed, rotated, signer, simple, small_says, witness

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit import proving
from mcp_bridge.ledger.log import entry_encoding
from mcp_bridge.ledger.proofs import disclosures, export_format, tlog_proof
from mcp_bridge.ledger.proofs.disclosures import Disclosed

CPU_SECONDS = 2.0
"""For one input, of at most some megabytes, by one verifier."""

MEMORY_BYTES = 512 << 20
"""For all of it."""

HEADER = f"{tlog_proof.HEADER}\n".encode()
"""By this a reader knows what a file is."""

REPORT_EVERY = 50_000

INFLATED = (9, 10**6, 2**53 - 1, 2**53, 2**63 - 1, 2**64, 10**400)
LONG = (1, 40, 4096, 70_000, 250_000)


@dataclass(frozen=True)
class Case:
    """One genuine file, and what may be accepted of it."""

    name: str
    data: bytes
    keys: tuple[str, ...] | None
    entries: list[bytes]
    payloads: list[bytes]
    proof: bool = False
    against: tuple[str, ...] = ()


def cases():
    """Files with rotated and with lost keys, erased and disclosed payloads, with and without keys and checkpoints."""
    made = [
        ("simple", simple(3, "s"), ("first",)),
        ("one entry", simple(0, "o"), ("first",)),
        ("rotated", rotated("r"), ("first",)),
        ("rotated, newest key", rotated("n"), ("third",)),
        ("lost", lost("l"), ("second",)),
        ("lost, both keys", lost("b"), ("first", "second")),
        ("erased", erased("e"), ("first",)),
        ("no key", simple(3, "k"), None),
    ]
    found = []
    for name, log, seeds in made:
        keys = seeds and (*(signer(f"{log.prefix}{seed}").vkey for seed in seeds), witness().vkey)
        entries, payloads = log.entries, [log.whole[index] for index in range(len(log.entries))]
        against = tuple(log.checkpoints[:1])
        found.append(Case(name, log.export(), keys, entries, payloads))
        found.append(Case(f"{name}, compared", log.export(), keys, entries, payloads, against=against))
        current = keys and (*keys, log.key.vkey) if keys and log.key.vkey not in keys else keys
        for index in {0, len(entries) // 2, len(entries) - 1}:
            for disclose in (True, False):
                data = log.proof(index, disclose=disclose)
                found.append(Case(f"{name}, proof {index}", data, current, entries, payloads, proof=True))
                kept = tuple(log.checkpoints[-1:])
                told = f"{name}, proof {index}, compared"
                found.append(Case(told, data, current, entries, payloads, proof=True, against=kept))
    return found


def flip(data, rng, _):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def replace(data, rng, _):
    at = rng.randrange(len(data))
    return data[:at] + rng.choice((b"\0", b"\n", b" ", b'"', b"\\", b"0", b"9", b"=", b"\xff", b"+")) + data[at + 1 :]


def insert(data, rng, _):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice((b"\n", b"\n\n", b" ", b"0", b"\r", b"\\u0000", b"\xef\xbb\xbf", b"null")) + data[at:]


def cut(data, rng, _):
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 2, 7, 64, 500)) :]


def truncate(data, rng, _):
    return data[: rng.randrange(len(data))]


def splice(data, rng, other):
    start, at = rng.randrange(len(other)), rng.randrange(len(data))
    length = rng.choice((1, 4, 44, 64, 300, 1000))
    return data[:at] + other[start : start + length] + data[at + rng.choice((0, length)) :]


def lines(data, rng, other):
    """Remove, swap, repeat, move a line, or take one from elsewhere."""
    parts, strange = data.splitlines(keepends=True), other.splitlines(keepends=True)
    i, j = rng.randrange(len(parts)), rng.randrange(len(parts))
    match rng.randrange(6):
        case 0:
            del parts[i]
        case 1:
            parts[i], parts[j] = parts[j], parts[i]
        case 2:
            parts.insert(i, parts[j])
        case 3:
            parts.insert(i, parts.pop(j))
        case 4:
            parts[i] = rng.choice(strange)
        case 5:
            parts[i:] = strange[i:]
    return b"".join(parts)


def inflate(data, rng, _):
    """Another number in the place of one."""
    found = list(re.finditer(rb"[0-9]+", data))
    at = rng.choice(found)
    number = int(at[0]) + rng.choice((-1, 1)) if rng.random() < 0.5 and len(at[0]) < 20 else rng.choice(INFLATED)
    return data[: at.start()] + str(number).encode() + data[at.end() :]


def lengthen(data, rng, _):
    """A very long text, a long row of base64, or JSON that is very deep, where a text is."""
    found = list(re.finditer(rb'[A-Za-z0-9+/]{40,}=*|"', data))
    at = rng.choice(found)
    length = rng.choice(LONG)
    new = rng.choice(
        (b"A" * (length * 4), b"[" * length, b'{"a":' * length, b'"' + b"x" * length + b'"', b"9" * length)
    )
    return data[: at.start()] + new + data[at.end() :]


def meaning(data, rng, _):
    """A change that leaves every line in canonical form: of an entry's values, a payload, a salt, a note."""
    parts = data.splitlines()
    proof = data.startswith(HEADER)
    i = 1 if proof else rng.randrange(1, len(parts))
    line = json.loads(base64.b64decode(parts[i][6:]) if proof else parts[i])
    if "checkpoint" in line:
        rows = line["checkpoint"].split("\n")
        row = rng.randrange(len(rows))
        rows[row : row + 1] = rng.choice(([], [rows[row], rows[row]], [rows[row] + "x"], [rng.choice(rows)]))
        parts[i] = disclosures.encode_object(checkpoint="\n".join(rows))
        return b"\n".join(parts) + b"\n"
    entry = entry_encoding.decode(line["entry"].encode())
    values = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
    name = rng.choice([*values, "payload", "salt", "none", "none"])
    payload, salt = line["payload"], line["salt"]
    if name == "payload":
        payload = rng.choice(("", "{}", (payload or "") + " ", '{"event":"made","vkey":"x"}', (payload or "")[1:]))
    elif name == "salt":
        salt = rng.choice(("0" * 64, None, "00", (salt or "")[::-1]))
    elif name == "none":
        payload = salt = None
    else:
        others = {"kind": ["start", "key", "erasure"], "time": [0, entry.time + 1], "step": [None, "a", "\u202e"]}
        others |= {"sequence": [0, entry.sequence + 1], "execution": ["ledger", "e1", "other"], "program": [None, "x"]}
        values[name] = rng.choice(others.get(name, ["0" * 64, "ff" * 32, None]))
    text = entry_encoding.encode(entry_encoding.Leaf(**values)).decode()
    new = disclosures.encode_object(entry=text, payload=payload, salt=salt)
    parts[i] = b"extra " + base64.b64encode(new) if proof else new
    return b"\n".join(parts) + b"\n"


def shorten(data, rng, _):
    """An export of fewer entries, with whichever checkpoints."""
    parts = data.splitlines(keepends=True)
    ends = [index for index, part in enumerate(parts) if part.startswith(b'{"checkpoint"')]
    if not ends:
        return cut(data, rng, _)
    size = rng.randrange(1, ends[0] + 1)
    parts[0] = re.sub(rb'"size":[0-9]+', b'"size":%d' % size, parts[0])
    return b"".join(parts[: size + 1] + parts[ends[0] : rng.randrange(ends[0], len(parts)) + 1])


MUTATORS = (flip, replace, insert, cut, truncate, splice, lines, inflate, lengthen, meaning, meaning, shorten)


def mutant(case, rng, everything):
    data = case.data
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(MUTATORS)
        try:
            data = change(data, rng, rng.choice(everything).data)
        except (ValueError, LookupError, TypeError, RecursionError, BridgeError):
            data += b"\n"  # what was changed before has not the form that this change is for
    return data


def is_genuine(case, data):
    """Whether an accepted file says nothing that the log didn't: its first entries, and their payloads or none."""
    if data.startswith(HEADER):
        proof = tlog_proof.decode(data)
        disclosed, leaf = disclosures.decode(proof.extra)
        return shows(case, leaf.sequence, disclosed)
    rows = data.split(b"\n")
    size = json.loads(rows[0])["size"]
    found = [disclosures.decode(row)[0] for row in rows[1 : size + 1]]
    return data.startswith(export_format.header_line(json.loads(rows[0])["origin"], size)) and all(
        shows(case, index, disclosed) for index, disclosed in enumerate(found)
    )


def shows(case, index, disclosed: Disclosed):
    return disclosed.entry == case.entries[index] and disclosed.payload in {None, case.payloads[index]}


def judge(case, data, *, both):
    """What the large verifier says, after all that has to hold was checked."""
    start = time.process_time()
    said = large_says(data, case.keys, case.against, proof=data.startswith(HEADER))
    took = time.process_time() - start
    assert took < CPU_SECONDS, f"{took} s for {len(data)} bytes"
    if both:
        start = time.process_time()
        other = small_says(data, case.keys, case.against)
        assert (said is None) == (other is None), f"they disagree: {said}, {other}"
        assert time.process_time() - start < CPU_SECONDS, f"the small verifier took long for {len(data)} bytes"
        if not data.startswith(HEADER) and not case.against and (said is None or len(data) % 8 == 0):
            judge_proof_from(case, data, said)
    if said is None and case.keys is not None and data != case.data:
        assert is_genuine(case, data), "a false one was accepted"
    return said or "accepted"


def judge_proof_from(case, data, said):
    """Only an export that is accepted gives a proof, which holds."""
    index = len(data) % len(case.entries)
    keys = None if case.keys is None else [parsed(vkey) for vkey in case.keys]
    proof, code = None, None
    try:
        proof = proving.prove_by(io.BytesIO(data), keys, index, payload=True).data
    except BridgeError as error:
        code = error.code
    if proof is None:
        assert code == (said or "unknown_entry"), f"no proof for {code} of what is {said}"
        return
    assert said is None, f"a proof from what is {said}"
    assert large_says(proof, None, proof=True) is small_says(proof, None) is None
    assert case.keys is None or shows(case, index, tlog_proof.verify(proof, None).disclosed), "a false proof was made"


def fuzz(count, seed, small_every=1, report=None):
    """Judge that many mutants.

    Returns:
        How many were refused with which code.
    """
    rng, everything, found = random.Random(seed), cases(), Counter()  # noqa: S311 - it is to be repeated
    for case in everything:
        assert judge(case, case.data, both=True) == "accepted", case.name
    kinds = [[case for case in everything if case.proof is proof] for proof in (False, False, True)]
    for number in range(count):
        case = rng.choice(rng.choice(kinds))
        data = mutant(case, rng, everything)
        try:
            found[judge(case, data, both=number % small_every == 0)] += 1
        except BaseException:
            print(f"{case.name}, mutant {number} of seed {seed}: {data[:100_000]!r}", file=sys.stderr)
            raise
        if report and (number + 1) % REPORT_EVERY == 0:
            report(f"{number + 1}: {dict(found.most_common())}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small-every", type=int, default=1, help="ask the small verifier for one in so many")
    options = parser.parse_args()
    start = time.monotonic()
    found = fuzz(options.count, options.seed, options.small_every, functools.partial(print, flush=True))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps(dict(found.most_common())))
    print(f"{options.count} mutants, seed {options.seed}: {time.monotonic() - start:.0f} s, {used >> 20} MiB at most")
    assert used < MEMORY_BYTES, "it took too much memory"


if __name__ == "__main__":
    main()
