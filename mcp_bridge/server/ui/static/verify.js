// Proofs, computed here: SHA-256 (FIPS 180-4), HMAC (RFC 2104), inclusion in a Merkle tree (RFC 6962, 9162 section
// 2.1.3.2) and signed checkpoints (C2SP signed-note, tlog-checkpoint). SHA-256 is our own, since a browser offers its
// own only to pages of this machine or over HTTPS.

const K = new Uint32Array(64);
const START = new Uint32Array(8);

{
  // The first 32 bits of the fractional parts of the cube and square roots of the first primes.
  const primes = [];
  for (let number = 2; primes.length < 64; number += 1) {
    if (primes.every((prime) => number % prime)) primes.push(number);
  }
  primes.forEach((prime, index) => {
    K[index] = fraction(BigInt(prime), 3n);
    if (index < 8) START[index] = fraction(BigInt(prime), 2n);
  });
}

// In whole numbers: the last digits of a browser's own roots are its own.
function fraction(prime, power) {
  const wanted = prime << (32n * power);
  let [low, high] = [0n, prime << 32n];
  while (low < high) {
    const middle = (low + high + 1n) >> 1n;
    if (middle ** power <= wanted) low = middle;
    else high = middle - 1n;
  }
  return Number(low & 0xffffffffn);
}

const turned = (word, by) => (word >>> by) | (word << (32 - by));

export function sha256(...parts) {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const data = new Uint8Array((((length + 8) >> 6) + 1) << 6);
  let at = 0;
  for (const part of parts) {
    data.set(part, at);
    at += part.length;
  }
  data[length] = 0x80;
  const view = new DataView(data.buffer);
  view.setUint32(data.length - 8, Math.floor(length / 0x20000000));
  view.setUint32(data.length - 4, (length << 3) >>> 0);
  const state = START.slice();
  const w = new Uint32Array(64);
  for (let chunk = 0; chunk < data.length; chunk += 64) {
    for (let i = 0; i < 16; i += 1) w[i] = view.getUint32(chunk + 4 * i);
    for (let i = 16; i < 64; i += 1) {
      const [x, y] = [w[i - 15], w[i - 2]];
      w[i] = w[i - 16] + (turned(x, 7) ^ turned(x, 18) ^ (x >>> 3)) + w[i - 7] + (turned(y, 17) ^ turned(y, 19) ^ (y >>> 10));
    }
    let [a, b, c, d, e, f, g, k] = state;
    for (let i = 0; i < 64; i += 1) {
      const one = (k + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const two = ((turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [k, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, k].forEach((word, index) => {
      state[index] += word;
    });
  }
  const out = new DataView(new ArrayBuffer(32));
  state.forEach((word, index) => out.setUint32(4 * index, word));
  return new Uint8Array(out.buffer);
}

export function hmac(key, ...parts) {
  const block = new Uint8Array(64);
  block.set(key.length > 64 ? sha256(key) : key);
  return sha256(block.map((byte) => byte ^ 0x5c), sha256(block.map((byte) => byte ^ 0x36), ...parts));
}

export const utf8 = (text) => new TextEncoder().encode(text);
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
export const fromBase64 = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
export const leafHash = (entry) => sha256(Uint8Array.of(0), entry);
export const nodeHash = (left, right) => sha256(Uint8Array.of(1), left, right);

// From a leaf up to the root that its proof leads to; each step with what was hashed.
export function climb(leaf, index, size, proof) {
  const steps = [];
  let [hash, at, last] = [leaf, index, size - 1];
  if (!(Number.isSafeInteger(index) && Number.isSafeInteger(size) && index >= 0 && index < size)) {
    return { root: null, steps };
  }
  for (const sibling of proof) {
    if (last === 0) return { root: null, steps };
    const isRight = at % 2 === 1 || at === last;
    const found = isRight ? nodeHash(sibling, hash) : nodeHash(hash, sibling);
    if (isRight) {
      while (at % 2 === 0 && at !== 0) [at, last] = [at / 2, Math.floor(last / 2)];
    }
    steps.push({ sibling, isRight, hash: found });
    [hash, at, last] = [found, Math.floor(at / 2), Math.floor(last / 2)];
  }
  return { root: last === 0 ? hash : null, steps };
}

// A checkpoint's text, and its signatures.
export function parseNote(note) {
  const split = note.lastIndexOf("\n\n");
  const text = note.slice(0, split + 1);
  const [origin, size, root] = text.split("\n");
  if (split < 0 || !/^(0|[1-9][0-9]{0,15})$/.test(size)) throw new Error("this is no checkpoint");
  const signatures = note.slice(split + 2).split("\n").filter(Boolean).map((line) => {
    const [, name, signature] = /^\u2014 (\S+) (\S+)$/.exec(line) ?? [];
    if (!name) throw new Error("this is no signature");
    return { name, bytes: fromBase64(signature) };
  });
  return { text, origin, size: Number(size), root: fromBase64(root), signatures };
}

// "valid", "invalid", or "unchecked" where the browser can't.
export async function checkSignature(note, vkey) {
  const [, name, id, material] = /^([^+]+)\+([0-9a-f]{8})\+(.+)$/.exec(vkey) ?? [];
  if (!name || note.origin !== name) return "invalid";
  const key = fromBase64(material);
  if (key[0] !== 1 || hex(sha256(utf8(`${name}\n`), key)).slice(0, 8) !== id) return "invalid";
  const found = note.signatures.find((one) => one.name === name && hex(one.bytes.slice(0, 4)) === id);
  if (!found) return "invalid";
  try {
    const made = await crypto.subtle.importKey("raw", key.slice(1), { name: "Ed25519" }, false, ["verify"]);
    return (await crypto.subtle.verify("Ed25519", made, found.bytes.slice(4), utf8(note.text))) ? "valid" : "invalid";
  } catch {
    return "unchecked";
  }
}

const same = (one, other) => hex(one) === hex(other);

// What a proof comes to. `faults` is empty where everything holds.
export function checkEntry(proof, note, execution) {
  const faults = proof.fault ? [proof.fault] : [];
  const entry = fromBase64(proof.entry);
  const leaf = leafHash(entry);
  const { root, steps } = climb(leaf, proof.sequence, note.size, proof.hashes.map(fromBase64));
  if (root === null || !same(root, note.root)) faults.push("Its hashes don't lead to the root of the signed checkpoint.");
  let fields = null;
  try {
    fields = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(entry));
  } catch {
    faults.push("It is no JSON.");
  }
  if (fields !== null) {
    if (fields.sequence !== proof.sequence) faults.push(`It says that it is entry ${fields.sequence}.`);
    if (fields.execution !== execution) faults.push("It belongs to another execution.");
  }
  let payload = "missing";
  if (proof.salt !== null && proof.payload !== null) {
    payload = hex(hmac(fromBase64(proof.salt), fromBase64(proof.payload))) === fields?.commitment ? "valid" : "invalid";
    if (payload === "invalid") faults.push("Its payload is not the one that was committed to.");
  }
  return { entry, fields, leaf, steps, root, payload, faults };
}
