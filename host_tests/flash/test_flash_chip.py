"""The flash store on a chip's own image survives a few power cuts; `make prove-rp2040` makes 20."""

from __future__ import annotations

import shutil
from pathlib import Path

import chip
import chip_laws
import pytest
from umqtt_kit.bundle import library_folder

# After each cut the emulator needs ten seconds or more.
pytestmark = pytest.mark.tier(3)


def test_power_cuts_in_the_middle_of_flash_operations_lose_and_double_nothing(rp2040_image: Path, tmp_path: Path):
    """Planted: the store acknowledges before its slot is in the flash."""
    counted = chip.count_cuts(tmp_path, rp2040_image, cuts=3, seed=1)
    assert counted.promised > 3
    assert (counted.lost, counted.duplicated, counted.out_of_order) == (0, 0, 0)


def test_without_a_store_in_flash_the_same_count_finds_readings_lost(rp2040_image: Path, tmp_path: Path):
    """Planted: only promises made after the last start are counted."""
    assert chip.count_cuts(tmp_path, rp2040_image, cuts=2, seed=1, store="MemoryStore").lost > 0


def test_laws_run_on_the_chip_and_one_that_does_not_hold_is_found(
    rp2040_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted: the asserts are left out when the laws are compiled."""
    found = chip_laws.run(tmp_path, rp2040_image, ("test_qos_0", "test_idle"))
    assert [one.outcome for one in found].count("passed") == 8 and {one.outcome for one in found} == {"passed", "unfit"}
    broken = tmp_path / "client"
    shutil.copytree(library_folder(), broken)
    session = broken / "session.py"
    text = session.read_text()
    assert "self.ping_after or limit // 2" in text
    session.write_text(text.replace("self.ping_after or limit // 2", "self.ping_after or limit"))
    monkeypatch.setattr(chip_laws, "library_folder", lambda: broken)
    (tmp_path / "again").mkdir()
    found = chip_laws.run(tmp_path / "again", rp2040_image, ("test_keep_alive",))
    assert "test_ping_leaves_at_half_the_keep_alive" in [one.test for one in found if one.outcome == "failed"]
