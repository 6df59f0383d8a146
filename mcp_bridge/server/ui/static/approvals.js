// What waits for a person, and what was decided.

import { Refused, at, get, post } from "./api.js";
import { block, fact, fill, h, notice, pill } from "./dom.js";
import { exactly, moment, plural, short } from "./format.js";

export function approvalsPage(main) {
  document.title = "Approvals · mcp-bridge";
  const waiting = h("section", { "aria-label": "Waiting" });
  const decided = h("section", { "aria-labelledby": "decided" });
  const cards = new Map();
  let last = "";
  let couldDecide = null;
  // The question that somebody has come for, from the page of its execution.
  let sought = new URLSearchParams(location.search).get("question");

  fill(main, h("h1", {}, "Approvals"), waiting, decided);

  async function look() {
    const { approvals, by, may_decide: mayDecide, open } = await get("/api/approvals");
    const now = JSON.stringify([approvals, mayDecide]);
    if (now === last) return;
    last = now;
    if (mayDecide !== couldDecide) {
      for (const old of cards.values()) old.remove();
      cards.clear();
    }
    couldDecide = mayDecide;
    document.title = `${open ? `(${open}) ` : ""}Approvals · mcp-bridge`;
    const questions = approvals.filter((row) => row.status === "open");
    const answered = approvals.filter((row) => row.status !== "open");
    // A card that is there stays: somebody may be writing in it.
    const shown = new Map(questions.map((row) => [row.id, cards.get(row.id) ?? card(row, by, mayDecide)]));
    for (const [id, old] of cards) {
      if (shown.has(id)) continue;
      if (old.contains(document.activeElement)) main.focus();
      old.remove();
    }
    cards.clear();
    for (const [id, element] of shown) {
      cards.set(id, element);
      if (element.parentNode !== waiting) waiting.append(element);
    }
    waiting.querySelector(".empty")?.remove();
    if (!questions.length) {
      waiting.prepend(h("div", { class: "empty" }, h("h2", {}, "Nothing waits for a person"),
        h("p", {}, "When the policy or a program wants a person's word, the question is here.")));
    }
    if (sought !== null) {
      const card_ = cards.get(sought);
      sought = null;
      card_?.scrollIntoView({ block: "start" });
      card_?.focus();
    }
    fill(decided, answered.length ? [h("h2", { id: "decided" }, "Decided"), table(answered)] : null);
  }

  function card(row, by, mayDecide) {
    const key = row.id.replaceAll(/[^0-9a-z]/gi, "-");
    const comment = h("textarea", { id: `comment-${key}`, rows: "2", maxlength: "1000" });
    const state = h("div", { role: "status" });
    const buttons = [["Approve", true, "primary"], ["Deny", false, "danger"]].map(([words, approved, look_]) =>
      h("button", { class: look_, type: "button", onclick: () => decide(approved) }, words));

    async function decide(approved) {
      for (const button of buttons) button.disabled = true;
      try {
        await post(`/api/approvals/${encodeURIComponent(row.id)}`, { approved, comment: comment.value });
        await look();
        main.querySelector("[data-decided]")?.focus();
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        fill(state, notice("bad", error.message));
        for (const button of buttons) button.disabled = false;
        if (error.status === 409) await look();
      }
    }

    return h("article", { class: "card question", tabindex: "-1", "aria-labelledby": `title-${key}` },
      h("h2", { id: `title-${key}` }, heading(row)),
      h("dl", { class: "facts" },
        row.program ? fact("Program", `${row.program}${row.origin ? ` (the ${row.origin}'s)` : ""}`) : null,
        row.step ? fact("Step", h("code", {}, row.step)) : null,
        fact("Execution", execution(row, h("code", {}, short(row.execution)))),
        isOfPrincipal(row) ? fact("Principal", row.principal) : null,
        fact("Asked", h("time", { datetime: exactly(row.asked) }, moment(row.asked))),
        row.due === null ? null : fact("Waits until", h("time", { datetime: exactly(row.due) }, moment(row.due))),
        row.filled ? fact("Defaults of the tool, left out by the caller", row.filled) : null,
        row.why ? fact("Why a person", row.why) : null),
      block(row.listed === null ? "The program says" : "What is asked", row.message),
      block(row.listed !== null ? "The calls" : row.tool === null ? "With these details" : "With these arguments", row.details),
      block("Left to the tool, with the defaults that it announces", row.announced),
      mayDecide ? [
        h("label", { for: `comment-${key}` }, row.listed === null ? "Comment (kept with the decision, and told to the program)" : "Comment (kept with the decision)"),
        comment,
        h("div", { class: "buttons" }, buttons, h("span", { class: "hint" }, "You decide as ", h("code", {}, by), ".")),
        state,
      ] : h("p", { class: "hint" }, "Only an approver decides this, and ", h("code", {}, by), " is none: ask somebody who may."));
  }

  return { look };
}

function heading(row) {
  if (row.listed !== null) return `A script's ${plural(row.listed, "call")}, listed by its dry run`;
  return row.tool === null ? "A program asks a person" : ["Call of ", h("code", {}, row.tool)];
}

// An approver may decide on what it may not see otherwise.
function execution(row, words) {
  return row.visible ? h("a", { href: at(`/executions/${encodeURIComponent(row.execution)}`) }, words) : words;
}

function isOfPrincipal(row) {
  return row.principal !== "" && row.principal !== "local";
}

function table(rows) {
  return h("table", {},
    h("caption", { class: "hidden" }, `${plural(rows.length, "decision")}, the latest question first`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Question"), h("th", { scope: "col" }, "Decision"),
      h("th", { scope: "col", class: "medium" }, "By"), h("th", { scope: "col", class: "wide" }, "Comment"))),
    h("tbody", {}, rows.map((row, index) => h("tr", {},
      h("th", { scope: "row" },
        h("span", { class: "clip" }, row.listed !== null ? heading(row) : row.tool ?? row.message?.text ?? ""),
        h("span", { class: "sub clip" }, "in ", execution(row, row.program || short(row.execution)), isOfPrincipal(row) ? `, ${row.principal}'s` : null)),
      h("td", { tabindex: index === 0 ? "-1" : null, "data-decided": index === 0 }, pill(row.status),
        row.status === "void" ? h("span", { class: "sub" }, "nobody waits for it any more")
          : row.takes_effect && h("span", { class: "sub" }, "resume it with ", h("code", {}, `mcp-bridge execution resume ${short(row.execution)}`))),
      h("td", { class: "medium" }, row.by, row.decided ? h("span", { class: "sub" }, h("time", { datetime: exactly(row.decided) }, moment(row.decided))) : null),
      h("td", { class: "wide clip" }, row.comment)))));
}
