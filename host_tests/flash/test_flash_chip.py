"""The flash store on a chip's own image, a few power cuts of it; `make prove-rp2040` makes 20."""

from __future__ import annotations

import os
from pathlib import Path

import chip
import pytest
from umqtt_kit.errors import KitError
from umqtt_kit.rp2040 import emulator_command

# Each life takes the emulator ten seconds and more.
pytestmark = pytest.mark.tier(3)


@pytest.fixture
def image() -> Path:
    """The image that UMQTT_RP2040_IMAGE names."""
    named = os.environ.get("UMQTT_RP2040_IMAGE")
    if not named:
        pytest.skip("UMQTT_RP2040_IMAGE names no image: give the UF2 file of RPI_PICO from micropython.org/download")
    try:
        emulator_command()
    except KitError as missing:
        pytest.skip(str(missing))
    return Path(named)


def test_power_cuts_in_the_middle_of_flash_operations_lose_and_double_nothing(image: Path, tmp_path: Path):
    """Planted: the store acknowledges before its slot is in the flash."""
    counted = chip.count_cuts(tmp_path, image, cuts=3, seed=1)
    assert counted.promised > 3
    assert (counted.lost, counted.duplicated, counted.out_of_order) == (0, 0, 0)


def test_without_a_store_in_flash_the_same_count_finds_readings_lost(image: Path, tmp_path: Path):
    """Planted: the count takes the promises of the last life alone."""
    assert chip.count_cuts(tmp_path, image, cuts=2, seed=1, store="MemoryStore").lost > 0
