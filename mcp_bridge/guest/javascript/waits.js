'use strict';
// `runtime.sleep_until` and `runtime.wait_event`: a long wait gives up the container, and the script goes on later.

const { optionsOf } = require('./arguments');

// Before March 1973, in milliseconds: such a number is one of seconds, or of what is to be waited for.
const LEAST_TIME = 1e11;
const ZONE = /(?:[Zz]|[+-]\d\d(?::?\d\d)?)$/;

const UNTIL = 'await runtime.sleep_until(Date.now() + 3_600_000, { signal })';
const EVENT = "await runtime.wait_event('paid', { timeout: 3600, signal })";

const number = (value) => typeof value === 'number' && Number.isFinite(value);

// The request for a time. Throws TypeError, RangeError.
function until(when) {
  let at = when;
  if (typeof when === 'string') {
    const text = when.trim();
    at = ZONE.test(text) && text.includes(':') ? Date.parse(text) : NaN;
    if (Number.isNaN(at)) {
      throw new RangeError(
        `sleep_until(): '${text.slice(0, 100)}' is no time with its zone; write it as '2030-01-31T09:00:00+01:00'`,
      );
    }
  } else if (when instanceof Date) {
    at = when.getTime();
    if (Number.isNaN(at)) throw new RangeError('sleep_until(): the date is invalid');
  } else if (!number(when)) {
    throw new TypeError(
      `sleep_until() takes a Date, milliseconds since 1970, or an ISO text, not ${when === null ? 'null' : typeof when}; `
      + 'write: await runtime.sleep_until(Date.now() + 3_600_000)',
    );
  } else if (when > 0 && when < LEAST_TIME) {
    throw new RangeError(
      `sleep_until(): ${when} is no time in milliseconds since 1970; write: await runtime.sleep_until(Date.now() + 3_600_000)`,
    );
  }
  return { until: at / 1000 };
}

// The request for an event, of which `timeout` may be null. Throws TypeError, RangeError.
function event(name, timeout) {
  if (typeof name !== 'string') throw new TypeError(`wait_event(): the event's name is a text, not ${typeof name}; write: wait_event('paid')`);
  if (timeout === undefined || timeout === null) return { name };
  if (typeof timeout !== 'number') {
    throw new TypeError(`wait_event(): timeout is a number of seconds, not ${typeof timeout}; write: { timeout: 3600 }`);
  }
  if (!number(timeout)) throw new RangeError(`wait_event(): timeout is ${timeout}, which is no number of seconds; write: { timeout: 3600 }`);
  return { name, timeout };
}

// The functions. `signal` of their options takes a wait back.
function functions(calls) {
  return {
    sleep_until: (when, options) => calls.begin('runtime.sleep_until', async (call) => {
      const { signal } = optionsOf(options, UNTIL, ['signal']);
      await calls.request('wait.until', { ...until(when), call }, signal);
    }),
    wait_event: (name, options) => calls.begin('runtime.wait_event', async (call) => {
      // The time-out alone is taken, too.
      const { timeout, signal } = typeof options === 'number' ? { timeout: options } : optionsOf(options, EVENT, ['timeout', 'signal']);
      return (await calls.request('wait.event', { ...event(name, timeout), call }, signal)).value;
    }),
  };
}

module.exports = { functions };
