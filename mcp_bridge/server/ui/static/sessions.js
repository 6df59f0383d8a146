// The list of sessions, the one used last first. The page of a session's last cell has its cells.

import { at, get } from "./api.js";
import { fill, h, keepingFocus, pill } from "./dom.js";
import { exactly, moment } from "./format.js";

export function sessionsPage(main) {
  document.title = "Sessions · mcp-bridge";
  const results = h("section", { "aria-label": "Results" });
  let last = "";
  fill(main, h("h1", {}, "Sessions"), results);

  async function look() {
    const { sessions } = await get("/api/sessions");
    const now = JSON.stringify(sessions);
    if (now === last) return;
    last = now;
    keepingFocus(() => fill(results, sessions.length ? table(sessions) : nothing()));
  }

  return { look };
}

function nothing() {
  return h("div", { class: "empty" },
    h("h2", {}, "There is no session"),
    h("p", {}, "A script that an agent runs in a session, whose names later ones have, makes one. To begin: ",
      h("code", {}, "mcp-bridge run --session NAME FILE")));
}

function table(rows) {
  return h("table", { class: "list" },
    h("caption", { class: "hidden" }, "Sessions, the one used last first"),
    h("thead", {}, h("tr", {},
      h("th", { scope: "col" }, "Session"), h("th", { scope: "col" }, "State"), h("th", { scope: "col", class: "number" }, "Cells"),
      h("th", { scope: "col", class: "medium" }, "Last used"), h("th", { scope: "col", class: "wide" }, "Forked from"))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      h("th", { scope: "row" },
        h("a", { href: cell(row.execution), "data-key": row.execution }, row.name || "(erased)"),
        h("span", { class: "sub" }, row.language ? h("span", { class: "tag" }, row.language) : null,
          row.principal === "local" ? null : h("span", { class: "tag" }, row.principal),
          h("span", { class: "small-only" }, ` ${moment(row.changed)}`))),
      h("td", {}, pill(row.state)),
      h("td", { class: "number" }, row.cells ? row.cells.toLocaleString() : "?"),
      h("td", { class: "medium" }, h("time", { datetime: exactly(row.changed) }, moment(row.changed))),
      h("td", { class: "wide" }, row.origin
        ? h("a", { href: cell(row.origin.execution) }, row.origin.name ? `${row.origin.name}@${row.origin.cell}` : "an erased cell") : null)))));
}

function cell(execution) {
  return at(`/executions/${encodeURIComponent(execution)}`);
}
