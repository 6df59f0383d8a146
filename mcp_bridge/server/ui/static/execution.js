// One execution: what it waits for, its timeline with its proofs, the way through its program, and what was run.

import { Refused, at, get, getText } from "./api.js";
import { block, fact, fill, h, keepingFocus, notice, pill, rest } from "./dom.js";
import { cost, duration, exactly, moment, plural, short } from "./format.js";
import { Proofs } from "./proofs.js";

const KINDS = {
  start: "Start", call: "Call", model: "Model", request: "Bridge", outcome: "Outcome", denial: "Denied", transition: "Event", suspension: "Suspended",
  resume: "Resumed", decision: "Decision", event: "Event", violation: "Violation", erasure: "Erased", key: "Key", clock: "Clock", loss: "Loss", end: "End",
};

function label(row) {
  // Who has settled a script lets it go on: recorded as a suspension is, but it waits for nobody.
  return row.kind === "suspension" && row.status === "interrupted" ? "May continue" : KINDS[row.kind] ?? row.kind;
}

function said(message) {
  return h("span", { class: "lines", tabindex: "0" }, message.text);
}

const PROVEN_AT_ONCE = 200;

export function executionPage(main, id, refresh) {
  const path = `/api/executions/${encodeURIComponent(id)}`;
  const head = h("section", { class: "head" });
  const summary = h("div", {});
  const body = h("div", { class: "timeline" });
  const program = h("section", { "aria-labelledby": "program" });
  const source = h("section", { "aria-labelledby": "source" });
  const opened = new Set();
  const wholes = new Map();
  const unfetched = new Map();
  const proofs = new Proofs(id, () => showRows());
  let rows = { rows: [], total: 0, began: null, ended: null };
  let wanted = PROVEN_AT_ONCE;
  let last = {};
  let begun = false;
  document.title = `${short(id)} · mcp-bridge`;

  function begin() {
    if (begun) return;
    begun = true;
    fill(main,
      h("p", { class: "crumbs" }, h("a", { href: at("/") }, "Executions"), " / ", h("code", {}, short(id))),
      head,
      h("section", { "aria-labelledby": "timeline" },
        h("div", { class: "titled" }, h("h2", { id: "timeline" }, "Timeline"),
          h("button", { onclick: () => { proofs.forget(); check(); } }, "Check the proofs again")),
        summary, body),
      program, source);
  }

  async function look() {
    const facts = await get(path);
    begin();
    const pages = [];
    do {
      pages.push(await get(`${path}/entries?offset=${pages.length * PROVEN_AT_ONCE}&limit=${PROVEN_AT_ONCE}`));
    } while (pages.length * PROVEN_AT_ONCE < Math.min(wanted, pages[0].total));
    rows = { ...pages.at(-1), rows: pages.flatMap((page) => page.rows) };
    if (changed("status", facts.status) && facts.status === "erased") {
      // Nothing of it stays on a page that was open.
      wholes.clear();
      proofs.forget();
    }
    if (changed("facts", facts)) {
      document.title = `${facts.name || "unnamed"} ${short(id)} · mcp-bridge`;
      keepingFocus(() => showHead(facts));
      await showProgram(facts);
    }
    if (changed("rows", rows)) showRows();
    check();
  }

  function changed(name, value) {
    const now = JSON.stringify(value);
    if (last[name] === now) return false;
    last[name] = now;
    return true;
  }

  function check() {
    proofs.check(rows.rows.flatMap((row) => row.sequences)).catch((error) => console.warn(error.message));
  }

  // --- what it is, and what it waits for ---

  function showHead(facts) {
    const { totals } = facts;
    fill(head,
      h("h1", {}, facts.name || "unnamed", " ", pill(facts.status)),
      h("dl", { class: "facts" },
        fact("Execution", h("code", { class: "break" }, facts.id)),
        facts.principal === "local" ? null : fact("Principal", facts.principal),
        fact("Kind", facts.kind === "program" ? `the ${facts.origin}'s program` : facts.kind),
        facts.program_hash ? fact("Program's hash", h("code", { class: "break" }, facts.program_hash)) : null,
        fact("Started", h("time", { datetime: exactly(facts.started) }, moment(facts.started))),
        fact("Took", duration(facts.seconds)),
        fact("Calls", totals.calls ? `${totals.calls.toLocaleString()}${totals.failed ? `, ${totals.failed} failed` : ""}` : "none"),
        totals.models ? fact("Model", `${plural(totals.models, "question")}, ${plural(totals.tokens, "token")}${totals.cost_usd ? `, ${cost(totals.cost_usd)}` : ""}`) : null,
        totals.denials ? fact("Denials", h("span", { class: "remark bad" }, totals.denials)) : null,
        totals.violations ? fact("Violations", h("span", { class: "remark bad" }, totals.violations)) : null,
        totals.waits ? fact("Waits", totals.waits) : null,
        facts.session ? fact("Session", [h("code", { class: "break" }, facts.session.name), `, cell ${facts.session.cell}`]) : null,
        facts.dry_run ? fact("Run dry", `calls that write were listed, and not made${facts.session ? "; in a copy of the session, which is without it" : ""}`) : null,
        facts.key ? fact("Idempotency key", h("code", { class: "break" }, facts.key)) : null),
      facts.session ? cells(facts.session) : null,
      facts.waiting.map((row) => waits(row)),
      facts.unresolved.map((row) => notice("warn", "The step ", h("code", {}, row.step), " was in doubt, and still is: ", h("code", {}, row.tool), " may have been called.")),
      standsStill(facts),
      facts.error ? notice("bad", h("strong", {}, facts.error.code || "error", ": "), said(facts.error.message), rest(facts.error.message)) : null,
      facts.results.map(([label, value]) => block(label, value)));
  }

  // What nobody works on, and what can be done about it.
  function standsStill(facts) {
    const cancel = [h("code", {}, `mcp-bridge execution cancel ${short(id)}`), " cancels it."];
    if (facts.left_behind) return notice("warn", "It can't be resumed, since its session has ended, or has continued without it: ", cancel);
    if (facts.status !== "interrupted") return null;
    if (facts.kind === "script" && facts.key === null) {
      return notice("warn", "Nothing of it is under way now. It has no idempotency key, so it can't be resumed: ", cancel);
    }
    return notice("warn", "Nothing of it is under way now. Resume it with ", h("code", {}, `mcp-bridge execution resume ${short(id)}`), ": nothing is done twice.");
  }

  // The cells of its session before this one, and where the session was rebuilt.
  function cells(session) {
    return [
      session.rebuilt ? notice("warn", rebuilt(session.rebuilt)) : null,
      session.interrupted ? notice("warn", "It was interrupted when its time was up. The session can't be rebuilt past it.") : null,
      session.before.length ? h("details", {},
        h("summary", {}, session.before.length < session.cell - 1 ? `The last ${session.before.length} of the ` : "",
          plural(Math.max(session.before.length, session.cell - 1), "cell"), " before this one"),
        h("ol", { class: "cells" }, session.before.map((cell) => h("li", { value: cell.cell ?? 0 },
          h("a", { href: at(`/executions/${encodeURIComponent(cell.id)}`) }, short(cell.id)), " ", pill(cell.status),
          cell.rebuilt ? h("span", { class: "remark" }, ` ${rebuilt(cell.rebuilt)}`) : null,
          cell.left === "nothing" ? h("span", { class: "remark" }, " It has left nothing.") : null,
          block("Code", cell.source), block("What it gave", cell.output))))) : null,
    ];
  }

  function rebuilt(count) {
    return `Before it the session was rebuilt: ${plural(count, "cell")} ran again from the record.`;
  }

  function waits(row) {
    const step = h("code", {}, row.step);
    if (row.decided) {
      return notice("warn", "The step ", step, ` was ${row.decided} by a person. It goes on when it is resumed: `,
        h("code", {}, `mcp-bridge execution resume ${short(id)}`), ".");
    }
    if (row.kind === "approval") {
      return notice("warn", "The step ", step, " waits for a person: ", h("a", { href: at(`/approvals?question=${encodeURIComponent(`${id}.${row.effect}`)}`) }, "decide"), row.due ? ` until ${moment(row.due)}.` : ".");
    }
    if (row.kind === "in_doubt") {
      return notice("warn", row.step === row.effect ? "The call " : "The step ", step, " is in doubt: ", h("code", {}, row.tool), ` may have been called, ${moment(row.since)}. A person has to say what happened: `,
        h("code", { class: "break" }, `mcp-bridge execution settle ${short(id)} ${row.effect}`));
    }
    if (row.kind === "wait") return notice("warn", "The step ", step, ` waits until ${moment(row.due)}.`);
    if (row.kind === "program") {
      return notice("warn", "The call ", step, " waits for the program ",
        h("a", { href: at(`/executions/${encodeURIComponent(row.execution)}`) }, row.name),
        !row.is_over ? "." : [", which waits no more. It goes on when it is resumed: ", h("code", {}, `mcp-bridge execution resume ${short(id)}`), "."]);
    }
    const what = row.kind === "event" ? " waits for the event " : " waits for the outcome of ";
    return notice("warn", "The step ", step, what, h("code", {}, row.name), row.due ? ` until ${moment(row.due)}` : "", ". Resume it with ",
      h("code", {}, `mcp-bridge execution resume ${short(id)} --payload JSON`), ".");
  }

  // --- the timeline ---

  function showRows() {
    keepingFocus(() => {
      fill(summary, rows.rows.length ? proofs.summary(rows.rows.length === rows.total, rows.entries) : null);
      if (!rows.rows.length) {
        fill(body, h("div", { class: "empty" }, h("h3", {}, "Nothing is recorded of it yet")));
        return;
      }
      const more = rows.total - rows.rows.length;
      fill(body, h("table", { class: "rows" },
        h("caption", { class: "hidden" }, "What happened, in the order in which it began"),
        h("thead", {}, h("tr", {},
          h("th", { scope: "col", class: "wide number" }, "After"), h("th", { scope: "col", class: "most" }, "What"),
          h("th", { scope: "col" }, "Status"), h("th", { scope: "col", class: "medium" }, "Took"), h("th", { scope: "col" }, "Proof"))),
        h("tbody", {}, rows.rows.map((row) => tableRow(row)))),
        more > 0 ? h("button", { "data-key": "more", onclick: () => { wanted += PROVEN_AT_ONCE; refresh(); } }, `Show more of ${more.toLocaleString()}`) : null);
    });
  }

  function tableRow(row) {
    const key = `row-${row.sequences[0]}`;
    const isOpen = opened.has(key);
    const toggle = () => {
      if (!opened.delete(key)) opened.add(key);
      showRows();
    };
    const line = h("tr", { class: `row ${row.kind} ${isOpen ? "is-open" : ""}` },
      h("td", { class: "wide number" }, row.time > rows.began ? duration(row.time - rows.began) : "0"),
      h("th", { scope: "row" },
        h("button", { class: "toggle", "data-key": key, "aria-expanded": String(isOpen), "aria-controls": isOpen ? `${key}-more` : null, onclick: toggle },
          h("span", { class: "arrow", "aria-hidden": "true" }, isOpen ? "▾" : "▸"),
          h("span", { class: "kind" }, label(row)), " ", h("span", { class: "what" }, row.what)),
        row.step ? h("span", { class: "sub" }, "step ", h("code", {}, row.step)) : null),
      h("td", {}, row.damaged ? pill("damaged") : row.erased ? pill("erased") : pill(row.status === "open" ? "under way" : row.status)),
      h("td", { class: "medium" }, row.seconds === null ? null : h("span", { class: "took" }, duration(row.seconds), bar(row))),
      h("td", {}, proofs.mark(row.sequences)));
    return isOpen ? [line, h("tr", { class: "more", id: `${key}-more` }, h("td", { colspan: "5" }, details(row)))] : [line];
  }

  function bar(row) {
    const whole = rows.ended - rows.began || 1;
    const shown = h("span", { class: "bar", "aria-hidden": "true" }, h("span", {}));
    // Through the object model: the page's policy lets no style in as markup.
    shown.firstChild.style.left = `${(100 * (row.time - rows.began)) / whole}%`;
    shown.firstChild.style.width = `${Math.max(1, (100 * row.seconds) / whole)}%`;
    return shown;
  }

  function details(row) {
    const found = wholes.get(String(row.sequences));
    const whole = found ?? row;
    const [given, value] = { call: ["Arguments", "Result"], request: ["Arguments", "Answer"], model: ["Question", "Answer"], decision: ["Question", "Decision"] }[row.kind] ?? ["Details", "Details"];
    const all = () => (found ? null : [
      h("button", { class: "link", "data-key": `all-${row.sequences[0]}`, onclick: () => fetchWhole(row) }, "Show all of it"),
      unfetched.has(String(row.sequences)) ? notice("bad", unfetched.get(String(row.sequences))) : null,
    ]);
    return h("div", { class: "details" },
      row.damaged ? notice("bad", row.damaged) : null,
      row.erased ? notice("plain", h("code", {}, "[REDACTED_TOMBSTONE]"), " What it was given and what it gave are erased. That it happened stays proven.") : null,
      whole.error ? notice("bad", h("strong", {}, whole.error.code || "error", ": "), said(whole.error.message), rest(whole.error.message, all())) : null,
      block(given, whole.given, all()),
      block(value, whole.value, all()),
      row.usage ? h("p", { class: "hint" }, `${plural(row.usage.total_tokens ?? 0, "token")} (${row.usage.prompt_tokens ?? 0} in, ${row.usage.completion_tokens ?? 0} out)`,
        row.usage.cost_usd ? `, ${cost(row.usage.cost_usd)}` : "") : null,
      h("p", { class: "hint" }, h("time", { datetime: exactly(row.time) }, exactly(row.time))),
      row.sequences.map((sequence) => proofs.panel(sequence)));
  }

  async function fetchWhole(row) {
    const key = String(row.sequences);
    unfetched.delete(key);
    try {
      wholes.set(key, await get(`${path}/entries/${row.sequences[0]}`));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      unfetched.set(key, error.message);
    }
    showRows();
  }

  // --- the program, and the way through it ---

  async function showProgram(facts) {
    const title = facts.kind === "script" ? (facts.language ? `Code (${facts.language})` : "Code") : "The program's text";
    if (facts.source === null) {
      fill(source, h("h2", { id: "source" }, title), notice("plain", h("code", {}, "[REDACTED_TOMBSTONE]"), " It is erased."));
    } else {
      fill(source, h("h2", { id: "source" }, title),
        facts.kind === "script" ? block("As it was run", facts.source)
          : h("details", {}, h("summary", {}, "Show it"), block("As it was run", facts.source)));
    }
    if (facts.kind !== "program" || facts.source === null) {
      fill(program);
      return;
    }
    const picture = h("div", { class: "picture", tabindex: "0", role: "group", "aria-label": "The program's machine" });
    const way = facts.steps.map((step) => `${step.id} (${step.status})`).join(", ");
    fill(program, h("h2", { id: "program" }, "The way through the program"), picture, steps(facts));
    try {
      const svg = await getText(`${path}/graph`);
      // As an image it can run nothing and fetch nothing.
      fill(picture, h("img", { src: `data:image/svg+xml,${encodeURIComponent(svg)}`, alt: `The program's steps. The way taken: ${way || "none yet"}` }));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      fill(picture, notice("plain", error.message));
    }
  }

  function steps(facts) {
    if (!facts.steps.length) return h("p", { class: "hint" }, "No step has ended yet.");
    return h("table", { class: "steps" },
      h("caption", { class: "hidden" }, "Steps, in the order in which they ended"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Step"), h("th", { scope: "col" }, "Status"),
        h("th", { scope: "col", class: "wide number" }, "Retries"), h("th", { scope: "col" }, "Output or error"))),
      h("tbody", {},
        facts.steps_left_out ? h("tr", {}, h("td", { colspan: "4" }, `${plural(facts.steps_left_out, "earlier step")} left out`)) : null,
        facts.steps.map((step) => h("tr", {},
          h("th", { scope: "row" }, h("code", { class: "break" }, step.id)), h("td", {}, pill(step.status)),
          h("td", { class: "wide number" }, step.retries || ""),
          h("td", {}, h("span", { class: "clip" }, step.error ? [step.code ? h("strong", {}, step.code, ": ") : null, step.error.text] : step.output?.text),
            rest(step.error ?? step.output))))));
  }

  return { look };
}
