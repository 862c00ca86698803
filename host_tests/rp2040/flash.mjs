// A NOR flash kept in a file. A program operation only clears bits; an erase sets a whole sector.
//
// With power cuts: the power fails in the middle of an operation, which leaves part of it done. Everything follows from
// a seed.

import { writeSync } from "node:fs";

export const SECTOR = 4096;
const PAGE = 256;
const BLOCK = 65536;
// Typical times of a W25Q16JV, which a Pico has, in ms.
const ERASE_SECTOR_MS = 45;
const ERASE_BLOCK_MS = 150;
const PROGRAM_PAGE_MS = 0.4;

export class PowerCut extends Error {}

// Numbers from 0 up to 1 that follow from a seed (mulberry32).
export function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export class Flash {
  // bytes: the chip's content, changed in place. file: descriptor of the file that keeps it. cuts: null, or
  // {seed, most}: the power fails within so many operations after each start.
  constructor(bytes, file, cuts) {
    this.bytes = bytes;
    this.file = file;
    this.cuts = cuts;
    this.random = cuts && random(cuts.seed);
    this.erases = this.programs = 0;
    this.arm();
  }

  // The power is on again: choose when it fails next.
  arm() {
    this.left = this.cuts ? Math.floor(this.random() * this.cuts.most) : Infinity;
  }

  // Both return how long it takes, in ms, and throw PowerCut.
  erase(address, size) {
    this.check(address, size);
    let ms = 0;
    for (let at = address; at < address + size; at += SECTOR) {
      this.erases++;
      this.operate("erase", at, SECTOR, () => 0xff);
      const inBlock = at - (at % BLOCK) >= address && at - (at % BLOCK) + BLOCK <= address + size;
      ms += inBlock ? ERASE_BLOCK_MS / (BLOCK / SECTOR) : ERASE_SECTOR_MS;
    }
    return ms;
  }

  program(address, data) {
    this.check(address, data.length);
    let ms = 0;
    for (let at = 0; at < data.length; at += PAGE) {
      const size = Math.min(PAGE, data.length - at);
      this.programs++;
      this.operate("program", address + at, size, (old, index) => old & data[at + index]);
      ms += PROGRAM_PAGE_MS;
    }
    return ms;
  }

  check(address, size) {
    if (address + size > this.bytes.length) {
      throw new Error(`the image writes its flash at ${address + size} bytes, and this one has ${this.bytes.length}`);
    }
  }

  operate(kind, address, size, change) {
    const isCut = this.left-- <= 0;
    const done = isCut ? Math.floor(this.random() * size) : size;
    for (let i = 0; i < done; i++) this.bytes[address + i] = change(this.bytes[address + i], i);
    if (isCut) {
      // The byte that was being changed has some of its bits changed.
      const old = this.bytes[address + done];
      const changed = change(old, done) ^ old;
      this.bytes[address + done] = old ^ (changed & Math.floor(this.random() * 256));
    }
    writeSync(this.file, this.bytes, address, Math.min(size, done + 1), address);
    if (isCut) throw new PowerCut(`power cut in the ${kind} at ${address}, after ${done} of ${size} bytes`);
  }
}
