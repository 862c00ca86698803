"""A process that sends alerts until it is killed: FOLDER with an alerts.toml."""

import sys
from pathlib import Path

from spark_ingest.alerts.config import load
from spark_ingest.alerts.delivery import Delivery
from spark_ingest.alerts.journal import Finding, Journal, Verdict


def main(folder: Path) -> None:
    """Send alerts for ever: each rule of the file matches the device of its name, in separate messages."""
    config = load(folder / "alerts.toml")
    journal = Journal(folder)
    verdicts = [Verdict(rule.name, {f"of {rule.name}": Finding(1, 2.0, "text")}) for rule in config.rules.rules]
    journal.take(verdicts, config.rules, 5, lambda alert: config.recipients(alert, 5))
    delivery = Delivery(journal, config.destinations, 0)
    while journal.waiting:
        delivery.step(all_now=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
