'use strict';
// `mcp/runtime`: what servers and tools there are, calls by name, and what is kept between runs.
const util = require('node:util');
const vm = require('node:vm');
const { nearest, sameName } = require('./near_names');
const { isObject, optionsOf, signature, takenSignal, typescript } = require('./arguments');
const { asWritten } = require('./cell_source');
const lines = require('./call_ids');
const { MCPError, restate } = require('./errors');

// Rows that print one a line.
class Rows extends Array {
  static get [Symbol.species]() {
    return Array;
  }

  [util.inspect.custom]() {
    const shown = (row) => (typeof row === 'string' ? row : row?.line ?? util.inspect(row, { breakLength: Infinity, depth: 8 }));
    return this.length > 0 ? Array.from(this, shown).join('\n') : '(none)';
  }
}

// How often `update_memory` applies a function: each time others were quicker, and one of them has got ahead.
const MAX_TIMES_APPLIED = 1000;

const rows = (items) => Rows.from(items);

// How the keys of saved tools begin among the memories, and of those in JavaScript.
const TOOLS = 'tool:';
const OWN_TOOLS = `${TOOLS}javascript:`;

// An argument that is given by itself, or by its name in an object.
const orOption = (given, name, shown) => (isObject(given) ? optionsOf(given, shown, [name])[name] : given);

// What every script has, as long as none has declared anything, besides what it is given.
const EVERYWHERE = new Set([
  ...Object.getOwnPropertyNames(globalThis), 'runtime', 'mcp', 'display', 'artifact', 'progress',
  'require', 'module', 'exports', '__filename', '__dirname',
]);

// What a function of this text would miss in another script, as a sentence with a line end; or nothing.
function missedBy(text, name) {
  // Loaded late: few scripts keep a function.
  const missed = require('./free_names').freeNames(text).filter((one) => !EVERYWHERE.has(one) && !one.startsWith('__mcp_'));
  if (missed.length === 0) return '';
  return `save_tool: '${name}' is saved, but uses ${missed.join(', ')} of this script, which later ones don't have. `
    + 'Import (await import("...")) or define what it uses inside it, and save it again\n';
}

// A function of this text. Throws SyntaxError.
function functionOf(text, name) {
  const made = vm.compileFunction(`return (${text}\n)`, [], {
    filename: `mcp.tools.${name}`, importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  })();
  return Object.defineProperty(made, 'name', { value: name });
}

// Functions as an object that also knows `listTools` for `list_tools`, and throws what `unknown` says of another name.
function offered(functions, unknown) {
  return new Proxy({ ...functions }, {
    get: (target, name) => {
      if (typeof name === 'symbol' || Object.hasOwn(target, name) || name === 'then' || name === 'toJSON') return target[name];
      const meant = sameName(name, Object.keys(functions));
      if (meant !== null) return target[meant];
      throw new TypeError(unknown(name));
    },
  });
}

// A tool's row, which the host has in Python's notation.
const inTypescript = (row) => ({
  ...row,
  ...(row.params === undefined ? {} : { params: row.params.map((param) => ({ ...param, type: typescript(param.type) })) }),
  ...(row.returns === undefined ? {} : { returns: typescript(row.returns) }),
});

// `git.git_log(repo_path, …) — …` as JavaScript calls it.
const asCall = (line) => line.replace(/^([\w.]+)\(([^)]+)\)/, '$1({$2})');

// The host shows a tool as Python calls it.
const asTypescript = (_, name, params, returns) => ` It is ${name}({${typescript(withOptional(params))}}): ${typescript(returns)}`;

// Python's parameters with a default are optional; `...` stands for one that nobody knows.
function withOptional(params) {
  const made = [];
  let [depth, quote, began, equals] = [0, '', 0, -1];
  for (let at = 0; at <= params.length; at += 1) {
    const char = params[at] ?? ',';
    if (quote !== '') {
      if (char === '\\') at += 1;
      else if (char === quote) quote = '';
    } else if (char === '"' || char === "'") quote = char;
    else if ('([{'.includes(char)) depth += 1;
    else if (')]}'.includes(char)) depth -= 1;
    else if (depth > 0) continue;
    else if (char === '=' && equals < 0) equals = at;
    else if (char === ',') {
      const param = params.slice(began, at);
      const isUnknown = equals >= 0 && params.slice(equals + 1, at).trim() === '...';
      const shown = isUnknown ? params.slice(began, equals).trimEnd() : param;
      made.push(equals >= 0 ? shown.replace(':', '?:') : shown);
      [began, equals] = [at + 1, -1];
    }
  }
  return made.join(',');
}

const MEANT = {
  call_tool: ['call', 'execute', 'invoke', 'invoke_tool', 'run_tool', 'tool', 'use_tool'],
  list_tools: ['tools', 'get_tools', 'available_tools'],
  list_servers: ['servers', 'get_servers', 'mcp_servers', 'available_servers'],
  search: ['find', 'find_tool', 'find_tools', 'query', 'search_tools'],
  describe: ['describe_tool', 'doc', 'docs', 'get_schema', 'get_tool', 'help', 'info', 'schema', 'tool_info'],
  save_memory: ['memory', 'remember', 'save', 'set', 'set_memory', 'store'],
  save_tool: ['add_tool', 'keep_tool', 'register_tool'],
  load_tool: ['import_tool', 'load_function', 'saved_tool'],
  load_memory: ['get', 'get_memory', 'load', 'recall'],
  files: ['inputs', 'list_files', 'list_inputs', 'get_files'],
  input: ['fetch', 'fetch_file', 'get_file', 'get_input', 'load_file', 'read_file', 'upload'],
  open_input: ['open', 'open_file', 'stream', 'read_input'],
  sleep_until: ['delay', 'pause', 'sleep', 'sleep_for', 'wait', 'wait_until'],
  wait_event: ['await_event', 'event', 'on_event', 'receive', 'wait_for', 'wait_for_event'],
};

// The tools for the resources of a server, and names by which clients have them as functions of their own.
const RESOURCES = {
  'list_resources()': ['list_resources', 'list_resource_templates', 'get_resources', 'resources'],
  "read_resource({uri: 'URI'})": ['read_resource', 'get_resource', 'fetch_resource', 'load_resource', 'resource'],
};

// What clients ask servers for, and scripts can't.
const UNREACHED = [
  'get_prompt', 'get_prompts', 'list_prompts', 'prompt', 'prompts', 'complete', 'subscribe_resource', 'unsubscribe_resource',
];

class Runtime {
  #calls;
  #servers;
  #noticed = new Set();

  constructor(calls, servers) {
    this.#calls = calls;
    this.#servers = servers;
  }

  // The functions, by the names that scripts use; `more` are those of other modules.
  functions(more) {
    const table = {
      list_servers: () => this.discovered(),
      list_tools: (server) => this.listTools(server),
      search: (query, limit) => this.search(query, orOption(limit, 'limit', "await runtime.search('words', 5)") ?? 5, false),
      describe: (name, detail) => this.describe(name, orOption(detail, 'detail', "await runtime.describe('git.git_log', 'full')") ?? 'signature'),
      output: (execution, name = 'stdout') => this.output(execution, name),
    };
    const recorded = {
      call_tool: (call, ...args) => this.callTool(call, takenSignal(args), ...args),
      save_memory: (call, key, value) => this.#request('memory.save', { key, value: value ?? null, call }, () => undefined),
      update_memory: (call, key, value) => this.update(call, key, value),
      load_memory: (call, key, otherwise) => this.#request(
        'memory.load', { key, call }, (result) => (result.found ? result.value : otherwise),
      ),
      delete_memory: (call, key) => this.#request('memory.delete', { key, call }, (result) => result.found),
      sessions: (call) => this.#request('session.list', { call }, (result) => rows(result.sessions)),
      end_session: (call, name) => this.#request(
        'session.end', { ...(name === undefined ? {} : { name }), call }, (result) => result.found,
      ),
      list_memories: (call, prefix = '') => this.#request(
        'memory.list', { prefix, call }, (result) => rows(result.keys.filter((key) => !key.startsWith(TOOLS))),
      ),
      save_tool: (call, given) => this.saveTool(call, given),
      load_tool: (call, name) => this.#request('memory.load', { key: OWN_TOOLS + name, call }, ({ found, value, near = [] }) => {
        if (found) return functionOf(value, name);
        const meant = near.length === 0 ? '' : `; nearest: ${near.join(', ')}`;
        throw new RangeError(`no saved tool '${name}'${meant}; runtime.save_tool keeps functions: await runtime.save_tool(${name})`);
      }),
    };
    const made = { discovered_servers: () => this.discovered(), ...more };
    for (const [name, work] of Object.entries(table)) {
      made[name] = (...args) => this.#calls.begin(`runtime.${name}`, async () => work(...args), { named: false });
    }
    for (const [name, work] of Object.entries(recorded)) {
      made[name] = (...args) => this.#calls.begin(`runtime.${name}`, async (call) => work(call, ...args));
    }
    for (const [name, work] of Object.entries(made)) Object.defineProperty(work, 'name', { value: name });
    return made;
  }

  // The functions as an object that says what an unknown name may mean.
  module(functions) {
    return offered(functions, (name) => this.unknown(name, Object.keys(functions)));
  }

  unknown(name, known) {
    const told = `mcp/runtime has no '${name}'`;
    if (this.#servers.aliases.includes(name)) return `${told}; write: import { ${name} } from "mcp/servers"`;
    for (const [meant, names] of Object.entries(MEANT)) {
      if (names.some((other) => sameName(name, [other]) !== null)) return `${told}; write: await runtime.${meant}(...)`;
    }
    for (const [tool, names] of Object.entries(RESOURCES)) {
      if (sameName(name, names) === null) continue;
      return `${told}; it is a tool of each server that has resources; write: await SERVER.${tool}`;
    }
    if (sameName(name, UNREACHED) !== null) {
      return `${told}: prompts, completions and subscriptions of servers are out of a script's reach; there are: tools `
        + "(await runtime.search('words')) and resources (await SERVER.list_resources())";
    }
    return told + nearest(name, known);
  }

  async #request(method, params, of) {
    return of(await this.#calls.request(method, params));
  }

  discovered() {
    return rows(this.#servers.list.map((server) => server.name));
  }

  async listTools(server) {
    if (server !== undefined) return this.#tools(server);
    // Starts all servers that need it at once, and reports those that fail.
    await this.search('', 1, false);
    const { servers } = await this.#calls.request('catalog.servers', {});
    const found = [];
    for (const row of servers) if (row.tools !== null) found.push(...await this.#tools(row.name, { server: row.alias }));
    return rows(found);
  }

  async #tools(asked, more = {}) {
    const { tools } = await this.#calls.request('catalog.tools', { server: asked, told: true });
    return rows(tools.map((tool) => ({ ...more, ...inTypescript(tool) })));
  }

  async search(query, limit, strict) {
    const { matches, notices } = await this.#calls.request('catalog.search', { query, limit, strict });
    for (const notice of notices) {
      if (this.#noticed.has(notice)) continue;
      this.#noticed.add(notice);
      process.stderr.write(`${notice}\n`);
    }
    return rows(matches.map((match) => ({ ...match, line: asCall(match.line) })));
  }

  async describe(name, detail) {
    const result = await this.#calls.request('catalog.describe', { name, detail, with_row: true });
    if (detail === 'schema') return result.schema;
    // The host describes tools as Python calls them. In what an earlier build has recorded of a server there are no rows.
    const known = result.rows ?? (result.row === undefined ? [] : [result.row]);
    let at = 0;
    return result.text.split('\n').map((line) => {
      const [begun] = /^await [^.(]+\./.exec(line) ?? [];
      const row = begun === undefined ? undefined : known[at++];
      return row === undefined ? asCall(line) : `${begun}${signature(row, { isWhole: detail === 'full' })}: ${typescript(row.returns)}`;
    }).join('\n');
  }

  // `('git', 'git_log', {...})`, or `('git.git_log', {...})`.
  async callTool(call, signal, server, tool, given) {
    if (typeof server === 'string' && (tool === undefined || typeof tool === 'object')) {
      [server, tool, given] = [...this.#split(server), tool];
    }
    if (typeof server !== 'string' || typeof tool !== 'string' || (given !== undefined && typeof given !== 'object')) {
      throw new TypeError("call_tool() takes a server, a tool and an object; write: await runtime.call_tool('SERVER', 'TOOL', {...})");
    }
    const name = tool.startsWith(`${server}.`) ? tool.slice(server.length + 1) : tool;
    try {
      return await this.#calls.tool({ server, tool: name, arguments: given ?? {}, raw: false, call }, signal);
    } catch (error) {
      if (error?.code === 'bad_arguments') restate(error, error.message.replace(/ It is ([^\s(]+)\((.*)\) -> (.*)$/s, asTypescript));
      throw error;
    }
  }

  // `git.git_log`, or the clients' form `mcp__git__git_log`.
  #split(name) {
    const known = this.#servers.list.flatMap((server) => [server.name, server.alias]).sort((a, b) => b.length - a.length);
    for (const server of known) {
      for (const before of [`${server}.`, `mcp__${server}__`]) {
        if (name.startsWith(before)) return [server, name.slice(before.length)];
      }
    }
    const at = name.indexOf('.');
    if (at > 0) return [name.slice(0, at), name.slice(at + 1)];
    const [missing, called] = known.includes(name) ? ['tool', `'${name}', 'TOOL'`] : ['server', `'SERVER', '${name}'`];
    throw new TypeError(`call_tool() needs the ${missing}, too; write: await runtime.call_tool(${called}, {...})`);
  }

  // Merge an object into the one that is kept under a key, replace another value, or apply a plain function to it;
  // resolves with what is kept now. A function is applied again if what is kept has changed meanwhile.
  async update(call, key, value) {
    const name = lines.within(call);
    const kept = (result) => (result.found ? result.value : undefined);
    const load = (asked) => this.#calls.request('memory.load', { key, call: asked });
    if (typeof value !== 'function') {
      await this.#calls.request('memory.save', { key, value: value ?? null, update: true, call });
      return kept(await load(name()));
    }
    let asked = name();
    let found = await load(asked);
    for (let times = 0; times < MAX_TIMES_APPLIED; times++) {
      const made = value(kept(found)) ?? null;
      if (typeof made?.then === 'function') throw new TypeError('update_memory() takes a plain function, not an asynchronous one');
      const since = asked;
      asked = times === 0 ? call : name();
      found = await this.#calls.request('memory.save', { key, value: made, call: asked, since });
      // Recorded by an earlier build, which then asked for what is kept.
      if (found.saved === undefined) return kept(await load(name()));
      if (found.saved) return kept(found);
    }
    throw new MCPError(
      `The memory '${key}' was changed by others each time before it was updated, ${MAX_TIMES_APPLIED} times.`, { code: 'memory_busy' },
    );
  }

  // Keep a function's text for later runs; resolves with its name.
  async saveTool(call, given) {
    const name = given?.name;
    const write = 'write: await runtime.save_tool(function name(...) {...})';
    if (typeof given !== 'function' || !/^[\w$]+$/.test(name)) throw new TypeError(`save_tool() takes a function that has a name; ${write}`);
    const text = asWritten(`${given}`);
    try {
      functionOf(text, name);
    } catch {
      throw new TypeError(`save_tool() can't keep '${name}', whose text isn't that of a function by itself; ${write}`);
    }
    await this.#request('memory.save', { key: OWN_TOOLS + name, value: text, call }, () => undefined);
    const missed = missedBy(text, name);
    if (missed !== '') process.stderr.write(missed);
    return name;
  }

  // All of what an earlier run's answer had to cut.
  async output(execution, name) {
    let text = '';
    for (let start = 0; start !== null;) {
      const part = await this.#calls.request('output.read', { execution, name, start });
      text += part.text;
      start = part.next;
    }
    return text;
  }
}

module.exports = { Runtime, offered, rows };
