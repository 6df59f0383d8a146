'use strict';
// `display`, `artifact` and `progress`, and the text of the last expression's value.
const { EventEmitter } = require('node:events');
const fs = require('node:fs/promises');
const path = require('node:path');
const util = require('node:util');
const { MAX_DEPTH, MAX_VALUES, SCALARS_PER_VALUE, body, bytesOf, isBlock, isImage, mime, own, size } = require('./blocks');
const { MCPError, OF_ARTIFACT } = require('./errors');
const { checked, imageType } = require('./images');

const ARTIFACT_CHUNK_BYTES = 1024 * 1024;

// Whole, as far as may be printed: other bounds hold. That of arrays is for those whose text is much longer than they
// are, such as 200 MB of bytes.
const SHOWN = { depth: 32, maxArrayLength: 1_000_000, maxStringLength: null, breakLength: 120, compact: 8 };

const { open } = fs;
// A dry run has the script's own look at its results.
const { is } = Object;

// Node exports neither class.
const [Timeout, Immediate] = [[setTimeout, clearTimeout], [setImmediate, clearImmediate]].map(([begin, clear]) => {
  const timer = begin(() => {});
  clear(timer);
  return timer.constructor;
});
const TIMERS = new Set([Timeout.prototype, Immediate.prototype]);
const isTimer = (value) => (
  typeof value === 'object' && value !== null && !util.types.isProxy(value) && TIMERS.has(Object.getPrototypeOf(value))
);

const EMITTING = ['events', 'stream', 'fs', 'readline', 'zlib', 'crypto', 'child_process', 'worker_threads', 'net', 'http'];

// Whether it is a stream, a server or another emitter of a class of Node's. Of a class of the script's, it is a value.
function isNodesEmitter(value) {
  if (typeof value !== 'object' || value === null || util.types.isProxy(value) || !(value instanceof EventEmitter)) return false;
  const prototype = Object.getPrototypeOf(value);
  const name = own(own(prototype, 'constructor') ?? {}, 'name');
  return typeof name === 'string' && EMITTING.some((module) => require(`node:${module}`)[name]?.prototype === prototype);
}

// An image as `{type, data}`, in base64; null for anything else.
function imageOf(value) {
  if (isImage(value)) return { type: mime(value), data: body(value) };
  const bytes = bytesOf(value);
  const type = bytes === null ? null : imageType(bytes);
  return type === null ? null : { type, data: bytes.toString('base64') };
}

// A text that is shown in a value's place.
class Shown {
  constructor(text) {
    this.text = text;
  }

  [util.inspect.custom]() {
    return this.text;
  }
}

// Replaces an image in the text of the value that contains it.
class Placeholder extends Shown {
  #type;

  constructor({ type, data }) {
    super(`<${type}, ${size(data)} bytes>`);
    this.#type = type;
  }

  // Whether a value is one; `instanceof` would ask a proxy for its prototype.
  static is(value) {
    return typeof value === 'object' && value !== null && #type in value;
  }
}

class Display {
  #channel;
  #calls;
  #inputs;
  #sent = new Set();
  #documents = 0;

  constructor(channel, calls, inputs) {
    this.#channel = channel;
    this.#calls = calls;
    this.#inputs = inputs;
  }

  // Another cell of a session begins: what was shown may be shown again.
  begin() {
    this.#sent.clear();
    this.#documents = 0;
  }

  // The functions that need no import.
  functions() {
    return {
      display: (...values) => this.display(...values),
      progress: (done, total = null, message = null) => this.progress(done, total, message),
      artifact: (file, name) => {
        const fetch = this.#inputs.fetching(file);
        return this.#calls.begin('artifact', async () => {
          await fetch?.();
          return this.artifact(file, name);
        }, { named: false });
      },
    };
  }

  // Show values: images as what they are, HTML, PDF and audio as files that are kept, tables as text, anything else as
  // it prints.
  display(...values) {
    for (const value of values) {
      let left = this.#extracted(value, (block) => this.#keptBlock(block));
      if (Placeholder.is(left)) continue;
      if (left === value) left = this.#tableOrDocument(value);
      process.stdout.write(`${typeof left === 'string' ? left : util.inspect(left, SHOWN)}\n`);
    }
  }

  // A table as text; in place of a document, which is kept, the line about that; anything else as it is.
  #tableOrDocument(value) {
    if (util.types.isProxy(value)) return value;
    // Loaded late: most scripts display neither.
    const text = require('./table_text').table(value);
    if (text !== null) return text;
    const found = require('./documents').documentOf(value);
    return found === null ? value : this.#kept(found);
  }

  // The same for the PDF or audio in a tool's result; null for anything else.
  #keptBlock(value) {
    if (!isBlock(value)) return null;
    const found = require('./documents').documentOfBlock(value);
    return found === null ? null : new Shown(this.#kept(found));
  }

  // Keep a document, before anything else is done; the line about it, with what else is `said` of it.
  #kept({ mime: type, suffix, data }, said = '') {
    this.#documents += 1;
    const name = `display-${this.#documents}${suffix}`;
    const what = `${type} of ${data.length} bytes${said}`;
    try {
      let uri;
      for (let start = 0; start < data.length; start += ARTIFACT_CHUNK_BYTES) {
        const end = start + ARTIFACT_CHUNK_BYTES;
        const part = data.toString('base64', start, end);
        uri = this.#calls.askNow('keep', name, undefined, part, start === 0, end >= data.length);
      }
      return `[${what}: ${uri}]`;
    } catch (error) {
      if (!(error instanceof MCPError)) throw error;
      return `[${what} not kept: [${error.code}] ${error.message}]`;
    }
  }

  progress(done, total, message) {
    for (const [name, value] of [['done', done], ['total', total]]) {
      if (typeof value !== 'number' && !(name === 'total' && value === null)) {
        throw new TypeError(`progress(): ${name} is a number, not ${typeof value}`);
      }
    }
    const given = { done, ...(total === null ? {} : { total }), ...(message === null ? {} : { message: `${message}` }) };
    this.#channel.notify('progress.report', given);
  }

  // Keep a file beyond the sandbox's end. Resolves with the URI by which the client can read it.
  async artifact(file, name = path.basename(`${file}`)) {
    const opened = await open(file, 'r').catch((error) => {
      throw Object.defineProperty(error, OF_ARTIFACT, { value: true });
    });
    try {
      const read = async () => {
        const buffer = Buffer.alloc(ARTIFACT_CHUNK_BYTES);
        const { bytesRead } = await opened.read(buffer, 0, buffer.length, null);
        return buffer.subarray(0, bytesRead);
      };
      let chunk = await read();
      for (let first = true; ; first = false) {
        const following = await read();
        const last = following.length === 0;
        const result = await this.#calls.request(
          'artifact.write', { name, base64: chunk.toString('base64'), first, last },
        );
        if (last) {
          if (typeof file === 'string') this.#channel.kept(path.resolve(file), await opened.stat({ bigint: true }));
          return result.uri;
        }
        chunk = following;
      }
    } finally {
      await opened.close();
    }
  }

  // The last expression's value as text; null for undefined, or where an image was shown.
  show(value) {
    // `process.on(...)`, `setTimeout(...)` and `stream.pipe(...)` give what tells nobody anything.
    if (value === undefined || value === process || value === globalThis || isTimer(value) || isNodesEmitter(value)) return null;
    const left = this.#extracted(value, () => null);
    return Placeholder.is(left) ? null : util.inspect(left, SHOWN);
  }

  // A value with its images replaced, which are shown, and other objects by what `instead` gives for them, if not null.
  // One without any is returned as it is. Of a large value a part is searched, and no getter is called.
  #extracted(value, instead, depth = 0, search = { left: MAX_VALUES * SCALARS_PER_VALUE }) {
    // One of ours refuses names that it doesn't have.
    if (typeof value !== 'object' || value === null || util.types.isProxy(value)) return value;
    const image = imageOf(value);
    if (image !== null) {
      this.#send(image);
      return new Placeholder(image);
    }
    const other = instead(value);
    if (other !== null) return other;
    if (depth >= MAX_DEPTH) return value;
    const prototype = Object.getPrototypeOf(value);
    // The names of a long array's items would take more than it does itself.
    if (Array.isArray(value) ? value.length > search.left : prototype !== Object.prototype) return value;
    const changed = new Map();
    for (const name of Object.keys(value)) {
      const item = own(value, name);
      search.left -= typeof item === 'object' && item !== null ? SCALARS_PER_VALUE : 1;
      if (search.left < 0) break;
      const left = this.#extracted(item, instead, depth + 1, search);
      if (!is(left, item)) changed.set(name, left);
    }
    if (changed.size === 0) return value;
    const properties = Object.getOwnPropertyDescriptors(value);
    for (const [name, left] of changed) properties[name].value = left;
    return Object.setPrototypeOf(Object.defineProperties(Array.isArray(value) ? [] : {}, properties), prototype);
  }

  #send({ type, data }) {
    const key = `${type}:${data.length}:${data}`;
    if (this.#sent.has(key)) return;
    this.#sent.add(key);
    const { type: found, why } = checked(data);
    if (why === undefined) {
      this.#channel.notify('output.display', { data: { [found]: data } });
      return;
    }
    const document = { mime: type, suffix: `.${type.slice('image/'.length)}`, data: Buffer.from(data, 'base64') };
    const line = this.#kept(document, ` not shown, since ${why}`);
    this.#channel.notify('output.display', { data: { 'text/plain': line } });
  }
}

module.exports = { Display, SHOWN };
