'use strict';
// A cell's text as one that keeps its names: docs/javascript.md has the rules.
//
// The text is that of an async function, line by line as it was written. What a module declares at its top level
// becomes properties of the global object, where the cells after it, and functions of those before, find them:
// declarations become assignments, imports are made first, and functions are there from the start, as in a module.
const { parsedModule } = require('./script_source');
const { needs } = require('./dry_run_source');

const HANDLE = '__mcp_cell__';
const FUNCTION = '__mcp_function_';

class Edits {
  #made = [];

  // Replace the text from `start` to `end`.
  put(start, end, text) {
    this.#made.push({ start, end, text, order: this.#made.length });
  }

  // The text with them, and what was put into it, as `source` has it.
  in(text) {
    let [done, at, line, begin] = ['', 0, 1, 0];
    const added = [];
    // What is put where another edit ends comes after it; of two that begin at one place, the earlier one.
    for (const { start, end, text: put } of this.#made.sort((a, b) => a.start - b.start || a.end - b.end || a.order - b.order)) {
      for (let next = text.indexOf('\n', begin); next >= 0 && next < start; next = text.indexOf('\n', begin)) {
        line += 1;
        begin = next + 1;
      }
      added.push({ line, column: start - begin, text: put, removed: end - start });
      done += text.slice(at, start) + put;
      at = Math.max(at, end);
    }
    return { text: done + text.slice(at), added };
  }
}

// The names that a pattern binds.
function* bound(pattern) {
  switch (pattern?.type) {
    case 'Identifier': yield pattern.name; break;
    case 'ObjectPattern': for (const each of pattern.properties) yield* bound(each.value ?? each.argument); break;
    case 'ArrayPattern': for (const each of pattern.elements) yield* bound(each); break;
    case 'AssignmentPattern': yield* bound(pattern.left); break;
    case 'RestElement': yield* bound(pattern.argument); break;
  }
}

function children(node) {
  return Object.values(node).flat().filter((value) => typeof value?.type === 'string' && value !== node);
}

const isFunction = (node) => /Function|^(?:Property|Method)Definition$|^StaticBlock$/.test(node.type);

// A cell may replace it.
const { stringify } = JSON;
const quoted = (names) => names.map((name) => stringify(name)).join(', ');

// `text` as a cell's function. Throws SyntaxError, with the line.
// Returns `text`, whose first line is ours; `added`, as `Edits.in`; `functions`, `values` and `variables`: the names
// that it declares; `requests`: what it imports, each `{from, with, names, at}`, in which a name is `[imported, local]`.
function cellSource(code, { isDry }) {
  const { tree, text } = parsedModule(code, { isCell: true });
  if (tree === null) throw new Error("sessions need the parser that is inside Node, and this Node's is elsewhere");
  const edits = new Edits();
  const looks = isDry ? needs(tree) : [];
  // Next to a value, within all that is put around it.
  const [after, before] = [looks.filter(({ text: put }) => /^\)+$/.test(put)), looks.filter(({ text: put }) => !/^\)+$/.test(put))];
  for (const { at, text: put } of after) edits.put(at, at, put);
  const [functions, values, variables, requests] = [[], [], [], []];

  // A declaration becomes an assignment, in a block: so neither what is before nor what follows belongs to it.
  const declaration = (node) => {
    const parts = node.declarations;
    const names = parts.flatMap((each) => [...bound(each.id)]);
    (node.kind === 'var' ? variables : values).push(...names);
    edits.put(node.start, parts[0].start, '{');
    for (const each of parts) {
      const isPattern = each.id.type !== 'Identifier';
      // A parenthesis is needed before a brace, and does no harm elsewhere.
      edits.put(each.start, each.start, isPattern ? '(' : '');
      if (each.init === null) edits.put(each.end, each.end, node.kind === 'var' ? '' : ' = void 0');
      edits.put(each.end, each.end, isPattern ? ')' : '');
    }
    const end = text[node.end - 1] === ';' ? node.end - 1 : node.end;
    const constant = node.kind === 'const' ? ` ${HANDLE}.constant(${quoted(names)});` : '';
    edits.put(end, node.end, `;${constant}}`);
  };

  // `for (var …`: the names alone.
  const head = (node) => {
    variables.push(...node.declarations.flatMap((each) => [...bound(each.id)]));
    const isBare = node.declarations.length === 1 && node.declarations[0].id.type !== 'ObjectPattern';
    edits.put(node.start, node.declarations[0].start, isBare ? '' : '(');
    if (!isBare) edits.put(node.end, node.end, ')');
  };

  // `var` in blocks belongs to the top level; dynamic imports and `import.meta` are ours wherever they are.
  const inside = (node, inFunction) => {
    if (node.type === 'ImportExpression') edits.put(node.start, node.start + 'import'.length, `${HANDLE}.import`);
    if (node.type === 'MetaProperty' && node.meta.name === 'import') edits.put(node.start, node.end, `${HANDLE}.meta`);
    const within = inFunction || isFunction(node);
    if (!within && /^For/.test(node.type)) {
      const first = node.init ?? node.left;
      if (first?.type === 'VariableDeclaration' && first.kind === 'var') {
        // An assignment target takes an object pattern as it is; only a statement's begin must not.
        if (node.type === 'ForStatement') head(first);
        else {
          const [{ id }] = first.declarations;
          variables.push(...bound(id));
          // `for (async of …` would be another statement.
          const isName = id.type === 'Identifier';
          edits.put(first.start, id.start, isName ? '(' : '');
          if (isName) edits.put(id.end, id.end, ')');
        }
        for (const each of children(node)) (each === first ? children(each) : [each]).forEach((one) => inside(one, within));
        return;
      }
    }
    if (!within && node.type === 'VariableDeclaration' && node.kind === 'var') declaration(node);
    for (const each of children(node)) inside(each, within);
  };

  const declared = (node) => {
    if (node.type === 'VariableDeclaration' && /^(?:let|const)$/.test(node.kind)) {
      declaration(node);
      children(node).forEach((each) => inside(each, false));
    } else if (node.type === 'FunctionDeclaration') {
      functions.push(node.id.name);
      edits.put(node.id.start, node.id.end, `${FUNCTION}${node.id.name}`);
      inside(node, false);
    } else if (node.type === 'ClassDeclaration') {
      values.push(node.id.name);
      edits.put(node.start, node.start, `{${node.id.name} = `);
      edits.put(node.end, node.end, ';}');
      inside(node, false);
    } else {
      inside(node, false);
    }
  };

  const attributes = (node) => Object.fromEntries(
    (node.attributes ?? []).map(({ key, value }) => [key.name ?? key.value, value.value]),
  );
  const request = (node, names) => {
    requests.push({ from: node.source.value, with: attributes(node), names, at: node.loc.start });
    edits.put(node.start, node.end, text.slice(node.start, node.end).replace(/[^\n]/g, ' '));
  };
  const named = (node) => node.name ?? node.value;
  const LAST = tree.body.at(-1);

  for (const node of tree.body) {
    switch (node.type) {
      case 'ImportDeclaration':
        request(node, node.specifiers.map(({ type, imported, local }) => [
          type === 'ImportNamespaceSpecifier' ? '*' : type === 'ImportDefaultSpecifier' ? 'default' : named(imported),
          local.name,
        ]));
        break;
      case 'ExportAllDeclaration': request(node, []); break;
      case 'ExportNamedDeclaration':
        if (node.declaration) {
          edits.put(node.start, node.declaration.start, '');
          declared(node.declaration);
        } else if (node.source) request(node, []);
        else edits.put(node.start, node.end, text.slice(node.start, node.end).replace(/[^\n]/g, ' '));
        break;
      case 'ExportDefaultDeclaration':
        if (/^(?:Function|Class)Declaration$/.test(node.declaration.type) && node.declaration.id) {
          edits.put(node.start, node.declaration.start, '');
          declared(node.declaration);
        } else {
          edits.put(node.start, node.declaration.start, ';(');
          edits.put(node.declaration.end, node.end, ');');
          inside(node.declaration, false);
        }
        break;
      case 'ExpressionStatement':
        if (node === LAST) {
          const end = text[node.end - 1] === ';' ? node.end - 1 : node.end;
          edits.put(node.start, node.start, `;${HANDLE}.value((`);
          inside(node, false);
          edits.put(end, node.end, '));');
          break;
        }
        inside(node, false);
        break;
      default: declared(node);
    }
  }
  for (const { at, text: put } of before) edits.put(at, at, put);
  values.push(...requests.flatMap(({ names }) => names.map(([, local]) => local)));
  const own = [...new Set(functions)];
  const first = `(function () { 'use strict'; return async (${HANDLE}) => { ${HANDLE}.begin([${quoted(own)}], `
    + `[${own.map((name) => FUNCTION + name).join(', ')}]);`;
  const { text: body, added } = edits.in(text.startsWith('#!') ? `//${text.slice(2)}` : text);
  const one = (names) => [...new Set(names)];
  return {
    text: `${first}\n${body}\n}; })()`, added, functions: own, values: one(values), variables: one(variables), requests,
  };
}

// The text of a function of a cell, as it was written.
function asWritten(text) {
  return text.replaceAll(`${HANDLE}.import`, 'import').replaceAll(`${HANDLE}.meta`, 'import.meta').replace(FUNCTION, '');
}

module.exports = { FUNCTION, asWritten, bound, cellSource };
