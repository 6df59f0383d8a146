'use strict';
// Images as clients and their models take them, as `guest/values/images.py` has them. Nothing here scales them.
const { size } = require('./blocks');

const MAX_IMAGE_BYTES = 4 << 20;
const MAX_SIDE = 8000;
const HEAD_CHARS = 1 << 20;
const MAX_SEGMENTS = 10_000;

const MAGIC = [
  [[0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a], 'image/png'],
  [[0xff, 0xd8, 0xff], 'image/jpeg'],
  [[0x47, 0x49, 0x46, 0x38], 'image/gif'],
];

// The type of an image by how it begins; null for anything else.
function imageType(bytes) {
  for (const [magic, type] of MAGIC) if (magic.every((byte, at) => bytes[at] === byte)) return type;
  const text = bytes.toString('latin1', 0, 12);
  return text.startsWith('RIFF') && text.slice(8) === 'WEBP' ? 'image/webp' : null;
}

const isFrame = (marker) => marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker);

function jpegSides(data) {
  let at = 2;
  for (let count = 0; count < MAX_SEGMENTS; count += 1) {
    if (data.length < at + 9 || data[at] !== 0xff) return null;
    const marker = data[at + 1];
    if (isFrame(marker)) return [data.readUInt16BE(at + 7), data.readUInt16BE(at + 5)];
    // A byte that fills; a mark alone; a segment.
    if (marker === 0xff) at += 1;
    else at += marker === 0x01 || (marker >= 0xd0 && marker <= 0xd8) ? 2 : 2 + data.readUInt16BE(at + 2);
  }
  return null;
}

function webpSides(data) {
  if (data.length < 30) return null;
  const kind = data.toString('latin1', 12, 16);
  if (kind === 'VP8X') return [data.readUIntLE(24, 3) + 1, data.readUIntLE(27, 3) + 1];
  if (kind === 'VP8L' && data[20] === 0x2f) {
    const bits = data.readUInt32LE(21);
    return [(bits & 0x3fff) + 1, ((bits >>> 14) & 0x3fff) + 1];
  }
  const begins = kind === 'VP8 ' && data.readUIntBE(23, 3) === 0x9d012a;
  return begins ? [data.readUInt16LE(26) & 0x3fff, data.readUInt16LE(28) & 0x3fff] : null;
}

const SIDES = {
  'image/png': (data) => (
    data.length >= 24 && data.toString('latin1', 12, 16) === 'IHDR' ? [data.readUInt32BE(16), data.readUInt32BE(20)] : null
  ),
  'image/jpeg': jpegSides,
  'image/gif': (data) => (
    data.length >= 10 && ['7a', '9a'].includes(data.toString('latin1', 4, 6))
      ? [data.readUInt16LE(6), data.readUInt16LE(8)] : null
  ),
  'image/webp': webpSides,
};

// Of an image in base64, `{type}` as its header says, or `{why}` it isn't shown.
function checked(body) {
  const data = Buffer.from(body.slice(0, HEAD_CHARS), 'base64');
  const type = imageType(data);
  const sides = type === null ? null : SIDES[type](data);
  if (sides === null || sides.includes(0)) return { why: "its header can't be read" };
  if (Math.max(...sides) > MAX_SIDE) return { why: `the limit is ${MAX_SIDE} pixels a side, it has ${sides.join('x')}` };
  return size(body) > MAX_IMAGE_BYTES ? { why: `the limit is ${MAX_IMAGE_BYTES} bytes` } : { type };
}

module.exports = { checked, imageType };
