'use strict';
// Servers as objects, and their tools as functions.
const util = require('node:util');
const { bind, takenSignal } = require('./arguments');
const { nearest, sameName } = require('./near_names');

const CALLS = new Set(['call', 'call_tool', 'callTool', 'execute', 'invoke', 'run', 'run_tool', 'use_tool']);
const LISTS = new Set(['functions', 'get_tools', 'items', 'keys', 'list', 'list_tools', 'listTools', 'tools', 'values']);

// One server, whose tools are listed on first use, which starts it.
class Server {
  #calls;
  #rows = null;

  constructor(calls, name, alias) {
    this.#calls = calls;
    this.name = name;
    this.alias = alias;
    this.proxy = this.#proxy();
  }

  // The tools' rows by alias.
  rows() {
    this.#rows ??= this.#calls.request('catalog.tools', { server: this.name })
      .then(({ tools }) => new Map(tools.map((row) => [row.alias, row])))
      .catch((error) => {
        this.#rows = null;
        throw error;
      });
    return this.#rows;
  }

  async row(name) {
    const rows = await this.rows();
    const known = rows.get(name) ?? [...rows.values()].find((row) => row.name === name);
    if (known !== undefined) return known;
    const same = sameName(name, [...rows.keys()]);
    if (same !== null) return rows.get(same);
    throw new TypeError(this.#unknown(name, [...rows.keys()]));
  }

  #unknown(name, known) {
    const told = `server '${this.name}' has no tool '${name}'`;
    if (CALLS.has(name)) return `${told}; write: await ${this.alias}.TOOL({...})${nearest('', known)}`;
    if (LISTS.has(name)) return `${told}; write: await runtime.list_tools('${this.name}')`;
    return told + nearest(name, known);
  }

  #proxy() {
    const functions = new Map();
    const inspect = () => `[MCP server '${this.name}']`;
    return new Proxy(Object.create(null), {
      get: (_, name) => {
        if (name === util.inspect.custom || name === Symbol.toPrimitive) return inspect;
        // Without `then` it can be returned from an async function.
        if (typeof name === 'symbol' || name === 'then' || name === 'toJSON') return undefined;
        let made = functions.get(name);
        if (made === undefined) functions.set(name, made = this.#function(name));
        return made;
      },
      has: (_, name) => typeof name === 'string' && name !== 'then',
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
    const row = await this.row(name);
    const check = async (given) => {
      try {
        return (await this.#calls.request('catalog.check', { server: this.name, tool: row.name, arguments: given })).faults;
      } catch (error) {
        return error.code === 'not_json' ? [error.message] : [];
      }
    };
    const given = await bind(`${this.alias}.${row.alias}`, row, args, check);
    return this.#calls.tool({ server: this.name, tool: row.name, arguments: given, raw, call }, signal);
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
