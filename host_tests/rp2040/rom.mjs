// The RP2040's boot ROM, as functions of this program: the package rp2040js does not bring the chip's own.
//
// An image finds ROM functions by a table (RP2040 data sheet, 2.8.3). Each function here has an address below ROM_SIZE;
// when the processor gets there, call() does the work and returns to the caller. The time that a function takes is an
// estimate.

export const ROM_SIZE = 0x4000;

const RAM_START = 0x20000000;
const FLASH_START = 0x10000000;
const FIRST_FUNCTION = 0x100;
const FUNCTION_TABLE = 0x1000;
const DATA_TABLE = 0x1800;
const FLOAT_TABLE = 0x2010;
const DOUBLE_TABLE = 0x2110;
const STACK = 0x20041f00;
// The last version, which needs no repairs by the image.
const VERSION = 3;

const CYCLES = { lookup: 60, bits: 20, float: 70, double: 150, flash: 200 };

const scratch = new DataView(new ArrayBuffer(8));

function floatOf(bits) {
  scratch.setUint32(0, bits);
  return scratch.getFloat32(0);
}

function bitsOfFloat(value) {
  scratch.setFloat32(0, value);
  return scratch.getUint32(0);
}

function doubleOf(low, high) {
  scratch.setUint32(0, high);
  scratch.setUint32(4, low);
  return scratch.getFloat64(0);
}

// A number as the processor hands it over: from register `at` on.
class Registers {
  constructor(core, isDouble) {
    this.core = core;
    this.isDouble = isDouble;
    this.size = isDouble ? 2 : 1;
  }
  number(index) {
    const r = this.core.registers;
    const at = index * this.size;
    return this.isDouble ? doubleOf(r[at], r[at + 1]) : floatOf(r[at]);
  }
  returnNumber(value, index = 0) {
    const r = this.core.registers;
    const at = index * this.size;
    if (this.isDouble) {
      scratch.setFloat64(0, value);
      r[at + 1] = scratch.getUint32(0);
      r[at] = scratch.getUint32(4);
    } else {
      r[at] = bitsOfFloat(value);
    }
  }
  int32(index) {
    return this.core.registers[index] | 0;
  }
  uint32(index) {
    return this.core.registers[index];
  }
  int64() {
    return BigInt.asIntN(64, this.uint64());
  }
  uint64() {
    return (BigInt(this.uint32(1)) << 32n) | BigInt(this.uint32(0));
  }
  return64(value) {
    this.core.registers[0] = Number(value & 0xffffffffn);
    this.core.registers[1] = Number((value >> 32n) & 0xffffffffn);
  }
}

// Rounds down, as the ROM does, and keeps to the limits of the type.
function limited(value, low, high) {
  if (Number.isNaN(value)) return 0;
  return Math.min(Math.max(Math.floor(value), low), high);
}

function limited64(value, low, high) {
  if (Number.isNaN(value)) return 0n;
  if (value <= Number(low)) return low;
  if (value >= Number(high)) return high;
  return BigInt(Math.floor(value));
}

const INT64 = [-(2n ** 63n), 2n ** 63n - 1n];
const UINT64 = [0n, 2n ** 64n - 1n];

function compare(r) {
  const [x, y] = [r.number(0), r.number(1)];
  return x < y ? -1 : x > y ? 1 : 0;
}

function toInt(r, shift) {
  r.core.registers[0] = limited(r.number(0) * 2 ** shift, -(2 ** 31), 2 ** 31 - 1);
}

function toUint(r, shift) {
  r.core.registers[0] = limited(r.number(0) * 2 ** shift, 0, 2 ** 32 - 1);
}

function sinCos(r) {
  const angle = r.number(0);
  r.returnNumber(Math.sin(angle), 0);
  r.returnNumber(Math.cos(angle), 1);
}

// In the order of the table (pico/bootrom/sf_table.h of the SDK); the same for float and double.
const ARITHMETIC = [
  (r) => r.returnNumber(r.number(0) + r.number(1)),
  (r) => r.returnNumber(r.number(0) - r.number(1)),
  (r) => r.returnNumber(r.number(0) * r.number(1)),
  (r) => r.returnNumber(r.number(0) / r.number(1)),
  (r) => (r.core.registers[0] = compare(r)),
  (r) => {
    const result = compare(r);
    r.core.N = result < 0;
    r.core.Z = result === 0;
    r.core.C = result >= 0;
    r.core.V = false;
  },
  (r) => r.returnNumber(Math.sqrt(r.number(0))),
  (r) => toInt(r, 0),
  (r) => toInt(r, r.int32(r.size)),
  (r) => toUint(r, 0),
  (r) => toUint(r, r.int32(r.size)),
  (r) => r.returnNumber(r.int32(0)),
  (r) => r.returnNumber(r.int32(0) / 2 ** r.int32(1)),
  (r) => r.returnNumber(r.uint32(0)),
  (r) => r.returnNumber(r.uint32(0) / 2 ** r.int32(1)),
  (r) => r.returnNumber(Math.cos(r.number(0))),
  sinCos,
  (r) => r.returnNumber(Math.tan(r.number(0))),
  sinCos,
  (r) => r.returnNumber(Math.exp(r.number(0))),
  (r) => r.returnNumber(Math.log(r.number(0))),
  (r) => (r.core.registers[0] = compare(r)),
  (r) => r.returnNumber(Math.atan2(r.number(0), r.number(1))),
  (r) => r.returnNumber(Number(r.int64())),
  (r) => r.returnNumber(Number(r.int64()) / 2 ** r.int32(2)),
  (r) => r.returnNumber(Number(r.uint64())),
  (r) => r.returnNumber(Number(r.uint64()) / 2 ** r.int32(2)),
  (r) => r.return64(limited64(r.number(0), ...INT64)),
  (r) => r.return64(limited64(r.number(0) * 2 ** r.int32(r.size), ...INT64)),
  (r) => r.return64(limited64(r.number(0), ...UINT64)),
  (r) => r.return64(limited64(r.number(0) * 2 ** r.int32(r.size), ...UINT64)),
  (r) => {
    // float to double, or double to float
    const value = r.number(0);
    new Registers(r.core, !r.isDouble).returnNumber(value);
  },
];

export class Rom {
  // flash: see flash.mjs; wait(ms) lets time pass; bootloader() is called when the image asks for the USB boot loader.
  constructor(mcu, flash, wait, bootloader) {
    this.mcu = mcu;
    this.flash = flash;
    this.wait = wait;
    this.bootloader = bootloader;
    this.functions = [];
    const words = new Uint32Array(ROM_SIZE / 4);
    this.view = new DataView(words.buffer);
    this.fill();
    mcu.loadBootrom(words);
  }

  call(core) {
    const index = (core.PC - FIRST_FUNCTION) >> 1;
    const entry = this.functions[index];
    if (entry === undefined) {
      throw new Error(`the image jumped to 0x${core.PC.toString(16)} in the boot ROM, where no function is — is it whole?`);
    }
    const returnTo = core.LR;
    const cycles = entry(core) ?? 0;
    core.BXWritePC(returnTo);
    return cycles + 5;
  }

  add(run) {
    this.functions.push(run);
    return FIRST_FUNCTION + 2 * (this.functions.length - 1) + 1;
  }

  // The bytes at an address in RAM or flash; null elsewhere.
  memory(address, size) {
    for (const [start, bytes] of [[RAM_START, this.mcu.sram], [FLASH_START, this.mcu.flash]]) {
      if (address >= start && address + size <= start + bytes.length) {
        return bytes.subarray(address - start, address - start + size);
      }
    }
    return null;
  }

  table(at, entries) {
    for (const [code, address] of Object.entries(entries)) {
      this.view.setUint16(at, code.charCodeAt(0) | (code.charCodeAt(1) << 8), true);
      this.view.setUint16(at + 2, address, true);
      at += 4;
    }
  }

  arithmetic(at, isDouble) {
    const cycles = isDouble ? CYCLES.double : CYCLES.float;
    // How many functions the table has: the image looks before it.
    this.view.setUint8(at - 2, ARITHMETIC.length);
    ARITHMETIC.forEach((run, index) => {
      const address = this.add((core) => {
        run(new Registers(core, isDouble));
        return cycles;
      });
      this.view.setUint32(at + 4 * index, address, true);
    });
  }

  fill() {
    const { view, mcu } = this;
    const bits = (run) =>
      this.add((core) => {
        core.registers[0] = run(core.registers[0]);
        return CYCLES.bits;
      });
    const nothing = this.add(() => CYCLES.flash);
    const copy = this.add((core) => {
      const [to, from, size] = core.registers;
      const [target, source] = [this.memory(to, size), this.memory(from, size)];
      if (target && source) target.set(source);
      else for (let i = 0; i < size; i++) mcu.writeUint8(to + i, mcu.readUint8(from + i));
      return 20 + (size >> 1);
    });
    const set = this.add((core) => {
      const [to, value, size] = core.registers;
      const target = this.memory(to, size);
      if (target) target.fill(value);
      else for (let i = 0; i < size; i++) mcu.writeUint8(to + i, value & 0xff);
      return 20 + (size >> 2);
    });
    const lookup = this.add((core) => {
      let [at] = core.registers;
      const code = core.registers[1] & 0xffff;
      while (view.getUint16(at, true) !== 0 && view.getUint16(at, true) !== code) at += 4;
      core.registers[0] = view.getUint16(at, true) && view.getUint16(at + 2, true);
      return CYCLES.lookup;
    });
    const clz = (value) => Math.clz32(value);
    this.table(FUNCTION_TABLE, {
      L3: bits(clz),
      T3: bits((value) => (value ? 31 - clz(value & -value) : 32)),
      P3: bits((value) => {
        let count = 0;
        for (; value; value = (value & (value - 1)) >>> 0) count++;
        return count;
      }),
      R3: bits((value) => {
        let reversed = 0;
        for (let i = 0; i < 32; i++) reversed |= ((value >>> i) & 1) << (31 - i);
        return reversed >>> 0;
      }),
      MC: copy,
      C4: copy,
      MS: set,
      S4: set,
      IF: nothing,
      EX: nothing,
      FC: nothing,
      CX: nothing,
      RE: this.add((core) => {
        this.wait(this.flash.erase(core.registers[0], core.registers[1]));
        return CYCLES.flash;
      }),
      RP: this.add((core) => {
        const [address, from, size] = core.registers;
        const data = this.memory(from, size);
        if (!data) throw new Error(`the image programs its flash from 0x${from.toString(16)}, where no memory is`);
        this.wait(this.flash.program(address, data));
        return CYCLES.flash;
      }),
      UB: this.add(() => this.bootloader()),
    });
    this.arithmetic(FLOAT_TABLE, false);
    this.arithmetic(DOUBLE_TABLE, true);
    this.table(DATA_TABLE, { SF: FLOAT_TABLE, SD: DOUBLE_TABLE });
    view.setUint32(0, STACK, true);
    view.setUint8(0x10, "M".charCodeAt(0));
    view.setUint8(0x11, "u".charCodeAt(0));
    view.setUint8(0x12, 1);
    view.setUint8(0x13, VERSION);
    view.setUint16(0x14, FUNCTION_TABLE, true);
    view.setUint16(0x16, DATA_TABLE, true);
    view.setUint16(0x18, lookup, true);
  }
}
