// Elements from data. Everything that comes from elsewhere becomes text, and nothing but text: there is no way here to
// markup, to a style or to a script.

import { plural } from "./format.js";

// Controls, and signs that can't be seen or turn text around: what is shown is what is there.
// Half of a pair (Cs) is none, and what a font may leave out (default-ignorable) would hide words between words.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u1680\u2000-\u200a\u2028-\u202f\u205f\u2800\u3000\ufff9-\ufffb\u{1d159}\p{Default_Ignorable_Code_Point}\p{Cs}]/gu;

export function visible(value) {
  return String(value).replace(UNSEEN, (sign) => {
    const number = sign.codePointAt(0).toString(16);
    return number.length > 4 ? `\\u{${number}}` : `\\u${number.padStart(4, "0")}`;
  });
}

// h("p", { class: "note", onclick: f }, "text", otherElement, null)
export function h(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : visible(value));
  }
  element.append(...texts(children));
  return element;
}

function texts(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));
}

export function fill(element, ...children) {
  element.replaceChildren(...texts(children));
  return element;
}

// Do what rebuilds a part of the page, and leave the focus where it was.
export function keepingFocus(rebuild) {
  const key = document.activeElement?.getAttribute("data-key");
  rebuild();
  if (key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

const SIGNS = {
  success: "✓", ok: "✓", approved: "✓", failed: "✗", denied: "✗", timeout: "✗", violation: "✗", stalled: "✗",
  budget_exceeded: "✗", cancelled: "–", skipped: "–", void: "–", suspended: "…", pending: "…", interrupted: "!",
  "no outcome": "!", running: "▶", waiting: "…", lost: "✗", "under way": "▶", open: "?", erased: "–",
  in_doubt: "!", happened: "✓", not_done: "–", taken_back: "–", damaged: "✗", error: "✗", exit: "✗", out_of_memory: "✗", killed: "✗", sandbox_lost: "✗",
};

const TONES = {
  success: "good", ok: "good", approved: "good", failed: "bad", denied: "bad", timeout: "bad", violation: "bad",
  budget_exceeded: "bad", stalled: "bad", damaged: "bad", error: "bad", exit: "bad", out_of_memory: "bad", killed: "bad", channel_closed: "bad", sandbox_lost: "bad",
  protocol_error: "bad", output_limit: "bad", call_limit: "bad", interrupted: "warn", "no outcome": "warn", suspended: "warn", pending: "warn",
  in_doubt: "warn", happened: "good", open: "warn", waiting: "warn", lost: "bad", running: "busy", "under way": "busy",
};

export function pill(status) {
  if (!status) return null;
  const words = status.replaceAll("_", " ");
  return h("span", { class: `pill ${TONES[status] ?? "plain"}` }, h("span", { "aria-hidden": "true" }, SIGNS[status] ?? "·"), ` ${words}`);
}

export function fact(name, value) {
  return value === "" ? null : h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

export function notice(tone, ...children) {
  return h("div", { class: `notice ${tone}`, role: tone === "bad" ? "alert" : null }, ...children);
}

// A value of somebody's: never ours, and it looks so.
export function block(label, value, more = null) {
  if (value === null || value === undefined) return null;
  return h("figure", { class: "value" },
    h("figcaption", {}, label),
    h("pre", { class: "marked", tabindex: "0" }, value.text.split(/(?<=\n)/).map((line) => h("span", {}, line))),
    rest(value, more));
}

// What there is more of a value than is shown, as the server has counted it: a sign may be two here.
export function rest(value, more = null) {
  return value?.cut ? h("p", { class: "cut" }, `${plural(value.left_out, "more character")}. `, more) : null;
}
