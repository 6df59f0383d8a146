'use strict';
// A dry run's text: where a value decides what happens next, it is looked at first. JavaScript tells an object nothing
// of being compared, or asked whether it is true.

const NEED = '__mcp_need__';

const COMPARING = new Set(['==', '===', '!=', '!==', 'in', 'instanceof']);

// The expressions in a node whose values decide.
function deciding(node) {
  switch (node.type) {
    case 'IfStatement':
    case 'ConditionalExpression':
    case 'WhileStatement':
    case 'DoWhileStatement':
    case 'ForStatement': return [node.test];
    case 'LogicalExpression': return node.operator === '??' ? [] : [node.left];
    case 'UnaryExpression': return node.operator === '!' ? [node.argument] : [];
    case 'BinaryExpression': return COMPARING.has(node.operator) ? [node.left, node.right] : [];
    case 'SwitchStatement': return [node.discriminant, ...node.cases.map((one) => one.test)];
    case 'MemberExpression': return node.computed ? [node.property] : [];
    default: return [];
  }
}

const CONSTANT = new Set(['Literal', 'TemplateLiteral', 'PrivateIdentifier', 'FunctionExpression', 'ArrowFunctionExpression']);

// What is put into the text, as `{at, line, column, text}`.
function needs(tree) {
  const found = [];
  const waiting = [tree];
  while (waiting.length > 0) {
    const node = waiting.pop();
    for (const one of deciding(node)) {
      if (one === null || CONSTANT.has(one.type)) continue;
      found.push({ at: one.start, ...one.loc.start, text: `${NEED}((` }, { at: one.end, ...one.loc.end, text: '))' });
    }
    for (const value of Object.values(node)) {
      for (const one of Array.isArray(value) ? value : [value]) if (typeof one?.type === 'string') waiting.push(one);
    }
  }
  return found;
}

module.exports = { NEED, needs };
