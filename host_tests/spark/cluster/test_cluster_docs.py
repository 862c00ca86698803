"""docs/cluster.md: its examples are Python, its options and links exist."""

import re
import sys
from pathlib import Path

from spark_ingest.pipeline import command

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "host_tests" / "docs"))

from examples import examples  # noqa: E402

FILE = ROOT / "docs" / "cluster.md"
PAGE = FILE.read_text()


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
