"""Configuration files in mosquitto.conf's syntax.

`keys` has the keys, and `values` the parsers of their values. `lines` reads the files, `sections` assigns each line to
its section, and `build` makes the settings. A key that mosquitto.conf(5) defines has the same meaning here;
docs/broker.md says what differs.
"""

from ..errors import ConfigError
from .build import Configuration, build
from .lines import Problems, read_lines
from .sections import Reader

__all__ = ["Configuration", "load"]


def load(path: str, *, lenient: bool = False) -> Configuration:
    """Read a configuration file and everything that it names.

    lenient: unsupported keys of mosquitto that restrict nothing are warnings. Raises ConfigFileError with all errors of
    the file.
    """
    problems = Problems()
    sections = Reader(problems, lenient).read(read_lines(path, problems))
    configuration = build(sections, problems)
    problems.raise_errors()
    try:
        configuration.broker.validate()
    except ConfigError as error:
        problems.errors.append(f"{path}: {error}")
    problems.raise_errors()
    configuration.warnings = problems.warnings
    return configuration
