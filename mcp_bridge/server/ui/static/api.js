// Asking the server. The token came behind the address's #, is kept for this tab and this address alone, and goes
// with each request: another tab at this address may show what somebody else has served there.

const KEPT = "mcp-bridge-token";

// Under which path the viewer is served: nothing, or what a server that has other pages, too, has put before it.
const ROOT = new URL("..", import.meta.url).pathname.replace(/\/$/, "");

// Whether a bridge for several principals serves it, beside MCP, and not `mcp-bridge ui`.
export const IS_SHARED = ROOT !== "";

export function at(path) {
  return ROOT + path;
}

export function here() {
  return location.pathname.slice(ROOT.length);
}

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function takeToken() {
  const found = /^#token=([\w.~+/=-]+)$/.exec(location.hash);
  if (found) {
    keepToken(found[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

export function keepToken(token) {
  sessionStorage.setItem(KEPT, token);
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(KEPT));
}

function headers() {
  // Without a token, a proxy may have logged the browser in.
  return hasToken() ? { Authorization: `Bearer ${sessionStorage.getItem(KEPT)}` } : {};
}

async function answered(path, options) {
  let response;
  try {
    response = await fetch(at(path), { ...options, headers: { ...options.headers, ...headers() }, cache: "no-store" });
  } catch {
    throw new Refused(0, "no_answer", `The viewer's server doesn't answer. Is ${IS_SHARED ? "the bridge" : "`mcp-bridge ui`"} still running?`);
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Refused(response.status, told.error?.code ?? "", told.error?.message ?? `The server answered ${response.status}.`);
}

export async function get(path) {
  return (await answered(path, {})).json();
}

export async function getText(path) {
  return (await answered(path, {})).text();
}

export async function post(path, body) {
  const options = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  return (await answered(path, options)).json();
}

// The server gives a sign of life every five seconds: without three of them nobody is there, however open it looks.
const SILENCE_MS = 16_000;

// A connection may take longer to begin, where the server is busy or a proxy is before it.
const CONNECTING_MS = 60_000;

// Call `look` when something has changed, and `tell` when that begins or stops to work. A page that nobody sees doesn't
// listen: browsers keep few connections to one server.
export function live(look, tell) {
  let stop = null;

  async function listen() {
    let connection = null;
    let ended = false;
    let silence = null;
    stop = () => {
      ended = true;
      connection?.abort();
    };
    function heard(most = SILENCE_MS) {
      clearTimeout(silence);
      silence = setTimeout(() => connection.abort(), most);
    }
    while (!ended) {
      connection = new AbortController();
      try {
        heard(CONNECTING_MS);
        const response = await answered("/api/events", { signal: connection.signal });
        heard();
        tell(true);
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          heard();
          if (part.value.includes("data:")) look();
        }
      } catch (error) {
        if (error instanceof Refused && error.status === 401) {
          // The token isn't good any more: what looks now asks for another.
          tell(false);
          return look();
        }
      } finally {
        clearTimeout(silence);
      }
      if (ended) return undefined;
      tell(false);
      await new Promise((go) => setTimeout(go, 2000));
    }
    return undefined;
  }

  document.addEventListener("visibilitychange", () => {
    stop?.();
    stop = null;
    if (!document.hidden) listen();
  });
  // A page that is left and kept aside would hold its connection.
  addEventListener("pagehide", () => stop?.());
  addEventListener("pageshow", (event) => event.persisted && listen());
  if (!document.hidden) listen();
}
