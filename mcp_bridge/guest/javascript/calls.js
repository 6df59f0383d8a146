'use strict';
// Calls to the outside: named when they are made, sent at once, and told at the end if nobody has waited for them.
const util = require('node:util');
const { RequestError } = require('./channel');
const { LocalError } = require('./json_values');
const { EventTimeoutError, MCPError, NotAwaitedError, ToolError, restate } = require('./errors');
const { planned } = require('./planned_values');
const { shortened } = require('./blocks');
const { lineOf } = require('./failure_report');
const lines = require('./call_ids');

// The promise of a call, which knows whether anybody waits for it.
class Call extends Promise {
  #note = null;

  // What is derived from it is an ordinary promise.
  static get [Symbol.species]() {
    return Promise;
  }

  static of(work, note) {
    const call = new Call((resolve, reject) => work.then(resolve, reject));
    call.#note = note;
    return call;
  }

  then(...handlers) {
    if (this.#note !== null) this.#note.isAwaited = true;
    return super.then(...handlers);
  }

  [util.inspect.custom]() {
    return `[${this.#note?.shown}(...), not awaited]`;
  }
}

// How a request is named whose parameters don't fit.
const REQUEST = /^\w+\.\w+(?=: '| needs ')/;

// Codes of calls that were refused, perhaps because the server lists its tools otherwise by now.
const STALE_LISTING_CODES = new Set(['bad_arguments', 'tool_changed', 'unknown_tool']);

class Calls {
  #made = [];
  // The servers, whose listings are kept.
  servers = [];

  constructor(channel) {
    this.channel = channel;
  }

  // The number of the session's cell that runs; 0 for a script.
  get cell() {
    return 0;
  }

  // Begin what a script has called for: `work` gets the call's name, or null for what isn't named.
  // `shown` is how the script wrote it, up to the parenthesis.
  begin(shown, work, { named = true } = {}) {
    const name = named ? lines.current().call() : null;
    const { stack } = new Error();
    return lines.apart(() => {
      const note = { shown, line: lineOf(stack), isAwaited: false };
      this.#made.push(note);
      return Call.of(this.#guarded(shown, work, name, stack), note);
    });
  }

  // Afterwards one that has been awaited isn't kept.
  async #guarded(shown, work, name, stack) {
    try {
      return await work(name);
    } catch (error) {
      const told = asScripts(error);
      // The script knows the function that it has called, not the request.
      if (told?.code === 'bad_params') restate(told, told.message.replace(REQUEST, `${shown}()`));
      putAt(told, stack);
      throw told;
    } finally {
      this.#made = this.#made.filter((note) => !note.isAwaited);
    }
  }

  // A request's result; `signal` takes it back. Throws MCPError, or the signal's reason.
  async request(method, params, signal) {
    try {
      return await this.channel.request(method, params, signal);
    } catch (error) {
      throw asScripts(error);
    }
  }

  // What the process between Node and the host gives, as `Channel.ask`. Throws MCPError.
  async ask(what, name, call) {
    try {
      return await this.channel.ask(what, name, call);
    } catch (error) {
      throw asScripts(error);
    }
  }

  // As `ask`, while nothing else runs.
  askNow(...asked) {
    try {
      return this.channel.askNow(...asked);
    } catch (error) {
      throw asScripts(error);
    }
  }

  // A tool call's value; `signal` takes it back. Throws ToolError, or the signal's reason.
  async tool(request, signal) {
    const { server, tool } = request;
    try {
      const result = await this.channel.request('tool.call', request, signal);
      if (result.planned !== undefined) return planned(result.planned);
      return shortened(request.raw ? result.raw : result.value);
    } catch (error) {
      if (error instanceof LocalError) {
        throw new ToolError(`${server}.${tool}: ${error.message}`, { server, tool, code: error.code });
      }
      if (!(error instanceof RequestError)) throw error;
      const { code = 'tool_error', ...details } = error.data;
      if (STALE_LISTING_CODES.has(code)) for (const each of this.servers) each.forgetIfOf(server);
      throw new ToolError(error.message, { server, tool, code, details });
    }
  }

  // A session's next cell begins: what was made before isn't told of any more, and servers may list other tools than
  // they did. `marks` has a mark of the tools of each server.
  beginCell(marks) {
    this.#made = [];
    for (const server of this.servers) server.forgetUnless(marks[server.name]);
  }

  // The error of the first call that nobody has waited for, or null.
  notAwaited() {
    const note = this.#made.find((one) => !one.isAwaited);
    if (note === undefined) return null;
    const where = note.line === null ? '' : `line ${note.line}: `;
    return new NotAwaitedError(
      `${where}${note.shown}(...) was never awaited, so nobody saw what came of it; `
      + `write: await ${note.shown}(...)`, note.line,
    );
  }

  // What to say of an error that may come of a promise in the place of its value, or null.
  forgottenBefore(error) {
    if (!(error instanceof TypeError || error instanceof SyntaxError)) return null;
    return this.notAwaited()?.message ?? null;
  }
}

// The frames at the end of a stack. The message before them may have lines like theirs, and any length.
function framesOf(stack) {
  let begin = stack.length;
  while (begin > 0) {
    const before = stack.lastIndexOf('\n', begin - 1);
    if (before < 0 || !stack.startsWith('\n    at ', before)) break;
    begin = before;
  }
  return stack.slice(begin);
}

// Have an error that was met while nobody's code ran name the place of its call: that of `await` may be another, such as
// `Promise.all`.
function putAt(error, stack) {
  if (!(error instanceof MCPError || error instanceof TypeError)) return;
  // What the script has set as `Error.prepareStackTrace` may make anything of it.
  if (typeof error.stack !== 'string' || typeof stack !== 'string') return;
  const frames = framesOf(error.stack);
  // Of the script's own functions that were called for it.
  if (frames !== '' && !frames.startsWith('\n    at async ')) return;
  error.stack = error.stack.slice(0, error.stack.length - frames.length) + framesOf(stack);
}

function asScripts(error) {
  if (error instanceof LocalError) return new MCPError(error.message, { code: error.code });
  if (!(error instanceof RequestError)) return error;
  const { code = 'error', ...details } = error.data;
  return new (code === 'event_timeout' ? EventTimeoutError : MCPError)(error.message, { code, details });
}

module.exports = { Calls };
