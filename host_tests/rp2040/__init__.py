"""A virtual board that runs a chip's own image: MicroPython for RP2040 in the emulator rp2040js, under Node.js.

board.py starts and ends the emulator's process and provides its serial ports; package.py finds Node.js and rp2040js.
The .mjs files run under Node.js: board.mjs is the program, rom.mjs the chip's boot ROM, flash.mjs its flash, and
chip.mjs the rest that rp2040js lacks.
"""

from rp2040.board import Cuts, ImageBoard
from rp2040.package import emulator_command

__all__ = ["Cuts", "ImageBoard", "emulator_command"]
