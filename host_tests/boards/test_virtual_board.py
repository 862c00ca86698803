"""A virtual board behaves as hardware does: boots, resets, sleeps, crashes, and keeps only its flash."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from umqtt_testkit.board import BoardError, VirtualBoard
from umqtt_testkit.interpreter import micropython_command
from umqtt_testkit.models import MODELS
from umqtt_testkit.waiting import WAIT_LIMIT_S

SEED = 11

MakeBoard = Callable[..., VirtualBoard]


@pytest.fixture
def make_board(virtual_board: MakeBoard) -> MakeBoard:
    """Provide make(main), which returns a board, switched off, with `main` as its main.py."""

    def make(main: str = "", name: str = "board", **options) -> VirtualBoard:
        board = virtual_board(name, **options)
        if main:
            board.install({"main.py": main.encode()})
        return board

    return make


@pytest.mark.smoke
def test_boots_boot_py_then_main_py_then_the_prompt(make_board: MakeBoard):
    board = make_board("print('main', x, __name__)")
    board.install({"boot.py": b"x = 5\nprint('boot')"})
    board.start()
    output = board.wait_for(">>> ")
    assert output.index("boot") < output.index("main 5 __main__") < output.index("MicroPython")


def test_a_board_sees_its_flash_and_nothing_of_the_host(make_board: MakeBoard):
    board = make_board("import os, sys\nprint(sys.path, os.getcwd(), sorted(os.listdir('/')))")
    board.install({"/lib/a/b.py": b""})
    board.start()
    board.wait_for("['', '.frozen', '/lib'] / ['lib', 'main.py']")


@pytest.mark.parametrize("geometry", ["esp32", "rp2"])
def test_a_written_file_survives_sigkill(make_board: MakeBoard, geometry: str):
    main = """
import os
try:
    boots = int(open("boots").read())
except OSError:
    boots = 0
with open("boots", "w") as file:
    file.write(str(boots + 1))
print("boots", boots + 1)
while True:
    with open("counter", "w") as file:
        file.write("x" * 100)
"""
    board = make_board(main, geometry=geometry)
    waits = random.Random(SEED)
    print("seed", SEED)
    for boot in range(1, 9):
        board.start()
        board.wait_for(f"boots {boot}\n")
        # The kill comes at a random flash operation.
        time.sleep(waits.random() / 50)
        pid = board.pid
        board.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert board.read("boots") == b"8"
    assert board.files()["/main.py"] == len(main)


def test_ctrl_c_interrupts_main_and_ctrl_d_reboots(make_board: MakeBoard):
    board = make_board("print('started')\nwhile True: pass")
    board.start()
    for life in range(1, 3):
        board.wait_for("started")
        board.type("\x03\x03")
        board.wait_for("KeyboardInterrupt")
        board.wait_for(">>> ")
        board.type("1+1\r")
        board.wait_for("\r\n2\n>>> ")
        assert board.lives == life
        board.type("\x04")
        board.wait_for("MPY: soft reboot")


_WORKS_AND_RESTS = """
import time
print("started")
while True:
    try:
        does = "working"
        until = time.ticks_add(time.ticks_ms(), 5)
        while time.ticks_diff(until, time.ticks_ms()) > 0:
            pass
        does = "resting"
        time.sleep_ms(5)
    except KeyboardInterrupt:
        print("interrupted", does)
"""


def test_a_program_that_rests_is_interrupted_while_it_does(make_board: MakeBoard):
    # Raised at an arbitrary point, as in the unix port, KeyboardInterrupt sometimes damages the heap.
    board = make_board(_WORKS_AND_RESTS)
    board.start()
    board.wait_for("started\n")
    draw, found = random.Random(7), []
    for _ in range(40):
        time.sleep(draw.uniform(0.02, 0.04))
        board.type("\x03")
        found.append(board.wait_for("\n").split()[-1])
    assert set(found) <= {"working", "resting"}, found
    # It may wake at that very moment.
    assert found.count("working") <= 4, found


def test_ctrl_c_while_booting_leads_to_the_prompt(make_board: MakeBoard):
    board = make_board("import time\nwhile True: time.sleep_ms(1)")
    for delay_ms in range(0, 40, 4):
        board.start()
        # Typed once, at a random point of the boot.
        time.sleep(delay_ms / 1000)
        board.type("\x03")
        board.wait_for(">>> ")
        board.type("import os; print(os.listdir())\r")
        board.wait_for("['main.py']")
        board.stop()


def test_a_crash_shows_its_traceback_and_leaves_the_prompt(make_board: MakeBoard):
    board = make_board("def f():\n    1/0\nf()")
    board.start()
    output = board.wait_for(">>> ")
    assert 'File "main.py", line 2, in f' in output
    assert "ZeroDivisionError" in output


def test_main_is_not_run_after_a_boot_py_that_failed(make_board: MakeBoard):
    board = make_board("print('main ran')")
    board.install({"boot.py": b"raise ValueError('boot')"})
    board.start()
    assert "main ran" not in board.wait_for(">>> ")


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        ("machine.reset()", 2),
        ("machine.soft_reset()", 5),
        ("raise SystemExit", 5),
        ("machine.WDT(timeout=100)\nwhile True: pass", 3),
        ("machine.deepsleep(50)", 4),
    ],
)
def test_the_next_life_knows_what_ended_the_last(make_board: MakeBoard, ending: str, cause: int):
    board = make_board(
        "import machine\nprint('cause', machine.reset_cause(), '.')\nif machine.reset_cause() == 1:\n"
        + "".join(f"    {line}\n" for line in ending.split("\n"))
    )
    board.start()
    board.wait_for("cause 1 .")
    board.wait_for(f"cause {cause} .")
    board.wait_for(">>> ")
    assert board.lives == 2
    board.kill()
    board.start()
    board.wait_for("cause 1 .")


_SLEEPS_LONGER_THAN_WATCHED = """
import machine
print("cause", machine.reset_cause(), ".")
if machine.reset_cause() == 1:
    machine.WDT(timeout=300)
    machine.deepsleep(1500)
"""


def test_a_watchdog_that_bites_in_the_sleep_of_an_rp2040_locks_it_up_until_a_power_cut(make_board: MakeBoard):
    board = make_board(_SLEEPS_LONGER_THAN_WATCHED, board="RPI_PICO_W")
    for _ in range(2):
        board.start()
        board.wait_for("locked up until its power is cut")
        assert board.lives == 1
        board.kill()


def test_a_watchdog_of_an_rp2350_does_not_count_in_its_sleep(make_board: MakeBoard):
    board = make_board(_SLEEPS_LONGER_THAN_WATCHED, board="RPI_PICO2_W")
    board.start()
    # On this board, a reset by command is one by the watchdog.
    board.wait_for("cause 3 .")
    assert board.lives == 2


def test_a_reset_runs_no_finally(make_board: MakeBoard):
    board = make_board(
        """
import machine
if machine.reset_cause() == 1:
    try:
        machine.reset()
    finally:
        print("unwound")
print("second life")
"""
    )
    board.start()
    assert "unwound" not in board.wait_for("second life")


def test_a_fed_watchdog_does_not_bite(make_board: MakeBoard):
    board = make_board(
        """
import machine, time
print("life", machine.reset_cause())
dog = machine.WDT(timeout=1000)
start = time.ticks_ms()
while time.ticks_diff(time.ticks_ms(), start) < 1500:
    time.sleep_ms(5)
    dog.feed()
print("fed")
while True: pass
"""
    )
    board.start()
    board.wait_for("fed")
    assert board.lives == 1
    board.wait_for("life 3")


_FED_FOR_EVER = b"""
import machine, time
dog = machine.WDT(timeout=1000)
print("watched")
while True:
    for _ in range(130):
        time.sleep_ms(10)
        dog.feed()
    print("fed")
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="stops processes of this machine: Linux only")
def test_a_watchdog_does_not_bite_because_the_machine_stood_still(tmp_path: Path):
    """Planted: a late check of the watchdog counts all the time since the previous one."""
    program = f"""
from pathlib import Path
from umqtt_testkit.board import VirtualBoard
with VirtualBoard(Path({str(tmp_path / "f.img")!r})) as board:
    board.install({{"main.py": {_FED_FOR_EVER!r}}})
    board.start()
    board.wait_for("watched")
    print(board.pid, flush=True)
    input()
    # The first may have been printed before: from it to the second it takes longer than to bite.
    board.wait_for("fed")
    board.wait_for("fed")
    print(board.lives, flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdin and supervisor.stdout
        processes = (supervisor.pid, int(supervisor.stdout.readline()))
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        # longer than the watchdog waits
        time.sleep(1.5)
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
        supervisor.stdin.write("\n")
        supervisor.stdin.flush()
        assert supervisor.stdout.readline() == "1\n"


def test_rtc_memory_survives_deep_sleep_and_reset_but_no_power_cut(make_board: MakeBoard):
    board = make_board(
        """
import machine
memory = machine.RTC().memory()
print("memory", memory, ".")
machine.RTC().memory(memory + b"x")
if len(memory) == 0:
    machine.deepsleep(1)
if len(memory) == 1:
    machine.reset()
"""
    )
    for _ in range(2):
        board.start()
        for memory in ("b''", "b'x'", "b'xx'"):
            board.wait_for(f"memory {memory} .")
        board.kill()


def test_boards_differ_in_their_unique_id_and_keep_it(make_board: MakeBoard):
    main = "import machine\nprint('id', machine.unique_id())"
    ids = []
    for name in ("a", "b", "a"):
        board = make_board(main, name=name)
        board.start()
        board.wait_for("id ")
        ids.append(board.wait_for("\n"))
        board.close()
    assert ids[0] == ids[2] != ids[1]


def test_the_network_stub_follows_its_hooks_while_the_board_runs(make_board: MakeBoard):
    board = make_board(
        """
import network
wlan = network.WLAN(network.STA_IF)
try:
    wlan.connect("home", "secret")
except OSError as error:
    print("inactive:", error)
wlan.active(True)
assert network.WLAN() is wlan and not wlan.isconnected()
wlan.connect("home", "secret")
seen = None
while True:
    if wlan.status() != seen:
        seen = wlan.status()
        print("status", seen, wlan.isconnected(), wlan.ifconfig()[0])
"""
    )
    board.start()
    board.wait_for("inactive: Wifi")
    board.wait_for("status 1010 True 127.0.0.1")
    board.hooks(wifi=False)
    board.wait_for("status 201 False 0.0.0.0")
    board.hooks(networks={"home": "other"})
    board.wait_for("status 202 False")
    board.hooks(networks={"home": "secret"})
    board.wait_for("status 1010 True")


@pytest.mark.parametrize("played", MODELS)
def test_a_program_has_the_heap_asked_for_and_pays_nothing_for_the_stubs(make_board: MakeBoard, played: str):
    measure = "import gc\ngc.collect()\nprint('free', gc.mem_free(), '.')"
    bare = subprocess.run([*micropython_command("96K"), "-c", measure], capture_output=True, text=True, check=True)
    board = make_board(measure, board=played, heap="96K")
    board.start()
    board.wait_for("free ")
    free = int(board.wait_for(" .").split()[0])
    # The code that uses the flash and runs main.py stays; it takes no more of the heap than a board's own port does.
    assert 0 <= int(bare.stdout.split()[1]) - free < 6000


def test_output_goes_to_the_log_and_unread_output_never_stops_the_board(make_board: MakeBoard, tmp_path: Path):
    log = tmp_path / "console.log"
    board = make_board("for i in range(20000): print('line', i)\nprint('done')", log=log)
    board.start()
    board.wait_for("done")
    assert log.read_bytes().count(b"line") == 20000


@pytest.mark.parametrize("encode", ["from json import dumps\nencode = lambda one: dumps(one).encode()",
                                    "from app.cbor import encode"], ids=["json", "cbor"])  # fmt: skip
def test_published_readings_are_noted_outside_the_flash(make_board: MakeBoard, tmp_path: Path, encode: str):
    """Planted: records are read as JSON, whatever the board's setting `encoding` says."""
    ground_truth = tmp_path / "ground_truth"
    board = make_board(
        encode
        + """
from app import telemetry
for seq in range(3):
    for hook in telemetry.on_published:
        hook(encode({"v": 1, "id": "x", "boot": "1-ab", "seq": seq}))
print("published")
while True: pass
""",
        env={"UMQTT_GROUND_TRUTH": str(ground_truth)},
    )
    cbor = Path(__file__).resolve().parents[2] / "firmware/app/cbor.py"
    board.install({"app/__init__.py": b"", "app/telemetry.py": b"on_published = []", "app/cbor.py": cbor})
    board.start()
    board.wait_for("published")
    board.kill()
    assert ground_truth.read_text() == "1-ab 0\n1-ab 1\n1-ab 2\n"


def test_what_cannot_be_done_is_said(make_board: MakeBoard, tmp_path: Path):
    board = make_board("print('up')")
    with pytest.raises(BoardError, match="is off"):
        board.type("x")
    with pytest.raises(BoardError, match=r"nothing\.py.*ENOENT"):
        board.read("nothing.py")
    with pytest.raises(BoardError, match="no geometry 'cube'"):
        make_board(geometry="cube")
    with pytest.raises(BoardError, match="no board 'ABACUS'"):
        make_board(board="ABACUS")
    board.start()
    board.wait_for("up")
    with pytest.raises(BoardError, match="already"):
        board.start()
    with pytest.raises(BoardError, match="stop"):
        board.install({"x": b""})
    with pytest.raises(BoardError, match=r"'never' within 0\.05 s; its last output:\n(.|\n)*up"):
        board.wait_for("never", 0.05)
    board.stop()
    board.image.write_bytes(b"\x55" * board.image.stat().st_size)
    with pytest.raises(BoardError, match="cannot be used"):
        board.files()


def test_a_flash_is_free_once_its_board_is_closed_whatever_starts_at_that_moment(make_board: MakeBoard):
    board = make_board()
    # Between fork and exec, a child of another thread holds every file open that its parent had open.
    inherited = os.dup(board._locked.fileno())
    board.close()
    make_board().close()
    os.close(inherited)


def test_an_interpreter_that_cannot_start_is_given_up_and_said(make_board: MakeBoard, monkeypatch):
    monkeypatch.setenv("UMQTT_MICROPYTHON", "false")
    board = make_board()
    board.start()
    with pytest.raises(BoardError, match="before MicroPython ended with exit code 1 at once"):
        board.wait_for("anything")


def test_install_takes_folders_and_fails_on_a_full_flash(make_board: MakeBoard, tmp_path: Path):
    """Planted: text was taken for a Path: "'str' object has no attribute 'is_dir'"."""
    board = make_board(geometry="rp2")
    source = tmp_path / "app"
    (source / "inner" / "__pycache__").mkdir(parents=True)
    (source / "inner" / "a.py").write_text("a")
    (source / "inner" / "__pycache__" / "a.pyc").write_text("no")
    board.install({"app": source, "b.py": source / "inner" / "a.py"})
    assert board.files() == {"/app/inner/a.py": 1, "/b.py": 1}
    with pytest.raises(BoardError, match=r"put /big: .*28"):
        board.install({"big": bytes(900_000)})
    with pytest.raises(BoardError, match="content is bytes, a file is a Path, not str"):
        board.install({"main.py": "print('on')"})  # pyrefly: ignore
    board.remove("b.py")
    assert "/b.py" not in board.files()


def test_a_heap_that_is_no_size_is_told(make_board: MakeBoard):
    """Planted: int()'s own ValueError, which does not say heap."""
    with pytest.raises(BoardError, match="heap='much' must be like '64K'"):
        make_board(heap="much")


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a foreign process by pidfd: Linux only")
def test_no_process_outlives_its_program(tmp_path: Path):
    """This also holds when the program is killed and cannot clean up."""
    program = f"""
import sys
from pathlib import Path
from umqtt_testkit.board import VirtualBoard
board = VirtualBoard(Path({str(tmp_path / "f.img")!r}))
board.install({{"main.py": b"print('up')\\nwhile True: pass"}})
board.start()
board.wait_for("up")
print(board.pid, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    # Killed processes leave temporary files behind.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout
        board_pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(board_pid)
        parent.kill()
    assert select.select([descriptor], [], [], WAIT_LIMIT_S)[0], "the board's process is still there"
    os.close(descriptor)
