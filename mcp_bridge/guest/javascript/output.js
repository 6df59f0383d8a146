'use strict';
// Standard output and error: written to descriptors 1 and 2 at once, in order with each other and with what is shown.
// Standard input is Node's, and empty: that the script has looked for something there is told.
const { fstatSync } = require('node:fs');
const { Writable } = require('node:stream');
const { writeAll } = require('./channel');

let isStdinUsed = false;

// As they are before a cell may replace them.
const own = console;
const { log } = own;
let hasPrinted = false;

// What is said of a script that waits for ever, after it has looked at standard input; otherwise nothing.
function unanswered() {
  return isStdinUsed ? '; if for an answer on standard input: nobody can answer here, so put the value into the script' : '';
}

// Which of descriptors 1 and 2 the script has closed.
function closed() {
  return [1, 2].filter((fd) => {
    try {
      fstatSync(fd);
      return false;
    } catch {
      return true;
    }
  });
}

function beginCell() {
  hasPrinted = false;
}

// Say on standard error where a cell has left another `console.log`, unless something was printed: later cells have it,
// too, and their answers would be empty for no visible reason.
function reportReplaced() {
  try {
    const isOwn = globalThis.console === own;
    if (hasPrinted || (isOwn && own.log === log)) return;
    const instead = isOwn ? 'console.log = console.info' : "console = process.getBuiltinModule('node:console')";
    const said = `${isOwn ? 'console.log' : 'console'} is another one now: what cells of this session print goes there`;
    writeAll(2, Buffer.from(`${said}; write: ${instead}\n`));
  } catch {
    // A cell may have put anything there, or have closed its descriptors.
  }
}

function followInput() {
  const { get } = Object.getOwnPropertyDescriptor(process, 'stdin');
  Object.defineProperty(process, 'stdin', {
    configurable: true,
    enumerable: true,
    get() {
      isStdinUsed = true;
      return get.call(process);
    },
  });
}

function follow(channel) {
  followInput();
  let current = 1;
  const stream = (fd) => {
    const made = new Writable({
      decodeStrings: true,
      emitClose: false,
      autoDestroy: false,
      write(chunk, _, done) {
        if (current !== fd) {
          channel.flush();
          current = fd;
        }
        if (fd === 1) hasPrinted = true;
        let failed = null;
        try {
          writeAll(fd, chunk);
        } catch (error) {
          failed = error;
        }
        done(failed);
      },
    });
    Object.assign(made, { fd, _type: 'pipe', _isStdio: true });
    return made;
  };
  const streams = { stdout: stream(1), stderr: stream(2) };
  for (const [name, made] of Object.entries(streams)) {
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => made });
  }
}

module.exports = { beginCell, closed, follow, reportReplaced, unanswered };
