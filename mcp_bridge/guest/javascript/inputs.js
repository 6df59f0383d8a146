'use strict';
// The operator's files inside the sandbox: listed, copied into /workspace/in, or read as a stream. The process between
// Node and the host writes the copies.
const fs = require('node:fs');
const nodeModule = require('node:module');
const path = require('node:path');
const util = require('node:util');
const { fileURLToPath } = require('node:url');
const { MCPError } = require('./errors');
const lines = require('./call_ids');
const { rows } = require('./runtime');

const FOLDER = '/workspace/in';

// With these, opening a path of the folder just finds nothing there.
const MISSING = new Set(['unknown_input', 'input_unavailable']);

// Most lines at once about what isn't handed in.
const MAX_TOLD = 3;

const { lstatSync } = fs;

function plainName(name) {
  if (typeof name !== 'string') throw new TypeError(`the name of an input is a text, not ${typeof name}`);
  return (name.startsWith(`${FOLDER}/`) ? name.slice(FOLDER.length + 1) : name).replace(/\/+$/, '');
}

function rowLine(row) {
  if (row.error !== undefined) return `${row.name}: ${row.error}`;
  return `${row.name}: ${row.files === undefined ? '' : `${row.files} files, `}${row.size} bytes, ${row.type}`;
}

// A file as a sequence of parts, for `for await` and `pipeline`, and any range of its bytes by `read`.
class InputFile {
  #calls;
  #version;
  #partBytes;
  #cell;
  #parts = new Map();

  constructor(calls, name, found) {
    this.#calls = calls;
    this.#version = found.version;
    this.#partBytes = found.part;
    this.#cell = calls.cell;
    this.name = name;
    this.size = found.size;
    this.sha256 = found.files[0].sha256;
  }

  // The bytes from `start` to before `end`; all of them by default.
  read(start = 0, end = Math.max(start, this.size)) {
    return lines.apart(async () => {
      if (!(Number.isSafeInteger(start) && start >= 0 && Number.isSafeInteger(end) && end >= start)) {
        throw new RangeError(`read(): ${start} to ${end} is no range of bytes`);
      }
      return this.#read(start, Math.min(end, this.size));
    });
  }

  // All of it as text.
  text(encoding = 'utf8') {
    return lines.apart(async () => new TextDecoder(encoding).decode(await this.#read(0, this.size)));
  }

  [Symbol.asyncIterator]() {
    let number = 0;
    const step = async () => {
      if (number * this.#partBytes >= this.size) return { done: true, value: undefined };
      return { done: false, value: await this.#part(number++) };
    };
    return {
      next: () => lines.apart(step),
      return: () => lines.apart(async () => {
        // Nobody takes what was asked for ahead.
        this.#parts.delete(number);
        number = Infinity;
        return { done: true, value: undefined };
      }),
    };
  }

  async #read(start, end) {
    const pieces = [];
    for (let at = start; at < end;) {
      const number = Math.floor(at / this.#partBytes);
      const part = await this.#part(number);
      const from = at - number * this.#partBytes;
      pieces.push(part.subarray(from, Math.min(part.length, from + end - at)));
      at += pieces.at(-1).length;
    }
    return Buffer.concat(pieces);
  }

  // A part's content. The one that follows is asked for, too: the host reads it meanwhile. Two are held at most.
  async #part(number) {
    if (this.#cell !== this.#calls.cell) {
      // What came ahead isn't used either: whether it did is chance.
      throw new MCPError(`'${this.name}' was opened by an earlier cell: open it again in this one`, { code: 'unknown_input' });
    }
    const asked = this.#parts.get(number) ?? this.#ask(number);
    this.#parts = new Map([[number, asked]]);
    if ((number + 1) * this.#partBytes < this.size) this.#ask(number + 1);
    try {
      return await asked;
    } catch (error) {
      this.#parts.delete(number);
      throw error;
    }
  }

  #ask(number) {
    const asked = this.#calls.request('input.read', { name: this.name, version: this.#version, number })
      .then(({ base64 }) => Buffer.from(base64, 'base64'));
    // Whoever asks for it is told.
    asked.catch(() => {});
    this.#parts.set(number, asked);
    return asked;
  }

  [util.inspect.custom]() {
    return `[input ${this.name}: ${this.size} bytes]`;
  }
}

class Inputs {
  #calls;
  #told = new Set();
  #fetchedNames = new Set();
  #missing = new Set();
  #isFetching = false;

  constructor(calls) {
    this.#calls = calls;
  }

  functions() {
    return {
      files: (name) => {
        // Each of its requests has a name.
        const line = lines.current().task();
        return this.#calls.begin('runtime.files', () => this.#files(line, name), { named: false });
      },
      input: (name) => this.#calls.begin('runtime.input', async (call) => this.#fetch(plainName(name), call)),
      open_input: (name) => this.#calls.begin('runtime.open_input', async (call) => this.#open(plainName(name), call)),
    };
  }

  async #files(line, name) {
    const found = [];
    for (let start = 0; start !== null;) {
      const asked = { ...(name === undefined ? {} : { name }), start, call: line.call() };
      const { files, left_out: leftOut, next } = await this.#calls.request('input.list', asked);
      for (const row of files) {
        found.push(Object.defineProperty(row, util.inspect.custom, { value: () => rowLine(row) }));
      }
      this.#tell(name, leftOut);
      start = next;
    }
    return rows(found);
  }

  async #open(name, call) {
    const found = await this.#calls.request('input.open', { name, call });
    this.#tell(name, found.left_out);
    if (found.kind !== 'file') {
      const error = new Error(`EISDIR: a folder: open one of its files, await runtime.files('${name}')`);
      throw Object.assign(error, { code: 'EISDIR' });
    }
    return new InputFile(this.#calls, name, found);
  }

  #tell(name, leftOut) {
    const where = name === undefined ? '' : `${name}/`;
    const told = leftOut.map((what) => where + what).filter((line) => !this.#told.has(line));
    for (const line of told) this.#told.add(line);
    const rest = told.splice(MAX_TOLD);
    if (rest.length) {
      // The host itself may end with how many more there are.
      const last = /^(\d+) more$/.exec(rest.at(-1).slice(where.length));
      const count = rest.length + (last ? Number(last[1]) - 1 : 0);
      told.push(name === undefined ? `${count} more` : `${count} more of ${name}`);
    }
    for (const line of told) process.stderr.write(`[not provided: ${line}]\n`);
  }

  // From now on, have files of the folder fetched when they are opened or moved, or a folder's listed. Also to be written,
  // which the kernel refuses for what is there.
  fetchOnOpen() {
    this.#isFetching = true;
    for (const name of [
      'openSync', 'readFileSync', 'writeFileSync', 'appendFileSync', 'truncateSync',
      'readdirSync', 'opendirSync', 'copyFileSync', 'cpSync', 'renameSync',
    ]) {
      this.#wrap(fs, name, (original, self, args, asked) => {
        this.#fetchNow(asked);
        return original.apply(self, args);
      });
    }
    for (const name of [
      'open', 'readFile', 'writeFile', 'appendFile', 'truncate',
      'readdir', 'opendir', 'copyFile', 'cp', 'rename',
    ]) {
      this.#wrap(fs, name, (original, self, args, asked) => {
        // As without us.
        if (typeof args.at(-1) !== 'function') return original.apply(self, args);
        return void this.#fetched(asked).then(() => original.apply(self, args), (error) => args.at(-1)(error));
      });
      this.#wrap(fs.promises, name, (original, self, args, asked) => (
        this.#fetched(asked).then(() => original.apply(self, args))
      ));
    }
    this.#wrap(fs, 'openAsBlob', (original, self, args, asked) => this.#fetched(asked).then(() => original.apply(self, args)));
    this.#wrapDatabase();
    nodeModule.syncBuiltinESMExports();
  }

  // SQLite opens files past `fs`, and makes an empty database of what it doesn't find.
  #wrapDatabase() {
    const sqlite = require('node:sqlite');
    const fetch = (place) => {
      const isUri = typeof place === 'string' && place.startsWith('file:');
      const asked = this.#toFetch(nameIn(isUri ? URL.parse(place) : place), false);
      if (asked !== null) this.#fetchNow(asked);
    };
    sqlite.DatabaseSync = class DatabaseSync extends sqlite.DatabaseSync {
      constructor(place, ...options) {
        fetch(place);
        super(place, ...options);
      }
    };
  }

  // What fetches the input of a path, as opening it would; null for what is there, or no input. The call has its name
  // from the line that runs now.
  fetching(place) {
    let name = null;
    try {
      if (this.#isFetching) name = this.#toFetch(nameIn(place), false);
    } catch {
      // To open it says what is wrong with it.
    }
    if (name === null) return null;
    const call = lines.current().call();
    return () => this.#fetched(name, call);
  }

  // Whether there is no such file of the operator's, as far as is known: nothing was asked about most names.
  isMissing(name) {
    return !this.#isFetching || this.#missing.has(plainName(name));
  }

  #wrap(owner, name, fetched) {
    const original = owner[name];
    const isListing = /dir|^cp|^rename/.test(name);
    const inputs = this;
    const wrapped = function (...args) {
      const asked = inputs.#toFetch(nameIn(args[0]), isListing);
      return asked === null ? original.apply(this, args) : fetched(original, this, args, asked);
    };
    for (const key of Reflect.ownKeys(original)) {
      Object.defineProperty(wrapped, key, Object.getOwnPropertyDescriptor(original, key));
    }
    owner[name] = wrapped;
  }

  async #fetch(name, call) {
    const place = await this.#calls.ask('fetch', name, call);
    this.#fetchedNames.add(name);
    return place;
  }

  // The name, if it isn't there yet, or is a folder that is about to be listed or moved, of which only some files are.
  #toFetch(name, isListing) {
    if (name === null || lstatSync(`${FOLDER}/${name}`, { throwIfNoEntry: false }) === undefined) return name;
    const names = [...this.#fetchedNames];
    const isPart = names.some((one) => one.startsWith(`${name}/`));
    const isWhole = names.some((one) => name === one || name.startsWith(`${one}/`));
    return isListing && isPart && !isWhole ? name : null;
  }

  #fetchNow(name) {
    this.#missingAsNone(name, () => this.#calls.askNow('fetch', name, lines.current().call()));
    this.#fetchedNames.add(name);
  }

  #fetched(name, call = lines.current().call()) {
    return lines.apart(async () => {
      try {
        await this.#fetch(name, call);
      } catch (error) {
        this.#missingAsNone(name, () => {
          throw error;
        });
      }
    });
  }

  #missingAsNone(name, action) {
    try {
      action();
    } catch (error) {
      if (!MISSING.has(error.code)) throw error;
      this.#missing.add(name);
    }
  }
}

// The name of the input that a call of `fs`, or SQLite, is about to open; null for what is elsewhere.
function nameIn(place) {
  let text = place;
  if (place instanceof URL && place.protocol === 'file:') text = fileURLToPath(place);
  if (Buffer.isBuffer(place)) text = place.toString();
  if (typeof text !== 'string') return null;
  text = path.resolve(text);
  return text.startsWith(`${FOLDER}/`) ? text.slice(FOLDER.length + 1) : null;
}

module.exports = { Inputs };
