'use strict';
// JSON as the channel has it: what may be sent, and integers that a JavaScript number can't hold.

const MAX_DEPTH = 64;
const MAX_VALUES = 500_000;
const CONTAINER_WEIGHT = 3;
// The host reads no integer of more digits: see `MAX_DIGITS` of `wire/jsonrpc`.
const MAX_DIGITS = 4300;

const { isRawJSON, parse: parseJson, rawJSON } = JSON;
const { types } = require('node:util');
const { textOf } = require('./planned_values');
// Made by `host/guest_bundle` of `wire/messages`: of each method the parameters' types, and which may be left out.
const PARAMETERS = require('./parameters');

// A value can't be sent. `code` is stable.
class LocalError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const ADVICE = {
  function: 'a function is no JSON value; call it, and give what it returns',
  symbol: 'a symbol is no JSON value; write text',
};

function notJson(why) {
  return new LocalError('not_json', `the value can't be written as JSON: ${why}`);
}

let tooLong = null;

// The digits of a BigInt. Throws LocalError.
function digitsOf(value) {
  tooLong ??= 10n ** BigInt(MAX_DIGITS);
  if (value >= tooLong || value <= -tooLong) throw notJson(`an integer of more than ${MAX_DIGITS} digits; write it as text`);
  return rawJSON(value.toString());
}

// A value as JSON can hold it: a copy in which a Date is text, a Set an array, a Map an object, a BigInt its digits.
// Throws LocalError: `not_json`, `frame_too_deep`, `frame_too_large`.
function encodable(value) {
  let weight = 0;

  function count(more) {
    weight += more;
    if (weight > MAX_VALUES) {
      throw new LocalError('frame_too_large', `the message holds more than ${MAX_VALUES} values`);
    }
  }

  function text(value) {
    if (!value.isWellFormed()) {
      throw new LocalError('not_json', "the text holds a lone surrogate, which UTF-8 can't carry");
    }
    return value;
  }

  function of(value, depth) {
    count(1);
    switch (typeof value) {
      case 'string': return text(value);
      case 'boolean': return value;
      case 'number':
        if (!Number.isFinite(value)) throw notJson(`${value} is no JSON number; write null, or leave it out`);
        // Its point and its exponent weigh one each.
        if (!Number.isSafeInteger(value)) count(2);
        return value;
      case 'bigint': return digitsOf(value);
      case 'undefined': return null;
      case 'function':
        // The host knows it by that.
        if (textOf(value) !== undefined) return textOf(value);
        // falls through
      case 'symbol': throw notJson(ADVICE[typeof value]);
    }
    if (value === null) return null;
    if (depth > MAX_DEPTH) {
      throw new LocalError('frame_too_deep', `the value nests deeper than ${MAX_DEPTH} levels, or contains itself`);
    }
    if (value instanceof Date) {
      if (Number.isNaN(value.getTime())) throw notJson('the date is invalid');
      return value.toISOString();
    }
    if (types.isPromise(value)) throw notJson('a promise was not awaited; write await before it');
    if (types.isArrayBuffer(value) || value instanceof Uint8Array) {
      throw notJson("bytes are no JSON value; write Buffer.from(bytes).toString() for text, or .toString('base64')");
    }
    if (value instanceof Error) throw notJson('an Error is no JSON value; write its message');
    if (value instanceof RegExp) throw notJson('a RegExp is no JSON value; write its source');
    if (types.isBoxedPrimitive(value)) return of(value.valueOf(), depth);
    if (typeof value.toJSON === 'function') return of(value.toJSON(), depth + 1);
    count(CONTAINER_WEIGHT);
    if (Array.isArray(value)) return Array.from(value, (item) => of(item, depth + 1));
    if (value instanceof Set || types.isTypedArray(value)) {
      return Array.from(value, (item) => of(item, depth + 1));
    }
    const made = Object.create(null);
    for (const [key, item] of value instanceof Map ? value : Object.entries(value)) {
      if (typeof key !== 'string') throw notJson('the keys of a Map are text');
      if (item !== undefined) made[text(key)] = of(item, depth + 1);
    }
    return made;
  }

  return of(value, 1);
}

const LARGE = 2 ** 63;
const isNumber = (value) => typeof value === 'number' || isRawJSON(value);
const digits = (value) => (typeof value === 'number' ? value : value.rawJSON);
const isInteger = (value) => isNumber(value) && Number.isInteger(Number(digits(value))) && Math.abs(digits(value)) < LARGE;

const TYPES = {
  any: ['any value', () => true],
  null: ['null', (value) => value === null],
  str: ['a text', (value) => typeof value === 'string'],
  bool: ['true or false', (value) => typeof value === 'boolean'],
  int: ['an integer', isInteger],
  float: ['a number', (value) => isInteger(value) || (typeof value === 'number' && !Number.isInteger(value))],
  list: ['an array', Array.isArray],
  dict: ['an object', (value) => typeof value === 'object' && value !== null && !Array.isArray(value) && !isRawJSON(value)],
};

// Throws LocalError, `bad_params`, for what the host would take for no message, and end the sandbox. `params` is encodable.
function check(method, params) {
  for (const [name, [types, isNeeded]] of Object.entries(PARAMETERS[method])) {
    const value = params[name];
    if (value === undefined) {
      if (isNeeded) throw new LocalError('bad_params', `${method} needs '${name}'`);
    } else if (!types.some((type) => (Array.isArray(type) ? type.includes(value) : TYPES[type][1](value)))) {
      const shown = types.filter((type) => type !== 'null').map((type) => (Array.isArray(type) ? `one of ${type.join(', ')}` : TYPES[type][0]));
      throw new LocalError('bad_params', `${method}: '${name}' is ${shown.join(' or ')}, not ${told(value)}`);
    }
  }
}

function told(value) {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  if (typeof value === 'string') return `'${value.slice(0, 40)}'`;
  if (isNumber(value)) return `${digits(value)}`.slice(0, 40);
  return typeof value === 'object' ? 'an object' : `${value}`;
}

const MAY_BE_LARGE = /\d{16}/;
const INTEGER = /^-?\d+$/;

// The value of a JSON text. An integer that a number can't hold is a BigInt.
function parse(text) {
  if (!MAY_BE_LARGE.test(text)) return parseJson(text);
  return parseJson(text, (_, value, context) => (
    typeof value === 'number' && !Number.isSafeInteger(value) && INTEGER.test(context.source)
      ? BigInt(context.source) : value
  ));
}

module.exports = { LocalError, check, encodable, parse };
