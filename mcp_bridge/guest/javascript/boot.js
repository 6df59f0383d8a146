'use strict';
// The text of `node -e`: takes the guest's modules from descriptor 3 (twelve decimal digits, then a JSON object of
// names and texts), and starts `main`. Frames follow on the same descriptor.
{
  // In a block: a name at the top level of this text would come before what scripts declare.
  const fs = require('node:fs');
  const vm = require('node:vm');
  // The global one is the script's, which may declare another.
  const nodes = require;

  // Node's own, which its first warning makes, also one that isn't shown, leaves descriptor 2 non-blocking: for the
  // script's `writeSync`, and for its children. `output` puts ours here.
  Object.defineProperty(process, 'stderr', { configurable: true, enumerable: true, value: { write() {} } });

  function readExactly(count) {
    const data = Buffer.alloc(count);
    for (let done = 0; done < count;) {
      const read = fs.readSync(3, data, done, count - done, null);
      if (read === 0) process.exit(70);
      done += read;
    }
    return data;
  }

  // As they are now: whatever a session's cells declare by these names, our modules have Node's own.
  const own = Object.entries(Object.getOwnPropertyDescriptors(globalThis))
    .filter(([name, { value }]) => value !== undefined && /^[A-Za-z]\w*$/.test(name)).map(([name]) => name);
  const names = [...new Set([...own, 'process', 'Buffer', 'performance'])];
  const values = names.map((name) => globalThis[name]);

  const texts = JSON.parse(readExactly(Number(readExactly(12).toString())).toString());
  const loaded = new Map();

  function load(name) {
    if (!name.startsWith('./')) return nodes(name);
    const known = loaded.get(name);
    if (known !== undefined) return known.exports;
    const module = { exports: {} };
    loaded.set(name, module);
    const options = {
      filename: `mcp-bridge:${name.slice(2)}.js`,
      importModuleDynamically: vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
    };
    // In a function of its own, which may declare any of the names itself.
    const body = `return function (require, module) {${texts[name.slice(2)]}\n}`;
    vm.compileFunction(body, names, options)(...values)(load, module);
    return module.exports;
  }

  load('./main');
}
