"""The spools of collectors, for commands that read them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from umqtt_cli.errors import EXIT_DEVICE, EXIT_USAGE, KitError

if TYPE_CHECKING:
    from spark_ingest.spool.view import Spools, SpoolView

# Damage has an exit code of its own, so that a periodic check can tell it from a wrong option.
EXIT_DAMAGED = EXIT_DEVICE


def views_of(where: str) -> list[SpoolView]:
    """Return the spools that SPOOL names. Raises KitError if there is none."""
    from spark_ingest.location import spool_folder
    from spark_ingest.spool.view import Spools, SpoolView

    place = read(lambda: spool_folder(where))
    if os.path.exists(place / "pos"):
        return [SpoolView(place)]
    spools = Spools(place)
    return [spools.view(name) for name in names_of(spools, where)]


def names_of(spools: Spools, where: object) -> list[str]:
    """Return the names of the spools. Raises KitError if there is none."""
    if names := read(spools.names):
        return names
    raise KitError(f"there is no spool in {where} — give the --spool folder of a collector that has run", EXIT_USAGE)


def read(ask: Any, *, damage: bool = True) -> Any:
    """Return what `ask` returns, and turn errors of the ingester into KitError.

    Damage has an exit code of its own. With damage=False, SpoolDamaged is raised as it is.
    """
    from spark_ingest.errors import SpoolDamaged

    try:
        return ask()
    except SpoolDamaged as error:
        if not damage:
            raise
        raise KitError(str(error), EXIT_DAMAGED) from error
    except OSError as error:
        raise KitError(
            f"cannot read {error.filename}: {error.strerror} — give the --spool folder of a collector", EXIT_USAGE
        ) from error
