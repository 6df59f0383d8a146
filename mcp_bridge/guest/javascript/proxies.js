'use strict';
// Servers as objects, and their tools as functions.
const util = require('node:util');
const { bind, signature, takenSignal } = require('./arguments');
const { MCPError, ToolError, restate } = require('./errors');
const { isMisspelt, nearest, sameName } = require('./near_names');

const CALLS = new Set(['call', 'call_tool', 'callTool', 'execute', 'invoke', 'run', 'run_tool', 'use_tool']);
const LISTS = new Set(['functions', 'get_tools', 'items', 'keys', 'list', 'list_tools', 'listTools', 'tools', 'values']);

// One server, whose tools are listed on first use, which starts it, and anew where something doesn't fit the listing.
class Server {
  #calls;
  #rows = null;
  #mark = null;

  constructor(calls, name, alias) {
    this.#calls = calls;
    this.name = name;
    this.alias = alias;
    this.proxy = this.#proxy();
    calls.servers.push(this);
  }

  // Have the tools listed anew on their next use, if this is the server of this name or alias.
  forgetIfOf(server) {
    if (server === this.name || server === this.alias) this.#rows = null;
  }

  // Have them listed anew on their next use, unless the listing has this mark, and there is one.
  forgetUnless(mark) {
    if (mark === undefined || mark !== this.#mark) this.#rows = null;
  }

  // The tools' rows by alias.
  rows() {
    if (this.#rows === null) {
      const listed = this.#rows = this.#calls.request('catalog.tools', { server: this.name })
        .then(({ tools, mark }) => {
          this.#mark = mark;
          return new Map(tools.map((row) => [row.alias, row]));
        })
        .catch((error) => {
          if (this.#rows === listed) this.#rows = null;
          throw error;
        });
    }
    return this.#rows;
  }

  async row(name) {
    let row;
    try {
      row = await this.#known(name);
    } catch (error) {
      if (!(error instanceof MCPError)) throw error;
      // The server's tools can't be listed, so this one can't be called.
      const { message, code, details } = error;
      throw new ToolError(message, { server: this.name, tool: name, code, details });
    }
    if (row !== undefined) return row;
    let meant = [];
    try {
      await this.#calls.request('catalog.check', { server: this.name, tool: name, arguments: {} });
      // It wasn't there when the tools were listed.
      this.#rows = null;
      const added = await this.#known(name);
      if (added !== undefined) return added;
    } catch (error) {
      // The host says why there are none.
      if ((await this.rows()).size === 0) throw new TypeError(error.message);
      meant = error.details?.nearest ?? [];
    }
    throw new TypeError(this.#unknown(name, await this.rows(), meant));
  }

  async #known(name) {
    const rows = await this.rows();
    const known = rows.get(name) ?? [...rows.values()].find((row) => row.name === name);
    return known ?? rows.get(sameName(name, [...rows.keys()]));
  }

  // `meant` are the tools that the host finds by the words of the name.
  #unknown(name, rows, meant) {
    const told = `server '${this.name}' has no tool '${name}'`;
    const known = [...rows.keys()];
    if (CALLS.has(name)) return `${told}; write: await ${this.alias}.TOOL({...})${nearest('', known)}`;
    if (LISTS.has(name)) return `${told}; write: await runtime.list_tools('${this.name}')`;
    if (meant.length === 0 || isMisspelt(name, known)) return told + nearest(name, known);
    const aliases = new Map([...rows.values()].map((row) => [row.name, row.alias]));
    return `${told}; nearest: ${meant.map((one) => aliases.get(one) ?? one).join(', ')}`;
  }

  #proxy() {
    const functions = new Map();
    const inspect = () => `[MCP server '${this.name}']`;
    // Its tools may not be listed yet.
    const notListed = () => {
      throw new TypeError(`'${this.name}' is a server, whose tools are listed by: await runtime.list_tools('${this.name}')`);
    };
    // Node shows a proxy as its target.
    const target = Object.defineProperty(Object.create(null), util.inspect.custom, { value: inspect, configurable: true });
    return new Proxy(target, {
      get: (_, name) => {
        if (name === util.inspect.custom || name === Symbol.toPrimitive) return inspect;
        if (name === Symbol.iterator || name === Symbol.asyncIterator) return notListed();
        // Without `then` it can be returned from an async function.
        if (typeof name === 'symbol' || name === 'then') return undefined;
        // An object that happens to have a server in it can be written as JSON.
        if (name === 'toJSON') return () => ({});
        let made = functions.get(name);
        if (made === undefined) functions.set(name, made = this.#function(name));
        return made;
      },
      has: (_, name) => typeof name === 'string' && name !== 'then',
      ownKeys: notListed,
      set: () => false,
    });
  }

  #function(name) {
    const shown = `${this.alias}.${name}`;
    const make = (raw, asWritten) => (...args) => {
      const signal = takenSignal(args);
      return this.#calls.begin(asWritten, (call) => this.#call(name, args, raw, call, signal));
    };
    const call = make(false, shown);
    call.raw = make(true, `${shown}.raw`);
    for (const [made, called] of [[call, name], [call.raw, 'raw']]) {
      Object.defineProperty(made, 'name', { value: called });
    }
    return call;
  }

  async #call(name, args, raw, call, signal) {
    let row = await this.row(name);
    let { bound, faults } = bind(row, args);
    if (faults.length > 0) {
      this.#rows = null;
      row = await this.row(name);
      ({ bound, faults } = bind(row, args));
    }
    if (faults.length > 0) {
      const more = await this.#faultsOfValues(row.name, bound);
      throw new TypeError(`${this.alias}.${row.alias}() ${[...faults, ...more].join('; ')}. It is ${signature(row)}`);
    }
    try {
      return await this.#calls.tool({ server: this.name, tool: row.name, arguments: bound, raw, call }, signal);
    } catch (error) {
      // The host shows the tool as Python calls it.
      // A signal may have been aborted with anything.
      if (error?.code === 'bad_arguments') restate(error, error.message.replace(/ It is [\w.]+\(.*$/s, () => ` It is ${signature(row)}`));
      throw error;
    }
  }

  // What else is wrong with the arguments of a call that fails in any case.
  async #faultsOfValues(tool, given) {
    try {
      return (await this.#calls.request('catalog.check', { server: this.name, tool, arguments: given })).faults;
    } catch (error) {
      return error.code === 'not_json' ? [error.message] : [];
    }
  }
}

// All servers, by name and alias.
class Servers {
  constructor(calls, rows) {
    this.list = rows.map(({ name, alias }) => new Server(calls, name, alias));
    this.aliases = this.list.map((server) => server.alias);
    const named = Object.create(null);
    for (const server of this.list) named[server.name] = server.proxy;
    for (const server of this.list) named[server.alias] = server.proxy;
    this.proxy = new Proxy(named, {
      get: (target, name) => {
        if (name in target || typeof name === 'symbol' || name === 'then' || name === 'toJSON') return target[name];
        throw new TypeError(this.unknown(name));
      },
      set: () => false,
    });
  }

  // The server of this name or alias.
  named(name) {
    return this.list.find((server) => server.name === name || server.alias === name);
  }

  unknown(name) {
    return `there is no server '${name}'${nearest(name, this.aliases)}`;
  }
}

module.exports = { Servers };
