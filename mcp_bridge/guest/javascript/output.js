'use strict';
// Standard output and error: written to descriptors 1 and 2 at once, in order with each other and with what is shown.
const { Writable } = require('node:stream');
const { writeAll } = require('./channel');

function follow(channel) {
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

module.exports = { follow };
