'use strict';
// Randomness from a seed: the cells of a session that run again in another container get the same, as in
// `guest/session/randomness.py`.
const crypto = require('node:crypto');
const { followFolders } = require('./folder_names');

const BLOCK_BYTES = 32;
const MAX_SAFE = 2 ** 48 - 1;

// Replace the system's randomness. `seed` is hexadecimal.
function begin(seed) {
  const { createHash } = crypto;
  const from = Buffer.from(seed, 'hex');
  let count = 0n;

  function bytes(size) {
    const parts = [];
    for (let made = 0; made < size; made += BLOCK_BYTES) {
      const number = Buffer.alloc(8);
      number.writeBigUInt64BE(++count);
      parts.push(createHash('sha256').update(from).update(number).digest());
    }
    return Buffer.concat(parts).subarray(0, size);
  }

  function fill(target, offset = 0, size = undefined) {
    const view = ArrayBuffer.isView(target)
      ? new Uint8Array(target.buffer, target.byteOffset, target.byteLength) : new Uint8Array(target);
    const unit = target.BYTES_PER_ELEMENT ?? 1;
    const [start, length] = [offset * unit, size === undefined ? view.length - offset * unit : size * unit];
    if (!(start >= 0 && length >= 0 && start + length <= view.length)) throw new RangeError('it is out of range');
    view.set(bytes(length), start);
    return target;
  }

  // As Node's: with a callback, later.
  const later = (callback, result) => {
    if (typeof callback !== 'function') return result;
    setImmediate(callback, null, result);
    return undefined;
  };

  let pool = Buffer.alloc(0);
  const replaced = {
    random() {
      if (pool.length < 8) pool = bytes(1024);
      const value = Number(pool.readBigUInt64BE() >> 11n) / 2 ** 53;
      pool = pool.subarray(8);
      return value;
    },
    randomBytes(size, callback) {
      if (!Number.isInteger(size) || size < 0 || size > 2 ** 31 - 1) throw new RangeError('size is out of range');
      return later(callback, bytes(size));
    },
    randomFillSync: (target, offset, size) => fill(target, offset, size),
    randomFill(target, ...rest) {
      return later(rest.pop(), fill(target, ...rest));
    },
    randomInt(...args) {
      const callback = typeof args.at(-1) === 'function' ? args.pop() : undefined;
      const [low, high] = args.length > 1 ? args : [0, args[0]];
      if (!Number.isSafeInteger(low) || !Number.isSafeInteger(high) || high <= low || high - low > MAX_SAFE) {
        throw new RangeError('randomInt() takes safe integers, min before max');
      }
      const [range, most] = [high - low, 2 ** 48 - (2 ** 48 % (high - low))];
      let value;
      do value = bytes(6).readUIntBE(0, 6); while (value >= most);
      return later(callback, low + (value % range));
    },
    randomUUID() {
      const made = bytes(16);
      made[6] = (made[6] & 0x0f) | 0x40;
      made[8] = (made[8] & 0x3f) | 0x80;
      return made.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
    },
    getRandomValues(target) {
      if (!ArrayBuffer.isView(target) || target.byteLength > 65536) throw new RangeError('at most 65536 bytes of an array of integers');
      return fill(target);
    },
  };
  Math.random = replaced.random;
  for (const name of ['randomBytes', 'randomFillSync', 'randomFill', 'randomInt', 'randomUUID']) {
    Object.defineProperty(crypto, name, { value: replaced[name], writable: true, configurable: true, enumerable: true });
  }
  // What the module has of these, it takes from here.
  for (const name of ['randomUUID', 'getRandomValues']) {
    Object.defineProperty(crypto.webcrypto, name, { value: replaced[name], writable: true, configurable: true });
  }
  followFolders(bytes);
  // For what imports them by name.
  require('node:module').syncBuiltinESMExports();
}

module.exports = { begin };
