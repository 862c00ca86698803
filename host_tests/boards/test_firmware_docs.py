"""docs/firmware.md describes the settings that the firmware accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from umqtt_kit.firmware_settings import settings_module

pytestmark = pytest.mark.tier(1)

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "firmware.md"
_ROW = re.compile(r"^\| `(\w+)` \| `(.*?)` \| (.*?) \| .*? \| (yes|) ?\|$", re.MULTILINE)


@pytest.fixture
def settings() -> ModuleType:
    return settings_module()


@pytest.fixture
def rows() -> list[tuple[str, str, str, str]]:
    section = _PAGE.read_text().partition("\n## Settings\n")[2].partition("\n## ")[0]
    return _ROW.findall(section)


def test_every_key_is_described_with_its_default_in_the_order_of_the_code(settings, rows):
    assert {key: json.loads(default) for key, default, _, _ in rows} == settings.DEFAULTS
    assert [key for key, *_ in rows] == list(settings.DEFAULTS)


def test_what_is_said_to_be_live_is(settings, rows):
    assert {key for key, _, _, live in rows if live} == set(settings.LIVE)


def test_every_range_is_the_one_that_is_checked(settings, rows):
    checked = 0
    for key, _, values, _ in rows:
        found = re.search(r"(\d+) to (\d+)$", values)
        if not found or "text" in values:
            continue
        checked += 1
        least, most = int(found[1]), int(found[2])
        # Without topics of its own, a board has no limit of messages a minute.
        others: dict[str, object] = {"brokers": ["mqtt://a"], "topics": "a/{device_id}/{leaf}"}
        for value in (least, most):
            settings.check_settings({**others, key: value})
        for value in (least - 1, most + 1):
            with pytest.raises(settings.SettingsError, match=key):
                settings.check_settings({**others, key: value})
    assert checked == 8
