# Makes a fresh MicroPython process the board: mounts the flash as root, installs the stub modules, then runs boot.py
# and main.py as a port's own main() does. umqtt_testkit.board starts it with `micropython -i -c`, so that the REPL
# follows.
import gc
import io
import json
import os
import sys

import vfs
from file_flash import open_filesystem

# The sys.path of a board after a reset.
_BOARD_PATH = ["", ".frozen", "/lib"]


class _GroundTruth:
    """Appends `BOOT SEQ` to a host file for every published reading (see on_published in app.telemetry)."""

    def __init__(self, path):
        self._file = open(path, "ab")

    def attach(self):
        try:
            from app import telemetry
        except Exception as error:  # noqa: BLE001 - main.py meets the same error, and handles it or not
            print("virtual board: no readings to note, app.telemetry cannot be imported:", error)
            return
        telemetry.on_published.append(self._on_published)

    def _on_published(self, record):
        # Imported here, since the flash has been mounted meanwhile.
        if record[:1] == b"{":
            from json import loads as read
        else:
            from app.cbor import ids as read
        reading = read(record)
        # One unbuffered write: it survives the death of this process.
        self._file.write("%s %d\n" % (reading["boot"], reading["seq"]))


def _note_commands(path):
    """Append the id of every command that the firmware begins to a host file; return a function that starts this."""
    file = open(path, "ab")  # while the host's files can still be read

    def attach():
        try:
            from app.ledger import Ledger
        except Exception as error:  # noqa: BLE001 - main.py meets the same error, and handles it or not
            print("virtual board: no commands to note, app.ledger cannot be imported:", error)
            return
        begin = Ledger.begin

        def noted(self, command_id, payload):
            order = begin(self, command_id, payload)
            file.write(command_id.encode() + b"\n")
            return order

        Ledger.begin = noted

    return attach


def _run(name):
    """Run a file of the root folder in __main__; return whether the boot continues. True if the file is missing."""
    try:
        with open(name) as file:
            source = file.read()
    except OSError:
        return True
    import __main__

    try:
        code = compile(source, name, "exec")
        source = None  # a board has released it too by the time it runs
        exec(code, __main__.__dict__)
        return True
    except SystemExit:
        import machine

        machine._exit()
    except BaseException as error:  # noqa: BLE001 - also KeyboardInterrupt: the REPL comes next
        sys.print_exception(error)
    return False


class _RawOutput:
    """sys.stdout.buffer: on a board, what is written there is not text, so its line feeds stay as they are.

    Byte 0xff, which no text holds, marks them for the supervisor, and itself.
    """

    def __init__(self, file):
        self._file = file

    def write(self, data, *part):
        data = bytes(data)
        if part:  # of MicroPython's streams: a size, or an offset and a size
            start = part[0] if len(part) > 1 else 0
            data = data[start : start + part[-1]]
        self._file.write(data.replace(b"\xff", b"\xff\xff").replace(b"\n", b"\xff\n"))
        return len(data)


class _Output(io.IOBase):
    """sys.stdout."""

    def __init__(self, file):
        self.write = file.write
        self.buffer = _RawOutput(file)


def _replace_stdout():
    # The module sys cannot be changed, but another object can take its place.
    class Sys:
        pass

    for name in dir(sys):
        if name[:2] != "__":
            setattr(Sys, name, getattr(sys, name))
    Sys.stdout = _Output(sys.stdout)
    sys.modules["sys"] = Sys


def load_stubs(folder, control):
    """Import the modules that a board has in its firmware, while the host's files can still be read."""
    sys.path[:] = [folder + "/stubs", folder + "/ports"]
    import _virtual

    network = os.getenv("UMQTT_BOARD_NETWORK")
    _replace_stdout()
    if control is not None:
        _virtual.connect(open(control, "wb"))
    for name in sorted(os.listdir(sys.path[0])):
        if name.endswith(".py") and name[0] != "_":
            __import__(name[:-3])
    if _virtual.PLATFORM != "unix":
        import _port

        _port.begin()
    if network == "wired":
        # Play an image for a board with Ethernet.
        del sys.modules["network"].WLAN
    elif network == "none":
        _take_network_away()
    ports = os.getenv("UMQTT_BOARD_PORTS")
    if ports:
        _listen_elsewhere(json.loads(ports))
    return _virtual


def _listen_elsewhere(ports):
    """Redirect the ports that a board listens on to free ports of loopback.

    ports: {port on the board, as text: port on the host}.
    """
    import socket

    class Socket:
        """Stands in for the module socket, because a built-in module cannot be changed."""

        def getaddrinfo(host, port, *others):
            if host == "0.0.0.0":
                host, port = "127.0.0.1", ports[str(port)]
            return socket.getaddrinfo(host, port, *others)

    for name in dir(socket):
        if name[:2] != "__" and name != "getaddrinfo":
            setattr(Socket, name, getattr(socket, name))
    sys.modules["socket"] = Socket


def _take_network_away():
    """Play an image for a board without a network: the modules network and socket do not exist."""
    import builtins

    there = __import__

    def importing(name, *others):
        if name in ("network", "socket"):
            raise ImportError("no module named '%s'" % name)
        return there(name, *others)

    builtins.__import__ = importing


def boot(folder, image, program_size, control, ground_truth, run_main):
    """Boot the board in this process: mount its flash, load the stub modules, run boot.py and main.py.

    folder: host path of these files.
    image: host path.
    control: descriptor of the pipe to the supervisor.
    ground_truth: host path or None.
    """
    supervisor = load_stubs(folder, control)
    observer = _GroundTruth(ground_truth) if ground_truth else None
    commands = os.getenv("UMQTT_COMMANDS")
    note_commands = _note_commands(commands) if commands else None
    fs = open_filesystem(image, program_size, supervisor.hook("power_cut"), supervisor.tell)
    vfs.umount("/")
    vfs.mount(fs, "/")
    os.chdir("/")
    sys.path[:] = _BOARD_PATH
    for name in ("board_boot", "file_flash"):
        sys.modules.pop(name, None)
    gc.collect()
    # Until now the supervisor held typed input back: a Ctrl-C would have left a prompt with the host's files mounted.
    supervisor.tell("up")
    # A port runs main.py only if boot.py did not fail and no tool has asked for the raw REPL.
    if _run("boot.py") and run_main:
        if observer:
            observer.attach()
        if note_commands:
            note_commands()
        _run("main.py")
