"""SPARK_HOME is one folder for all runs, with an archive of classes that Java really uses."""

import os
import sys
from pathlib import Path

import pytest
from spark_helpers import SPARK_LIMIT_S, Process

from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java
from spark_ingest.pipeline.run.spark_home import archive_options, archive_path, spark_home

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_run_has_the_same_home_and_none_without_an_archive_asks_java_for_one(cache: Path, tmp_path: Path) -> None:
    """Planted: a home with a random name; options that name an archive which does not exist."""
    home = spark_home(tmp_path)
    assert spark_home(tmp_path / "other") == home and home.is_relative_to(cache)
    assert [path.name for path in home.parent.iterdir()] == [home.name], "what was made for it was renamed, not copied"
    assert os.access(home / "bin" / "spark-submit", os.X_OK) and (home / "jars").is_dir()
    assert not (home / "python").exists(), "pyspark is imported from where it has bytecode"
    assert archive_options(home) == ""
    archive_path(home).touch()
    assert str(archive_path(home)) in archive_options(home)


def test_an_environment_has_one_home_by_whichever_name_its_python_was_started(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a home identified by sys.executable, so that the archive made by a command serves no program."""
    home = spark_home(tmp_path)
    other = tmp_path / "python3"
    other.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(other))
    assert spark_home(tmp_path) == home


def test_another_java_has_another_archive(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an archive identified by SPARK_HOME alone."""
    home, found = spark_home(tmp_path), set()
    for version in range(2):
        java = tmp_path / f"java-{version}" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.touch(mode=0o700)
        os.utime(java, ns=(1, 1))
        monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
        found.add(archive_path(home))
        os.utime(java, ns=(2, 2))
        found.add(archive_path(home))
    assert len(found) == 4


def test_the_same_jars_installed_anew_have_another_archive(cache: Path, tmp_path: Path) -> None:
    """Planted: an archive identified by its Java alone; Java recognises other jars by their times."""
    home = spark_home(tmp_path)
    (home / "jars").unlink()
    (home / "jars").mkdir()
    jar = home / "jars" / "spark.jar"
    jar.touch()
    before = archive_path(home)
    assert archive_path(home) == before
    os.utime(jar, ns=(1, 1))
    assert archive_path(home) != before


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(cache: Path, tmp_path: Path) -> None:
    """Planted: an error of the cache that reaches the user who starts a pipeline."""
    cache.write_text("no folder")
    assert spark_home(tmp_path) == tmp_path / "spark-home"
    assert os.access(tmp_path / "spark-home" / "bin" / "spark-submit", os.X_OK)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_java_uses_the_archive(spark) -> None:
    """Planted: a SPARK_HOME per run, which Java tells from that of the archive by its path."""
    archive = archive_path(Path(os.environ["SPARK_HOME"]))
    if not archive.exists():
        pytest.skip("no archive: umqtt ingest --prepare")
    java = spark.sparkContext._gateway.proc.pid
    assert str(archive) in Path(f"/proc/{java}/maps").read_text()


@pytest.mark.skipif(not FULL, reason="a full sweep: set UMQTT_FULL_SWEEPS=1")
def test_prepare_makes_the_archive_once(cache: Path) -> None:
    try:
        require_java()
    except MissingDependency as error:
        pytest.skip(str(error))
    said = []
    for _ in range(2):
        with Process([sys.executable, "-m", "spark_ingest.pipeline", "--prepare"]) as process:
            said.append(process.wait_for_line("Spark starts with ", SPARK_LIMIT_S))
            assert process.finish()[0] == 0
    assert said[0] == said[1]
    (archive,) = cache.rglob("*.jsa")
    assert archive.stat().st_size > 50 << 20
