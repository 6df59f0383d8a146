'use strict';
// The names that a script may have meant by an unknown one.

const words = (name) => name.replace(/([a-z0-9])([A-Z])/g, '$1_$2').toLowerCase().split(/[^a-z0-9]+/).filter(Boolean);

// Without case and separators: `gitStatus` and `git_status` are one.
const folded = (name) => words(name).join('');

function pairs(text) {
  const found = new Map();
  for (let at = 0; at + 1 < text.length; at++) {
    const pair = text.slice(at, at + 2);
    found.set(pair, (found.get(pair) ?? 0) + 1);
  }
  return found;
}

// How alike two names are, from 0 to 1 (the Sørensen–Dice coefficient of their pairs of letters).
function likeness(one, other) {
  const [a, b] = [folded(one), folded(other)];
  if (a === b) return 1;
  const [left, right] = [pairs(a), pairs(b)];
  let shared = 0;
  for (const [pair, count] of left) shared += Math.min(count, right.get(pair) ?? 0);
  const all = a.length + b.length - 2;
  return all > 0 ? (2 * shared) / all : 0;
}

// How alike two names are, from 0 to 1: by how many letters have to be changed, left out, added or swapped.
function spelledAlike(one, other) {
  const [a, b] = [folded(one).slice(0, 60), folded(other).slice(0, 60)];
  const rows = [Array.from({ length: b.length + 1 }, (_, at) => at)];
  for (let i = 1; i <= a.length; i++) {
    rows.push([i]);
    for (let j = 1; j <= b.length; j++) {
      let least = Math.min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) least = Math.min(least, rows[i - 2][j - 2] + 1);
      rows[i].push(least);
    }
  }
  return 1 - rows[a.length][b.length] / Math.max(a.length, b.length, 1);
}

function near(name, known) {
  const rated = known.map((other) => [Math.max(likeness(name, other), spelledAlike(name, other)), other]).filter(([rate]) => rate >= 0.6);
  rated.sort(([a, one], [b, other]) => b - a || (one < other ? -1 : 1));
  if (rated.length > 0) return rated.slice(0, 3).map(([, other]) => other);
  const asked = new Set(words(name));
  return known.filter((other) => words(other).some((word) => asked.has(word))).slice(0, 3);
}

// Whether a name is one of the others misspelt, word for word: `git_lgo` and `git_log`, not `list_commits`.
function isMisspelt(name, known) {
  const [other] = near(name, known);
  if (other === undefined) return false;
  const [said, meant] = [words(name), words(other)];
  if (spelledAlike(name, other) >= 0.9 || String(said.toSorted()) === String(meant.toSorted())) return true;
  return said.length === meant.length && said.every((word, at) => spelledAlike(word, meant[at]) >= 0.6);
}

// `; nearest: a, b`; or empty if no name is near.
function suggestion(name, known) {
  const close = near(name, known);
  return close.length > 0 ? `; nearest: ${close.join(', ')}` : '';
}

// `; nearest: a, b`; or all names if none is near; or empty.
function nearest(name, known) {
  const close = suggestion(name, known);
  if (close || known.length === 0) return close;
  return `; there are: ${known.slice(0, 20).join(', ')}${known.length > 20 ? ', …' : ''}`;
}

// The one name that differs only in case and separators; null if there is none, or more than one.
function sameName(name, known) {
  const same = known.filter((other) => folded(other) === folded(name));
  return same.length === 1 ? same[0] : null;
}

module.exports = { isMisspelt, nearest, sameName, suggestion };
