'use strict';
// The text of a table that a script displays, as `guest/values/table_text.py` makes it: so many rows and columns of it,
// aligned. Fractions have six decimals at most, or six digits where they are small; in full where different values of a
// column would look the same, or one would look like a whole number.
const util = require('node:util');
const { own } = require('./blocks');

const MAX_ROWS = 50;
const MAX_COLUMNS = 20;
const MAX_CELL_CHARS = 60;
const DECIMALS = 6;
const HALF = MAX_ROWS / 2;
const BETWEEN = '  ';

const SCALARS = new Set(['string', 'number', 'boolean', 'bigint', 'undefined']);

function isRow(row) {
  if (typeof row !== 'object' || row === null || util.types.isProxy(row)) return false;
  if (![Object.prototype, null].includes(Object.getPrototypeOf(row))) return false;
  const names = Object.keys(row);
  return names.length > 0 && names.every((name) => isCell(Object.getOwnPropertyDescriptor(row, name)));
}

// Whether a property is a text, a number or the like; a getter isn't called.
const isCell = (property) => 'value' in property && (property.value === null || SCALARS.has(typeof property.value));

// The items of an array; null if one of them is no row. An array may have billions of places and nothing in them.
function rowsOf(array) {
  const rows = [];
  for (let at = 0; at < array.length; at += 1) {
    const row = own(array, at);
    if (!isRow(row)) return null;
    rows.push(row);
  }
  return rows;
}

// A table as compact text: an array of two or more objects whose values are texts, numbers and the like; null for
// anything else. Arrays that print in a way of their own aren't looked at.
function table(value) {
  if (!Array.isArray(value) || value.length < 2 || value[util.inspect.custom] !== undefined) return null;
  const all = rowsOf(value);
  if (all === null) return null;
  const names = new Set();
  for (const row of all) for (const name of Object.keys(row)) names.add(name);
  const columns = [...names];
  const shown = columns.slice(0, MAX_COLUMNS);
  const rows = all.length <= MAX_ROWS ? all : [...all.slice(0, HALF), ...all.slice(-HALF)];
  const numbers = shown.map((name) => numberText(rows.map((row) => row[name])));
  const cells = rows.map((row) => shown.map((name, at) => (Object.hasOwn(row, name) ? text(row[name], numbers[at]) : '')));
  return aligned(shown.map((name) => text(name)), cells, { rows: all.length, columns: columns.length });
}

// What gives the text of each number of a column, so that it is short and no other's.
function numberText(column) {
  const values = [...new Set(column.filter((value) => typeof value === 'number' && !Number.isInteger(value)))];
  const isToldApart = new Set(values.map(rounded)).size === values.length;
  return isToldApart && !values.some((value) => Number.isInteger(rounded(value))) ? rounded : (value) => value;
}

function rounded(value) {
  return Number(Math.abs(value) >= 0.1 ? value.toFixed(DECIMALS) : value.toPrecision(DECIMALS));
}

function aligned(names, rows, total) {
  const widths = names.map((name, at) => rows.reduce((most, row) => Math.max(most, row[at].length), name.length));
  const lines = [names, ...rows].map((row) => row.map((cell, at) => cell.padEnd(widths[at])).join(BETWEEN).trimEnd());
  if (total.rows > rows.length) lines.splice(1 + HALF, 0, '…');
  if (total.rows > rows.length || total.columns > names.length) lines.push(`[${total.rows} rows, ${total.columns} columns]`);
  return lines.join('\n');
}

// A cell's text, in one line.
function text(value, number) {
  const whole = typeof value === 'number' && !Number.isInteger(value) ? `${number(value)}` : `${value}`;
  const plain = whole.slice(0, 4 * MAX_CELL_CHARS).trim().replace(/\s+/g, ' ');
  return plain.length <= MAX_CELL_CHARS ? plain : `${plain.slice(0, MAX_CELL_CHARS - 1)}…`.toWellFormed();
}

module.exports = { table };
