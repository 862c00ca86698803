"""Marks for tests that need something of the machine."""

import shutil

import pytest

from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java


def _missing() -> str:
    try:
        require_java()
    except MissingDependency as error:
        return str(error)
    return ""


needs_java = pytest.mark.skipif(bool(_missing()), reason=_missing() or "Java is here")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed: apt install strace")
