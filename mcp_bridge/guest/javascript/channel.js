'use strict';
// The channel: JSON-RPC 2.0, one message a line, as `mcp_bridge/wire` has it. Frames come on descriptor 3 and leave on
// 4; an empty line on 4 asks for everything that was printed to be sent, which a byte on 5 says is done. A line on 4
// that begins with ! is for the process between Node and the host, which answers on 3; or on 5, if the id is 0.
// Of a session, a line on 3 that is ! asks for the end of the cell, and one on 4 that begins with > names the execution
// that begins, which is answered by the same on 5; ? asks to be interrupted.
const fs = require('node:fs');
const net = require('node:net');
const { LocalError, check, encodable, parse } = require('./json_values');

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
const { parse: parseJson, stringify } = JSON;

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

// Exactly so many bytes of what the process between Node and the host gives at once.
function readDone(count) {
  const data = Buffer.alloc(count);
  for (let done = 0; done < count;) {
    const read = readSync(DONE, data, done, count - done, null);
    if (read === 0) reallyExit(CHANNEL_CLOSED);
    done += read;
  }
  return data;
}

// The line of a message. Throws LocalError: `not_json`, `frame_too_deep`, `frame_too_large`, `bad_params`.
function encoded(message) {
  const sent = encodable(message);
  check(sent.method, sent.params);
  const line = Buffer.from(`${stringify(sent)}\n`);
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
  #untold = new Set();
  #parts = [];
  #lines = [];
  #isDispatching = false;
  #socket = null;
  #onStart;

  // Whether answers come from a record: each is acknowledged once the code that waited for it has continued.
  replays = false;

  // Before the script, and between two cells of a session, nothing can be asked for, and what is to run is waited for:
  // it may come in several pieces.
  #isBetween = true;
  #onStop = () => {};

  constructor(onStart) {
    this.#onStart = onStart;
  }

  // The guest is that of a session: `onStop` is called when its cell's time is up.
  keepOpen(onStop) {
    this.#onStop = onStop;
  }

  beginCell(execution) {
    const line = Buffer.from(`>${execution}\n`);
    send(line);
    // An earlier cell may have been interrupted before it had read what it had asked for.
    for (let read = Buffer.alloc(0); !read.equals(line);) read = Buffer.concat([read, readDone(1)]).subarray(-line.length);
    this.rest();
  }

  endCell() {
    this.#isBetween = true;
    for (const [id, { reject, settled }] of this.#waiting) {
      this.#waiting.delete(id);
      settled?.();
      reject(cellEnded());
    }
    this.#untold.clear();
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

  // A request's result; `signal` takes it back. Rejects with RequestError, or the signal's reason; throws LocalError.
  request(method, params, signal) {
    signal?.throwIfAborted();
    this.#requireCell();
    const id = ++this.#next;
    const line = encoded({ jsonrpc: '2.0', id, method, params });
    return new Promise((resolve, reject) => {
      const takeBack = () => {
        if (!this.#waiting.delete(id)) return;
        this.notify('request.cancel', { id });
        this.rest();
        reject(signal.reason);
      };
      const settled = () => signal?.removeEventListener('abort', takeBack);
      this.#wait(id, { resolve, reject, settled, call: params.call }, line);
      signal?.addEventListener('abort', takeBack, { once: true });
    });
  }

  #requireCell() {
    if (this.#isBetween) throw cellEnded();
  }

  // What the process between Node and the host gives. Rejects with RequestError, or throws it.
  ask(what, name, call) {
    this.#requireCell();
    const id = ++this.#next;
    const line = Buffer.from(`!${stringify([what, id, name, call])}\n`);
    return new Promise((resolve, reject) => this.#wait(id, { resolve, reject, call }, line));
  }

  // As `ask`, while nothing else runs. Throws RequestError.
  askNow(what, name, call, ...more) {
    this.#requireCell();
    // The host waits for these before it answers anything more.
    for (const taken of [...this.#untold]) this.#tellTaken(taken);
    send(Buffer.from(`!${stringify([what, 0, name, call, ...more])}\n`));
    const message = parseJson(readDone(Number(readDone(12).toString())).toString());
    if (this.replays && call !== undefined) this.notify('call.taken', { call });
    if (message.error === undefined) return message.result;
    throw new RequestError(message.error.message, message.error.data ?? {});
  }

  #wait(id, asked, line) {
    this.#waiting.set(id, asked);
    this.#socket.ref();
    send(line);
  }

  #tellTaken(call) {
    if (this.#untold.delete(call)) this.notify('call.taken', { call });
  }

  // Send a request to which nothing in here waits for the answer.
  finish(method, params) {
    send(encoded({ jsonrpc: '2.0', id: ++this.#next, method, params }));
  }

  // Tell that a file was kept, as it is now: it isn't kept again at the script's end.
  kept(path, { ino, size, mtimeNs, ctimeNs }) {
    send(Buffer.from(`!${stringify(['kept', path, ...[ino, size, mtimeNs, ctimeNs].map(String)])}\n`));
  }

  // Have everything sent that was printed so far.
  flush() {
    send(Buffer.from('\n'));
    readDone(1);
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
        this.#isBetween = false;
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
    asked.settled?.();
    if (message.error === undefined) {
      asked.resolve(message.result);
    } else {
      asked.reject(new RequestError(message.error.message, message.error.data ?? {}));
    }
    if (this.replays && asked.call !== undefined) {
      this.#untold.add(asked.call);
      setImmediate(() => this.#tellTaken(asked.call));
    }
    return true;
  }
}

module.exports = { Channel, RequestError, cellEnded, writeAll, reallyExit };
