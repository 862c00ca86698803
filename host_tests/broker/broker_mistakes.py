"""Mistakes planted in the broker's process, to show that the checks of this folder catch them.

Each name says what the broker does wrong; its value is the program text that causes it. `command` runs a broker with
one.
"""

import sys

ACKNOWLEDGES_EARLY = """
GroupCommitStore.after_commit = lambda self, waiter, packets: waiter.release(packets)
"""

DOES_NOT_SYNC = """
connect = schema.connect
def careless(path):
    database = connect(path)
    database.execute("PRAGMA synchronous = OFF")
    return database
schema.connect = careless
"""

# Of a message for two subscribers, the first acknowledgement releases the publisher's PUBACK.
COUNTS_ONE_FOR_ALL = """
remove = GroupCommitStore.remove_delivery
def greedy(self, session, position):
    for batch in (self._open_batch, self._committing):
        for row in list(batch.entries.values()) if batch else ():
            if isinstance(row, tuple) and row[7] == b"pair" and row[0] != session:
                remove(self, row[0], row[1])
    remove(self, session, position)
GroupCommitStore.remove_delivery = greedy
"""

RELEASES_OUT_OF_TURN = """
def pop_released(self):
    waiting = [key for key, entry in self.entries.items() if isinstance(entry, AwaitingCommit)]
    return {key: self.entries.pop(key) for key in waiting}
Batch.pop_released = pop_released
"""

# Messages in flight when a connection ends are lost.
LOSES_THE_WINDOW = """
detach = Session.detach
def forgetful(self):
    self.in_flight.clear()
    detach(self)
Session.detach = forgetful
"""

# QoS 2: after a reconnect, PUBLISH is sent again although its PUBREC was received.
FORGETS_PUBREC = """
GroupCommitStore.set_released = lambda self, session, position: None
"""

FORGETS_INCOMING_IDENTIFIERS = """
GroupCommitStore.set_inbound = lambda self, session, packet_id, present: None
"""

# Of a message of MQTT 5, only the payload is stored.
FORGETS_PROPERTIES = """
add_delivery = GroupCommitStore.add_delivery
def careless(self, row):
    if row[4] & HAS_PROPERTIES:
        row = (*row[:8], NOTHING + payload_of(row[8]), *row[9:])
    add_delivery(self, row)
GroupCommitStore.add_delivery = careless
"""

# Recovered messages come back in another order.
SHUFFLES_PAGES = """
read_page = sqlite._read_page
sqlite._read_page = lambda *arguments: read_page(*arguments)[::-1]
"""

DROPS_RETAINED = """
GroupCommitStore.set_retained = lambda self, topic_name, message: None
"""

FORGETS_WILLS = """
GroupCommitStore.set_will = lambda self, client_id, will: None
"""

# Shared subscriptions: what a leaving member had not acknowledged is given to nobody.
DROPS_WHAT_THE_DEPARTED_HAD = """
def forgetful(self, positions):
    for position in positions:
        self.acknowledge(position)
SharedQueue.give_back = forgetful
"""

FORGETS_SHARED_QUEUES = """
shares_recover = Shares.recover
Shares.recover = lambda self, recovered: shares_recover(self, [found._replace(queued=0) for found in recovered])
"""

# QoS 2 messages in flight at a member are given to another when it leaves.
HANDS_ON_QOS_2 = """
durable_detach = DurableSession.detach
def detach(self):
    if self.shared:
        group = next(iter(self.shared))
        for packet_id, entry in list(self.in_flight.items()):
            if entry[2] == 2 and entry[3]:
                del self.in_flight[packet_id]
                group.deliver(2, entry[3], topic_name_in(entry[3]), entry[4], 0)
    durable_detach(self)
DurableSession.detach = detach
"""

# Writes of a broker count after another one has taken over.
WRITES_WITHOUT_THE_LEASE = """
batch = redis_backend.BATCH
batch = batch.replace("if found[1] ~= epoch", "if false")
batch = batch.replace("local last = tonumber(found[2])", "local last = batch - 1")
redis_backend.BATCH = batch
"""

_PROGRAM = """
import sys
from umqtt_broker.sessions.durable import DurableSession
from umqtt_broker.protocol.packets import topic_name_in
from umqtt_broker.protocol.packets5 import HAS_PROPERTIES, NOTHING, payload_of
from umqtt_broker.sessions.session import Session
from umqtt_broker.sessions.shared_queue import SharedQueue
from umqtt_broker.routing.shared_groups import Shares
from umqtt_broker.store import redis_backend, schema, sqlite
from umqtt_broker.store.change_batch import Batch, AwaitingCommit
from umqtt_broker.store.group_commit import GroupCommitStore
{mistake}
from umqtt_broker.__main__ import main
sys.exit(main())
"""


def command(mistake: str, *arguments: str) -> list[str]:
    """Return the command of a broker with a mistake, or of a correct one if it is empty."""
    program = ["-c", _PROGRAM.format(mistake=mistake)] if mistake else ["-m", "umqtt_broker"]
    return [sys.executable, *program, *arguments]
