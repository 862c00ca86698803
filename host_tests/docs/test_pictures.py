"""The pictures of the pages are small, and the command that takes them works."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_MOST_BYTES = 110_000


def test_the_pictures_are_small() -> None:
    """Planted: PNG instead of JPEG."""
    shown = {
        page.parent / name
        for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for name in re.findall(r"!\[.+?\]\(((?:docs/)?pictures/.+?)\)", page.read_text())
    }
    assert shown == set((ROOT / "docs/pictures").iterdir())
    assert sum(picture.stat().st_size for picture in shown) < _MOST_BYTES


@pytest.mark.tier(3)
def test_they_can_be_taken_anew(tmp_path: Path) -> None:
    """Planted: the broker refuses all clients, so its page shows none."""
    pytest.importorskip("playwright.sync_api")
    import draw_pictures

    if not Path(draw_pictures._CHROMIUM).exists():
        pytest.skip("chromium is not installed — apt install chromium")
    draw_pictures.draw(tmp_path, traffic_ms=2000)
    names = {draw_pictures.BROKER, draw_pictures.REPORT, draw_pictures.PORTAL}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert all(5_000 < path.stat().st_size < _MOST_BYTES for path in tmp_path.iterdir())
