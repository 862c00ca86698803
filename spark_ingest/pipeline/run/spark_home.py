"""The folder from which Spark starts, and in it the archive of Java classes that :mod:`class_archive` makes.

Spark loads 20,000 classes before the first micro-batch, and Java verifies each of them. An archive (class data
sharing, JEP 350) holds verified classes. It works with one Java and one class path only, so SPARK_HOME is a folder in
the user's cache instead of a new one for each run. Java itself refuses an archive that does not fit, and starts
without it. With an archive, the start to the planned query takes 6.3 instead of 12.3 s of CPU; to make it takes 47 s,
so it is made once, and not at the end of somebody's first run.
"""

import hashlib
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path


def spark_home(scratch: Path) -> Path:
    """Return the SPARK_HOME of this Python and pyspark; create it if necessary.

    It is in the user's cache, or in `scratch` if the cache cannot be written. Unlike the folder that pip installs, it
    lacks ``python/lib/pyspark.zip``, which Spark puts first on its workers' path. Modules in a zip have no
    bytecode, so each of the seven processes that a query starts would compile all of pyspark again. Without the zip,
    they import the installed package: on two cores, the start to the planned query takes 12.3 instead of 15.9 s of CPU.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    # An environment's python and python3 are the same Python: sys.executable may have either name, so resolve it.
    python = f"{sys.prefix}\n{os.path.realpath(sys.executable)}"
    known_by = hashlib.sha256(f"{python}\n{installed}\n{pyspark.__version__}".encode()).hexdigest()[:16]
    home = cache_folder() / f"home-{known_by}"
    try:
        _fill(home, installed)
    except OSError:
        home = scratch / "spark-home"
        _fill(home, installed)
    return home


def archive_options(home: Path) -> str:
    """Return the Java options for using the archive in `home`; "" if it has none for the Java that would start."""
    archive = archive_path(home)
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off' if archive.exists() else ""


def archive_path(home: Path) -> Path:
    """Return the path of the archive for the Java that would start and the current jars.

    The path changes when either is installed anew.
    """
    folder = os.environ.get("JAVA_HOME")
    java = Path(shutil.which(f"{folder}/bin/java" if folder else "java") or "java").resolve()
    changed = java.stat().st_mtime_ns if java.exists() else 0
    jars = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in (home / "jars").glob("*.jar"))
    known_by = hashlib.sha256(f"{java}\n{changed}\n{jars}".encode()).hexdigest()[:16]
    return home / f"classes-{known_by}.jsa"


def cache_folder() -> Path:
    """Return the cache folder in which this user's SPARK_HOMEs are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umqtt-robust"


def _fill(home: Path, installed: Path) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        with suppress(FileExistsError):
            (home / name).symlink_to(installed / name, target_is_directory=True)
