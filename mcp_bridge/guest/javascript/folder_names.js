'use strict';
// The names of `fs.mkdtemp` and its like from a session's seed: Node's own come from the kernel.
const fs = require('node:fs');
const { internalBinding } = require('internal/test/binding');

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';
const LENGTH = 6;
// How many names that are taken are passed over.
const TRIES = 100;
const MODE = 0o700;

const { mkdirSync } = fs;

// As Node's own error, which is of another call.
function renamed(error, prefix) {
  const path = `${prefix}${'X'.repeat(LENGTH)}`;
  const at = error.message.lastIndexOf(', mkdir ');
  if (at >= 0) error.message = `${error.message.slice(0, at)}, mkdtemp '${path}'`;
  return Object.assign(error, { syscall: 'mkdtemp', path });
}

// Replace what all of them call, with their arguments looked through already. `bytes` gives so many random ones.
function followFolders(bytes) {
  const binding = internalBinding('fs');

  const make = (prefix, encoding = 'utf8') => {
    for (let tries = 1; ; tries += 1) {
      const letters = [...bytes(LENGTH)].map((byte) => LETTERS.charCodeAt(byte % LETTERS.length));
      const made = Buffer.concat([Buffer.from(prefix), Buffer.from(letters)]);
      try {
        mkdirSync(made, MODE);
        return encoding === 'buffer' ? made : made.toString(encoding);
      } catch (error) {
        if (error.code !== 'EEXIST' || tries === TRIES) throw renamed(error, prefix);
      }
    }
  };

  // `request` is none for the function that waits, a symbol for the one with a promise, and an object with a callback.
  binding.mkdtemp = (prefix, encoding, request) => {
    if (request === undefined) return make(prefix, encoding);
    const made = new Promise((resolve) => { resolve(make(prefix, encoding)); });
    if (request === binding.kUsePromises) return made;
    const later = (...result) => setImmediate(() => request.oncomplete(...result));
    made.then((path) => later(null, path), later);
    return undefined;
  };
}

module.exports = { followFolders };
