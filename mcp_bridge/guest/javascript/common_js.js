'use strict';
// The names that CommonJS gives a file, which scripts find as if they were the file that Node was started with:
// `if (require.main === module)` and `if (import.meta.main)` hold, and don't in the modules that they load.
const nodeModule = require('node:module');
const path = require('node:path');
const { fileURLToPath } = require('node:url');
const { SCRIPT } = require('./failure_report');

const FILENAME = fileURLToPath(SCRIPT);
const DIRNAME = path.dirname(FILENAME);

// `{require, module, exports, __filename, __dirname}`.
function names() {
  // As Node names the file that it was started with.
  const module = Object.assign(new nodeModule('.'), {
    path: DIRNAME, filename: FILENAME, paths: nodeModule._nodeModulePaths(DIRNAME),
  });
  // From it each `require` has its `main`.
  process.mainModule = module;
  const require = nodeModule.createRequire(SCRIPT);
  return { require, module, exports: module.exports, __filename: FILENAME, __dirname: DIRNAME };
}

module.exports = { DIRNAME, FILENAME, names };
