// What an image needs of the RP2040 and the package rp2040js lacks: registers that keep what was written, random bits,
// the flash chip's own answers (unique id, size, status), a USB host that waits until it has something to say, and a UART
// that takes its time.

import { randomInt } from "node:crypto";

const ROSC_STATUS = 0x18;
const ROSC_RUNS = (1 << 31) | (1 << 12);
const ROSC_RANDOM_BIT = 0x1c;

const OUTPUT_LOW = 2;
const OUTPUT_NORMAL = 0;
const QSPI_SS_CTRL = 0x0c;

const SSI_SSIENR = 0x08;
const SSI_RXFLR = 0x24;
const SSI_SR = 0x28;
const SSI_DR0 = 0x60;
const SR_TX_NOT_FULL = 2;
const SR_TX_EMPTY = 4;
const SR_RX_NOT_EMPTY = 8;

const READ_STATUS = 0x05;
const READ_STATUS_2 = 0x35;
const QUAD_ENABLED = 2;
const READ_UNIQUE_ID = 0x4b;
const READ_JEDEC_ID = 0x9f;
// A W25Q16JV.
const JEDEC_ID = [0xef, 0x40, 0x15];

const START_OF_FRAME = 1 << 17;
const FRAME_NS = 1_000_000;
const FRAME_NUMBER = 0x48;
const INTERRUPT_ENABLE = 0x90;

const UART_RX_FULL = 1 << 6;
const UART_RX_EMPTY = 1 << 4;
const UART_TX_FULL = 1 << 5;
const UART_TX_EMPTY = 1 << 7;
const UART_BUSY = 1 << 3;
const UART_TX_INTERRUPT = 1 << 5;
const UART_FIFO = 32;
const BITS_A_BYTE = 10;

// Replaces the package's parts in a chip that was just made. uniqueId: 8 bytes.
export function complete(package_, mcu, uniqueId) {
  const { BasePeripheral } = package_;

  class Kept extends BasePeripheral {
    constructor(mcu, name) {
      super(mcu, name);
      this.words = new Map();
    }
    readUint32(offset) {
      return this.words.get(offset) ?? 0;
    }
    writeUint32(offset, value) {
      this.words.set(offset, value >>> 0);
    }
  }

  // The serial interface to the flash, as software uses it to ask the chip: one byte out, one byte in.
  class FlashInterface extends Kept {
    constructor(mcu, name) {
      super(mcu, name);
      this.end();
    }
    end() {
      this.isSelected = false;
      this.position = 0;
      this.answers = [];
    }
    select(isSelected) {
      this.end();
      this.isSelected = isSelected;
    }
    readUint32(offset) {
      if (offset === SSI_SR) return SR_TX_EMPTY | SR_TX_NOT_FULL | (this.answers.length ? SR_RX_NOT_EMPTY : 0);
      if (offset === SSI_RXFLR) return this.answers.length;
      if (offset === SSI_DR0) return this.answers.shift() ?? 0;
      return super.readUint32(offset);
    }
    writeUint32(offset, value) {
      if (offset === SSI_DR0) {
        // Not selected by hand, the chip is selected as long as bytes are on their way.
        if (!this.isSelected && this.answers.length === 0) this.position = 0;
        if (this.position === 0) this.command = value;
        this.answers.push(this.answer(this.position++));
        return;
      }
      if (offset === SSI_SSIENR) this.end();
      super.writeUint32(offset, value);
    }
    answer(position) {
      switch (this.command) {
        case READ_STATUS:
          return 0;
        case READ_STATUS_2:
          return QUAD_ENABLED;
        case READ_JEDEC_ID:
          return JEDEC_ID[position - 1] ?? 0xff;
        case READ_UNIQUE_ID:
          return uniqueId[position - 5] ?? 0xff;
        default:
          return 0xff;
      }
    }
  }

  const flashInterface = new FlashInterface(mcu, "SSI");

  class FlashPins extends Kept {
    writeUint32(offset, value) {
      super.writeUint32(offset, value);
      if (offset !== QSPI_SS_CTRL) return;
      const output = (value >> 8) & 3;
      if (output !== OUTPUT_NORMAL) flashInterface.select(output === OUTPUT_LOW);
      else flashInterface.end();
    }
  }

  // The source of os.urandom(): two boards, or two starts, must not give themselves the same identity.
  class RingOscillator extends Kept {
    readUint32(offset) {
      if (offset === ROSC_STATUS) return ROSC_RUNS;
      return offset === ROSC_RANDOM_BIT ? randomInt(2) : super.readUint32(offset);
    }
  }

  mcu.peripherals[0x18000] = flashInterface;
  mcu.peripherals[0x40018] = new FlashPins(mcu, "IO_QSPI");
  mcu.peripherals[0x40060] = new RingOscillator(mcu, "ROSC");
  mcu.peripherals[0x40064] = new Kept(mcu, "VREG_AND_CHIP_RESET");
  mcu.peripherals[0x14000] = new Kept(mcu, "XIP_CTRL");
}

// The computer's end of the USB serial port. send(data): bytes from the board.
export class UsbHost {
  constructor(package_, mcu, send) {
    this.waiting = [];
    this.wanted = 0;
    const { usbCtrl } = mcu;
    this.cdc = new package_.USBCDC(usbCtrl);
    this.cdc.onSerialData = send;
    this.usb = usbCtrl;
    const enumerate = usbCtrl.onEndpointRead;
    usbCtrl.onEndpointRead = (endpoint, size) => {
      if (endpoint !== this.cdc.outEndpoint) return enumerate(endpoint, size);
      // Without anything to say the package's host answers with an empty packet each 10 µs: the board has no rest.
      this.wanted = size;
      this.pass();
    };
    this.frames(mcu.clock);
  }

  // The host begins a frame each ms, which a board may ask to be told of: MicroPython sends its banner then.
  frames(clock) {
    const { usb } = this;
    const alarm = clock.createAlarm(() => {
      usb.intRaw |= START_OF_FRAME;
      usb.checkInterrupts();
    });
    const { writeUint32, readUint32 } = usb;
    const next = () => {
      if (usb.intEnable & START_OF_FRAME) alarm.schedule(FRAME_NS);
      else alarm.cancel();
    };
    usb.writeUint32 = (offset, value) => {
      writeUint32.call(usb, offset, value);
      if (offset === INTERRUPT_ENABLE) next();
    };
    usb.readUint32 = (offset) => {
      if (offset === FRAME_NUMBER) {
        usb.intRaw &= ~START_OF_FRAME;
        usb.checkInterrupts();
        next();
      }
      return readUint32.call(usb, offset);
    };
  }

  type(data) {
    for (const byte of data) this.waiting.push(byte);
    this.pass();
  }

  pass() {
    if (!this.wanted || !this.waiting.length) return;
    const packet = Uint8Array.from(this.waiting.splice(0, this.wanted));
    this.wanted = 0;
    this.usb.endpointReadDone(this.cdc.outEndpoint, packet);
  }
}

// The other end of UART 0, at the speed that the board has chosen. send(data): bytes from the board.
export class UartLine {
  constructor(mcu, send) {
    const uart = mcu.uart[0];
    const { clock } = mcu;
    this.uart = uart;
    this.clock = clock;
    this.typed = [];
    const sending = [];
    // The package's UART sends at once and always asks for more, which keeps a board busy that has nothing to send.
    uart.checkInterrupts = () => mcu.setInterrupt(uart.irq, !!(uart.interruptStatus & uart.interruptMask));
    Object.defineProperty(uart, "flags", {
      get: () =>
        (uart.rxFIFO.full ? UART_RX_FULL : 0) |
        (uart.rxFIFO.empty ? UART_RX_EMPTY : 0) |
        (sending.length ? UART_BUSY : UART_TX_EMPTY) |
        (sending.length >= UART_FIFO ? UART_TX_FULL : 0),
    });
    const sent = clock.createAlarm(() => {
      send(Uint8Array.of(sending.shift()));
      if (sending.length) sent.schedule(this.byteNs);
      if (sending.length <= UART_FIFO / 2) {
        uart.interruptStatus |= UART_TX_INTERRUPT;
        uart.checkInterrupts();
      }
    });
    uart.onByte = (byte) => {
      sending.push(byte);
      if (sending.length === 1) sent.schedule(this.byteNs);
    };
    this.arrived = clock.createAlarm(() => {
      // Without room a byte is lost, as on the chip.
      const byte = this.typed.shift();
      if (!uart.rxFIFO.full) uart.feedByte(byte);
      if (this.typed.length) this.arrived.schedule(this.byteNs);
    });
  }

  get byteNs() {
    return (BITS_A_BYTE * 1e9) / (this.uart.baudRate || 115200);
  }

  type(data) {
    const isIdle = this.typed.length === 0;
    this.typed.push(...data);
    if (isIdle && this.typed.length) this.arrived.schedule(this.byteNs);
  }
}
