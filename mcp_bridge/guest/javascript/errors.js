'use strict';
// The errors that a script gets instead of an answer.

// Something that a call to the outside met. `code` is stable; `details` is an object.
class MCPError extends Error {
  constructor(message, { code = 'error', details = {} } = {}) {
    super(message);
    this.code = code;
    // Not with the error where it is printed: the message says it.
    Object.defineProperty(this, 'details', { value: details, writable: true });
  }
}

// A tool reported an error, or could not be called.
class ToolError extends MCPError {
  constructor(message, { server, tool, code = 'tool_error', details = {} }) {
    super(message, { code, details });
    this.server = server;
    this.tool = tool;
  }
}

// Nobody waited for a call.
class NotAwaitedError extends MCPError {
  constructor(message, line) {
    super(message, { code: 'not_awaited' });
    Object.defineProperty(this, 'line', { value: line });
  }
}

// An event didn't come in time.
class EventTimeoutError extends MCPError {}

// A dry run has needed the result of a call that it doesn't make, and ends.
class PlannedValueError extends Error {}

for (const kind of [MCPError, ToolError, NotAwaitedError, EventTimeoutError, PlannedValueError]) {
  Object.defineProperty(kind.prototype, 'name', { value: kind.name, configurable: true, writable: true });
}

// Have an error say something else.
function restate(error, message) {
  // What the script has set as `Error.prepareStackTrace` may make anything of it.
  if (typeof error.stack === 'string') error.stack = error.stack.replace(error.message, () => message);
  error.message = message;
}

// Marks the error of a file that was to be stored.
const OF_ARTIFACT = Symbol('artifact');

module.exports = { MCPError, ToolError, NotAwaitedError, EventTimeoutError, PlannedValueError, OF_ARTIFACT, restate };
