"""The flash store on a chip's own image survives a few power cuts; `make prove-rp2040` makes 20."""

from __future__ import annotations

from pathlib import Path

import chip
import pytest

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
