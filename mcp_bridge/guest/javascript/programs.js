'use strict';
// `mcp/programs` and `mcp/traces`: governed programs. The process between Node and the host drives them; here they are
// asked for, and shown.
const util = require('node:util');
const { isObject, kindOf, optionsOf } = require('./arguments');
const { MCPError } = require('./errors');
const { LocalError, encodable } = require('./json_values');
const { nearest, sameName } = require('./near_names');
const { planned } = require('./planned_values');
const { offered, rows } = require('./runtime');

// How many steps the text form of a trace shows: models pay for each. All are in `.steps`.
const MAX_SHOWN_ROWS = 20;
const MAX_SHOWN = 300;

const GUIDE = `Governed programs: steps that the host holds to their order, whatever the script does.

    const program = { steps: [
      { id: "find", type: "tool", tool: "shop.find_order", args: { number: "$number" } },
      { id: "small", type: "condition", condition: "$find.total <= 50", then: "pay", otherwise: "ask" },
      { id: "ask", type: "approval", message: "Pay $find.total?", next_step: "pay" },
      { id: "pay", type: "tool", tool: "shop.refund", args: { order: "$find" }, is_terminal: true },
    ] };
    const trace = await programs.run(program, { number: 17 });
    console.log(trace.status, trace.output, trace.error);

`;

const short = (text, length = MAX_SHOWN) => (text.length <= length ? text : `${text.slice(0, length)}… (${text.length} characters)`);

// One step of a trace: `id`, `status`, `output`, `error`, `code`, `retries`, `usage`, `why`, as Python has them.
class StepView {
  constructor(row) {
    this.id = row.id;
    this.status = row.status;
    this.output = row.output ?? null;
    this.why = row.why ?? null;
    this.error = row.error === undefined ? null : row.error + (this.why === null ? '' : `: ${this.why}`);
    this.code = row.code ?? null;
    this.retries = row.retries ?? 0;
    this.usage = row.usage ?? null;
  }

  [util.inspect.custom](_, options) {
    const output = this.output === null ? '' : ` → ${util.inspect(this.output, { ...options, breakLength: Infinity })}`;
    const why = this.why !== null && this.error === null ? ` (${this.why})` : '';
    return short(`${this.id} ${this.status}${this.error === null ? output : `: ${this.error}`}${why}`);
  }
}

// What a suspended step waits for, as one line.
function awaited({ kind, step, name, question }) {
  const what = question?.message || question?.tool || name || '';
  if (kind === 'in_doubt') return `a person's word on whether ${what} has happened at ${step}`;
  const who = kind === 'approval' ? 'a person' : kind;
  return `${who} at ${step}${what ? `: ${what}` : ''}`;
}

// How a program ended, or where it is suspended: `status`, `output`, `error`, `code`, `trace_id`, `steps`, `waiting`.
class Trace {
  constructor(record) {
    this.trace_id = record.trace_id;
    this.program = record.program;
    this.status = record.status;
    this.output = record.output ?? null;
    this.error = record.error ?? null;
    this.code = record.code ?? null;
    this.steps = record.steps.map((row) => new StepView(row));
    this.waiting = record.waiting ?? [];
  }

  get ok() {
    return this.status === 'success';
  }

  // The last row of a step. Throws RangeError.
  step(name) {
    const row = this.steps.findLast((one) => one.id === name);
    if (row !== undefined) return row;
    throw new RangeError(`no step '${name}' has run; these have: ${short(this.steps.map((one) => one.id).join(', '))}`);
  }

  [util.inspect.custom](_, options) {
    let shown = this.steps.map((step) => `  ${util.inspect(step, options)}`);
    if (shown.length > MAX_SHOWN_ROWS) {
      const half = MAX_SHOWN_ROWS / 2;
      shown = [...shown.slice(0, half), `  … ${shown.length - MAX_SHOWN_ROWS} more in .steps`, ...shown.slice(-half)];
    }
    return [
      short(`${this.program}: ${this.status}${this.error === null ? '' : `: ${this.error}`}`, 1000), ...shown,
      ...this.waiting.slice(0, MAX_SHOWN_ROWS).map((row) => `  waits for ${short(awaited(row))}`), `  trace ${this.trace_id}`,
    ].join('\n');
  }
}

const shownAs = (object, text) => Object.defineProperty(object, util.inspect.custom, { value: text });

// What is wrong with a program; `warnings` has what is legal, and looks like a mistake.
function faultsOf({ faults, warnings }) {
  const told = (found) => found.map(({ path, message }) => (path ? `${path}: ${message}` : message));
  const made = Object.defineProperty([...faults], 'warnings', { value: warnings });
  return shownAs(made, () => [
    ...(faults.length > 0 ? told(faults) : ['valid']), ...told(warnings).map((text) => `warning: ${text}`),
  ].join('\n'));
}

const listed = ({ programs }) => rows(programs.map((row) => (
  shownAs(row, () => `${row.name} (${row.owner}) ${row.description}`.trimEnd())
)));

// What keeps a value from being JSON, as `{path, reason}`; null if nothing does.
function faultIn(value) {
  try {
    encodable(value);
    return null;
  } catch (error) {
    if (!(error instanceof LocalError) || error.code !== 'not_json') throw error;
    const items = Array.isArray(value) || isObject(value) ? Object.entries(value) : [];
    for (const [key, item] of items) {
      const found = faultIn(item);
      if (found === null) continue;
      const rest = found.path === '' || found.path.startsWith('[') ? found.path : `.${found.path}`;
      return { path: (Array.isArray(value) ? `[${key}]` : key) + rest, reason: found.reason };
    }
    return { path: '', reason: error.message };
  }
}

// A value that should be a program. Throws MCPError: `invalid_program`, the host's code for all invalid programs.
function asProgram(value) {
  const found = faultIn(value ?? null);
  if (found === null) return value ?? null;
  const { path, reason: message } = found;
  throw new MCPError(`The program is not valid: ${path ? `${path}: ` : ''}${message}.`, {
    code: 'invalid_program', details: { faults: [{ path, code: 'not_json', message }] },
  });
}

function asContext(value = {}) {
  const context = value ?? {};
  if (!isObject(context) && typeof context !== 'function') {
    throw new MCPError(`The context is ${kindOf(context)}: pass an object of values.`, { code: 'bad_context' });
  }
  return asValue(context, 'context', 'bad_context');
}

// Throws MCPError with this code, and where.
function asValue(value, name, code) {
  const found = faultIn(value ?? null);
  if (found === null) return value ?? null;
  const path = found.path && !found.path.startsWith('[') ? `.${found.path}` : found.path;
  throw new MCPError(`The ${name} can't be taken: ${name}${path}: ${found.reason}.`, { code });
}

function nameOf(value, shown) {
  if (typeof value === 'string') return value;
  throw new TypeError(`${shown}() takes a text first, not ${kindOf(value)}`);
}

const RUN = 'await programs.run(program, { name: value }, { idempotencyKey: "order-7" })';
const RESUME = 'await programs.resume(trace.trace_id, payload, { signal })';

// The functions, by module. Each gives its request's method, parameters and maybe options, and then the answer's value.
const ENDED = (answer) => (answer.planned === undefined ? new Trace(answer.record) : planned(answer.planned));
const FUNCTIONS = {
  programs: {
    run: [(program, context, options) => {
      const { idempotencyKey, signal } = optionsOf(options, RUN, ['idempotencyKey', 'signal']);
      const key = idempotencyKey ?? null;
      if (key !== null && typeof key !== 'string') throw new TypeError(`idempotencyKey is a text, not ${kindOf(key)}; write: ${RUN}`);
      const given = { program: asProgram(program), context: asContext(context), ...(key === null ? {} : { idempotency_key: key }) };
      return ['program.start', given, signal];
    }, ENDED],
    resume: [(trace, payload, given) => {
      const { signal } = optionsOf(given, RESUME, ['signal']);
      const execution = nameOf(trace instanceof Trace ? trace.trace_id : trace, 'programs.resume');
      return ['program.resume', { execution, payload: asValue(payload, 'payload', 'bad_value') }, signal];
    }, ENDED],
    save: [(name, program) => ['program.save', { name: nameOf(name, 'programs.save'), program: asProgram(program) }], ({ hash }) => hash],
    list: [() => ['program.list', {}], listed],
    get: [(name) => ['program.get', { name: nameOf(name, 'programs.get') }], ({ program }) => program],
    delete: [(name) => ['program.delete', { name: nameOf(name, 'programs.delete') }], ({ found }) => found],
    validate: [(program) => ['program.validate', { program: asProgram(program) }], faultsOf],
    plan: [(intent) => ['program.plan', { intent: nameOf(intent, 'programs.plan') }], ({ program }) => program],
  },
  traces: {
    get: [(trace) => ['trace.get', { trace_id: nameOf(trace, 'traces.get') }], (record) => new Trace(record)],
  },
};

const MEANT = {
  run: ['call', 'execute', 'invoke', 'start'],
  resume: ['continue', 'go_on', 'send'],
  save: ['add', 'create', 'define', 'register', 'set', 'store'],
  list: ['all', 'list_programs', 'saved'],
  get: ['describe', 'find', 'load', 'read', 'show'],
  delete: ['drop', 'forget', 'remove'],
  validate: ['check', 'lint', 'parse', 'verify'],
  plan: ['generate', 'write'],
};

// `{programs, traces}`: of each the functions, and the module as an object.
function modules(calls) {
  const made = {};
  for (const [module, table] of Object.entries(FUNCTIONS)) {
    const functions = {};
    for (const [name, [request, value]] of Object.entries(table)) {
      const shown = `${module}.${name}`;
      functions[name] = (...args) => calls.begin(shown, async (call) => {
        const [method, params, signal] = request(...args);
        return value(await calls.request(method, { ...params, call }, signal));
      });
      Object.defineProperty(functions[name], 'name', { value: name });
    }
    made[module] = { functions, object: offered(functions, (name) => unknown(module, name, Object.keys(functions))) };
  }
  shownAs(made.programs.object, () => GUIDE + calls.channel.askNow('steps'));
  shownAs(made.traces.object, () => 'What programs did: await traces.get(trace_id)');
  return made;
}

function unknown(module, name, known) {
  const told = `mcp/${module} has no '${name}'`;
  if (module === 'programs') {
    for (const [meant, names] of Object.entries(MEANT)) {
      if (names.some((other) => sameName(name, [other]) !== null)) return `${told}; write: await programs.${meant}(...)`;
    }
  }
  return told + nearest(name, known);
}

module.exports = { StepView, Trace, modules };
