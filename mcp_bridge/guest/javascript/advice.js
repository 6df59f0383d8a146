'use strict';
// Advice on mistakes that models often make: a sentence that follows the error.
const { builtinModules } = require('node:module');
const { FILENAME } = require('./common_js');
const { OF_ARTIFACT, ToolError } = require('./errors');
const { nearest } = require('./near_names');
const { unanswered } = require('./output');
const { insteadOf } = require('./script_source');

const OBJECTS = ['runtime', 'programs', 'traces'];

const NO_NETWORK = ['EAFNOSUPPORT', 'ENETUNREACH', 'EAI_AGAIN', 'ENOTFOUND'];

const NO_ROOM = "files in /workspace, /tmp and /dev/shm are in the sandbox's memory: write less, or remove some; "
  + "the operator's settings workspace_size and tmp_size say how much there may be";

const INPUT = /^(?:\/workspace\/|(?:\.\/)?)in\/(.+)/;

// Of SQLite.
const READ_ONLY = 8;
const COPIED = "fs.copyFileSync(await runtime.input('NAME'), '/tmp/NAME'), then fs.chmodSync('/tmp/NAME', 0o600)";

const OF_FILES = 'artifact takes the path of a file: write the content to one in /workspace/out, whose files are stored at the end';

const OWN_FILE = `the script isn't in a file: nothing is at ${FILENAME}`;
const FOR_WORKERS = "a worker takes its code as text: new Worker('...', { eval: true })";
const NO_SERVERS = "code in a worker, or in a context of its own, has no servers and none of the script's names: "
  + "give it what the script's calls return";
const OWN_NAMES = ['runtime', 'mcp', 'display', 'artifact', 'progress'];

const NOBODY = 'nobody can answer here: put the value into the script';

const quoted = (name) => `'${name.replaceAll("'", "\\'")}'`;

// A module that is loaded from where inputs are, which only functions of `fs` fetch.
function notFetched(name) {
  const fetched = `await runtime.input(${quoted(name)})`;
  if (name.endsWith('.json')) return `imports and require fetch no file of the operator's; write: JSON.parse(fs.readFileSync(${fetched}, 'utf8'))`;
  return `imports and require fetch no file of the operator's; write: await import(${fetched})`;
}

function missingFile(path, inputs, { hasInputs, inSession }) {
  if (path === FILENAME) return OWN_FILE;
  const handedIn = "await runtime.files() lists the operator's files, which are in /workspace/in; ";
  const search = `${hasInputs ? handedIn : ''}await runtime.search('read file') finds a tool that reads the host's files`;
  const [, input] = INPUT.exec(path) ?? [];
  if (input !== undefined) {
    const listed = 'await runtime.files() lists those that there are';
    if (inputs.isMissing(input)) return `there is no such file of the operator's; ${listed}`;
    return `a file of the operator's is there once it is fetched: await runtime.input(${quoted(input)}); ${listed}`;
  }
  if (path.startsWith('/') && !/^\/(?:workspace|tmp)\//.test(path)) return `no file of the host is here; ${search}`;
  if (inSession) return `no cell of this session has left that file in /workspace or /tmp; ${search}`;
  return `/workspace and /tmp begin empty with every call: no file of an earlier one is there; ${search}`;
}

const PYTHONS = {
  print: 'console.log(...)', None: 'null', True: 'true', False: 'false', len: 'x.length', str: '`${x}`',
  help: "await runtime.describe('SERVER.TOOL'), or console.log(runtime)", dir: "await runtime.list_tools('SERVER')",
};

const python = (runsBoth) => (runsBoth ? 'Python runs with the tool run_python' : "Python doesn't run here");

// A function that is kept has nothing of the script that kept it.
function notKept(saved, name, aliases) {
  const inside = aliases.includes(name) ? `const { ${name} } = await import("mcp/servers")` : `const ${name} = ...`;
  return `'${saved}' was kept by runtime.save_tool, without the names of its script; write inside it, and save it again: ${inside}`;
}

// `start` is what the host has sent of the script; `inputs` knows which files of the operator's there aren't.
function advice(error, servers, exported, start, inputs) {
  // Its message is the server's, whose network, files and modules are others.
  if (error instanceof ToolError) return null;
  const inSession = start.cell > 0;
  const message = typeof error?.message === 'string' ? error.message : '';
  const aliases = servers.aliases;
  // Loaded late: most scripts don't fail.
  const { adviceForOtherRuntimes } = require('./other_runtimes');
  const foreign = adviceForOtherRuntimes(error, message, aliases, exported);
  if (foreign !== null) return foreign;
  let found = /^The requested module '(mcp[\w/]*)' does not provide an export named '([^']+)'/.exec(message);
  if (found !== null) {
    const [, module, name] = found;
    const known = Object.keys(exported[module] ?? {}).filter((one) => one !== 'default' && /^[\w$]+$/.test(one));
    if (module.startsWith('mcp/servers/')) {
      const alias = module.slice('mcp/servers/'.length);
      return `write: import { ${alias} } from "mcp/servers"; await ${alias}.${name}({...})`;
    }
    const where = Object.keys(exported).find((other) => Object.hasOwn(exported[other], name));
    if (where !== undefined) return `write: import { ${name} } from "${where}"`;
    return `'${module}' has no '${name}'${nearest(name, known)}`;
  }
  found = /^(\w+)\.(\w+)(?:\.raw)?\(\.\.\.\)(?:\.(\w+))? (?:is not a function|is not iterable)/.exec(message)
    ?? /^(\w+)\.(\w+) is not a function or its return value is not (?:async )?iterable/.exec(message);
  if (found !== null && (aliases.includes(found[1]) || OBJECTS.includes(found[1]))) {
    const [, owner, name, member] = found;
    return `${owner}.${name}(...) returns a promise; write: (await ${owner}.${name}(...))${member ? `.${member}` : ''}`;
  }
  found = /^(\w+) is not defined$/.exec(message);
  if (found !== null) {
    const [, name] = found;
    const [, saved] = /^[^\n]*\n\s+at [^\n]*\bmcp\.tools\.([\w$]+):/.exec(error.stack) ?? [];
    if (saved !== undefined) return notKept(saved, name, aliases);
    if (aliases.includes(name)) return `write: import { ${name} } from "mcp/servers"`;
    if (name === 'programs' || name === 'traces') return `write: import { ${name} } from "mcp"`;
    if (name === 'Worker') return `write: import { Worker } from "node:worker_threads"; ${FOR_WORKERS}`;
    if (builtinModules.includes(name)) return `write: import ${name} from "node:${name}"`;
    // The script itself has these.
    if (OWN_NAMES.includes(name)) return NO_SERVERS;
    if (name === 'prompt' || name === 'confirm') return NOBODY;
    if (Object.hasOwn(PYTHONS, name)) return `this is JavaScript; ${python(start.runs_both)}; write: ${PYTHONS[name]}`;
    return null;
  }
  found = /^Cannot find (?:package|module) '([^']+)'/.exec(message);
  const [, input] = INPUT.exec(found?.[1] ?? '') ?? [];
  if (input !== undefined) return notFetched(input);
  if (found?.[1] === FILENAME) return `${OWN_FILE}; ${FOR_WORKERS}`;
  // The script itself finds it.
  if (found?.[1].split('/')[0] === 'mcp') return NO_SERVERS;
  if (found !== null && !/^[./]/.test(found[1])) {
    const name = found[1].split('/')[0];
    if (aliases.includes(name)) return `write: import { ${name} } from "mcp/servers"`;
    return "the sandbox has no packages of npm; Node's own modules are there: import fs from \"node:fs\"";
  }
  if (message === 'fetch failed' || NO_NETWORK.includes(error?.code)) {
    return 'the sandbox has no network; the servers of runtime.list_servers() are the way out';
  }
  if (error?.code === 'ENOSPC') return NO_ROOM;
  if (error?.code === 'ERR_SQLITE_ERROR' && error.errcode === READ_ONLY && start.has_inputs) {
    return `the operator's files can be read only; copy it first: ${COPIED}`;
  }
  if (error?.code === 'ERR_USE_AFTER_CLOSE' && unanswered() !== '') return NOBODY;
  if (typeof error?.path === 'string' && typeof error.syscall === 'string' && !error.syscall.startsWith('spawn')) {
    const isThere = /^\/(?:workspace|tmp)\/|^[^/]/.test(error.path);
    // What is to be written to a folder that isn't there says ENOENT, too.
    const isRead = !['mkdir', 'rename', 'symlink', 'link'].includes(error.syscall);
    const [, input] = INPUT.exec(error.path) ?? [];
    if (input !== undefined && ['EACCES', 'EEXIST'].includes(error.code)) {
      const copied = `fs.writeFileSync(${quoted(`/tmp/${input.split('/').at(-1)}`)}, fs.readFileSync(${quoted(`/workspace/in/${input}`)}))`;
      return `the operator's files can be read only; copy it first: ${copied}`;
    }
    if (error.code === 'ENOENT' && error[OF_ARTIFACT] && input === undefined && !error.path.startsWith('/')) return OF_FILES;
    if (error.code === 'ENOENT' && isRead) return missingFile(error.path, inputs, { hasInputs: start.has_inputs, inSession });
    if (error.code === 'EROFS' || (error.code === 'EACCES' && !isThere)) {
      return 'only /workspace and /tmp can be written; await artifact(path) keeps a file from there';
    }
  }
  found = /^Cannot assign to read only property '([^']+)' of object '#<Object>'/.exec(message);
  if (found !== null && inSession && Object.hasOwn(globalThis, found[1])) {
    return `'${found[1]}' is a constant, perhaps of an earlier cell; a cell may declare it again: let ${found[1]} = ...`;
  }
  // Of a file that is imported: the script's own errors say it already.
  const instead = insteadOf({ code: error?.code, message });
  if (instead !== '') return instead;
  if (error?.name === 'SyntaxError' && /^\s*(?:def |from \S+ import |print\()/m.test(start.code)) {
    return `this is read as JavaScript; ${python(start.runs_both)}`;
  }
  return null;
}

module.exports = { advice };
