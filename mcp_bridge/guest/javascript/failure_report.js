'use strict';
// How a script failed, in the terms of its own text: type, message, line, and a traceback without our frames.
const util = require('node:util');
const { withoutLooks } = require('./dry_run_source');

const SCRIPT = 'file:///workspace/script.js';
const MAX_MESSAGE = 20_000;
const MAX_TRACEBACK = 40_000;

const FRAME = /file:\/\/\/workspace\/(script|cell-\d+)\.js:(\d+)(?::(\d+))?/g;
const OURS = /^\s+at .*(?:mcp-bridge:|node:|\[eval\]|Session\.<anonymous> \(file:|\(<anonymous>\)|new Promise \()/;

const { inspect } = util;

// By which Node knows its own errors, whose stacks begin with their codes; null in a Node that has it elsewhere.
function nodesOwn() {
  try {
    return require('internal/errors').kIsNodeError ?? null;
  } catch {
    return null;
  }
}

const NODES_OWN = nodesOwn();
const { toString } = Error.prototype;

// How stacks are written from now on, also where the script prints them: without our frames and Node's.
function trimStacks() {
  process.abort = () => {
    // It would print its own.
    process.kill(process.pid, 'SIGABRT');
    for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
  };
  Error.stackTraceLimit = 30;
  Error.prepareStackTrace = (error, frames) => {
    let head = 'Error';
    try {
      const isNodes = NODES_OWN !== null && NODES_OWN in Object(error);
      head = isNodes ? `${error.name} [${error.code}]: ${error.message}` : toString.call(error);
    } catch {
      // It resists.
    }
    return [head, ...frames.map((frame) => `    at ${frame}`).filter((line) => !OURS.test(line))].join('\n');
  };
}

// What the script was given to run: its text as it was written, and what was put into it: `{line, column, text}`, in
// order, with the number of characters that are `removed` for it. Its `name` is that of its file, which tells a session's
// cells apart.
const source = { name: 'script', text: '', added: [] };

// A column of the text that runs, as it is in the text that was written. The first one is 1.
function column(line, at) {
  let before = 0;
  for (const { line: its, column: place, text, removed = 0 } of source.added) {
    if (its !== line || place + before >= at - 1) continue;
    before += Math.min(text.length - removed, at - 1 - place - before);
  }
  return at - before;
}

// The first place of the text that a stack names, as `{line, at}`, or null.
function placeIn(stack) {
  for (const [, name, line, at] of (typeof stack === 'string' ? stack : '').matchAll(FRAME)) {
    if (name === source.name) return { line: Number(line), at: at === undefined ? null : column(Number(line), Number(at)) };
  }
  return null;
}

// How Node begins the stack of a syntax error: with the line, in which is what was put into it.
const NODES_HEAD = /^[^\n]*:(\d+)\n[^\n]*\n( *)\^+\n+/;

// The place in the text that a syntax error's stack begins with, as `placeIn`, or null.
function headOf(stack) {
  const place = placeIn(stack);
  const [, line, before] = (place !== null && NODES_HEAD.exec(stack)) || [];
  if (Number(line) !== place?.line || !stack.startsWith(`file:///workspace/${source.name}.js:${line}\n`)) return null;
  return { line: place.line, at: column(place.line, before.length + 1) };
}

function lineOf(stack) {
  return placeIn(stack)?.line ?? null;
}

// `text`; if longer than `limit` characters, its two ends with a note between them.
function cut(text, limit) {
  if (text.length <= limit) return text;
  const half = (limit - 60) >> 1;
  return `${text.slice(0, half)}\n… ${text.length - 2 * half} characters cut …\n${text.slice(-half)}`.toWellFormed();
}

function isOutOfMemory(error) {
  return error?.code === 'ENOMEM' || (error instanceof RangeError && /^Array buffer allocation failed/.test(error.message));
}

function typeOf(error) {
  if (!(error instanceof Error)) return 'Error';
  const name = error.constructor?.name || error.name;
  return typeof name === 'string' && name !== '' ? name : 'Error';
}

// The line of the script that an error is about, and under it where.
function excerpt(line, at) {
  const text = source.text.split('\n')[line - 1];
  if (text === undefined || text.length > 300) return `${source.name}.js:${line}\n`;
  const caret = at === null ? '' : `    ${text.slice(0, at - 1).replace(/[^\t]/g, ' ')}^\n`;
  return `${source.name}.js:${line}\n    ${text}\n${caret}`;
}

// The line that imports what there isn't, which the error doesn't tell.
function lineOfImport(message) {
  const [, name] = /^Cannot find (?:package|module) '([^']+)'/.exec(message) ?? [];
  if (name === undefined) return null;
  const at = source.text.split('\n').findIndex((line) => line.includes(`'${name}'`) || line.includes(`"${name}"`));
  return at < 0 ? null : at + 1;
}

function traced(error) {
  const shown = error instanceof Error ? inspect(error, { depth: 4 }) : `Uncaught ${inspect(error, { depth: 4 })}`;
  const kept = [];
  // Node puts an error without frames into brackets, before its properties.
  for (const line of shown.replace(/^\[(.*)\]( \{(?:\n(?:  .*\n)*| [^\n]* )\})?$/s, '$1$2').split('\n')) {
    if (!OURS.test(line)) kept.push(line);
    // The error's properties follow.
    else if (line.endsWith(' {') && !kept.at(-1).endsWith(' {')) kept.push(`${kept.pop()} {`);
  }
  return kept.join('\n').replace(FRAME, (_, name, line, at) => {
    const shown = name === source.name && at !== undefined ? column(Number(line), Number(at)) : at;
    return `${name}.js:${line}${at === undefined ? '' : `:${shown}`}`;
  });
}

function describe(error, advice) {
  const type = typeOf(error);
  let message = error instanceof Error ? withoutLooks(`${error.message}`) : inspect(error);
  const stack = error instanceof Error ? error.stack : undefined;
  const head = headOf(stack);
  // An error may say where it is itself.
  const place = head ?? placeIn(stack);
  const line = error?.line ?? (place === null ? lineOfImport(message) : place.line);
  const at = place?.at ?? null;
  let traceback = withoutLooks(traced(error)).replace(head === null ? '' : NODES_HEAD, '');
  if (line !== null && !/^(?:script|cell-\d+)\.js:/.test(traceback)) traceback = excerpt(line, error?.column ?? at) + traceback;
  if (advice !== null) {
    message += `\n${advice}`;
    traceback += `\n${advice}`;
  }
  const told = {
    type: type.toWellFormed(),
    message: cut(message, MAX_MESSAGE).toWellFormed(),
    line,
    traceback: cut(traceback, MAX_TRACEBACK).toWellFormed(),
  };
  return isOutOfMemory(error) ? { ...told, out_of_memory: true } : told;
}

// As `describe`, whatever the script has done to its errors.
function described(error, advice) {
  try {
    return describe(error, advice);
  } catch (second) {
    let why = '';
    try {
      why = ` (no text: ${second.message})`;
    } catch {
      // Nothing of it can be told.
    }
    return { type: 'Error', message: `the script failed${why}`.toWellFormed(), line: null, traceback: 'Error' };
  }
}

module.exports = { SCRIPT, cut, described, lineOf, placeIn, source, trimStacks };
