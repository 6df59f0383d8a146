// The proofs of a page's entries: fetched, checked here, and shown hash by hash.

import { get } from "./api.js";
import { fill, h, notice } from "./dom.js";
import { plural } from "./format.js";
import { checkEntry, checkSignature, fromBase64, hex, parseNote } from "./verify.js";

const AT_ONCE = 200;

// Of one execution. Checks each entry once, and again only when it is told to.
export class Proofs {
  constructor(execution, changed) {
    this.execution = execution;
    this.changed = changed;
    this.found = new Map();
    this.signature = null;
    this.note = null;
    this.vkey = "";
  }

  forget() {
    this.found.clear();
    this.signature = null;
  }

  // Each entry names the one before it of its execution: where that is another one than is shown, something is missing.
  gap() {
    let before = null;
    for (const sequence of [...this.found.keys()].sort((one, other) => one - other)) {
      const found = this.found.get(sequence);
      if (!found?.fields) return null;
      if (found.fields.previous !== (before === null ? null : hex(before.leaf))) return sequence;
      before = found;
    }
    return null;
  }

  async check(sequences) {
    const missing = sequences.filter((sequence) => !this.found.has(sequence));
    for (let at = 0; at < missing.length; at += AT_ONCE) {
      const some = missing.slice(at, at + AT_ONCE);
      for (const sequence of some) this.found.set(sequence, null);
      await this.#checkSome(some);
      this.changed();
    }
  }

  async #checkSome(sequences) {
    const query = sequences.map((sequence) => `sequence=${sequence}`).join("&");
    try {
      const answer = await get(`/api/executions/${encodeURIComponent(this.execution)}/proofs?${query}`);
      const note = parseNote(answer.checkpoint);
      const signature = await checkSignature(note, answer.vkey);
      if (this.signature !== "invalid") this.signature = signature;
      this.note = note;
      this.vkey = answer.vkey;
      const proofs = new Map(answer.proofs.map((proof) => [proof.sequence, proof]));
      for (const sequence of sequences) {
        const proof = proofs.get(sequence);
        const missing = { faults: ["The server has no such entry."], proof: null, note };
        this.found.set(sequence, proof ? { ...checkEntry(proof, note, this.execution), proof, note, signature } : missing);
      }
    } catch (error) {
      for (const sequence of sequences) this.found.set(sequence, { faults: [`The proof can't be had: ${error.message}`], proof: null });
    }
  }

  // "good", "warn" (the signature was not checked), "bad", or "busy" of some entries.
  verdict(sequences) {
    const found = sequences.map((sequence) => this.found.get(sequence));
    if (found.some((one) => one?.faults.length || one?.signature === "invalid")) return "bad";
    if (!found.every(Boolean)) return "busy";
    return found.every((one) => one.signature === "valid") ? "good" : "warn";
  }

  mark(sequences) {
    const verdict = this.verdict(sequences);
    const words = { good: "✓ proven", warn: "! signature not checked", bad: "✗ does not verify", busy: "checking…" }[verdict];
    return h("span", { class: `proof ${verdict}` }, words);
  }

  // With `whole`, all entries of the execution are among those that were checked; it has `total` of them.
  summary(whole, total) {
    const all = [...this.found.values()];
    const done = all.filter(Boolean);
    const bad = done.filter((one) => one.faults.length);
    if (!done.length) return h("p", { class: "hint" }, "The proofs are being checked in this browser…");
    if (bad.length || this.signature === "invalid") {
      return notice("bad",
        h("strong", {}, this.signature === "invalid" ? "The log's checkpoint does not verify. " : `${plural(bad.length, "entry does", "entries do")} not verify. `),
        "What is recorded here has been changed since it was signed, or something is missing. ",
        h("code", {}, "mcp-bridge audit verify"), " tells what.");
    }
    const gap = whole ? this.gap() : null;
    if (gap !== null) return notice("bad", h("strong", {}, "Something is missing. "), `What entry ${gap} names as the one before it is not there.`);
    if (this.signature !== "valid") {
      return notice("warn",
        h("strong", {}, "The checkpoint's signature was not checked: this browser can't. "),
        `${plural(done.length, "entry leads", "entries lead")} to the checkpoint of a log of ${plural(this.note.size, "entry", "entries")}, but who wrote that is not known here: run `,
        h("code", {}, "mcp-bridge audit verify"), ".");
    }
    return h("p", { class: "proven" },
      h("span", { class: "proof good" }, `✓ ${done.length < total ? `${done.length.toLocaleString()} of ` : ""}${plural(total, "entry", "entries")} proven`),
      done.length < total && !whole ? " (the others are checked when they are shown)" : null,
      ` in this browser, against the checkpoint of a log of ${plural(this.note.size, "entry", "entries")}. `,
      "Its signature is right: ",
      h("code", { class: "break" }, this.vkey), ". Hold that key against the one that you keep elsewhere.");
  }

  // One entry: its bytes, and the way up to the root.
  panel(sequence) {
    const found = this.found.get(sequence);
    if (!found) return h("p", { class: "hint" }, `Entry ${sequence}: checking…`);
    const verdict = this.verdict([sequence]);
    const words = {
      good: `✓ Entry ${sequence} is in the log`,
      warn: `! Entry ${sequence} is in the tree of a checkpoint whose signature was not checked`,
      bad: `✗ Entry ${sequence} does not verify`,
    }[verdict];
    const head = h("p", { class: `verdict ${verdict}` }, h("strong", {}, words));
    if (!found.proof) return h("div", { class: "entry" }, head, found.faults.map((fault) => h("p", { class: "fault" }, fault)));
    const { note } = found;
    const rightRoot = found.root !== null && hex(found.root) === hex(note.root);
    return h("div", { class: "entry" },
      head,
      found.faults.map((fault) => h("p", { class: "fault" }, fault)),
      h("ul", { class: "checks" },
        check(rightRoot, `Its ${plural(found.steps.length, "hash", "hashes")} lead to the root of the checkpoint of ${plural(note.size, "entry", "entries")}.`),
        found.signature === "unchecked"
          ? h("li", { class: "warn" }, h("span", { "aria-hidden": "true" }, "!"), " The checkpoint's signature was not checked: this browser can't. Run ", h("code", {}, "mcp-bridge audit verify"), ".")
          : check(found.signature === "valid", "The checkpoint is signed by the log's key."),
        check({ valid: true, invalid: false }[found.payload],
          found.payload === "missing" ? "Its payload is erased. The entry, and what was proven of it, stay." : "Its payload is the one that was committed to.")),
      h("details", {},
        h("summary", {}, "Hash by hash"),
        h("ol", { class: "hashes" },
          h("li", {}, "The entry, as it was recorded", h("pre", { tabindex: "0" }, text(found.entry))),
          h("li", {}, "Its leaf: SHA-256(00 ‖ entry)", hash(found.leaf)),
          found.steps.map((step) => h("li", {},
            step.isRight ? "SHA-256(01 ‖ left ‖ it), with on its left" : "SHA-256(01 ‖ it ‖ right), with on its right",
            hash(step.sibling, "given"), "gives", hash(step.hash))),
          h("li", {}, "The root in the checkpoint", hash(note.root, rightRoot ? "good" : "bad"),
            rightRoot ? "✓ the same" : "✗ another one")),
        h("figure", { class: "value" }, h("figcaption", {}, "The checkpoint"), h("pre", { tabindex: "0" }, found.note.text)),
        found.proof.payload === null ? null
          : h("figure", { class: "value" }, h("figcaption", {}, "The payload, as it was committed to"), h("pre", { tabindex: "0" }, text(fromBase64(found.proof.payload))))));
  }
}

function check(result, words) {
  const [sign, tone] = result === undefined ? ["·", "plain"] : result ? ["✓", "good"] : ["✗", "bad"];
  return h("li", { class: tone }, h("span", { "aria-hidden": "true" }, sign), " ", result === false ? `Not so: ${words}` : words);
}

function hash(bytes, tone = "") {
  return h("code", { class: `hash ${tone}` }, hex(bytes));
}

function text(bytes) {
  return new TextDecoder().decode(bytes);
}
