"""The proof of the simulation: mistakes planted in the client and the broker, and how many seeds find each.

`python host_tests/simulation/planted_simulation.py [NAME ...]` prints a row of Markdown for each: the seeds that were
needed, the seconds of processor time, and what the model says. Exit code: 0 if every mistake was found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulate import Result, run
from simulated_world import Scenario
from umqtt_broker.sessions.session import Session as BrokerSession
from umqtt_broker.sessions.shared_queue import SharedQueue
from umqtt_broker.store import sqlite
from umqtt_broker.store.group_commit import GroupCommitStore

from umqtt_robust import backlog, flash, session, store

MOST_SEEDS = 60


def _nothing(*arguments: object) -> None:
    pass


def _empties_the_outbox(self: session.Session, broker: str | None = None) -> None:
    _begin_session(self, broker)
    for packet_id in list(self.outbox.slot_of):
        self.remove(packet_id)


_begin_session = session.Session.begin_session


def _put_most(self: flash.Box, place: int, *arguments: Any) -> None:
    if place % 8:
        _put(self, place, *arguments)
    else:
        self._order += 1
        self.set_used(place, True)


_put = flash.Box.put


def _find_none(self: backlog.Inbound, outbound: flash.FlashStore) -> None:
    _open_inbound(self, outbound)
    self._place_of.clear()


_open_inbound = backlog.Inbound.__init__


def _rewind_all_but_one(self: store.Outbox, new_session: bool) -> None:
    _rewind(self, new_session)
    if self.head != self.end and not new_session:
        self.head = self.next[self.head]


_rewind = store.Outbox.rewind


def _release(self: GroupCommitStore, waiter: Any, packets: list[bytes]) -> None:
    waiter.release(packets)


def _lose_the_window(self: BrokerSession) -> None:
    self.in_flight.clear()
    _detach(self)


_detach = BrokerSession.detach


def _give_nothing_back(self: SharedQueue, positions: list[int]) -> None:
    for position in positions:
        self.acknowledge(position)


def _lazy_load(database: Any, page: Any, garbled: list[str]) -> Any:
    return _read_page(database, page, garbled)[::-1]


_read_page = sqlite._read_page

# What it does: (owner, attribute, replacement).
PLANTED: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "client: a new session at the broker empties the outbox": (
        session.Session, "begin_session", _empties_the_outbox),
    "client: every eighth place of the flash is not written": (flash.Box, "put", _put_most),
    "client: a message that is acknowledged stays in the flash": (
        flash.Box, "tombstone", lambda self, place: self.set_used(place, False)),
    "client: inbound messages at QoS 2 are not found after a power cut": (backlog.Inbound, "__init__", _find_none),
    "client: after a lost link, the first message is not sent again": (store.Outbox, "rewind", _rewind_all_but_one),
    "client: the name of the broker is not stored with the session": (
        flash.FlashStore, "session", property(lambda self: self._session, lambda self, name: None)),
    "broker: acknowledges before the disk has it": (GroupCommitStore, "after_commit", _release),
    "broker: loses what was in flight when a link ends": (BrokerSession, "detach", _lose_the_window),
    "broker: forgets the identifiers of incoming QoS 2 messages": (GroupCommitStore, "set_inbound", _nothing),
    "broker: forgets subscriptions": (GroupCommitStore, "set_subscription", _nothing),
    "broker: forgets wills": (GroupCommitStore, "set_will", _nothing),
    "broker: forgets retained messages": (GroupCommitStore, "set_retained", _nothing),
    "broker: forgets which messages it may have sent": (GroupCommitStore, "set_sent_limit", _nothing),
    "broker: reads its queue in the wrong order": (sqlite, "_read_page", _lazy_load),
    "broker: what a departed member of a group had is lost": (SharedQueue, "give_back", _give_nothing_back),
}  # fmt: skip


def find(name: str, most: int = MOST_SEEDS) -> Result:
    """Run worlds with a mistake until one diverges, `most` at most."""
    owner, attribute, replacement = PLANTED[name]
    with mock.patch.object(owner, attribute, replacement):
        return run((Scenario(seed) for seed in range(1, most + 1)), shrinks=False)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="how many seeds find each planted mistake")
    parser.add_argument("names", nargs="*", metavar="NAME", help="part of a mistake's name; all without")
    options = parser.parse_args(arguments)
    missed = 0
    for name in PLANTED:
        if options.names and not any(part in name for part in options.names):
            continue
        result = find(name)
        missed += result.failed is None
        told = "not found" if result.failed is None else result.failed[1].divergences[0]
        print(f"| {name} | {result.seeds} | {result.seconds:.1f} | {told} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
