'use strict';
// What a call gives in a dry run that isn't made: a value that stands for its result. It can be printed, and given to
// other calls; where it is needed otherwise, the dry run ends.
const util = require('node:util');
const { NEED } = require('./dry_run_source');
const { PlannedValueError } = require('./errors');

// Symbols by which a value is asked what it is.
const ASKING = new Set([Symbol.iterator, Symbol.asyncIterator, Symbol.isConcatSpreadable, Symbol.toStringTag]);

const shownOf = new WeakMap();

// What ends the script, whatever would catch an error in it.
let endScript = () => {};

function needed(shown) {
  const error = new PlannedValueError(`${shown} isn't known: a dry run doesn't make that call`);
  endScript(error);
  throw error;
}

function standIn(shown) {
  const parts = new Map();
  const need = () => needed(shown);
  // A function, so that a call of what may be a method of the result is noticed.
  const target = function () {};
  Object.defineProperty(target, util.inspect.custom, { value: () => shown });
  const special = {
    [util.inspect.custom]: () => shown,
    // A text in a template; anything else needs the value.
    [Symbol.toPrimitive]: (hint) => (hint === 'string' ? shown : need()),
    toString: () => shown,
    toJSON: () => shown,
    // It can be returned from an async function.
    then: undefined,
  };
  const made = new Proxy(target, {
    get(_, name) {
      if (Object.hasOwn(special, name)) return special[name];
      if (ASKING.has(name)) return need();
      if (typeof name === 'symbol') return undefined;
      if (!parts.has(name)) parts.set(name, standIn(`${shown}[${/^\d+$/.test(name) ? name : `'${name}'`}]`));
      return parts.get(name);
    },
    has: need,
    ownKeys: need,
    set: need,
    deleteProperty: need,
    defineProperty: need,
    apply: need,
    construct: need,
  });
  shownOf.set(made, shown);
  return made;
}

const planned = (number) => standIn(`<result of call ${number}>`);

const textOf = (value) => shownOf.get(value);

// A value whose truth, identity or type decides what happens next.
function need(value) {
  const shown = shownOf.get(value);
  return shown === undefined ? value : needed(shown);
}

// A value that is there once another was looked at.
need.after = (_, value) => value;

// Have a function of Node's look at what decides: `around(original)` gives the one that takes its place.
function replace(owner, name, around) {
  const original = owner[name];
  const made = around(original);
  Object.defineProperty(made, 'name', { value: name });
  Object.defineProperty(owner, name, { ...Object.getOwnPropertyDescriptor(owner, name), value: made });
}

// Functions that would take the text of such a value for the value, or tell what it is without asking it.
function guard() {
  const argument = (original) => function (value, ...rest) {
    return original.call(this, need(value), ...rest);
  };
  for (const [owner, ...names] of [
    [globalThis, 'parseInt', 'parseFloat', 'encodeURI', 'encodeURIComponent', 'decodeURI', 'decodeURIComponent'],
    [globalThis, 'structuredClone', 'atob', 'btoa'], [URL, 'canParse', 'parse'], [Buffer, 'from', 'byteLength'],
    [RegExp.prototype, 'test', 'exec'],
    [String.prototype, 'startsWith', 'endsWith', 'includes', 'indexOf', 'lastIndexOf', 'match', 'matchAll', 'search', 'split'],
    [String.prototype, 'replace', 'replaceAll', 'localeCompare'],
    [JSON, 'parse'], [Array, 'isArray'], [Object, 'is', 'getPrototypeOf'], [Object.prototype, 'hasOwnProperty'],
    [Number, 'parseInt', 'parseFloat', 'isInteger', 'isSafeInteger', 'isFinite', 'isNaN'],
    [ArrayBuffer, 'isView'], [Buffer, 'isBuffer'],
    [Array.prototype, 'includes', 'indexOf', 'lastIndexOf'],
    [Set.prototype, 'add', 'has', 'delete'], [Map.prototype, 'get', 'set', 'has', 'delete'],
  ]) {
    for (const name of names) replace(owner, name, argument);
  }
  for (const name of ['is', 'hasOwn']) {
    replace(Object, name, (original) => (value, other) => original(value, need(other)));
  }
  // What they are given decides by what it gives: which items there are, and how many.
  for (const name of ['filter', 'find', 'findIndex', 'findLast', 'findLastIndex', 'some', 'every', 'flatMap']) {
    replace(Array.prototype, name, (original) => function (callback, ...rest) {
      if (typeof callback !== 'function') return original.call(this, callback, ...rest);
      return original.call(this, function (...args) {
        return need(callback.apply(this, args));
      }, ...rest);
    });
  }
  // So do these by the items themselves.
  for (const name of ['flat', 'sort', 'toSorted', 'includes', 'indexOf', 'lastIndexOf']) {
    replace(Array.prototype, name, (original) => function (...args) {
      // It may be what only looks like an array.
      for (let at = 0; at < this.length; at += 1) need(this[at]);
      return original.apply(this, args);
    });
  }
  globalThis.Boolean = new Proxy(Boolean, {
    apply: (target, self, args) => target(need(args[0])),
    construct: (target, args, made) => Reflect.construct(target, [need(args[0])], made),
  });
  Boolean.prototype.constructor = globalThis.Boolean;
}

let isPrepared = false;

// Have a result that isn't there, and is needed, end the script: `end` is given the error.
function prepare(end) {
  if (isPrepared) return;
  isPrepared = true;
  endScript = end;
  guard();
  Object.defineProperty(globalThis, NEED, { value: need });
}

module.exports = { planned, prepare, textOf };
