// Which page this is, who may see it, and when it looks again.

import { IS_SHARED, Refused, at, get, hasToken, here, keepToken, live, takeToken } from "./api.js";
import { approvalsPage } from "./approvals.js";
import { fill, h, notice } from "./dom.js";
import { executionPage } from "./execution.js";
import { listPage } from "./list.js";
import { sessionsPage } from "./sessions.js";

const main = document.getElementById("main");

function page() {
  const [, first, id] = here().split("/");
  if (first === "approvals") return { name: "approvals", make: () => approvalsPage(main) };
  if (first === "sessions") return { name: "sessions", make: () => sessionsPage(main) };
  if (first === "executions") return { name: "execution", make: (refresh) => executionPage(main, decodeURIComponent(id), refresh) };
  return { name: "list", make: (refresh) => listPage(main, refresh) };
}

function askForToken(wasWrong) {
  document.title = "Token · mcp-bridge";
  const field = h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const save = (event) => {
    event.preventDefault();
    const given = field.value.trim();
    keepToken(/#token=([\w.~+/=-]+)$/.exec(given)?.[1] ?? given);
    location.reload();
  };
  main.removeAttribute("aria-busy");
  fill(main,
    h("form", { class: "card narrow", onsubmit: save },
      h("h1", {}, "Token needed"),
      IS_SHARED
        ? h("p", {}, "Put the token here that you have as a principal of this bridge. It stays in this tab, and shows what that principal may see.")
        : h("p", {}, "This viewer shows everything that is recorded, and approves. Open the address that ", h("code", {}, "mcp-bridge ui"),
          " has printed, or put its token here. Each tab is let in by itself."),
      wasWrong ? notice("bad", IS_SHARED ? "The token that this tab has isn't good, or not any more." : "The token that this tab has is not that of the viewer that runs now.") : null,
      h("label", { for: "token" }, IS_SHARED ? "Token" : "Token or whole address"),
      field,
      h("button", { class: "primary" }, "Open the viewer")));
  field.focus();
}

async function badge() {
  const { open } = await get("/api/approvals?count");
  const shown = document.getElementById("open-approvals");
  shown.hidden = open === 0;
  fill(shown, String(open), h("span", { class: "hidden" }, " waiting"));
}

async function start() {
  takeToken();
  const { name, make } = page();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
  }
  const shown = make(() => look(false));
  let busy = false;
  let again = false;
  let isOld = true;

  // One look at a time; what changes meanwhile is looked at after it. Something may be wanted that wasn't looked at yet,
  // without that anything has changed.
  async function look(hasChanged = true) {
    again = true;
    isOld ||= hasChanged;
    if (busy) return;
    busy = true;
    while (again) {
      const all = isOld;
      again = isOld = false;
      try {
        await Promise.all([shown.look(all), badge()]);
        document.getElementById("trouble")?.remove();
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        if (error.status === 401) {
          askForToken(hasToken());
          busy = true;
          return;
        }
        isOld = true;
        trouble(error);
      }
      main.removeAttribute("aria-busy");
    }
    busy = false;
  }

  // What was said to be of today isn't on the next day. A comment that somebody is writing is worth more.
  const day = new Date().toDateString();
  function lookToday() {
    const isWritten = [...document.querySelectorAll("textarea")].some((field) => field.value !== "");
    if (new Date().toDateString() === day || isWritten) return look();
    return location.reload();
  }

  const state = document.getElementById("live");
  await look();
  if (busy) return;
  live(lookToday, (works) => {
    state.className = works ? "live on" : "live off";
    fill(state, works ? "Live" : "Not connected");
  });
}

function trouble(error) {
  document.getElementById("trouble")?.remove();
  const shown = notice("bad", h("strong", {}, error.status === 404 ? "Not found. " : "That didn't work. "), error.message,
    error.status === 404 ? h("p", {}, h("a", { href: at("/") }, "All executions")) : null);
  shown.id = "trouble";
  main.prepend(shown);
}

start();
