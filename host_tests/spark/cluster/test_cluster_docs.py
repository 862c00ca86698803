"""docs/cluster.md: its options and links exist."""

import re
from pathlib import Path

from spark_ingest.pipeline import command

FILE = Path(__file__).resolve().parents[3] / "docs" / "cluster.md"
PAGE = FILE.read_text()


def test_every_option_of_the_pipeline_that_the_page_names_exists(capsys):
    assert command.main(["--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    others = {
        "--broker",
        "--name",
        "--serve",
        "--dir",
        "--serve-token-file",
        "--serve-cert",
        "--serve-key",
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
