"""docs/cluster.md: its options exist."""

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
        "--to",
        "--host",
        "--executor-memory",
        "--py-files",
    }
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", PAGE)) - others - {"--gold-only"} <= known
