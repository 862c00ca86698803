# Makes a fresh MicroPython process the board: flash as root, stub modules, then boot.py and main.py as a
# port's own main() runs them. Started by umqtt_testkit.board with `micropython -i -c`, so that the REPL
# follows.
import gc
import json
import os
import sys

import vfs
from file_flash import open_filesystem

# What a board's own sys.path is after a reset.
_BOARD_PATH = ["", ".frozen", "/lib"]


class _Witness:
    """Appends `BOOT SEQ` to a host file for every reading that was published (see on_published in
    app.telemetry).
    """

    def __init__(self, path):
        self._file = open(path, "ab")

    def attach(self):
        try:
            from app import telemetry
        except Exception as error:  # noqa: BLE001 - main.py meets the same error, and handles it or not
            print("virtual board: nothing to witness, app.telemetry cannot be imported:", error)
            return
        telemetry.on_published.append(self._on_published)

    def _on_published(self, record):
        import json

        reading = json.loads(record)
        # One write, straight to the operating system: it survives the death of this process.
        self._file.write("%s %d\n" % (reading["boot"], reading["seq"]))


def _run(name):
    """Run a file of the root folder in __main__. Returns whether the boot goes on (also when there is no
    file).
    """
    try:
        with open(name) as file:
            source = file.read()
    except OSError:
        return True
    import __main__

    try:
        code = compile(source, name, "exec")
        source = None  # a board has let go of it too by the time it runs
        exec(code, __main__.__dict__)
        return True
    except SystemExit:
        import machine

        machine._exit()
    except BaseException as error:  # noqa: BLE001 - also KeyboardInterrupt: the REPL comes next
        sys.print_exception(error)
    return False


def load_stubs(folder, control):
    """What a board has in its firmware. Imported now: once the flash is mounted, the host's files are out of sight."""
    sys.path[:] = [folder + "/stubs", folder + "/ports"]
    import _virtual

    network = os.getenv("UMQTT_BOARD_NETWORK")
    if control is not None:
        _virtual.connect(open(control, "wb"))
    for name in sorted(os.listdir(sys.path[0])):
        if name.endswith(".py") and name[0] != "_":
            __import__(name[:-3])
    if _virtual.PLATFORM != "unix":
        import _port

        _port.begin()
    if network == "wired":
        # As an image for a board with Ethernet.
        del sys.modules["network"].WLAN
    elif network == "none":
        _take_network_away()
    ports = os.getenv("UMQTT_BOARD_PORTS")
    if ports:
        _listen_elsewhere(json.loads(ports))
    return _virtual


def _listen_elsewhere(ports):
    """A board may listen on any port; here it gets another one of loopback. ports: dict of its port as text to ours."""
    import socket

    class Socket:
        """The module under another name: a built-in module cannot be changed."""

        def getaddrinfo(host, port, *others):
            if host == "0.0.0.0":
                host, port = "127.0.0.1", ports[str(port)]
            return socket.getaddrinfo(host, port, *others)

    for name in dir(socket):
        if name[:2] != "__" and name != "getaddrinfo":
            setattr(Socket, name, getattr(socket, name))
    sys.modules["socket"] = Socket


def _take_network_away():
    """As an image for a board without one: neither module exists."""
    import builtins

    there = __import__

    def importing(name, *others):
        if name in ("network", "socket"):
            raise ImportError("no module named '%s'" % name)
        return there(name, *others)

    builtins.__import__ = importing


def boot(folder, image, program_size, control, witness, run_main):
    """folder: host path of these files; image: host path; control: descriptor of the pipe to the supervisor;
    witness: host path or None.
    """
    supervisor = load_stubs(folder, control)
    observer = _Witness(witness) if witness else None
    fs = open_filesystem(image, program_size)
    vfs.umount("/")
    vfs.mount(fs, "/")
    os.chdir("/")
    sys.path[:] = _BOARD_PATH
    for name in ("board_boot", "file_flash"):
        sys.modules.pop(name, None)
    gc.collect()
    # Until now the supervisor has held back what was typed: a Ctrl-C would have left a prompt on the host's files.
    supervisor.tell("up")
    # A port runs main.py only after a boot.py that did not fail, and not for a tool that wants the raw REPL.
    if _run("boot.py") and run_main:
        if observer:
            observer.attach()
        _run("main.py")
