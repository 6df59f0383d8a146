'use strict';
// What a call gives in a dry run that isn't made: a value that stands for its result. It can be printed, and given to
// other calls; where it is needed otherwise, the dry run ends.
const util = require('node:util');
const { PlannedValueError } = require('./errors');

const shownOf = new WeakMap();

// What ends the script, whatever would catch an error in it.
const script = { end: () => {} };

function needed(shown) {
  const error = new PlannedValueError(`${shown} isn't known: a dry run doesn't make that call`);
  script.end(error);
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
      if (name === Symbol.iterator || name === Symbol.asyncIterator) return need();
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

// Functions that would take the text of such a value for the value.
function guard() {
  for (const [owner, name] of [
    [globalThis, 'parseInt'], [globalThis, 'parseFloat'], [Number, 'parseInt'], [Number, 'parseFloat'],
    [JSON, 'parse'], [Array, 'isArray'],
  ]) {
    const original = owner[name];
    const guarded = (value, ...rest) => original.call(owner, need(value), ...rest);
    Object.defineProperty(guarded, 'name', { value: name });
    owner[name] = guarded;
  }
}

module.exports = { guard, need, planned, script, textOf };
