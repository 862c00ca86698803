// An RP2040 that runs an image, started by board.py: node board.mjs SETTINGS USB UART.
//
// USB and UART are the descriptors of its serial ports. Standard output has one JSON object a line: {"event": …}, with
// a "text" for people. It ends when its standard input ends, which is a power cut.

import { openSync, readFileSync, writeSync } from "node:fs";
import { Socket } from "node:net";
import { pathToFileURL } from "node:url";
import { UartLine, UsbHost, complete } from "./chip.mjs";
import { Flash, PowerCut } from "./flash.mjs";
import { ROM_SIZE, Rom } from "./rom.mjs";

const FLASH_START = 0x10000000;
const NS_PER_CYCLE = 8; // 125 MHz
const SLICE_NS = 2_000_000;
const WATCHDOG = 0x40058;
const LONGEST_SLEEP_MS = 1000;
const RESET = "reset";
// Above all levels of the package's log: it writes of each register that it does not know.
const NO_MESSAGES = 9;

const settings = JSON.parse(process.argv[2]);
const package_ = await import(pathToFileURL(settings.package).href);

function tell(event) {
  writeSync(1, JSON.stringify(event) + "\n");
}

const file = openSync(settings.flash, "r+");
const flash = new Flash(new Uint8Array(readFileSync(settings.flash)), file, settings.cuts);
const uniqueId = Buffer.from(settings.unique_id, "hex");
const usbSocket = new Socket({ fd: Number(process.argv[3]) });
const uartSocket = new Socket({ fd: Number(process.argv[4]) });
for (const socket of [usbSocket, uartSocket, process.stdin]) socket.on("error", () => process.exit(0));
process.stdin.on("end", () => process.exit(0));
// Whatever comes asks what the flash has done so far.
process.stdin.on("data", () => tell({ event: "flash", erases: flash.erases, programs: flash.programs }));

// One life: from power, or a reset, to the next.
class Life {
  constructor(watchdog) {
    this.simulator = new package_.Simulator();
    this.mcu = this.simulator.rp2040;
    this.clock = this.simulator.clock;
    this.core = this.mcu.core;
    this.ended = null;
    const { mcu } = this;
    mcu.logger = new package_.ConsoleLogger(NO_MESSAGES, false);
    complete(package_, mcu, uniqueId);
    this.rom = new Rom(
      mcu,
      flash,
      (ms) => this.clock.tick(ms * 1e6),
      () => (this.ended = "the image asked for the USB boot loader, which is not played"),
    );
    // The chip's flash is ours: what the image writes is in the file at once.
    mcu.flash.set(flash.bytes);
    flash.bytes = mcu.flash.subarray(0, flash.bytes.length);
    mcu.onBreak = () => (this.ended = `the image stopped itself at 0x${this.core.PC.toString(16)}`);
    const dog = mcu.peripherals[WATCHDOG];
    if (watchdog) {
      dog.scratchData.set(watchdog.scratchData);
      dog.reason = watchdog.reason;
    }
    dog.onWatchdogTrigger = () => {
      // Off, or the package calls this again and again in the same moment.
      dog.alarm.enable = false;
      this.ended = RESET;
    };
    this.watchdog = dog;
    this.usb = new UsbHost(package_, mcu, (data) => this.send(usbSocket, data));
    this.uart = new UartLine(mcu, (data) => this.send(uartSocket, data));
    // The second stage of the boot loader, with which every image begins, sets up the flash and starts the image.
    this.core.PC = FLASH_START;
    this.core.LR = 0;
    this.began = performance.now();
  }

  send(socket, data) {
    if (!socket.destroyed) socket.write(Buffer.from(data));
  }

  // Run for a slice of the board's time. Returns how many ms may pass before the next one.
  run() {
    const { core, clock, rom } = this;
    const now = (performance.now() - this.began) * 1e6;
    const until = clock.nanos + SLICE_NS;
    while (clock.nanos < until && this.ended === null) {
      if (!core.waiting) {
        const cycles = core.PC < ROM_SIZE ? rom.call(core) : core.executeInstruction();
        clock.tick(cycles * NS_PER_CYCLE);
        continue;
      }
      // The processor sleeps: so does this program, until the board's next alarm or until somebody types.
      const next = clock.nextAlarm ? clock.nanosToNextAlarm : Infinity;
      if (clock.nanos + next > now) {
        if (now > clock.nanos) clock.tick(now - clock.nanos);
        return Math.min((clock.nanos + next - now) / 1e6, LONGEST_SLEEP_MS);
      }
      clock.tick(next);
    }
    const ahead = (clock.nanos - now) / 1e6;
    // A board that this computer is too slow for lags behind, and does not run faster later.
    if (ahead < 0) this.began -= ahead;
    return Math.max(0, ahead);
  }
}

let life;
let timer = null;

function start(watchdog) {
  life = new Life(watchdog);
  tell({ event: "boot" });
}

function go() {
  timer = null;
  let rest = 0;
  try {
    rest = life.run();
    if (life.ended !== null) {
      if (life.ended !== RESET) tell({ event: "ended", text: life.ended });
      start(life.ended === RESET ? life.watchdog : null);
    }
  } catch (error) {
    if (!(error instanceof PowerCut)) throw error;
    tell({ event: "cut", text: error.message });
    flash.arm();
    start(null);
  }
  if (rest >= 1) timer = setTimeout(go, rest);
  else setImmediate(go);
}

function wake() {
  if (timer !== null) {
    clearTimeout(timer);
    go();
  }
}

usbSocket.on("data", (data) => {
  life.usb.type(data);
  wake();
});
uartSocket.on("data", (data) => {
  life.uart.type(data);
  wake();
});
start(null);
go();
