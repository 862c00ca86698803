"""The project's top-level pages name only files, tests and make targets that exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier(0)
ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "examples/README.md")
_LINK = re.compile(r'\]\(([^\s)#]+)[^\s)]*(?:\s+"([^"]+)")?\)')


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_links_to_exists(name: str) -> None:
    """Planted: a link to a test that has been renamed."""
    page = ROOT / name
    for target, test in _LINK.findall(page.read_text()):
        if "://" in target:
            continue
        assert (page.parent / target).exists(), target
        if test:
            assert f"def {test}(" in (page.parent / target).read_text(), f"{target} has no {test}"


def test_every_promise_of_the_threat_model_names_its_test() -> None:
    """Planted: a promise without a test."""
    text = (ROOT / "SECURITY.md").read_text()
    lists = re.findall(r"cannot:\n\n((?:- .*\n(?:  .*\n)*)+)", text)
    promises = [item for one in lists for item in re.split("^- ", one, flags=re.MULTILINE)[1:]]
    assert len(promises) >= 10
    missing = [item for item in promises if not _LINK.search(item)]
    assert not missing


@pytest.mark.parametrize("name", PAGES)
def test_the_make_targets_that_a_page_names_exist(name: str) -> None:
    """Planted: `make tests` in CONTRIBUTING.md."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE))
    assert named <= targets


# What README says, and the row of docs/figures.md that it is from: part, case, peer.
_COMPARED = (
    ("{ratio} times umqtt.simple's rate at QoS 1", "Client", "publish QoS 1, loopback", "umqtt.simple + TCP_NODELAY"),
    (
        "the drop-in receives at {ratio} of umqtt.simple's rate",
        "Client",
        "receive QoS 0, loopback (drop-in)",
        "umqtt.simple",
    ),
    ("{its} bytes of heap instead of {ours}", "Client", "smallest heap: 256 B at QoS 1 both ways", "mqtt_as"),
    ("after import {its} and here {ours}", "Client", "heap after import: smallest useful set", "mqtt_as"),
    ("{ratio} times paho's rate at QoS 1", "Client", "publish QoS 1, loopback (CPython)", "paho-mqtt"),
    ("{ours} messages a second at QoS 1, {ratio} times mosquitto's", "Broker", "QoS 1 window 20: msg/s", "mosquitto"),
    (
        "{ours} messages a second onto the disk, {ratio} times such a script's",
        "Ingestion",
        "collector, durable: msg/s",
        "paho, manual acknowledgement, durable",
    ),
)


def test_the_figures_of_the_comparison_are_those_of_one_run_of_the_bench() -> None:
    """Planted: the bench was repeated, and README has a figure of the run before."""
    page, readme = (ROOT / "docs/figures.md").read_text(), " ".join((ROOT / "README.md").read_text().split())
    for text, part, case, peer in _COMPARED:
        rows = page.partition(f"\n## {part}\n")[2].partition("\n## ")[0].splitlines()
        cells = [row.strip("| ").split(" | ") for row in rows if row.startswith(f"| {case} | ")]
        # mosquitto is named with the setting that it ran with.
        (row,) = (each for each in cells if each[2] == peer or (peer == "mosquitto" and each[2].startswith(peer)))
        said = text.format(ours=row[1].split()[0], its=row[3], ratio=row[4])
        assert said in readme, f"docs/figures.md: {said}"
    date = re.search(r"^\d+ \w+ \d{4}", page, re.MULTILINE)
    assert date and date[0] in readme
    missed = page.partition("## Not reached\n")[2].count("\n- ")
    assert f"{missed} of its goals" in readme
