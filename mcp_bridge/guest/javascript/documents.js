'use strict';
// Documents that a script displays and that aren't pictures (HTML, PDF, audio), as `guest/files/documents.py` has them:
// each is kept as a file.
const { body, bytesOf, isBlock, mime } = require('./blocks');

const PDF = 'application/pdf';
const MAGIC = [
  ['%PDF-', PDF, '.pdf'],
  ['OggS', 'audio/ogg', '.ogg'],
  ['fLaC', 'audio/flac', '.flac'],
  ['ID3', 'audio/mpeg', '.mp3'],
  ['\xff\xfb', 'audio/mpeg', '.mp3'],
];

// Of the files of what tools give, by type; other audio has none of its own.
const SUFFIXES = {
  [PDF]: '.pdf', 'audio/aac': '.aac', 'audio/flac': '.flac', 'audio/mp3': '.mp3', 'audio/mp4': '.m4a',
  'audio/mpeg': '.mp3', 'audio/ogg': '.ogg', 'audio/wav': '.wav', 'audio/wave': '.wav', 'audio/webm': '.weba',
  'audio/x-wav': '.wav',
};

const PAGE = /^\s*<(?:!doctype html|html)/i;

// A document as `{mime, suffix, data}`: a text that begins as a page, or bytes of a PDF or of audio; null for anything else.
function documentOf(value) {
  if (typeof value === 'string') {
    return PAGE.test(value.slice(0, 200)) ? { mime: 'text/html', suffix: '.html', data: Buffer.from(value) } : null;
  }
  const data = bytesOf(value);
  if (data === null) return null;
  const head = data.toString('latin1', 0, 12);
  if (head.startsWith('RIFF') && head.slice(8) === 'WAVE') return { mime: 'audio/wav', suffix: '.wav', data };
  const found = MAGIC.find(([magic]) => head.startsWith(magic));
  return found === undefined ? null : { mime: found[1], suffix: found[2], data };
}

// The PDF or audio in a tool's result, as `documentOf`; null for what has no bytes.
function documentOfBlock(value) {
  if (!isBlock(value)) return null;
  const type = mime(value);
  if (type !== PDF && !type.startsWith('audio/')) return null;
  const suffix = Object.hasOwn(SUFFIXES, type) ? SUFFIXES[type] : '.bin';
  const data = Buffer.from(body(value), 'base64');
  return data.length === 0 ? null : { mime: type, suffix, data };
}

module.exports = { documentOf, documentOfBlock };
