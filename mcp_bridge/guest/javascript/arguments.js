'use strict';
// A tool's arguments as scripts pass them: an object, or values in the order of the schema.
const { nearest, sameName, suggestion } = require('./near_names');

const MAX_SHOWN_SIGNATURE = 1500;
const MAX_SHOWN_NAMES = 20;

function isPlain(value) {
  if (typeof value !== 'object' || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

// What takes a call back: `{ signal }` after its arguments, of which it can be none. It is taken out of `args`. There is
// none where it is undefined.
function takenSignal(args) {
  const last = args.at(-1);
  if (!isPlain(last) || !isSignal(last.signal) || !Object.hasOwn(last, 'signal') || Object.keys(last).length > 1) return undefined;
  args.pop();
  return last.signal;
}

const isSignal = (value) => value === undefined || value instanceof AbortSignal;

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

const kindOf = (value) => (value === null ? 'null' : Array.isArray(value) ? 'an array' : `a${typeof value === 'object' ? 'n' : ''} ${typeof value}`);

// The options of a function, of which `known` are all. `shown` is how it is written with them. Throws TypeError.
function optionsOf(given, shown, known) {
  if (given === undefined || given === null) return {};
  const write = `write: ${shown}`;
  if (!isObject(given)) throw new TypeError(`the options are an object, not ${kindOf(given)}; ${write}`);
  const found = {};
  for (const [name, value] of Object.entries(given)) {
    const meant = sameName(name, known);
    if (meant === null) throw new TypeError(`there is no option '${name}'${nearest(name, known)}; ${write}`);
    found[meant] = value;
  }
  if (!isSignal(found.signal)) throw new TypeError(`signal is that of an AbortController, not ${kindOf(found.signal)}; ${write}`);
  return found;
}

// The top-level types of an annotation, in Python's notation: `list[str] | None` is `list` and `None`.
function typesOf(shown) {
  let left = shown.replace(/'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"/g, '');
  for (let before = null; before !== left;) {
    before = left;
    left = left.replace(/\[[^\][]*\]|\([^()]*\)/g, '');
  }
  return new Set(left.split('|').map((one) => one.trim()));
}

const IN_TYPESCRIPT = {
  str: 'string', int: 'number', float: 'number', bool: 'boolean', None: 'null', dict: 'object', list: 'any[]', Any: 'any',
  True: 'true', False: 'false',
};
const WITH_PARTS = ['list', 'dict', 'Literal'];
const TOKENS = /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\p{L}_][\p{L}\p{N}_]*|[^]/gu;

// An annotation in TypeScript's notation.
function typescript(shown) {
  const tokens = shown.match(TOKENS) ?? [];
  let at = 0;
  // Whether what was read last is one of several types.
  let isUnion = false;
  // What follows up to the bracket that closes it, or the end.
  function parts(separator) {
    let [made, depth, isOneOf] = ['', 0, false];
    for (; at < tokens.length; at += 1) {
      const token = tokens[at];
      if (token === '(' || token === '[') depth += 1;
      if ((token === ')' || token === ']') && --depth < 0) break;
      isUnion = token === '|' || (token === ',' && separator !== ',');
      made += token === ',' && depth === 0 ? separator : part(token);
      // The options of a list's items, and of an object's values, are within it.
      isOneOf ||= depth === 0 && isUnion && token !== 'list' && token !== 'dict';
    }
    isUnion = isOneOf;
    return made;
  }
  function part(token) {
    // A field's name.
    if (tokens[at + 1] === ':' || (tokens[at + 1] === '?' && tokens[at + 2] === ':')) return token;
    if (tokens[at + 1] !== '[' || !WITH_PARTS.includes(token)) return Object.hasOwn(IN_TYPESCRIPT, token) ? IN_TYPESCRIPT[token] : token;
    at += 2;
    const inner = parts(token === 'Literal' ? ' |' : ',');
    if (token === 'Literal') return inner;
    if (token === 'dict') return `{[name: string]: ${inner.slice(inner.indexOf(', ') + 2)}}`;
    return isUnion ? `(${inner})[]` : `${inner}[]`;
  }
  // Names of fields may have any brackets.
  let whole = '';
  for (; at < tokens.length; at += 1) whole += parts(',') + (tokens[at] ?? '');
  return whole;
}

// What a call looks like. As a whole it isn't cut, and has the defaults.
function signature(row, { isWhole = false } = {}) {
  const defaultOf = (param) => (isWhole && 'default' in param ? ` = ${JSON.stringify(param.default)}` : '');
  const shown = row.params.map((param) => `${param.name}${param.required ? '' : '?'}: ${typescript(param.type)}${defaultOf(param)}`);
  if (row.extra) shown.push('...');
  const text = `${row.alias}({${shown.join(', ')}})`;
  return text.length > MAX_SHOWN_SIGNATURE && !isWhole ? `${text.slice(0, MAX_SHOWN_SIGNATURE)}…` : text;
}

// Of a tool that is known by recorded calls it isn't known which arguments were left out, as null for an optional one is.
const isLeftOut = (row, value) => row.recorded === true && (value === null || value === undefined);

// Whether a tool may take an argument of a name that is no parameter's.
const takesBesides = (row, name) => row.extra && (row.beginnings ?? ['']).some((text) => name.startsWith(text));

// What the script passed: `names`, an object, and `values` in order. `options` is an object after them that has none of
// the names, and is no argument.
function named(row, args) {
  const known = new Set(row.params.flatMap((param) => [param.json, param.name]));
  // What begins with nothing is any name.
  const takesAny = takesBesides(row, '');
  const isKnown = (name) => known.has(name) || (!takesAny && takesBesides(row, name));
  const isNamed = (one) => Object.entries(one).every(([name, value]) => isKnown(name) || isLeftOut(row, value));
  const last = args.at(-1);
  if (!isPlain(last)) return { values: args, names: {} };
  const fits = isNamed(last);
  const next = row.params[args.length - 1];
  const takesObject = next !== undefined && [...typesOf(next.type)].some((type) => type === 'dict' || type === 'Any');
  if (args.length === 1) return fits || !takesObject ? { values: [], names: last } : { values: args, names: {} };
  if (takesObject || (takesAny && !fits)) return { values: args, names: {} };
  const before = args.slice(0, -1);
  if (fits) return { values: before, names: last };
  const [first] = before;
  return before.length === 1 && isPlain(first) && isNamed(first) ? { values: [], names: first, options: last } : { values: before, names: {}, options: last };
}

// Whether a call was passed to `map` or the like, which calls it with a position and the array, too.
function isOfArray([first, at, array]) {
  return typeof at === 'number' && Array.isArray(array) && array[at] === first;
}

// The arguments that fit, by their names in JSON, and what is wrong with the others.
function bind(row, args) {
  const given = named(row, args);
  const faults = [];
  if (given.values.length > row.params.length) {
    faults.push(`takes ${row.params.length} arguments but ${given.values.length} were given`);
    if (isOfArray(args)) faults.push(`an array's method passes a position and the array, too; write: (item) => SERVER.${row.alias}(item)`);
  }
  const bound = {};
  given.values.slice(0, row.params.length).forEach((value, at) => {
    bound[row.params[at].json] = value;
  });
  // A name in JavaScript goes before another parameter's name in JSON.
  const json = new Map([...row.params.map((param) => [param.json, param.json]), ...row.params.map((param) => [param.name, param.json])]);
  const unknown = Object.keys(given.options ?? {});
  for (const [name, value] of Object.entries(given.names)) {
    const called = json.get(name) ?? (takesBesides(row, name) ? name : undefined);
    if (called === undefined) {
      if (!isLeftOut(row, value)) unknown.push(name);
    } else if (Object.hasOwn(bound, called)) faults.push(`got more than one value for '${name}'`);
    else Object.defineProperty(bound, called, { value, enumerable: true, configurable: true, writable: true });
  }
  const free = row.params.filter((param) => bound[param.json] === undefined).map((param) => param.name);
  for (const name of unknown.slice(0, MAX_SHOWN_NAMES)) {
    faults.push(`got an unexpected argument '${name.slice(0, 100)}'${suggestion(name, free)}`);
  }
  if (unknown.length > MAX_SHOWN_NAMES) faults.push(`got ${unknown.length - MAX_SHOWN_NAMES} more of them`);
  if (unknown.length > 0 && row.beginnings) {
    faults.push(`other names begin with ${row.beginnings.slice(0, MAX_SHOWN_NAMES).map((text) => `'${text}'`).join(', ')}`);
  }
  if (given.options !== undefined) {
    faults.push('after its arguments a call takes { signal } alone: { signal: AbortSignal.timeout(5000) }');
    // Or it was meant as the next one.
    const next = given.values.length > 0 ? row.params[given.values.length] : undefined;
    if (next !== undefined) faults.push(`'${next.name}' is ${typescript(next.type)}, not an object`);
  }
  const missing = row.params.filter((param) => param.required && bound[param.json] === undefined);
  // A schema may require what it gives a default.
  const needed = missing.filter((param) => param.default === undefined);
  const shown = needed.map(({ name }) => `'${name}'`).join(', ');
  if (needed.length > 0) faults.push(`missing required argument${needed.length > 1 ? 's' : ''}: ${shown}`);
  const written = needed.filter(({ json }) => Object.hasOwn(bound, json));
  if (written.length > 0) {
    faults.push(`${written.map(({ name }) => `'${name}'`).join(', ')}: undefined here; a field of a tool's text is there after JSON.parse(...)`);
  }
  normalise(row, bound);
  return { bound, faults };
}

// What is undefined is left out, and null for an optional parameter that can't be null. Text that holds a JSON object or
// array is decoded for a parameter that accepts one and no text.
function normalise(row, bound) {
  for (const { json, required, type } of row.params) {
    const value = bound[json];
    const types = typesOf(type);
    if (value === undefined || (value === null && !required && !types.has('None') && !types.has('Any'))) {
      delete bound[json];
    } else if (typeof value === 'string' && /^[{[]/.test(value)
        && [...types].every((one) => one === 'dict' || one === 'list' || one === 'None')) {
      try {
        bound[json] = JSON.parse(value);
      } catch {
        // The host says what is wrong with it.
      }
    }
  }
}

module.exports = { bind, isObject, kindOf, optionsOf, signature, takenSignal, typescript };
