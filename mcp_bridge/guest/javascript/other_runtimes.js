'use strict';
// Advice on code that was written for another place: a browser, another runtime, the SDK of MCP, a shell.
const fs = require('node:fs');
const path = require('node:path');
const { nearest, sameName } = require('./near_names');
const { placeIn, source } = require('./failure_report');

const ONLY_NODES = 'Node\'s own modules are there: import fs from "node:fs"';
const KEPT = 'await runtime.save_memory(key, value) and await runtime.load_memory(key) keep data for later scripts';
const NO_NETWORK = 'the sandbox has no network; the servers of runtime.list_servers() are the way out';

const GLOBALS = {
  localStorage: KEPT,
  sessionStorage: KEPT,
  window: 'this is Node, not a browser; write: globalThis',
  document: 'this is Node, not a browser: there is no page',
  alert: 'this is Node, not a browser; write: console.log(...)',
  XMLHttpRequest: NO_NETWORK,
  Deno: `this is Node, not Deno; ${ONLY_NODES}`,
  Bun: `this is Node, not Bun; ${ONLY_NODES}`,
};

// The search for where a name comes from may take the square of this.
const MAX_SEARCHED = 50_000;

// What the SDK's results have, and plain data hasn't.
const OF_RESULTS = 'content|structuredContent|structured_content|isError';

// A tag where a value may begin: with its name, and a slash if it closes itself.
const TAG = /(?:=|=>|[(,?:]|&&|\breturn)\s*<([A-Za-z][\w.]*)?(?:\s[^<>]*?)?(\/)?>/g;

// Whether a text has a tag that is closed somewhere in the script: `<T>(x)` has types.
const isJsx = (text) => [...text.matchAll(TAG)].some(([, name, slash]) => slash || source.text.includes(`</${name ?? ''}>`));

const escaped = (name) => name.replaceAll('$', '\\$');

// Whether a program could be started: what failed then is something else.
function isThere(program) {
  const folders = path.isAbsolute(program) ? [''] : (process.env.PATH ?? '').split(':');
  return folders.some((folder) => fs.existsSync(path.join(folder, program)));
}

function ofSyntax({ message, line }) {
  if (message === "'return' outside of function") {
    return "a script's value is its last expression; to leave it early, write: async function main() { ... return value; } main()";
  }
  if (!Number.isInteger(line)) return null;
  const lines = source.text.split('\n').slice(0, line);
  if (message === "Unexpected character '@'" && /(?:^|[{};])\s*@[A-Za-z]/.test(lines.at(-1))) {
    return 'decorators are not run here; call the function instead: const A = decorator(class { ... })';
  }
  // A value may begin on a line of its own.
  if (isJsx(lines.slice(-2).join('\n'))) return 'JSX is not run here; write text: `<p>${value}</p>`';
  return null;
}

// The text of the script before the place of an error.
function before(error) {
  const place = placeIn(error.stack);
  if (place === null || place.at === null) return '';
  return (source.text.split('\n')[place.line - 1] ?? '').slice(0, place.at - 1);
}

// A part that a call's result hasn't: it is plain data, and the script takes it for the SDK's object, or for other data.
function ofResult(error, aliases) {
  const [, owner, name] = /(?:([\w$]+)\??\.)?([\w$]+)(?:\?\.|[.[])?$/.exec(before(error)) ?? [];
  if (name === undefined || source.text.length > MAX_SEARCHED) return null;
  const assigned = owner === undefined ? `\\{[^{}]*\\b${escaped(name)}\\b[^{}]*\\}` : `\\b${escaped(owner)}`;
  const [, call] = new RegExp(`${assigned}\\s*=\\s*await\\s+((?:${aliases.join('|')})\\.\\w+)\\(`).exec(source.text) ?? [];
  if (call === undefined) return null;
  if (new RegExp(`^(?:${OF_RESULTS})$`).test(name)) {
    return `a call gives the tool's data itself, without '${name}'; await ${call}.raw({...}) gives the whole result`;
  }
  return `what ${call} gave has no '${name}'; see what it has: console.log(await ${call}({...}))`;
}

function ofMcp(name, aliases, exported) {
  const meant = sameName(name, Object.keys(exported['mcp/runtime'] ?? {}));
  if (meant === 'call_tool') return "write: await runtime.call_tool('SERVER', 'TOOL', {...})";
  if (meant !== null) return `write: await runtime.${meant}(...)`;
  const [server = 'NAME'] = aliases;
  return `mcp has no '${name}'; write: import { ${server} } from "mcp/servers"; await ${server}.TOOL({...})`;
}

// A server that there isn't, taken as a part of `mcp`.
function ofServer(error, aliases, exported) {
  const [, name] = /\bmcp\.([\w$]+)(?:[.[])?$/.exec(before(error)) ?? [];
  if (name === undefined || Object.hasOwn(exported.mcp ?? {}, name)) return null;
  return `mcp has no '${name}', and there is no server of that name${nearest(name, aliases)}`;
}

// `aliases` are the servers', and `exported` what our modules export.
function adviceForOtherRuntimes(error, message, aliases, exported) {
  const [server = 'NAME'] = aliases;
  if (error?.name === 'SyntaxError') return ofSyntax(error);
  let [, name] = /^(\w+) is not defined$/.exec(message) ?? [];
  if (name !== undefined && Object.hasOwn(GLOBALS, name)) return GLOBALS[name];
  if (/^Cannot find (?:package|module) '@modelcontextprotocol\//.test(message)) {
    return `the servers are connected already; write: import { ${server} } from "mcp/servers"; await ${server}.TOOL({...})`;
  }
  if (error?.code === 'ERR_UNSUPPORTED_ESM_URL_SCHEME') return `the sandbox has no network and no packages of npm; ${ONLY_NODES}`;
  if (error?.code === 'ENOENT' && `${error.syscall}`.startsWith('spawn') && typeof error.path === 'string' && !isThere(error.path)) {
    return "there is no shell here, and no program but Node: use node:fs, or an MCP server's tool (await runtime.search('run a command'))";
  }
  [, name] = /^there is no server '[^']+'/.test(message)
    ? /\bimport\s+(\w+)\s+from\s+["']mcp\/servers["']/.exec(source.text) ?? [] : [];
  if (aliases.includes(name)) return `the default export has all servers; write: import { ${name} } from "mcp/servers"`;
  [, name] = /^mcp\.(\w+) is not a function$/.exec(message) ?? [];
  if (name !== undefined) return ofMcp(name, aliases, exported);
  if (/^Cannot read properties of undefined /.test(message)) return ofServer(error, aliases, exported) ?? ofResult(error, aliases);
  return null;
}

module.exports = { adviceForOtherRuntimes };
