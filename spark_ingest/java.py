"""Checks for the Java that Spark needs before anything starts: without it, Spark ends with a traceback."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from .errors import MissingDependency

OLDEST = 17
"""The oldest version of Java that Spark 4 runs on."""

_ANSWERS_WITHIN_S = 30.0
_NEXT_STEP = "apt install openjdk-17-jre-headless, brew install openjdk@17, or set JAVA_HOME"


def require_java() -> None:
    """Check that the Java that Spark would start exists and is new enough; this does not import pyspark.

    :raises MissingDependency: there is no Java, or it is too old.
    """
    trouble = _trouble()
    if trouble is not None:
        raise MissingDependency(f"Java {OLDEST} or newer is needed for Spark and {trouble}: {_NEXT_STEP}")


def _trouble() -> str | None:
    home = os.environ.get("JAVA_HOME")
    # Spark prefers JAVA_HOME, and does not fall back to PATH if JAVA_HOME is wrong.
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
        # macOS has a `java` that only prints that no Java is installed.
        return f"{java} -version tells no version"
    return None if int(found[1]) >= OLDEST else f"{java} is Java {found[1]}"
