"""Verify a ledger's export or .tlog-proof file: a second opinion, which shares no code with mcp-code-bridge.
python verify_ledger.py FILE [--key VKEY|FILE]... [--checkpoint FILE]...
One line says what was found, and which witnesses have cosigned when. Exit status: 0 genuine, 1 not, 2 wrong usage or a
file that can't be read. Without a key the file is only shown to agree with itself. By RFC 6962, 8032, 8785, and C2SP's
tlog-proof and tlog-cosignature. Python 3.9 or later. """
import argparse, base64, functools, hashlib, hmac, json, os, pathlib, re, sys, time
MAX_LINE, MAX_PROOF, MAX_NOTE, MAX_ENTRY, MAX_NUMBER = 64 << 20, 96 << 20, 256 << 10, 32 << 10, 2**53 - 1
P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D, ROOT, MASK = -121665 * pow(121666, P - 2, P) % P, pow(2, (P - 1) // 4, P), (1 << 255) - 1
BASE = (15112221349535400772501151409588531511454012693041857206046113283949847762202, 4 * pow(5, P - 2, P) % P)
ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
EARLIEST, SHOWN = 1_672_531_200, 100_000  # no cosignature is older than 2023; entries from one word to the next
WEAK = 0, 1, P - 1, ORDER_8, P - ORDER_8  # with such a key anyone can sign anything
ANY, TEXT, HASH = r"(?s:.*)", r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,4096}", r"[0-9a-f]{64}"
NAME, SIGNED = r"[^\s+\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}", "\u2014 [^ \n]+ (?:[A-Za-z0-9+/=]{4}){23,}\n"
KINDS = "start|intent|outcome|denial|transition|suspension|resume|decision|event|violation|erasure|key|clock|loss|end"
ENTRY = {"commitment": HASH, "execution": f"(?!$){TEXT}", "kind": KINDS, "policy": TEXT, "previous": HASH,
         "program": TEXT, "sequence": int, "step": TEXT, "time": int}
NULLABLE = ("payload", "previous", "program", "salt", "step")
# No number may take long: a text that a number's beginning stands for is found out when it is written again.
JSON = json.JSONDecoder(parse_int=lambda text: int(text[:17]), parse_float=len)

def check(holds, why):
    if not holds:
        raise ValueError(why)
node = lambda left, right: hashlib.sha256(b"\1" + left + right).digest()
def unbase64(text):
    check(base64.b64encode(base64.b64decode(text, validate=True)).decode() == text, "base64 is not in its one form")
    return base64.b64decode(text)
def fields(data, patterns):  # of a JSON object in canonical form; a regular expression or `int` for each of its names
    text, found, at = data.decode(), {}, 0
    for name, pattern in patterns.items():
        at += len(name) + 4
        check(text[at : at + 1] in [*'"n0123456789'], f"there is no {name} where it should be")
        found[name], at = JSON.raw_decode(text, at)
        value, kind = found[name], int if pattern is int else str
        fits = isinstance(value, kind) and (value <= MAX_NUMBER if kind is int else re.fullmatch(pattern, value))
        check(fits or (value is None and name in NULLABLE), f"the {name} is not what it should be")
    written = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    check(written.encode() == data, "a JSON object is not in canonical form")
    return found
def add(a, b):  # two points of Ed25519's curve, in extended coordinates (RFC 8032, section 5.1.4)
    low, high, cross = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P, 2 * a[3] * b[3] * D % P
    e, f, g, h = high - low, 2 * a[2] * b[2] - cross, 2 * a[2] * b[2] + cross, high + low
    return e * f % P, g * h % P, f * g % P, e * h % P
def check_signature(public, message, signature):  # [s]B - [k]A has to have the very bytes of R, as OpenSSL wants it
    y, s = int.from_bytes(public, "little") & MASK, int.from_bytes(signature[32:], "little")
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = (x := pow(square, (P + 3) // 8, P)) * (1 if x * x % P == square else ROOT) % P
    check(len(signature) == 64 and s < L and x * x % P == square, "a signature can be none")
    x = P - x if x & 1 == public[31] >> 7 else x  # of -A
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    base, minus, point = (*BASE, 1, BASE[0] * BASE[1] % P), (x, y, 1, x * y % P), (0, 1, 1, 0)
    terms = point, base, minus, add(base, minus)
    for bit in reversed(range(253)):
        point, term = add(point, point), (s >> bit & 1) + 2 * (k >> bit & 1)
        point = add(point, terms[term]) if term else point
    x, y = (part * pow(point[2], P - 2, P) % P for part in point[:2])
    check((y | (x & 1) << 255).to_bytes(32, "little") == signature[:32], "a signature is wrong")
def add_key(known, vkey):  # name+id+base64, put to those known as (name, id, type, bytes) by name and id
    name, number, material = vkey.split("+", 2)
    data = unbase64(material)
    y = int.from_bytes(data[1:], "little") & MASK
    check(y < P and y not in WEAK and len(data) == 33 and data[0] in (1, 4), "a key is none of Ed25519's")
    found = name, hashlib.sha256(name.encode() + b"\n" + data).digest()[:4], data[0], data[1:]
    check(re.fullmatch(NAME, name) and number == found[1].hex(), "a key's name or id is not its own")
    check(known.setdefault(found[:2], found) == found, "two keys can't be told apart")
    return found
def notes_in(text):  # those of a file, one after the other; what a crash has left of one is passed over
    found, before = [], ""
    text = re.sub(f"(?m)^(\u2014 .*\n)(?=[^\n])(?!{SIGNED})", r"\1\n", text)  # where there is no gap between two
    for block in re.split("\n\n+", text.strip("\n")):
        whole = before and block.startswith("\u2014 ")
        found += [f"{before}\n\n{block}\n"] if whole and re.search(r" ([A-Za-z0-9+/=]{4}){23,}\Z", block) else []
        before = "" if whole else block
    check(found, "there is no checkpoint in the file")
    return found
def open_note(note, known, log=None, until=None):  # a checkpoint's origin, size, root, and known signers with their times
    check(len(note.encode()) <= MAX_NOTE and not re.search(r"[\x00-\x09\x0b-\x1f]", note), "this can't be a note")
    text, separator, lines = note.rpartition("\n\n")
    check(separator and lines.endswith("\n") and lines.count("\n") <= 64, "a note has not from 1 to 64 signatures")
    text, found = text + "\n", []
    for line in lines[:-1].split("\n"):
        mark, name, encoded = line.split(" ")
        data = unbase64(encoded)
        check(mark == "\u2014" and re.fullmatch(NAME, name) and len(data) > 4, "a signature's line is none")
        by, message, data, at = (known or {}).get((name, data[:4])), text, data[4:], EARLIEST
        if by and by[2] == 4:  # a witness's, with a time
            check(data[0] < 128, "a cosignature's time is none")
            at, data = int.from_bytes(data[:8], "big"), data[8:]
            message = f"cosignature/v1\ntime {at}\n{text}"
        if by and check_signature(by[3], message.encode(), data) is None and EARLIEST <= at <= time.time() + 86400:
            found.append((by, at))  # what is of a time that can't be says nothing
    parts = re.fullmatch("(.+)\n(0|[1-9][0-9]{0,18})\n(.{43}=)\n(.+\n)*", text)
    check(parts and int(parts[2]) < 2**63, "a checkpoint has not three lines or more: an origin, a size and a root")
    signers = [(by, at) for by, at in found if int(parts[2]) <= (until or {}).get(by, 2**63)]
    by_log = known is None or any(by[::2] == (parts[1], 1) for by, _ in signers)
    check(by_log and log in (None, parts[1]), "no known key of the log has signed a checkpoint, or none that still may")
    return parts[1], int(parts[2]), unbase64(parts[3]), signers
day = lambda seconds: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
seen = lambda size, signers: {by[0]: f"; {by[0]} cosigned {size} of them, {day(at)}" for by, at in signers if by[2] == 4}
def read_entry(data):  # an entry, its hash, and its payload if that is there: it has to be what the entry commits to
    text, payload, salt = fields(data, {"entry": ANY, "payload": ANY, "salt": HASH}).values()
    leaf = fields(text.encode(), ENTRY)
    check(len(text.encode()) <= MAX_ENTRY and (payload is None) == (salt is None), "an entry is too long, or only half")
    if payload is not None:
        digest = hmac.new(bytes.fromhex(salt), payload.encode(), "sha256").hexdigest()
        check(digest == leaf["commitment"], f"the payload of entry {leaf['sequence']} is not what it commits to")
    return leaf, hashlib.sha256(b"\0" + text.encode()).digest(), payload
def climb(leaf, at, size, path):  # to a tree's root, by a leaf's hash, its index, and the hashes beside the way down
    check(len(path) > 0 if size > 1 else not path, "the proof has a hash too many, or too few")
    half = 1 << (size - 1).bit_length() >> 1
    if at < half:
        return node(climb(leaf, at, half, path[1:]), path[0])
    return node(path[0], climb(leaf, at - half, size - half, path[1:])) if path else leaf
def verify_proof(data, given, outside):
    head, _, note = data.decode().partition("\n\n")
    origin, size, root, signers = open_note(note, given)
    _, extra, index, *path = head.split("\n", 67)
    leaf, digest, _ = read_entry(unbase64(extra[6:]))
    check(extra[:6] == "extra " and index == f"index {leaf['sequence']}", "the proof is of another entry, or of none")
    path = [unbase64(line) for line in reversed(path)]
    fits = leaf["sequence"] < size and all(len(each) == 32 for each in path) and len(data) <= MAX_PROOF
    check(fits and climb(digest, leaf["sequence"], size, path) == root, "the proof doesn't lead to the signed root")
    kept = {open_note(note, given, origin)[1:3] for note in outside}
    check(size not in dict(kept - {(size, root)}), f"the root of {size} entries is not the one that was signed elsewhere")
    if kept and (size, root) not in kept:
        raise argparse.ArgumentTypeError(f"a proof from {size} entries says nothing of checkpoints of other sizes")
    return f"entry {leaf['sequence']} of {origin}, one of {size}{''.join(seen(size, signers).values())}"

def verify(file, given=None, outside=()):  # by the known keys; by None of them, no more than that it agrees with itself
    def line():
        data = file.readline(MAX_LINE + 1)
        check(data.endswith(b"\n") and len(data) <= MAX_LINE, "the file is cut off, or a line is too long")
        return data[:-1]
    def checkpoint(note):
        _, count, root, signers = open_note(note, known, origin, until)
        check(count <= size, f"rolled back: a checkpoint is of {count} entries, and here are {size}")
        check(root == roots[32 * count : 32 * count + 32], f"the first {count} entries are not those that were signed")
        return count, signers
    if (header := line()) == b"c2sp.org/tlog-proof@v1":
        return verify_proof(header + b"\n" + file.read(MAX_PROOF), given, outside)
    _, origin, size = fields(header, {"format": "mcp-code-bridge-ledger/1", "origin": NAME, "size": int}).values()
    known, heads, peaks, keys, losses, latest, clock, last, current = dict(given or {}), {}, [], [], [], {}, 0, 0, ""
    trusted, until, cosigned, new = {by for by in known.values() if by[::2] == (origin, 1)}, {}, {}, None
    roots = bytearray(hashlib.sha256(b"").digest())  # of 0 entries, of 1, and so on
    for sequence in range(size):
        sequence % SHOWN or not sequence or print(f"{sequence} of {size} entries", file=sys.stderr)
        leaf, digest, payload = read_entry(line())
        before, heads[leaf["execution"]] = heads.get(leaf["execution"]), digest.hex()
        clock = leaf["time"] if leaf["kind"] == "clock" else max(clock, leaf["time"])  # put back, which was accepted
        follows = leaf["sequence"] == sequence and leaf["previous"] == before and leaf["time"] == clock
        check(follows, f"entry {sequence} is another one, or doesn't follow the one before it")
        if leaf["kind"] == "key" or not sequence:
            check(payload and leaf["execution"] == "ledger" and leaf["kind"] == "key", f"entry {sequence} names no key")
            form = {"event": "rotated|lost", "from": re.escape(current)} if keys else {"event": "made"}
            event, *_, current = fields(payload.encode(), {**form, "vkey": ANY}).values()
            until[new] = sequence + (event == "rotated")  # the key before signs nothing of more entries
            keys.append((sequence, event, new := add_key(known, current)))
            check(new[::2] == (origin, 1) and new not in until and len(keys) <= 1000, f"entry {sequence} names a wrong key")
        losses += [f"; entry {sequence}: its end was lost, or a backup was restored"] * (leaf["kind"] == "loss")
        while sequence & 1:
            digest, sequence = node(peaks.pop(), digest), sequence >> 1
        peaks.append(digest)
        roots += functools.reduce(lambda right, left: node(left, right), reversed(peaks))
    while last < size:
        before, (last, signers) = last, checkpoint(*fields(line(), {"checkpoint": ANY}).values())
        check(last > before, "the checkpoints are not in order")
        latest.update((by, last) for by, _ in signers)
        cosigned.update(seen(last, signers))
    check(size and not file.read(1), "there is no entry, or something after the last checkpoint")
    for (_, _, old), (sequence, event, new) in zip(keys, keys[1:]):
        trusted |= {new} if event == "rotated" and old in trusted and latest.get(old, 0) > sequence else set()
    signed = given is None or trusted & {by for by, _ in signers}  # a witness's key says nothing of whose log it is
    check(signed, "the last checkpoint is signed by no trusted key of the log itself")
    list(map(checkpoint, outside))
    lost = (f"; a key was replaced as lost with entry {at}" for at, event, _ in keys if event == "lost")
    return "".join([f"{size} entries of {origin}", *losses, *lost, *cosigned.values()])

def main():
    parser = argparse.ArgumentParser(description="Verify a ledger's export or .tlog-proof file.")
    parser.add_argument("file")
    parser.add_argument("--key", action="append", default=[], help="a public key to trust, name+id+base64, or a file")
    parser.add_argument("--checkpoint", action="append", default=[], help="a file with checkpoints kept elsewhere")
    options, known = parser.parse_args(), {}
    try:
        for given in options.key:
            keys = pathlib.Path(given).read_text("utf-8").split() if os.path.exists(given) else [given.strip()]
            check([add_key(known, key) for key in keys], f"there is no key in {given}")
        notes = [n for name in options.checkpoint for n in notes_in(str(pathlib.Path(name).read_bytes(), errors="replace"))]
        with open(options.file, "rb") as file:
            try:
                found = ascii(verify(file, known or None, notes))[1:-1]  # a stranger may have named the log
            except ValueError as error:
                sys.exit(print(f"not genuine: {error}") or 1)
    except (OSError, ValueError, argparse.ArgumentTypeError) as error:
        parser.error(str(error))
    print(f"genuine: {found}" if known else f"agrees with itself, signed by nobody who is known: {found}")
if __name__ == "__main__": main()
