"""Laws of replacing a file: what is durable when, who may read it, and what is left when it fails."""

import errno
import os
import stat

import pytest

from umqtt_cli import durable
from umqtt_cli.durable import replace_file


def test_a_replaced_file_is_on_the_disk_before_it_is_visible_and_so_is_its_name(tmp_path, monkeypatch):
    """Planted: the folder is not synced, so that after a power cut the old content can come back."""
    steps = []
    for module, name in ((durable, "sync_data"), (os, "rename"), (os, "fsync")):
        call = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, n=name, c=call: (steps.append(n), c(*args))[1])
    replace_file(tmp_path / "a", b"1")
    assert steps == ["sync_data", "rename", "fsync"]


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_beside_it(tmp_path, monkeypatch):
    """Planted: the temporary file stays, and takes the room that the disk has not."""
    file = tmp_path / "a"
    replace_file(file, b"old")

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(durable, "sync_data", full)
    with pytest.raises(OSError, match="no space"):
        replace_file(file, b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


@pytest.mark.parametrize(("mode", "umask", "found"), [(0o600, 0, 0o600), (0o644, 0o77, 0o644), (None, 0o27, 0o640)])
def test_a_mode_counts_whatever_the_umask(tmp_path, mode, umask, found):
    """Planted: a private key is readable by all, where the umask allows it."""
    before = os.umask(umask)
    try:
        replace_file(tmp_path / "a", b"", mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == found


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path):
    """Planted: whoever may write into the folder has a file of this user's overwritten."""
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    (tmp_path / f".a.{os.getpid()}.tmp").symlink_to(other)
    with pytest.raises(OSError):
        replace_file(tmp_path / "a", b"1")
    assert other.read_bytes() == b"mine"
