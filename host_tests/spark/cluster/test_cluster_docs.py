"""docs/cluster.md: its arithmetic adds up, its examples are Python, its options and links exist."""

import re
import sys
from math import ceil
from pathlib import Path

import pytest

from spark_ingest.pipeline import command
from spark_ingest.pipeline.dedup import Limits

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "host_tests" / "docs"))

from examples import examples  # noqa: E402

FILE = ROOT / "docs" / "cluster.md"
PAGE = FILE.read_text()
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def amount(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


def test_the_table_of_fleets_follows_from_the_figures_above_it():
    rows = re.findall(r"^\| ([\d,]+) \| ([\d.,]+) \| (.+?) \| (\d+) \| (.+?) \|$", PAGE, re.M)
    assert [row[0] for row in rows] == ["10", "10,000", "10,000,000"]
    for devices, rate, spool, cores, seen in rows:
        a_second = int(devices.replace(",", "")) / 60
        assert float(rate.replace(",", "")) == pytest.approx(a_second, rel=0.03)
        assert amount(spool) == pytest.approx(a_second * 132 * 86_400, rel=0.03)
        assert int(cores) == ceil(a_second / 20_000)
        assert amount(seen) == pytest.approx(int(devices.replace(",", "")) * 250)


def test_ten_million_boots_fit_into_the_buckets_that_the_page_takes():
    buckets = int(re.findall(r"\*Buckets\.\* (\d+):", PAGE)[0])
    assert 1e7 / buckets < 160_000 < Limits().boots
    assert f"{1e7 * 250 / buckets / 1e6:.0f} MB" in PAGE


def test_the_page_s_examples_are_python():
    found = examples(FILE)
    assert found and not [one for one in found if one.run]
    for example in found:
        compile(example.source, f"{FILE.name}:{example.line}", "exec")


def test_every_option_of_the_pipeline_that_the_page_names_exists(capsys):
    assert command.main(["--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    others = {
        "--broker",
        "--name",
        "--serve",
        "--serve-token-file",
        "--host",
        "--executor-memory",
        "--py-files",
    }
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", PAGE)) - others - {"--gold-only"} <= known


def test_every_page_and_section_that_it_links_to_exists():
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        name, _, section = target.partition("#")
        text = (FILE.parent / name).read_text()
        assert not section or section in {line.lstrip("# ").lower() for line in text.splitlines() if line[:1] == "#"}
