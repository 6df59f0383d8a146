'use strict';
// The channel: JSON-RPC 2.0, one message a line, as `mcp_bridge/wire` has it. Frames come on descriptor 3 and leave on
// 4; an empty line on 4 asks for everything that was printed to be sent, which a byte on 5 says is done. A line on 4
// that begins with ! tells of a file that the script has kept. Of a session, a line on 3 that is ! asks for the end of
// the cell, and one on 4 that begins with > names the execution that begins; ? asks to be interrupted.
const fs = require('node:fs');
const net = require('node:net');
const { LocalError, encodable, parse } = require('./values');

const IN = 3;
const OUT = 4;
const DONE = 5;
const MAX_FRAME_BYTES = 16 * 1024 * 1024;
const HOST_GONE = 75;
const BAD_FRAME = 76;
const CHANNEL_CLOSED = 77;
const STOP = 33;

// The script may replace any function of Node's.
const { writeSync, readSync } = fs;
const { setImmediate } = globalThis;
const reallyExit = process.reallyExit.bind(process);
const { stringify } = JSON;

class RequestError extends Error {
  constructor(message, data) {
    super(message);
    this.data = data;
  }
}

function writeAll(fd, data) {
  for (let done = 0; done < data.length;) {
    try {
      done += writeSync(fd, data, done, data.length - done);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      // A child has made the pipe non-blocking for everybody.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
    }
  }
}

function send(line) {
  try {
    writeAll(OUT, line);
  } catch {
    reallyExit(CHANNEL_CLOSED);
  }
}

// The line of a message. Throws LocalError: `not_json`, `frame_too_deep`, `frame_too_large`.
function encoded(message) {
  const line = Buffer.from(`${stringify(encodable(message))}\n`);
  if (line.length - 1 > MAX_FRAME_BYTES) {
    throw new LocalError(
      'frame_too_large', `the message has ${line.length - 1} bytes; the limit is ${MAX_FRAME_BYTES}`,
    );
  }
  return line;
}

function cellEnded() {
  return new RequestError(
    'what makes this call was left by a cell that has ended; start it again in this one', { code: 'cell_ended' },
  );
}

class Channel {
  #next = 0;
  #waiting = new Map();
  #parts = [];
  #lines = [];
  #isDispatching = false;
  #socket = null;
  #onStart;

  // Whether answers come from a record: each is acknowledged once the code that waited for it has continued.
  replays = false;

  // Between two cells of a session nothing can be asked for, and the next one is waited for.
  #isBetween = false;
  #onStop = () => {};

  constructor(onStart) {
    this.#onStart = onStart;
  }

  // The guest is that of a session: `onStop` is called when its cell's time is up.
  keepOpen(onStop) {
    this.#onStop = onStop;
  }

  beginCell(execution) {
    this.#isBetween = false;
    send(Buffer.from(`>${execution}\n`));
    this.rest();
  }

  endCell() {
    this.#isBetween = true;
    for (const [id, { reject }] of this.#waiting) {
      this.#waiting.delete(id);
      reject(cellEnded());
    }
    this.#socket.ref();
  }

  // Have this thread interrupted, wherever it is.
  askInterruption() {
    send(Buffer.from('?\n'));
  }

  open() {
    this.#socket = new net.Socket({ fd: IN, readable: true, writable: false });
    this.#socket.on('data', (chunk) => this.#received(chunk));
    this.#socket.on('end', () => reallyExit(HOST_GONE));
    this.#socket.on('error', () => reallyExit(HOST_GONE));
  }

  // With nothing under way the channel doesn't keep the process.
  rest() {
    if (this.#waiting.size === 0 && !this.#isBetween) this.#socket.unref();
  }

  notify(method, params) {
    send(encoded({ jsonrpc: '2.0', method, params }));
  }

  // A request's result. Rejects with RequestError; throws LocalError.
  request(method, params) {
    if (this.#isBetween) throw cellEnded();
    const id = ++this.#next;
    const line = encoded({ jsonrpc: '2.0', id, method, params });
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, call: params.call });
      this.#socket.ref();
      send(line);
    });
  }

  // Send a request to which nothing in here waits for the answer.
  finish(method, params) {
    send(encoded({ jsonrpc: '2.0', id: ++this.#next, method, params }));
  }

  // Tell that a file was kept, as it is now: it isn't kept again at the script's end.
  kept(path, { ino, size, mtimeNs, ctimeNs }) {
    send(Buffer.from(`!${stringify([path, ...[ino, size, mtimeNs, ctimeNs].map(String)])}\n`));
  }

  // Have everything sent that was printed so far.
  flush() {
    send(Buffer.from('\n'));
    readSync(DONE, Buffer.alloc(1), 0, 1, null);
  }

  #received(chunk) {
    let start = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, start)) {
      this.#parts.push(chunk.subarray(start, end));
      const line = this.#parts.length === 1 ? this.#parts[0] : Buffer.concat(this.#parts);
      this.#parts = [];
      start = end + 1;
      if (line.length === 1 && line[0] === STOP) {
        // Whatever has interrupted the dispatch of what came before.
        this.#isDispatching = false;
        this.#onStop();
      } else if (line.length > 0) this.#lines.push(line);
    }
    if (start < chunk.length) this.#parts.push(chunk.subarray(start));
    if (!this.#isDispatching) this.#dispatch();
  }

  // One answer after the other: what waits for one continues before the next is given, as when it is run again.
  #dispatch() {
    this.#isDispatching = true;
    while (this.#lines.length > 0) {
      let message;
      try {
        message = parse(this.#lines.shift().toString());
      } catch {
        reallyExit(BAD_FRAME);
      }
      if (message.method === 'execution.start') {
        this.#onStart(message.params);
      } else if (message.id !== undefined && this.#settle(message)) {
        setImmediate(() => this.#dispatch());
        return;
      }
    }
    this.#isDispatching = false;
    this.rest();
  }

  #settle(message) {
    const asked = this.#waiting.get(message.id);
    if (asked === undefined) return false;
    this.#waiting.delete(message.id);
    if (message.error === undefined) {
      asked.resolve(message.result);
    } else {
      asked.reject(new RequestError(message.error.message, message.error.data ?? {}));
    }
    if (this.replays && asked.call !== undefined) {
      setImmediate(() => this.notify('call.taken', { call: asked.call }));
    }
    return true;
  }
}

module.exports = { Channel, RequestError, cellEnded, writeAll, reallyExit };
