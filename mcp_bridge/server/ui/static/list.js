// The list of executions: search, filters, the latest first.

import { at, get } from "./api.js";
import { fill, h, keepingFocus, pill } from "./dom.js";
import { duration, exactly, moment, plural, short } from "./format.js";

const STATUSES = ["running", "suspended", "interrupted", "success", "failed", "cancelled", "erased"];
const AGES = { "": "any time", 3600: "the last hour", 86400: "the last day", 604800: "the last week", 2592000: "the last 30 days" };

function poolLine(pool) {
  return h("span", { class: "sub" },
    `Containers ready: ${pool.ready} of at most ${pool.ceiling}. `,
    `Used at once: ${pool.hits}, after a wait: ${pool.waits}, none ready: ${pool.misses}, lost: ${pool.lost}. `,
    `Age when used: ${duration(pool.age)}.`);
}

export function listPage(main, refresh) {
  document.title = "Executions · mcp-bridge";
  const asked = new URLSearchParams(location.search);
  const search = h("input", { type: "search", name: "query", id: "query", maxlength: "200", placeholder: "id, program, tool, session…", value: asked.get("query") });
  const status = choice("status", "Status", { "": "any status", ...Object.fromEntries(STATUSES.map((name) => [name, name])) }, asked);
  const kind = choice("kind", "Kind", { "": "scripts and programs", script: "scripts", program: "programs" }, asked);
  const age = choice("age", "Started", AGES, asked);
  const results = h("section", { "aria-label": "Results" });
  const count = h("p", { class: "hint", role: "status" });
  const pools = h("p", { class: "hint" });
  let wantedPages = 1;
  let pages = [];
  let found = "";
  let last = "";
  let timer = 0;

  const form = h("form", { class: "filters", role: "search", onsubmit: (event) => { event.preventDefault(); changed(); } },
    h("div", { class: "field grow" }, h("label", { for: "query" }, "Search"), search),
    status.field, kind.field, age.field);
  form.addEventListener("change", changed);
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(changed, 250);
  });
  fill(main, h("h1", {}, "Executions"), form, count, results, pools);

  function filters() {
    const found = new URLSearchParams();
    for (const [name, value] of [["query", search.value.trim()], ["status", status.value()], ["kind", kind.value()], ["age", age.value()]]) {
      if (value) found.set(name, value);
    }
    return found;
  }

  function changed() {
    wantedPages = 1;
    const wanted = filters();
    history.replaceState(null, "", at(wanted.size ? `/?${wanted}` : "/"));
    refresh();
  }

  // What was found stays, unless something has changed: to look further back takes as long as to look there.
  async function look(hasChanged) {
    const wanted = filters();
    if (hasChanged || String(wanted) !== found) pages = [];
    found = String(wanted);
    const query = new URLSearchParams(wanted);
    query.delete("age");
    if (wanted.has("age")) query.set("since", String(Math.floor(Date.now() / 1000) - Number(wanted.get("age"))));
    while (pages.length < wantedPages && pages.at(-1)?.before !== null) {
      if (pages.length) query.set("before", pages.at(-1).before);
      pages.push(await get(`/api/executions?${query}`));
      if (String(filters()) !== found) return;
    }
    const rows = pages.flatMap((page) => page.executions);
    const { before } = pages.at(-1);
    fill(pools, ...(await get("/api/pools")).pools.map(poolLine));
    const now = JSON.stringify([rows, pages.map((page) => page.searched), wanted.size]);
    if (now === last) return;
    last = now;
    const searched = pages.reduce((sum, page) => sum + page.searched, 0);
    keepingFocus(() => show(rows, before, searched, wanted.size > 0));
  }

  function show(rows, before, searched, filtered) {
    fill(count, rows.length || before ? `${plural(rows.length, "execution")}${before ? ` of the latest ${searched.toLocaleString()}` : ""}` : "");
    const more = before && h("button", { "data-key": "more", onclick: () => { wantedPages += 1; refresh(); } }, rows.length ? "Show more" : "Search further back");
    fill(results, rows.length ? table(rows) : before ? null : nothing(filtered), more);
  }

  return { look };
}

function choice(name, label, options, asked) {
  const select = h("select", { name, id: name },
    Object.entries(options).map(([value, text]) => h("option", { value, selected: (asked.get(name) ?? "") === value }, text)));
  return { field: h("div", { class: "field" }, h("label", { for: name }, label), select), value: () => select.value };
}

function nothing(filtered) {
  if (filtered) return h("div", { class: "empty" }, h("h2", {}, "No execution is like that"), h("p", {}, "Take a word or a filter away."));
  return h("div", { class: "empty" },
    h("h2", {}, "Nothing has been executed yet"),
    h("p", {}, "What an agent runs with ", h("code", {}, "run_python"), ", and every program, is listed here as it happens. To begin: ",
      h("code", {}, "mcp-bridge program run FILE")));
}

function table(rows) {
  return h("table", { class: "list" },
    h("caption", { class: "hidden" }, "Executions, the latest first"),
    h("thead", {}, h("tr", {},
      h("th", { scope: "col" }, "Execution"), h("th", { scope: "col" }, "Status"),
      h("th", { scope: "col", class: "medium" }, "Started"), h("th", { scope: "col", class: "medium number" }, "Took"),
      h("th", { scope: "col", class: "wide number", title: "What it asked of tools, of models and of the bridge, waits included" }, "Requests"), h("th", { scope: "col", class: "wide" }, "Remarks"))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      h("th", { scope: "row" },
        h("a", { href: at(`/executions/${encodeURIComponent(row.id)}`), "data-key": row.id }, row.name || "unnamed"),
        h("span", { class: "sub" }, h("span", { class: "tag" }, row.kind), h("code", {}, short(row.id)), " ", row.principal === "local" ? null : h("span", { class: "tag" }, row.principal),
          h("span", { class: "small-only" }, ` ${moment(row.started)}${row.seconds === null ? "" : `, ${duration(row.seconds)}`}`))),
      h("td", {}, pill(row.status), row.waiting.length ? h("span", { class: "sub" }, waits(row.waiting)) : null),
      h("td", { class: "medium" }, h("time", { datetime: exactly(row.started) }, moment(row.started))),
      h("td", { class: "medium number" }, duration(row.seconds)),
      h("td", { class: "wide number" }, row.requests.toLocaleString()),
      h("td", { class: "wide" }, remarks(row))))));
}

function waits(waiting) {
  if (waiting.every((row) => row.decided)) return "decided: to be resumed";
  const [first] = waiting.filter((row) => !row.decided);
  const more = waiting.length > 1 ? ` and ${waiting.length - 1} more` : "";
  const what = { approval: "a person", in_doubt: "a person's word on a doubt", wait: "its time", event: `the event ${first.name}`, program: `the program ${first.name}` }[first.kind] ?? first.name;
  return `for ${what}${more}`;
}

function remarks(row) {
  const found = [];
  if (row.violations) found.push(h("span", { class: "remark bad" }, plural(row.violations, "violation")));
  if (row.denials) found.push(h("span", { class: "remark bad" }, plural(row.denials, "denial")));
  return found;
}
