'use strict';
// The script's text as a module: types are stripped, and the last expression's value is kept.
const nodeModule = require('node:module');
const { source } = require('./failure_report');
const { needs } = require('./dry_run_source');

const KEEP = '__mcp_value__';
const FENCE = /^\s*```[\w-]*[ \t]*\n([\s\S]*?)\n?```\s*$/;
// `f<T>(x)` is two comparisons in JavaScript and a call in TypeScript, which is what was meant.
const MAY_BE_GENERIC = /[\w$\])]\s*<[^<>=;(){}]*>\s*\(/;
const PARSING = { ecmaVersion: 'latest', sourceType: 'module', locations: true, allowHashBang: true };

function parser(isCell) {
  try {
    const { Parser } = require('internal/deps/acorn/acorn/dist/acorn');
    // A cell may export a name of an earlier one.
    return isCell ? Parser.extend((Base) => class extends Base { checkLocalExport() {} }) : Parser;
  } catch {
    // Another Node keeps it elsewhere: the last value isn't shown.
    return null;
  }
}

class ScriptSyntaxError extends SyntaxError {
  constructor(message, line, column) {
    super(message);
    Object.defineProperty(this, 'stack', { value: `SyntaxError: ${message}` });
    Object.defineProperty(this, 'line', { value: line });
    Object.defineProperty(this, 'column', { value: column });
  }
}
Object.defineProperty(ScriptSyntaxError, 'name', { value: 'SyntaxError' });

function parsed(acorn, text) {
  try {
    return { tree: acorn.parse(text, PARSING), error: null };
  } catch (error) {
    return { tree: null, error };
  }
}

function stripped(text) {
  try {
    return { text: nodeModule.stripTypeScriptTypes(text), error: null };
  } catch (error) {
    return { text: null, error };
  }
}

const EARLY = 'the code ends too early; send all of it';

function ofParser({ message, loc, pos }, text) {
  const isAtEnd = pos === text.length && message.startsWith('Unexpected token');
  const said = isAtEnd ? `Unexpected end of input: ${EARLY}` : message.replace(/ \(\d+:\d+\)$/, '');
  return new ScriptSyntaxError(said, loc?.line ?? null, loc ? loc.column + 1 : null);
}

const UNSUPPORTED = 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX';
// What to write instead of what is more than a type.
const INSTEAD = [
  ['enum', "use an object instead of an enum: const A = { B: 'B' }"],
  ['parameter property', 'declare the field, and assign it in the constructor'],
  ['namespace', 'use an object'],
  ['`module` keyword', 'use an object'],
  ['import equals', 'write: import NAME from "..."'],
  ['export assignment', 'leave it out: nothing imports a script'],
];

// What to write instead of the TypeScript that an error of Node's refuses, or nothing.
function insteadOf({ code, message }) {
  if (code !== UNSUPPORTED) return '';
  const [, instead] = INSTEAD.find(([what]) => message.includes(what)) ?? [];
  return instead === undefined ? '' : `only types that can be left out are; ${instead}`;
}

// Node tells the place before its stack: `:4`, lines of the text, and a row of `^` under the one.
function ofStripping(error, text) {
  const message = error.message.split('\n')[0];
  const [, number] = /^:(\d+)\n/.exec(error.stack) ?? [];
  const line = number === undefined ? null : Number(number);
  const [, shown, before] = /^(.*)\n( *)\^+$/m.exec(error.stack) ?? [];
  const column = line !== null && shown === text.split('\n')[line - 1] ? before.length + 1 : null;
  const why = message.endsWith("'<eof>'") ? EARLY : insteadOf({ code: error.code, message });
  return new ScriptSyntaxError(why === '' ? message : `${message}: ${why}`, line, column);
}

// Of the errors of the parser and of the stripping the one that is about what is wrong: the parser stops at the first
// type, if there is one.
function ofBoth(error, ofTypes, text) {
  const [plain, typed] = [ofParser(error, text), ofStripping(ofTypes, text)];
  if (ofTypes.code === UNSUPPORTED) return typed;
  return typed.line > plain.line || (typed.line === plain.line && typed.column > plain.column) ? typed : plain;
}

// The tree of a module, and its text without types: `{tree, text}`. Without a parser, `tree` is null.
// Throws SyntaxError, with the line.
function parsedModule(code, { isCell = false } = {}) {
  const fenced = FENCE.exec(code);
  // Its lines keep their numbers.
  let text = fenced === null ? code : `\n${fenced[1]}`;
  source.text = text;
  const acorn = parser(isCell);
  if (acorn === null) {
    const types = stripped(text);
    return { tree: null, text: types.text ?? text };
  }
  let { tree, error } = parsed(acorn, text);
  if (tree === null || MAY_BE_GENERIC.test(text)) {
    const types = stripped(text);
    if (types.text !== null) {
      const again = parsed(acorn, types.text);
      if (again.tree !== null) [tree, text] = [again.tree, types.text];
      // Without its types, the text has its places.
      else error = again.error;
    } else if (tree === null) throw ofBoth(error, types.error, text);
  }
  if (tree === null) throw ofParser(error, text);
  return { tree, text };
}

// The text of the module to run. Throws SyntaxError, with the line.
function prepared(code, { isDry }) {
  const { tree, text } = parsedModule(code);
  if (tree === null) return text;
  const added = isDry ? needs(tree) : [];
  const last = tree.body.at(-1);
  if (last?.type === 'ExpressionStatement') {
    const end = text[last.end - 1] === ';' ? last.end - 1 : last.end;
    // Around all that is put into it.
    added.unshift({ at: last.start, ...last.loc.start, text: `globalThis.${KEEP}((` });
    added.push({ at: end, ...last.loc.end, text: '))' });
  }
  // As in the file that Node was started with.
  const [first] = tree.body;
  if (first !== undefined && /\bmeta\b/.test(text)) added.unshift({ at: first.start, ...first.loc.start, text: 'import.meta.main = true; ' });
  return withAdded(text, added);
}

// The text with what is put into it, of which `source` takes note.
function withAdded(text, added) {
  added.sort((one, other) => one.at - other.at);
  source.added = added;
  const pieces = [];
  let at = 0;
  for (const one of added) {
    pieces.push(text.slice(at, one.at), one.text);
    at = one.at;
  }
  return pieces.join('') + text.slice(at);
}

module.exports = { KEEP, ScriptSyntaxError, insteadOf, parsedModule, parser, prepared };
