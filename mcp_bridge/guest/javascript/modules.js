'use strict';
// What scripts import: `mcp`, `mcp/servers`, `mcp/runtime`, `mcp/programs`, `mcp/traces`, and the script itself.
const nodeModule = require('node:module');
const { EventTimeoutError, MCPError, NotAwaitedError, ToolError } = require('./errors');
const { SCRIPT } = require('./failure_report');
const { nearest } = require('./near_names');
const programs = require('./programs');
const lines = require('./call_ids');

const BEGIN = 'mcp:begin';
const HANDLE = '__mcp_modules__';
const ERRORS = { EventTimeoutError, MCPError, NotAwaitedError, ToolError };

class Modules {
  #texts = new Map();

  constructor(servers, runtime, functions, displays, calls) {
    const { Trace, StepView } = programs;
    const made = programs.modules(calls);
    const governed = { programs: made.programs.object, traces: made.traces.object };
    const by = (key) => Object.fromEntries(servers.list.map((server) => [server[key], server.proxy]));
    const byAlias = by('alias');
    // Servers too: that is often written.
    const mcp = { ...byAlias, servers: servers.proxy, runtime, ...governed, ...ERRORS, ...displays };
    this.mcp = mcp;
    this.exported = {
      // A name may be none of a variable: `import { "my-server" as server }`.
      'mcp/servers': { ...by('name'), ...byAlias, default: servers.proxy },
      'mcp/runtime': { ...functions, ...ERRORS, default: runtime },
      'mcp/programs': { ...made.programs.functions, Trace, StepView, default: governed.programs },
      'mcp/traces': { ...made.traces.functions, Trace, StepView, default: governed.traces },
      mcp: { ...mcp, default: mcp },
    };
    for (const server of servers.list) this.exported[`mcp/servers/${server.alias}`] = { default: server.proxy };
  }

  // From now on these modules are found.
  offer(text) {
    const exported = this.exported;
    Object.defineProperty(globalThis, HANDLE, { value: exported });
    Object.defineProperty(globalThis, '__mcp_begin__', { value: lines.begin, configurable: true });
    for (const [name, values] of Object.entries(exported)) this.#texts.set(`mcp:${name}`, moduleText(name, values));
    this.#texts.set(BEGIN, 'globalThis.__mcp_begin__();');
    // At the end: what the script imports is there by then, and its lines keep their numbers.
    this.#texts.set(SCRIPT, `${text}\nimport ${JSON.stringify(BEGIN)};`);
    const texts = this.#texts;
    nodeModule.registerHooks({
      resolve(specifier, context, next) {
        if (texts.has(specifier)) return { url: specifier, format: 'module', shortCircuit: true };
        if (specifier === 'mcp' || specifier.startsWith('mcp/')) {
          const url = `mcp:${specifier.replace(/\.(?:js|mjs|ts)$/, '')}`;
          if (!texts.has(url)) {
            const instead = specifier.startsWith('mcp/tools')
              ? "; write: const NAME = await runtime.load_tool('NAME')" : nearest(specifier, Object.keys(exported));
            throw new TypeError(`there is no module '${specifier}'${instead}`);
          }
          return { url, format: 'module', shortCircuit: true };
        }
        return next(specifier, context);
      },
      load(url, context, next) {
        const text = texts.get(url);
        if (text === undefined) return next(url, context);
        return { format: 'module', source: text, shortCircuit: true };
      },
    });
  }
}

function moduleText(name, values) {
  const of = `globalThis.${HANDLE}[${JSON.stringify(name)}]`;
  const names = Object.keys(values);
  return [
    ...names.map((key, at) => `const value${at} = ${of}[${JSON.stringify(key)}];`),
    `export { ${names.map((key, at) => `value${at} as ${JSON.stringify(key)}`).join(', ')} };`,
  ].join('\n');
}

module.exports = { Modules };
