"""The Java that Spark starts, looked for before anything is started: Spark itself ends in a traceback without it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from .errors import MissingDependency

OLDEST = 17
"""Spark 4 runs on this and newer."""

_ANSWERS_WITHIN_S = 30.0
_NEXT_STEP = "apt install openjdk-17-jre-headless, brew install openjdk@17, or set JAVA_HOME"


def require_java() -> None:
    """Make sure that the Java which Spark would start is new enough; imports nothing of pyspark.

    :raises MissingDependency: it is not, or there is none.
    """
    trouble = _trouble()
    if trouble is not None:
        raise MissingDependency(f"Java {OLDEST} or newer is needed for Spark and {trouble}: {_NEXT_STEP}")


def _trouble() -> str | None:
    home = os.environ.get("JAVA_HOME")
    # Spark prefers JAVA_HOME, and does not fall back to PATH when it is wrong.
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        return f"was not found in JAVA_HOME ({home})" if home else "was not found on PATH"
    try:
        answer = subprocess.run(
            [java, "-XX:-UsePerfData", "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWERS_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} -version did not answer ({error})"
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        # macOS has a `java` that only says that there is no Java.
        return f"{java} -version tells no version"
    return None if int(found[1]) >= OLDEST else f"{java} is Java {found[1]}"
