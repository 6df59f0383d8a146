'use strict';
// Names for calls that don't depend on timing, as `guest/call_ids.py` has them: a call's name is its position in the
// tree of what runs side by side.
//
// What runs is cut into stretches: from where a reaction of a promise begins to where it ends. A stretch belongs to a
// line. Of the promises that a stretch creates, what follows the last one continues its line (for an async function,
// that is what its `await` waits for), and what follows any other is a line of its own, numbered as it was created.
// So an async function that runs beside others has one line, however their calls are answered.
const { promiseHooks } = require('node:v8');
const crypto = { hash: null };

const MAX_NAME_CHARS = 100;

function hashed(name) {
  crypto.hash ??= require('node:crypto').hash;
  return `h${crypto.hash('sha256', name, 'hex').slice(0, 32)}`;
}

class Line {
  #calls = 0;
  tasks = 0;

  // `cell` is the number of a session's cell; 0 for a script.
  constructor(name, cell = 0) {
    this.name = name;
    this.cell = cell;
  }

  call() {
    return `${this.name}#${++this.#calls}`;
  }

  task(number = ++this.tasks) {
    const name = `${this.name}.${number}`;
    return new Line(name.length <= MAX_NAME_CHARS ? name : hashed(name), this.cell);
  }
}

// What belongs to no line of the script: our own code, and Node's between two stretches.
const NONE = null;

let unknown = null;
let stretch = { line: NONE, last: null };
const outer = [];

// Of a promise, in a private field, which no code sees and which keeps nothing alive.
class Stamp extends (class { constructor(object) { return object; } }) {
  #made;

  constructor(promise, made) {
    super(promise);
    this.#made = made;
  }

  static of(promise) {
    return #made in promise ? promise.#made : null;
  }
}

function onInit(promise) {
  if (stretch.line === NONE) return;
  const made = { stretch, line: stretch.line, number: ++stretch.line.tasks };
  stretch.last = made;
  new Stamp(promise, made);
}

function onBefore(promise) {
  const made = Stamp.of(promise);
  outer.push(stretch);
  let line = NONE;
  if (made !== null) line = made.stretch.last === made ? made.line : made.line.task(made.number);
  stretch = { line, last: null };
}

function onAfter() {
  stretch = outer.pop() ?? { line: NONE, last: null };
}

function on(line, action) {
  outer.push(stretch);
  stretch = { line, last: null };
  try {
    return action();
  } finally {
    stretch = outer.pop();
  }
}

// Run our own code, which has no part in the numbering.
function apart(action) {
  const before = stretch;
  stretch = { line: NONE, last: null };
  try {
    return action();
  } finally {
    stretch = before;
  }
}

// The line that makes a call. Callbacks of events share one.
function current() {
  if (stretch.line !== NONE) return stretch.line;
  unknown ??= new Line('t1');
  return unknown;
}

// Gives names for further requests that one call makes.
function within(call) {
  const line = new Line(hashed(`within ${call}`));
  return () => line.call();
}

// Callbacks of timers have lines of their own.
function followTimers() {
  for (const [owner, name] of [
    [globalThis, 'setTimeout'], [globalThis, 'setInterval'], [globalThis, 'setImmediate'],
    [globalThis, 'queueMicrotask'], [process, 'nextTick'],
  ]) {
    const original = owner[name];
    const follow = function (callback, ...rest) {
      if (stretch.line === NONE || typeof callback !== 'function') return original.call(this, callback, ...rest);
      const line = stretch.line.task();
      return original.call(this, function (...args) {
        return on(line, () => callback.apply(this, args));
      }, ...rest);
    };
    // `util.promisify` takes its own form of it.
    for (const key of Reflect.ownKeys(original)) {
      Object.defineProperty(follow, key, Object.getOwnPropertyDescriptor(original, key));
    }
    owner[name] = follow;
  }
}

// From here on what runs is the script's.
function begin() {
  stretch.line = new Line('0');
}

// Run what a session's cell does first, whatever an interruption has left of the cell before.
function beginCell(cell, action) {
  unknown = null;
  outer.length = 0;
  stretch = { line: NONE, last: null };
  return on(new Line('0', cell), action);
}

// The cell whose code has made a promise; 0 if none has.
function cellOf(promise) {
  return Stamp.of(promise)?.line.cell ?? 0;
}

function follow() {
  promiseHooks.createHook({ init: onInit, before: onBefore, after: onAfter });
  followTimers();
}

module.exports = { apart, begin, beginCell, cellOf, current, follow, within };
