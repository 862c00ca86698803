"""The rules of alerts between the engine, which applies them, and the journal, which notes what begins and ends."""

from collections.abc import Callable, Iterator

from ..alerts.journal import Finding, Journal, Opened, Verdict
from ..alerts.rules import KINDS, Rule, RuleSet
from ..tables.delta import Delta
from . import windows
from .database import Database
from .windows import DAY_US, HOUR_US

WEEK_US = 7 * DAY_US
_COLUMNS = ("metric", "above", "below", "change", "by", "empty", "share", "boots", "readings", "messages", "expected")
_WEEKLY = ("own_week", "battery", "missing")
# Nothing in the state tells of alerts of these kinds once they have ended.
_ONLY_NOTED = ("gap", "firmware")
_NOTED = ("kind", "since", "until", "value", "text")


class Alerts:
    """The judge of all rules.

    :param table: gold/windows.
    :param recipients: see :meth:`Journal.take`.
    """

    def __init__(
        self, table: Delta, journal: Journal, rules: RuleSet, recipients: Callable[[Opened], tuple[str, ...]]
    ) -> None:
        self._table = table
        self._journal = journal
        self._set = rules
        self._rules = [rule for rule in rules.rules if rule.is_metric]
        self._recipients = recipients
        self._week_us: int | None = None

    def fill(self, db: Database) -> None:
        """Fill the engine's tables of rules and groups."""
        db.insert("rules", [_row(rule) for rule in self._set.rules])
        names = ("device_id", "device_group", "site")
        db.insert(
            "memberships", [dict(zip(names, (device, *at), strict=True)) for device, at in self._set.groups.items()]
        )
        self._week_us = None

    def find(self, db: Database, as_of_us: int, note: bool) -> None:
        """Fill the table `found` with the alerts at a time.

        :param note: note in the journal which of them begin and end.
        """
        db.run("find.sql")
        if note:
            verdicts = [*self._of_state(db), *self.of_metrics(db, as_of_us)]
            self._journal.take(verdicts, self._set, as_of_us, self._recipients)
        noted = [
            {"device_id": one.device, "name": one.rule, **{name: getattr(one, name) for name in _NOTED}}
            for one in self._journal.alerts(rule.name for rule in self._set.rules)
            if "metric" in KINDS[one.kind] or (one.kind in _ONLY_NOTED and one.until is not None)
        ]
        if noted:
            db.insert("noted", noted)
            # A gap that is too old for an alert is still a gap.
            db.connection.execute(
                """INSERT INTO found BY NAME FROM noted n WHERE NOT EXISTS (FROM found f WHERE f.device_id = n.device_id
                AND f.name = n.name AND f.since IS NOT DISTINCT FROM n.since)"""
            )

    def _of_state(self, db: Database) -> Iterator[Verdict]:
        """Yield a verdict for each rule that is not about a metric: its oldest open alert of each device."""
        firing: dict[str, dict[str, Finding]] = {rule.name: {} for rule in self._set.rules if not rule.is_metric}
        query = """SELECT name, device_id, since, value, text FROM found WHERE until IS NULL
        QUALIFY row_number() OVER (PARTITION BY name, device_id ORDER BY coalesce(since, 0), text) = 1"""
        for name, device_id, *finding in db.rows(query):
            firing[name][device_id] = Finding(*finding)
        yield from (Verdict(name, found) for name, found in firing.items())

    def of_metrics(self, db: Database, as_of_us: int) -> Iterator[Verdict]:
        """Yield a verdict for each rule about a metric; a device without recent readings is not judged."""
        if not self._rules:
            return
        look_us = max(_look_us(rule) for rule in self._rules) + HOUR_US
        ((behind_us,),) = db.rows("SELECT coalesce(max(behind_us), 0) FROM clocks")
        week_us = as_of_us // HOUR_US * HOUR_US
        db.set(as_of=as_of_us, look_us=look_us, week_us=week_us)
        if any(rule.kind in _WEEKLY for rule in self._rules) and week_us != self._week_us:
            windows.view(db, self._table, "week", [(week_us - WEEK_US - behind_us, week_us)])
            db.run("week.sql")
            self._week_us = week_us
        windows.view(db, self._table, "hours", [(as_of_us - look_us - behind_us, as_of_us + HOUR_US)])
        db.run("recent.sql")
        firing: dict[str, dict[str, Finding]] = {rule.name: {} for rule in self._rules}
        judged: dict[str, set[str]] = {rule.name: set() for rule in self._rules}
        kinds = sorted({rule.kind for rule in self._rules})
        columns = "name, device_id, fires, since, value, text"
        query = " UNION ALL ".join(f"SELECT {columns} FROM {kind}" for kind in kinds)
        for name, device_id, fires, *finding in db.rows(query):
            judged[name].add(device_id)
            if fires:
                firing[name][device_id] = Finding(*finding)
        yield from (Verdict(name, found, frozenset(judged[name])) for name, found in firing.items())


def _row(rule: Rule) -> dict[str, object]:
    values = {name: rule.values.get(name) for name in _COLUMNS}
    times = {f"{name}_us": rule.values.get(name) for name in ("after", "within")}
    scope = {"groups": list(rule.scope.groups), "sites": list(rule.scope.sites)}
    return {"name": rule.name, "kind": rule.kind, **values, **times, **scope}


def _look_us(rule: Rule) -> int:
    """Return how many microseconds back a rule looks at windows; sums of the week do not count."""
    return 0 if rule.kind == "battery" else max(rule.values.get("after", 0), rule.values.get("within", 0))
