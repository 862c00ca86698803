"""The rows that the three benches print: one of our figures per line, beside a peer's, with a goal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

# Kinds of goals; each bounds either ours / peer, or ours alone.
LEAST_RATIO, MOST_RATIO, LEAST_OF_OURS, MOST_OF_OURS = "least ratio", "most ratio", "least of ours", "most of ours"


@dataclass(frozen=True)
class Goal:
    """A bound and its kind."""

    bound: float
    kind: str

    def __str__(self) -> str:
        sign = "<=" if self.kind in (MOST_RATIO, MOST_OF_OURS) else ">="
        return f"{sign} {self.bound:,g}{' x' if self.kind in (LEAST_RATIO, MOST_RATIO) else ''}"


@dataclass(frozen=True)
class Row:
    """One figure of ours beside one peer's; None is a missing figure.

    unit: "" if `case` names it. peer_name: "" if ours stands alone.
    """

    case: str
    ours: float | None
    peer: float | None = None
    peer_name: str = ""
    goal: Goal | None = None
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        """ours / peer, or None when one is missing or the peer is 0."""
        return self.ours / self.peer if self.ours is not None and self.peer else None

    @property
    def met(self) -> bool | None:
        """Return whether the goal is met; None if there is no goal, or no figure to compare with."""
        if self.goal is None:
            return None
        value = self.ours if self.goal.kind in (LEAST_OF_OURS, MOST_OF_OURS) else self.ratio
        if value is None:
            return None
        return value >= self.goal.bound if self.goal.kind in (LEAST_OF_OURS, LEAST_RATIO) else value <= self.goal.bound

    def as_dict(self) -> dict[str, object]:
        """Return the row as the object that is printed as JSON."""

        def rounded(value: float | None) -> float | None:
            return None if value is None else float(f"{value:.4g}") if abs(value) < 1000 else round(value)

        return {
            "case": self.case,
            "ours": rounded(self.ours),
            "unit": self.unit or None,
            "peer": rounded(self.peer),
            "peer_name": self.peer_name or None,
            "ratio": rounded(self.ratio),
            "goal": self.goal.bound if self.goal else None,
            "goal_is": self.goal.kind if self.goal else None,
            "met": self.met,
        }


def number(value: float | None) -> str:
    """Format a figure for reading; "-" if there is none."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


def print_rows(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print each row as soon as it is known: a line of a table, or of JSON."""
    if not as_json:
        print(f"{'case':52} {'ours':>10} {'':10} {'peer':34} {'its figure':>10} {'ratio':>8}  goal", flush=True)
    for row in rows:
        if as_json:
            print(json.dumps(row.as_dict()), flush=True)
            continue
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        verdict = {None: "", True: "met", False: "NOT MET"}[row.met]
        print(
            f"{row.case:52} {number(row.ours):>10} {row.unit:10} {row.peer_name or '-':34} {number(row.peer):>10} "
            f"{ratio:>8}  {row.goal or ''!s:12} {verdict}".rstrip(),
            flush=True,
        )
