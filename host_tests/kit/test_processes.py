"""No child outlives its parent: not after a clean end, not after an error, not after kill -9."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import textwrap

import pytest
from umqtt_kit.processes import Child, Children
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.errors import KitError

pytestmark = pytest.mark.tier(1)


def _python(program: str) -> list[str]:
    return [sys.executable, "-u", "-c", textwrap.dedent(program)]


_DEAF = _python(
    """
    import signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("ready", grandchild.pid)
    time.sleep(600)
    """
)


def _ends(pid: int) -> bool:
    """Return whether the process ends; a signal that was sent needs a moment to be delivered."""
    if not hasattr(os, "pidfd_open"):
        pytest.skip("watches processes by pidfd_open, which this system has not")
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(watched, select.POLLIN)
        return bool(poller.poll(WAIT_LIMIT_S * 1000))
    finally:
        os.close(watched)


def test_a_child_that_will_not_stop_is_killed_with_all_it_started(tmp_path):
    with Children(tmp_path) as children:
        child = children.start("deaf", _DEAF)
        grandchild = int(child.wait_for_line("ready", WAIT_LIMIT_S).split()[1])
        assert children.stop(child, timeout_s=0.2) is None
    assert _ends(child.pid)
    assert _ends(grandchild)


def test_grandchildren_are_gone_even_when_their_parent_ended_in_order(tmp_path):
    program = """
        import subprocess, sys
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
        print("ready", grandchild.pid)
    """
    with Children(tmp_path) as children:
        child = children.start("brief", _python(program))
        grandchild = int(child.wait_for_line("ready", WAIT_LIMIT_S).split()[1])
        assert child.wait(WAIT_LIMIT_S) == 0
        assert children.stop(child) == 0
    assert _ends(grandchild)


def test_an_error_in_the_parent_leaves_nothing(tmp_path):
    pids = []
    with pytest.raises(RuntimeError), Children(tmp_path) as children:
        for number in range(3):
            child = children.start(f"sleeper-{number}", _python("import time; print('ready'); time.sleep(600)"))
            child.wait_for_line("ready", WAIT_LIMIT_S)
            pids.append(child.pid)
        raise RuntimeError("the demo fails")
    assert all(_ends(pid) for pid in pids)


def test_whenever_ctrl_c_comes_while_children_are_started_none_is_left(tmp_path):
    program = """
        import os, pathlib, random, signal, sys, threading
        from umqtt_kit.processes import Children
        draw = random.Random(int(sys.argv[2]))
        for round in range(40):
            timer = threading.Timer(draw.uniform(0.001, 0.05), os.kill, (os.getpid(), signal.SIGINT))
            try:
                with Children(pathlib.Path(sys.argv[1])) as children:
                    timer.start()
                    while True:
                        children.start("sleeper", ["sleep", "600"])
            except KeyboardInterrupt:
                timer.join()
            try:
                print("left:", os.waitpid(-1, os.WNOHANG))
            except ChildProcessError:
                pass
    """
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    ended = subprocess.run([*_python(program), tmp_path, str(seed)], capture_output=True, text=True, check=True)
    assert ended.stdout == ""


def test_a_child_that_dies_before_it_is_ready_is_quoted(tmp_path):
    with Children(tmp_path) as children:
        child = children.start("broker", _python("import sys; sys.exit('the disk is full')"))
        with pytest.raises(KitError) as caught:
            child.wait_for_line("listening", WAIT_LIMIT_S)
    assert "broker ended with exit code 1: the disk is full" in str(caught.value)
    assert str(tmp_path / "broker.log") in str(caught.value)


@pytest.mark.parametrize(("code", "passed_on"), [(2, 2), (6, 6), (1, 1), (7, 1)])
def test_usage_and_missing_parts_of_a_child_keep_their_exit_code(tmp_path, code, passed_on):
    with Children(tmp_path) as children:
        child = children.start("part", _python(f"raise SystemExit({code})"))
        with pytest.raises(KitError) as caught:
            child.wait_for_line("ready", WAIT_LIMIT_S)
    assert caught.value.exit_code == passed_on


def test_a_child_that_dies_later_is_noticed(tmp_path):
    with Children(tmp_path) as children:
        child = children.start("part", _python("print('ready'); input()"), asked=True)
        child.wait_for_line("ready", WAIT_LIMIT_S)
        children.check()
        os.kill(child.pid, signal.SIGKILL)
        child.wait(WAIT_LIMIT_S)
        with pytest.raises(KitError, match="part was killed by SIGKILL"):
            children.check()


def test_a_child_told_to_end_is_not_reported_as_dead(tmp_path):
    with Children(tmp_path) as children:
        child = children.start("part", _python("import time; print('ready'); time.sleep(600)"))
        child.wait_for_line("ready", WAIT_LIMIT_S)
        children.end(child)
        child.wait(WAIT_LIMIT_S)
        children.check()


def test_a_ready_line_that_does_not_come_is_a_named_deadline(tmp_path):
    with Children(tmp_path) as children:
        child = children.start("part", _python("import time; print('starting'); time.sleep(600)"))
        child.wait_for_line("starting", WAIT_LIMIT_S)
        with pytest.raises(KitError, match=r"part did not say 'ready' within 0\.1 s"):
            child.wait_for_line("ready", 0.1)


def test_answers_come_in_the_order_of_the_questions(tmp_path):
    program = "for line in iter(input, 'end'): print('ok', line)"
    with Children(tmp_path) as children:
        child = children.start("part", _python(program), asked=True)
        assert [child.ask(f"question {number}") for number in range(5)] == [f"ok question {n}" for n in range(5)]
        with pytest.raises(KitError, match="ended with exit code 0"):
            child.ask("end")


def test_output_far_beyond_a_pipes_size_does_not_block_a_child(tmp_path):
    with Children(tmp_path) as children:
        # Line by line: Python drops the rest of a long line if a signal comes in the middle of an unbuffered write.
        program = "for _ in range(2_000): print('x' * 999)\nprint('done')"
        child = children.start("chatty", _python(program))
        child.wait_for_line("done", WAIT_LIMIT_S)
    assert (tmp_path / "chatty.log").stat().st_size >= 2_000_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills children at their parent's death")
def test_children_die_with_a_parent_that_is_killed(tmp_path):
    deaf = _python(
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready")
        time.sleep(600)
        """
    )
    program = f"""
        import pathlib, time
        from umqtt_kit.processes import Children
        child = Children(pathlib.Path({str(tmp_path)!r})).start("deaf", {deaf!r})
        child.wait_for_line("ready", {WAIT_LIMIT_S})
        print(child.pid)
        time.sleep(600)
    """
    parent = subprocess.Popen(_python(program), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    assert _ends(pid)


def test_a_child_object_tells_its_exit_code(tmp_path):
    child = Child("part", _python("raise SystemExit(3)"), tmp_path / "part.log")
    assert child.wait(WAIT_LIMIT_S) == 3
    assert child.returncode == 3
    child.kill()
