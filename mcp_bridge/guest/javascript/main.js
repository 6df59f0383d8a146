'use strict';
// The guest in Node: receives an execution from the host, runs it, and reports how it ended.
const util = require('node:util');
const { Channel, reallyExit } = require('./channel');
const { Calls } = require('./calls');
const { Display, SHOWN } = require('./display');
const { Inputs } = require('./inputs');
const { Modules } = require('./modules');
const { NotAwaitedError } = require('./errors');
const { Runtime } = require('./runtime');
const { SCRIPT, cut, described, trimStacks } = require('./failure_report');
const { Servers } = require('./proxies');
const { KEEP, prepared } = require('./script_source');
const { advice } = require('./advice');
const commonJs = require('./common_js');
const lines = require('./call_ids');
const output = require('./output');
const planned = require('./planned_values');
const waits = require('./waits');

// A value of this length fits into a frame, whatever its characters.
const SAFE_VALUE_CHARS = 1_000_000;

class Execution {
  #channel;
  #start;
  #calls;
  #display;
  #inputs;
  #servers;
  #modules;
  #value;
  #state = 'running';
  #error = null;
  #hasLeft = false;
  #isFinished = false;

  constructor(channel, start) {
    this.#channel = channel;
    this.#start = start;
    channel.replays = start.replays === true;
    this.#calls = new Calls(channel);
    this.#servers = new Servers(this.#calls, start.servers);
    this.#inputs = new Inputs(this.#calls);
    this.#display = new Display(channel, this.#calls, this.#inputs);
  }

  run() {
    const runtime = new Runtime(this.#calls, this.#servers);
    const functions = runtime.functions({ ...waits.functions(this.#calls), ...this.#inputs.functions() });
    const shown = this.#display.functions();
    const module = runtime.module(functions);
    this.#modules = new Modules(this.#servers, module, functions, shown, this.#calls);
    this.#prepareNode({ ...shown, runtime: module, mcp: this.#modules.mcp });
    let text;
    try {
      text = prepared(this.#start.code, { isDry: this.#start.is_dry === true });
    } catch (error) {
      this.#fail(error);
      return;
    }
    if (this.#start.has_inputs) this.#inputs.fetchOnOpen();
    if (this.#start.is_dry) planned.prepare((error) => this.#endDry(error));
    lines.follow();
    this.#modules.offer(text);
    import(SCRIPT).then(() => this.#ended(), (error) => this.#rejected(error));
  }

  // What scripts find besides Node's own, and what happens when they end.
  #prepareNode(names) {
    output.follow(this.#channel);
    trimStacks();
    Object.assign(util.inspect.defaultOptions, SHOWN);
    process.argv.splice(1, process.argv.length, commonJs.FILENAME);
    for (const [name, value] of Object.entries({ ...commonJs.names(), ...names })) {
      Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
    }
    Object.defineProperty(globalThis, KEEP, { value: (value) => { this.#value = value; } });
    process.setUncaughtExceptionCaptureCallback((error) => this.#uncaught(error, 'uncaughtException'));
    const { exit, emit } = process;
    process.exit = (code) => {
      this.#hasLeft = true;
      return exit.call(process, code);
    };
    process.emit = (name, ...args) => {
      const result = emit.call(process, name, ...args);
      if (name === 'exit') this.#finish(args[0]);
      return result;
    };
  }

  async #ended() {
    try {
      // `main()` as the last line: its outcome is the script's.
      if (util.types.isPromise(this.#value)) this.#value = await this.#value;
    } catch (error) {
      const promise = this.#value;
      this.#value = undefined;
      if (process.listenerCount('unhandledRejection') === 0) this.#rejected(error);
      else this.#handled(() => process.emit('unhandledRejection', error, promise));
    }
    if (this.#state === 'running') this.#state = 'ended';
  }

  // Its top level has failed, and so is done.
  #rejected(error) {
    this.#state = 'ended';
    process.emit('uncaughtExceptionMonitor', error, 'unhandledRejection');
    this.#uncaught(error, 'unhandledRejection');
  }

  // As without us: the script's own handlers come first, and it goes on after them.
  #uncaught(error, origin) {
    if (process.listenerCount('uncaughtException') === 0) this.#fail(error);
    else this.#handled(() => process.emit('uncaughtException', error, origin));
  }

  // An error of a handler ends the script.
  #handled(emit) {
    try {
      emit();
    } catch (error) {
      this.#fail(error);
    }
  }

  // End at once, as Node does.
  #fail(error) {
    if (this.#state !== 'failed') {
      this.#state = 'failed';
      this.#error = error;
    }
    // The handlers of its exit are called once: one of them has failed.
    if (process._exiting) this.#finish(1);
    process.exit(1);
  }

  // End a dry run: not even the handlers of its exit go on.
  #endDry(error) {
    [this.#state, this.#error] = ['failed', error];
    this.#finish(1);
    reallyExit(1);
  }

  // Send the outcome: the last thing that is done.
  #finish(code) {
    if (this.#isFinished) return;
    this.#isFinished = true;
    lines.apart(() => this.#send(this.#outcome(Number(process.exitCode ?? code ?? 0) & 0xff)));
  }

  #outcome(code) {
    if (this.#state === 'failed') return { exit_code: 1, error: this.#described(this.#error) };
    if (this.#hasLeft) return { exit_code: code };
    if (this.#state === 'running') {
      return { exit_code: 1, error: this.#described(new NotAwaitedError(
        `the script waits for a promise that nothing will settle any more${output.unanswered()}`, null,
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
        found = advice(error, this.#servers, this.#modules?.exported ?? {}, this.#start, this.#inputs)
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

let session = null;
const channel = new Channel((start) => {
  if (typeof start.seed !== 'string') {
    new Execution(channel, start).run();
    return;
  }
  // Loaded late: most containers run one script.
  const { Session } = require('./cells');
  session ??= new Session(channel, start);
  session.run(start);
});
channel.open();
