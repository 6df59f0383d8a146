'use strict';
// The guest of a session in Node: runs one cell after the other, as `guest/session/cells.py` does for Python.
//
// What cells declare is in properties of the global object (`cell_source`). A cell ends when nothing of it is left to be
// done, as a script does; then its timers are cancelled, and what else it has left can make no call.
const net = require('node:net');
const util = require('node:util');
const vm = require('node:vm');
const { AsyncLocalStorage } = require('node:async_hooks');
const { Worker } = require('node:worker_threads');
const { Calls } = require('./calls');
const { Display, SHOWN } = require('./display');
const { Inputs } = require('./inputs');
const { Modules } = require('./modules');
const { MCPError, NotAwaitedError } = require('./errors');
const { Runtime } = require('./runtime');
const { SCRIPT, cut, described, source, trimStacks } = require('./failure_report');
const { Servers } = require('./proxies');
const { cellEnded, reallyExit } = require('./channel');
const { cellSource } = require('./cell_source');
const { ScriptSyntaxError } = require('./script_source');
const { advice } = require('./advice');
const commonJs = require('./common_js');
const lines = require('./call_ids');
const output = require('./output');
const planned = require('./planned_values');
const randomness = require('./randomness');
const waits = require('./waits');

const SAFE_VALUE_CHARS = 1_000_000;
// A cell may replace it.
const { stringify } = JSON;
const LOADING = { importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER };

// Interrupts the main thread, wherever it is, for each byte on descriptor 6; one on 7 says that it was.
const INTERRUPTER = `
const { Session } = require('node:inspector');
const net = require('node:net');
const fs = require('node:fs');
const session = new Session();
session.connectToMainThread();
new net.Socket({ fd: 6, readable: true, writable: false }).on('data', (bytes) => {
  for (const _ of bytes) session.post('Runtime.terminateExecution', () => fs.writeSync(7, '.'));
});
`;

// Calls of the cell that runs; those of earlier ones are refused.
class CellCalls extends Calls {
  #running;
  #own;

  // `running` gives the number of the cell that runs, and `own` that of the one whose code asks.
  constructor(channel, running, own) {
    super(channel);
    [this.#running, this.#own] = [running, own];
  }

  get cell() {
    return this.#running();
  }

  begin(shown, work, options) {
    try {
      this.#refuseLeft();
    } catch (error) {
      return Promise.reject(error);
    }
    return super.begin(shown, work, options);
  }

  async ask(...asked) {
    this.#refuseLeft();
    return super.ask(...asked);
  }

  askNow(...asked) {
    this.#refuseLeft();
    return super.askNow(...asked);
  }

  #refuseLeft() {
    if (this.#own() === this.#running()) return;
    const { message, data } = cellEnded();
    throw new MCPError(message, data);
  }
}

class Session {
  #channel;
  #start = null;
  #cell = 0;
  #context = new AsyncLocalStorage();
  #calls;
  #display;
  #inputs;
  #rows = null;
  #servers;
  #modules;
  #timers = new Map();
  #names = new Set();
  #unset = new Map();
  #language = null;
  #isRunning = false;
  #state = 'running';
  #value;
  #error = null;
  #exit = null;
  #import;

  constructor(channel, first) {
    this.#channel = channel;
    channel.keepOpen(() => this.#stop());
    randomness.begin(first.seed);
    output.follow(channel);
    trimStacks();
    Object.assign(util.inspect.defaultOptions, SHOWN);
    process.argv.splice(1, process.argv.length, commonJs.FILENAME);
    this.#calls = new CellCalls(channel, () => this.#cell, () => this.#context.getStore());
    this.#inputs = new Inputs(this.#calls);
    if (first.has_inputs) this.#inputs.fetchOnOpen();
    this.#display = new Display(channel, this.#calls, this.#inputs);
    this.#import = vm.compileFunction('return import(name, options)', ['name', 'options'], { filename: SCRIPT, ...LOADING });
    this.#offer(first.servers);
    this.#modules.offer('');
    this.#give(commonJs.names());
    this.#prepareNode();
    lines.follow();
    this.#followTimers();
    new Worker(INTERRUPTER, { eval: true, stdin: false }).unref();
  }

  // The servers that a cell may use, and what has them.
  #offer(rows) {
    const text = stringify(rows);
    if (text === this.#rows) return;
    this.#rows = text;
    this.#servers = new Servers(this.#calls, rows);
    const runtime = new Runtime(this.#calls, this.#servers);
    const functions = runtime.functions({ ...waits.functions(this.#calls), ...this.#inputs.functions() });
    const shown = this.#display.functions();
    const module = runtime.module(functions);
    this.#modules = new Modules(this.#servers, module, functions, shown, this.#calls);
    this.#give({ ...shown, runtime: module, mcp: this.#modules.mcp });
  }

  // Names that need no import, unless a cell has declared them.
  #give(names) {
    for (const [name, value] of Object.entries(names)) {
      if (this.#names.has(name)) continue;
      Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
    }
  }

  #prepareNode() {
    process.setUncaughtExceptionCaptureCallback((error) => {
      try {
        if (process.listenerCount('uncaughtException') > 0) process.emit('uncaughtException', error, 'uncaughtException');
        else if (!this.#isOfEarlierCell()) this.#fail(error);
      } catch (second) {
        this.#fail(second);
      }
    });
    process.on('unhandledRejection', (reason, promise) => {
      const cell = lines.cellOf(promise);
      if (process.listenerCount('unhandledRejection') === 1 && (cell === 0 || cell === this.#cell)) this.#fail(reason);
    });
    process.exit = (code) => {
      if (this.#isRunning && !this.#isOfEarlierCell()) {
        this.#exit ??= Number(code ?? process.exitCode ?? 0) & 0xff;
        this.#channel.askInterruption();
      }
      // What called it doesn't go on. That this is interrupted ends the cell.
      for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 10);
    };
    const { emit } = process;
    process.emit = (name, ...args) => {
      const result = emit.call(process, name, ...args);
      if (name === 'beforeExit') this.#onDrained(result);
      return result;
    };
  }

  #isOfEarlierCell() {
    const cell = this.#context.getStore();
    return cell !== undefined && cell !== this.#cell;
  }

  // A cell's timers end with it.
  #followTimers() {
    for (const [name, clearing] of [
      ['setTimeout', 'clearTimeout'], ['setInterval', 'clearInterval'], ['setImmediate', 'clearImmediate'],
    ]) {
      const [original, clear, once] = [globalThis[name], globalThis[clearing], name !== 'setInterval'];
      const follow = (callback, ...rest) => {
        if (typeof callback !== 'function') return original(callback, ...rest);
        const timers = this.#timers;
        const made = original(function (...args) {
          try {
            return callback.apply(this, args);
          } finally {
            // Where it was interrupted, this isn't done: Node counts it as one to come until it is cleared.
            if (once) timers.delete(made);
          }
        }, ...rest);
        timers.set(made, clear);
        return made;
      };
      for (const key of Reflect.ownKeys(original)) {
        Object.defineProperty(follow, key, Object.getOwnPropertyDescriptor(original, key));
      }
      globalThis[name] = follow;
      globalThis[clearing] = Object.defineProperty((timer) => {
        this.#timers.delete(timer);
        return clear(timer);
      }, 'name', { value: clearing });
    }
  }

  // Run a cell.
  run(start) {
    this.#channel.replays = start.replays === true;
    this.#channel.beginCell(start.execution);
    [this.#start, this.#cell, this.#isRunning, this.#state] = [start, start.cell, true, 'running'];
    [this.#value, this.#error, this.#exit] = [undefined, null, null];
    process.exitCode = undefined;
    this.#calls.beginCell(start.listings ?? {});
    this.#display.begin();
    output.beginCell();
    this.#offer(start.servers);
    if (start.is_dry) planned.prepare((error) => this.#endDry(error));
    Object.assign(source, { name: `cell-${start.cell}`, added: [] });
    const { cell } = start;
    this.#context.run(cell, () => lines.apart(() => this.#begin(cell).catch((error) => {
      if (cell === this.#cell) this.#fail(error);
    })));
  }

  async #begin(cell) {
    const made = cellSource(this.#start.code, { isDry: this.#start.is_dry === true });
    source.added = made.added;
    const filename = `file:///workspace/cell-${cell}.js`;
    const work = new vm.Script(made.text, { filename, lineOffset: -1, ...LOADING }).runInThisContext();
    this.#declare(made);
    const handle = this.#handle();
    await this.#importAll(made.requests);
    const ended = lines.beginCell(cell, () => this.#context.run(cell, () => work(handle)));
    await ended;
    // `main()` as the last line: its outcome is the cell's.
    if (util.types.isPromise(this.#value)) this.#value = await this.#value;
    if (cell !== this.#cell || !this.#isRunning) return;
    this.#state = 'ended';
    for (const each of process._getActiveHandles()) if (each instanceof net.Server) each.unref();
  }

  // What the text of a cell uses of ours.
  #handle() {
    return {
      begin: (names, functions) => names.forEach((name, at) => {
        Object.defineProperty(functions[at], 'name', { value: name, configurable: true });
        this.#set(name, functions[at]);
      }),
      constant: (...names) => {
        for (const name of names) Object.defineProperty(globalThis, name, { writable: false });
      },
      value: (value) => {
        this.#value = value;
      },
      import: (name, options) => this.#imported(`${name}`, options),
      meta: {
        url: SCRIPT, filename: commonJs.FILENAME, dirname: commonJs.DIRNAME, main: true,
        resolve: (name) => `${new URL(name, SCRIPT)}`,
      },
    };
  }

  #set(name, value, writable = true) {
    Object.defineProperty(globalThis, name, { value, writable, configurable: true, enumerable: true });
  }

  // What a cell declares can be assigned to. New names can't be read before that, and are gone if it never happens.
  #declare({ functions, values, variables }) {
    for (const name of [...functions, ...values, ...variables]) {
      const known = Object.getOwnPropertyDescriptor(globalThis, name);
      if (known !== undefined && !this.#names.has(name) && this.#isOfLanguage(name)) {
        throw new SyntaxError(`'${name}' is JavaScript's own, and can't be declared in a session; use another name`);
      }
    }
    for (const name of [...values, ...variables]) {
      this.#names.add(name);
      if (Object.hasOwn(globalThis, name)) this.#set(name, globalThis[name]);
      else if (variables.includes(name)) this.#set(name, undefined);
      else this.#leaveUnset(name);
    }
    for (const name of functions) this.#names.add(name);
  }

  // What is in Node is built on these, too.
  #isOfLanguage(name) {
    this.#language ??= new Set(vm.runInNewContext('Object.getOwnPropertyNames(globalThis)'));
    return this.#language.has(name) && name !== 'console';
  }

  #leaveUnset(name) {
    const get = () => {
      throw new ReferenceError(`Cannot access '${name}' before initialization`);
    };
    this.#unset.set(name, get);
    Object.defineProperty(globalThis, name, {
      get, set: (value) => this.#set(name, value), configurable: true, enumerable: false,
    });
  }

  async #imported(name, options) {
    if (name === 'mcp' || name.startsWith('mcp/')) {
      const exported = this.#modules.exported[name.replace(/\.(?:js|mjs|ts)$/, '')];
      if (exported !== undefined) return { __proto__: null, ...exported };
    }
    return this.#import(name, options);
  }

  async #importAll(requests) {
    for (const { from, names, with: attributes, at: { line, column } } of requests) {
      const module = await this.#imported(from, Object.keys(attributes).length > 0 ? { with: attributes } : undefined);
      for (const [imported, local] of names) {
        if (imported !== '*' && !(imported in module)) {
          throw new ScriptSyntaxError(
            `The requested module '${from}' does not provide an export named '${imported}'`, line, column + 1,
          );
        }
        this.#set(local, imported === '*' ? module : module[imported], false);
      }
    }
  }

  // The event loop has nothing to do: a script would end now.
  #onDrained(hadListeners) {
    if (!this.#isRunning) return;
    if (hadListeners && process.getActiveResourcesInfo().length > 0) return;
    this.#end();
  }

  #fail(error) {
    if (!this.#isRunning || this.#exit !== null) return;
    [this.#state, this.#error] = ['failed', error];
    this.#end();
  }

  // The session's copy in which a cell runs dry ends with it: what would catch the error isn't run.
  #endDry(error) {
    this.#fail(error);
    // What Node prints when it ends is no output of the cell, whose outcome has to be taken before.
    this.#channel.flush();
    reallyExit(1);
  }

  // Its time is up, or it was interrupted because it exits.
  #stop() {
    if (!this.#isRunning) return;
    if (this.#exit === null) this.#fail(new MCPError("the cell's time is up", { code: 'script_timeout' }));
    else this.#end();
  }

  #end() {
    this.#isRunning = false;
    lines.apart(() => {
      const outcome = this.#outcome();
      for (const [timer, clear] of this.#timers) clear(timer);
      this.#timers.clear();
      for (const [name, get] of this.#unset) {
        if (Object.getOwnPropertyDescriptor(globalThis, name)?.get !== get) continue;
        delete globalThis[name];
        this.#names.delete(name);
      }
      this.#unset.clear();
      for (const each of process._getActiveHandles()) each.unref?.();
      this.#channel.endCell();
      output.reportReplaced();
      const closed = output.closed();
      this.#send(closed.length > 0 ? { ...outcome, closed } : outcome);
    });
  }

  #outcome() {
    const code = Number(process.exitCode ?? 0) & 0xff;
    if (this.#exit !== null) return { exit_code: this.#exit };
    if (this.#state === 'failed') return { exit_code: 1, error: this.#described(this.#error) };
    if (this.#state === 'running') {
      return { exit_code: 1, error: this.#described(new NotAwaitedError(
        `the cell waits for a promise that nothing will settle any more${output.unanswered()}`, null,
      )) };
    }
    const forgotten = this.#calls.notAwaited();
    if (forgotten !== null) return { exit_code: 1, error: this.#described(forgotten) };
    if (code !== 0) return { exit_code: code };
    try {
      const value = this.#display.show(this.#value);
      return value === null ? { exit_code: 0 } : { exit_code: 0, value: cut(value, this.#start.max_value_bytes >> 3).toWellFormed() };
    } catch (error) {
      return { exit_code: 1, error: this.#described(error) };
    }
  }

  #described(error) {
    let found = null;
    try {
      if (this.#start.advises !== false) {
        found = advice(error, this.#servers, this.#modules.exported, this.#start, this.#inputs)
          ?? this.#calls.forgottenBefore(error);
      }
    } catch {
      // An object that resists: the error stands alone.
    }
    return described(error, found);
  }

  #send(outcome) {
    try {
      this.#channel.finish('execution.finish', outcome);
    } catch {
      // Control characters take six bytes each: a value within the limit may exceed the frame's.
      this.#channel.finish('execution.finish', { ...outcome, value: cut(outcome.value ?? '', SAFE_VALUE_CHARS) });
    }
  }
}

module.exports = { Session };
