'use strict';
// Advice on mistakes that models often make: a sentence that follows the error.
const { builtinModules } = require('node:module');
const { nearest } = require('./near_names');

const OBJECTS = ['runtime', 'programs', 'traces'];

const NO_NETWORK = ['EAFNOSUPPORT', 'ENETUNREACH', 'EAI_AGAIN', 'ENOTFOUND'];

function missingFile(path, inSession) {
  const search = "await runtime.search('read file') finds a tool that reads the host's files";
  if (/^(?:\/workspace\/)?in\//.test(path)) return "there is no such file of the operator's; await runtime.files() lists those that there are";
  if (path.startsWith('/') && !/^\/(?:workspace|tmp)\//.test(path)) return `no file of the host is here; ${search}`;
  if (inSession) return `no cell of this session has left that file in /workspace or /tmp; ${search}`;
  return `/workspace and /tmp begin empty with every call: no file of an earlier one is there; ${search}`;
}

function advice(error, servers, exported, inSession = false) {
  const message = typeof error?.message === 'string' ? error.message : '';
  const aliases = servers.aliases;
  let found = /^The requested module '(mcp[\w/]*)' does not provide an export named '([^']+)'/.exec(message);
  if (found !== null) {
    const [, module, name] = found;
    const known = Object.keys(exported[module] ?? {}).filter((one) => one !== 'default');
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
    if (aliases.includes(name)) return `write: import { ${name} } from "mcp/servers"`;
    if (name === 'programs' || name === 'traces') return `write: import { ${name} } from "mcp"`;
    if (builtinModules.includes(name)) return `write: import ${name} from "node:${name}"`;
    if (['print', 'None', 'True', 'False', 'len', 'str'].includes(name)) return 'this is JavaScript; Python runs with the tool run_python';
    return null;
  }
  found = /^Cannot find (?:package|module) '([^']+)'/.exec(message);
  if (found !== null && !found[1].startsWith('/')) {
    const name = found[1].split('/')[0];
    if (aliases.includes(name)) return `write: import { ${name} } from "mcp/servers"`;
    return "the sandbox has no packages of npm; Node's own modules are there: import fs from \"node:fs\"";
  }
  if (message === 'fetch failed' || NO_NETWORK.includes(error?.code)) {
    return 'the sandbox has no network; the servers of runtime.list_servers() are the way out';
  }
  if (typeof error?.path === 'string' && typeof error.syscall === 'string' && !error.syscall.startsWith('spawn')) {
    const isThere = /^\/(?:workspace|tmp)\/|^[^/]/.test(error.path);
    // What is to be written to a folder that isn't there says ENOENT, too.
    const isRead = !['mkdir', 'rename', 'symlink', 'link'].includes(error.syscall);
    if (error.code === 'ENOENT' && isRead) return missingFile(error.path, inSession);
    if (error.code === 'EROFS' || (error.code === 'EACCES' && !isThere)) {
      return 'only /workspace and /tmp can be written; await artifact(path) keeps a file from there';
    }
  }
  if (error?.name === 'SyntaxError' && /^\s*(?:def |from \S+ import |print\()/m.test(servers.code)) {
    return 'this is read as JavaScript; Python runs with the tool run_python';
  }
  return null;
}

module.exports = { advice };
