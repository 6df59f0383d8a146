'use strict';
// A dry run's text: where a value decides what happens next, it is looked at first. JavaScript tells an object nothing
// of being compared, or asked whether it is true.

const NEED = '__mcp_need__';

const COMPARING = new Set(['==', '===', '!=', '!==', 'in', 'instanceof']);

// What these make of a value depends on it, and they don't ask it.
const MAKING = new Set(['Array', 'RegExp', 'URL', 'URLSearchParams']);

// The expressions in a node whose values decide.
function deciding(node) {
  switch (node.type) {
    case 'IfStatement':
    case 'ConditionalExpression':
    case 'WhileStatement':
    case 'DoWhileStatement':
    case 'ForStatement': return [node.test];
    case 'LogicalExpression': return node.operator === '??' ? [] : [node.left];
    case 'UnaryExpression': return ['!', 'typeof'].includes(node.operator) ? [node.argument] : [];
    case 'BinaryExpression': return COMPARING.has(node.operator) ? [node.left, node.right] : [];
    case 'SwitchStatement': return [node.discriminant, ...node.cases.map((one) => one.test)];
    case 'NewExpression': return MAKING.has(node.callee.name) ? node.arguments.filter(({ type }) => type !== 'SpreadElement') : [];
    case 'MemberExpression': return node.computed ? [node.property] : [];
    case 'Property':
    case 'PropertyDefinition':
    case 'MethodDefinition': return node.computed ? [node.key] : [];
    default: return [];
  }
}

const CONSTANT = new Set(['Literal', 'TemplateLiteral', 'PrivateIdentifier', 'FunctionExpression', 'ArrowFunctionExpression']);

const ASSIGNING = new Set(['||=', '&&=']);

// What comes before a value, and what after it. It begins with a space: `in[1]` has none after its word.
function around(node, one) {
  // A name that nobody has declared has a type, too.
  if (node.operator === 'typeof' && one.type === 'Identifier') {
    return [` (typeof ${one.name} === 'undefined' ? void 0 : ${NEED}((`, ')))'];
  }
  return [` ${NEED}((`, '))'];
}

// What is put into the text, as `{at, line, column, text}`.
function needs(tree) {
  const found = [];
  const waiting = [tree];
  while (waiting.length > 0) {
    const node = waiting.pop();
    for (const one of deciding(node)) {
      if (one === null || CONSTANT.has(one.type)) continue;
      const [before, after] = around(node, one);
      found.push({ at: one.start, ...one.loc.start, text: before }, { at: one.end, ...one.loc.end, text: after });
    }
    // What is assigned to can't be wrapped: a variable is looked at before.
    if (ASSIGNING.has(node.operator) && node.left.type === 'Identifier') {
      found.push({ at: node.start, ...node.loc.start, text: ` ${NEED}.after(${NEED}(${node.left.name}), ` });
      found.push({ at: node.end, ...node.loc.end, text: ')' });
    }
    for (const value of Object.values(node)) {
      for (const one of Array.isArray(value) ? value : [value]) if (typeof one?.type === 'string') waiting.push(one);
    }
  }
  return found;
}

// What a look leaves in an error's text, where V8 names the expression that has failed.
const LOOKED = new RegExp(`${NEED}(?:\\(\\.\\.\\.\\))?`, 'g');

// An error's text without the looks: what was looked at isn't in it.
const withoutLooks = (text) => text.replace(LOOKED, '…');

module.exports = { NEED, needs, withoutLooks };
