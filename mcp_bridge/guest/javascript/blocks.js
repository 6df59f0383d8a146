'use strict';
// Non-text content of a tool's result (images, audio, files), which prints in a short form and keeps all its data.
const util = require('node:util');

const IMAGE_TYPES = new Set(['image/png', 'image/jpeg', 'image/gif', 'image/webp']);
const MAX_DEPTH = 8;
const MAX_VALUES = 20_000;
// In the search for images so many scalars, which cost little, count as one value.
const SCALARS_PER_VALUE = 10;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;

// An object's own property. What is shown may be any object: its getters aren't called, as where it is printed.
const own = (object, name) => Object.getOwnPropertyDescriptor(object, name)?.value;

const mime = (block) => own(block, 'mime_type') ?? own(block, 'mimeType');
const body = (block) => own(block, 'data') ?? own(block, 'blob');

// Those of the language, whatever a class puts in their place.
const [bufferOf, offsetOf, lengthOf] = ['buffer', 'byteOffset', 'byteLength'].map(
  (name) => Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), name).get,
);

// The bytes of a Buffer, another Uint8Array or an ArrayBuffer, as a Buffer; null for anything else, also for what has
// given its bytes away.
function bytesOf(value) {
  try {
    if (util.types.isUint8Array(value)) return Buffer.from(bufferOf.call(value), offsetOf.call(value), lengthOf.call(value));
    return util.types.isAnyArrayBuffer(value) ? Buffer.from(value) : null;
  } catch {
    return null;
  }
}

// The decoded size of base64 text in bytes.
const size = (text) => Math.floor((text.length * 3) / 4) - (/=*$/.exec(text)[0].length);

function isBlock(value) {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  const [kind, text] = [mime(value), body(value)];
  if (typeof kind !== 'string' || kind.startsWith('text/') || typeof text !== 'string') return false;
  return text.length % 4 === 0 && BASE64.test(text);
}

const isImage = (value) => isBlock(value) && IMAGE_TYPES.has(mime(value));

function short() {
  if (!isBlock(this)) return { ...this };
  const uri = own(this, 'uri');
  const where = typeof uri === 'string' ? ` ${uri}` : '';
  const how = isImage(this) ? 'display(it) shows it, ' : '';
  return `<${mime(this)}${where}, ${size(body(this))} bytes; ${how}.${own(this, 'data') ? 'data' : 'blob'} is its base64>`;
}

// A JSON value in which objects with binary data print shortly.
function shortened(value) {
  let left = MAX_VALUES;
  let level = [value];
  for (let depth = 0; depth <= MAX_DEPTH && level.length > 0; depth++) {
    const following = [];
    for (const one of level) {
      if (typeof one !== 'object' || one === null) continue;
      if (isBlock(one)) {
        Object.defineProperty(one, util.inspect.custom, { value: short, configurable: true, writable: true });
        continue;
      }
      const inner = Object.values(one);
      left -= inner.length;
      if (left < 0) return value;
      for (const item of inner) if (typeof item === 'object' && item !== null) following.push(item);
    }
    level = following;
  }
  return value;
}

module.exports = { MAX_DEPTH, MAX_VALUES, SCALARS_PER_VALUE, body, bytesOf, isBlock, isImage, mime, own, shortened, size };
