"""Boards on a cable: where they are (ports, choose), and what can be done with one (board).

    board = Board(choose(device))           # `device`: what the user gave with --device, or None
    with board:
        print(board.info().version, board.list_files("/"))

    ports    serial ports with a board behind them, and virtual boards
    choose   which of them --device means; the click option itself
    board    class Board: one board in its raw REPL
    running  the firmware that keeps running while it is asked
    line     the serial port under mpremote: deadlines, and errors that say what to do
    scripts  the programs that run on the board
    trouble  what went wrong on the board, and what to do
    configuration   its settings.json and secrets.json
    guess    which folder under boards/ describes it

Everything that talks to a board uses this package; nothing else imports mpremote or opens a serial port. All errors
are KitErrors of one line: exit code 3 if no board is there (none plugged in, port busy, cable pulled), 5 if a board
does not do what it is told.
"""

from umqtt_kit.device.board import Board, Info, Manner, NotAsked, look
from umqtt_kit.device.choose import choose, device_option, interrupt_option
from umqtt_kit.device.configuration import Configuration, read_configuration
from umqtt_kit.device.line import open_serial
from umqtt_kit.device.ports import Port, find_ports
from umqtt_kit.device.trouble import DeviceError

__all__ = [
    "Board",
    "Configuration",
    "DeviceError",
    "Info",
    "Manner",
    "NotAsked",
    "Port",
    "choose",
    "device_option",
    "find_ports",
    "interrupt_option",
    "look",
    "open_serial",
    "read_configuration",
]
