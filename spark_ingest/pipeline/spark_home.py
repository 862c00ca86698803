"""Where Spark starts from, and where Java's archive of its classes lies (:mod:`class_archive` makes it).

Spark loads 20,000 classes before the first micro-batch, and Java checks each. An archive (Java calls it class data
sharing, JEP 350) holds them checked. It serves one Java and one class path only, which is why SPARK_HOME is a folder of
its own in the user's cache and not one for each run. Java itself refuses an archive that does not fit, and starts
without it.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path


def spark_home(scratch: Path) -> Path:
    """The SPARK_HOME of this Python and this pyspark: in the user's cache, or in `scratch` if that cannot be written.

    It is like pip's with two differences.

    It lacks ``python/lib/pyspark.zip``. Spark puts that zip first on its workers' path. Modules in a zip have no
    bytecode, so each of the seven processes that a query starts would compile all of pyspark anew, which on two cores
    delays the first micro-batch by seconds. Without it they import the installed package.

    Its ``spark-submit`` starts Java in a session of its own: a service manager, ``timeout`` or a terminal signals every
    process of a group, and Java must outlive the signal, until this process has stopped the query in order. It ends
    with its standard input, so it is never left behind.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    # An environment's python and python3 are one Python: a program and a command need not have the same name for it.
    python = f"{sys.prefix}\n{os.path.realpath(sys.executable)}"
    known_by = hashlib.sha256(f"{python}\n{installed}\n{pyspark.__version__}".encode()).hexdigest()[:16]
    home = cache_folder() / f"spark-{known_by}"
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not home.exists():
            made = Path(tempfile.mkdtemp(dir=home.parent))
            _fill(made, installed)
            try:
                made.rename(home)
            except OSError:  # Another process was faster.
                shutil.rmtree(made)
    except OSError:
        home = scratch / "spark-home"
        home.mkdir()
        _fill(home, installed)
    return home


def archive_options(home: Path) -> str:
    """Java's options that use the archive of a SPARK_HOME, if there is one for the Java that would start."""
    archive = archive_path(home)
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off' if archive.exists() else ""


def archive_path(home: Path) -> Path:
    """Where the archive lies for the Java that would start, and the jars as they are: a new installation is another."""
    folder = os.environ.get("JAVA_HOME")
    java = Path(shutil.which(f"{folder}/bin/java" if folder else "java") or "java").resolve()
    changed = java.stat().st_mtime_ns if java.exists() else 0
    jars = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in (home / "jars").glob("*.jar"))
    known_by = hashlib.sha256(f"{java}\n{changed}\n{jars}".encode()).hexdigest()[:16]
    return home / f"classes-{known_by}.jsa"


def cache_folder() -> Path:
    """Where this user's homes lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umqtt-robust"


def _fill(home: Path, installed: Path) -> None:
    (home / "bin").mkdir()
    (home / "jars").symlink_to(installed / "jars", target_is_directory=True)
    for script in (installed / "bin").iterdir():
        if script.name != "spark-submit":
            (home / "bin" / script.name).symlink_to(script)
    submit = home / "bin" / "spark-submit"
    submit.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "os.setsid()\n"
        f"os.execv({str(installed / 'bin' / 'spark-submit')!r}, ['spark-submit', *sys.argv[1:]])\n"
    )
    submit.chmod(0o700)
