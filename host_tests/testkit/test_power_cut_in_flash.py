"""A virtual board whose power is cut in a flash operation keeps a file system, and what it had closed before."""

import pytest
from umqtt_testkit.board import BoardError, VirtualBoard
from umqtt_testkit.waiting import eventually

_WRITES = b"""
for i in range(40):
    with open("file%d" % i, "w") as file:
        file.write("a" * 3000)
    print("closed", i)
print("all written")
"""


@pytest.mark.parametrize(("operation", "quarters"), [(1, 0), (7, 2), (25, 4)])
def test_power_is_cut_in_the_operation_that_the_hook_names(tmp_path, operation, quarters):
    with VirtualBoard(tmp_path / "flash.img") as board:
        board.install({"main.py": _WRITES})
        board.hooks(power_cut=[operation, quarters])
        board.start()
        eventually(lambda: not board.running, "the power is cut")
        closed = board.output.count("closed")
        assert "all written" not in board.output
        files = board.files()
        assert [files[f"/file{number}"] for number in range(closed)] == [3000] * closed
        with pytest.raises(BoardError, match="its power was cut in a flash operation"):
            board.wait_for("all written")
        board.hooks()
        board.start()
        board.wait_for("all written")
