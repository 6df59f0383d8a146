'use strict';
// The names that a function uses and nobody in it declares: what it would miss in another script.
const { bound } = require('./cell_source');
const { parser } = require('./script_source');

// Which of a node's parts are names, but none of a variable.
function isNoVariable(parent, key) {
  switch (parent.type) {
    case 'MemberExpression': return key === 'property' && !parent.computed;
    case 'Property': case 'MethodDefinition': case 'PropertyDefinition': return key === 'key' && !parent.computed;
    case 'LabeledStatement': case 'BreakStatement': case 'ContinueStatement': return key === 'label';
    case 'MetaProperty': return true;
    // Of a name that there isn't, too, this is a text.
    case 'UnaryExpression': return parent.operator === 'typeof';
    default: return false;
  }
}

function declaredBy(node) {
  const patterns = [...(node.params ?? [])];
  if (node.type === 'VariableDeclarator' || /^(?:Function|Class)/.test(node.type)) patterns.push(node.id);
  if (node.type === 'CatchClause') patterns.push(node.param);
  return patterns.flatMap((pattern) => [...bound(pattern)]);
}

// Of the text of a function. A name that is declared anywhere in it counts as declared everywhere.
function freeNames(text) {
  const acorn = parser(false);
  if (acorn === null) return [];
  const [used, declared] = [new Set(), new Set(['arguments', 'undefined'])];
  const waiting = [acorn.parse(`(${text}\n)`, { ecmaVersion: 'latest', sourceType: 'script' })];
  while (waiting.length > 0) {
    const node = waiting.pop();
    for (const name of declaredBy(node)) declared.add(name);
    for (const [key, value] of Object.entries(node)) {
      for (const child of [value].flat()) {
        if (typeof child?.type !== 'string') continue;
        if (child.type === 'Identifier' && !isNoVariable(node, key)) used.add(child.name);
        waiting.push(child);
      }
    }
  }
  return [...used].filter((name) => !declared.has(name)).sort();
}

module.exports = { freeNames };
