"""Checks that the nodes of one ``--broker`` are one cluster: a session made at one of them must be known to the others.

If they are not, each node keeps messages for the collector until the collector happens to connect there again. MQTT
does not tell which software a broker runs, so this module connects with a client id of its own and looks at Session
Present in CONNACK [3.2.2.2].
"""

import time
from collections.abc import Callable, Sequence

from umqtt_robust.base_errors import MQTTError
from umqtt_robust.bulk import BulkClient

from ..errors import IngestError
from .access import Access
from .connection import in_words, transports, urls

_ANSWER_WITHIN_S = 10.0
_AGAIN_AFTER_S = 2.0
_KEEP_ALIVE_S = 30


class _Probe:
    """Makes and removes the session `client_id` at single nodes."""

    def __init__(self, access: Access, client_id: str, topic_filters: Sequence[str]) -> None:
        self._access = access
        self._client_id = client_id
        # A topic that the collector is certainly allowed to read, and on which normally nothing is published.
        levels = topic_filters[0].split("/")
        levels = levels[2:] if levels[0] == "$share" else levels
        self._topic = "/".join("check" if level in ("+", "#") else level for level in levels)

    def connect(self, url: str, *, clean: bool = False, subscribe: bool = False) -> bool:
        """Connect to a node and disconnect again; return whether it had the session.

        :param clean: whether the session ends with this connection.
        :param subscribe: whether to subscribe; some brokers keep a session only if it has a subscription.
        :raises OSError, MQTTError, IngestError: the node cannot be reached, refuses, or does not speak MQTT.
        """
        found: list[bool] = []
        failed: list[MQTTError | OSError | MemoryError] = []
        client = BulkClient(
            self._client_id,
            url,
            keep_alive=_KEEP_ALIVE_S,
            clean_session=clean,
            username=self._access.username,
            password=self._access.password(),
            transports=transports(self._access),
            connect_timeout=int(_ANSWER_WITHIN_S * 1000),
            random=lambda _: 0,
            on_connect=found.append,
            on_disconnect=failed.append,
            on_error=failed.append,
        )
        deadline = time.monotonic() + _ANSWER_WITHIN_S
        try:
            if subscribe:
                client.subscribe(self._topic, 1)
            while not failed and not (found and client.subscribed):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("timed out")
                client.poll(int(left * 1000) + 1)
                client.take()
        finally:
            # Wait until this node has closed the connection: only then has it kept or removed the session, so only
            # then may the next node be asked.
            ended = client.finish(int(max(0.0, deadline - time.monotonic()) * 1000))
        if failed:
            raise failed[0]
        if not ended:
            raise TimeoutError("timed out")
        return found[0]


def check_cluster(
    access: Access, client_id: str, topic_filters: Sequence[str], stopping: Callable[[], bool]
) -> list[tuple[str, str]]:
    """Check the nodes of a broker; return what to report, as a list of (kind of event, line of text for people).

    The kinds are ``one_cluster``, ``not_one_cluster`` (a node does not know a session that another one keeps), and
    ``node_unchecked`` (a node could not be asked).

    :param client_id: the collector's client id; the check adds ``-check`` to it for a session of its own, and removes
        that session.
    :param stopping: called between steps; True ends the check, which then returns nothing.
    """
    nodes = urls(access.url)
    probe = _Probe(access, f"{client_id}-check", topic_filters)

    def reach(node: str, **how: bool) -> bool | None:
        """Connect to `node` and return whether it had the session; None if this failed or was not tried."""
        if stopping() or node in failed:
            return None
        try:
            return probe.connect(node, **how)
        except (OSError, MQTTError) as error:
            failed[node] = in_words(error)
            return None
        except IngestError as error:
            failed[node] = str(error)
            return None

    # A node that is leaving or joining the cluster may not know the session yet, so only the second attempt counts.
    for attempt in range(2):
        failed: dict[str, str] = {}
        for node in nodes:
            reach(node, clean=True)
        first = next((node for node in nodes if reach(node, subscribe=True) is not None), None)
        answers: dict[str, bool | None] = {}
        for node in nodes:
            if node != first:
                answers[node] = reach(node)
            if answers.get(node) is False:
                reach(node, clean=True)  # Otherwise the next node may know the session just made here.
        strangers = [node for node, knows in answers.items() if knows is False]
        for node in nodes:
            reach(node, clean=True)
        if not strangers:
            break
        if attempt == 0:
            time.sleep(_AGAIN_AFTER_S)
    if stopping():
        return []
    events: list[tuple[str, str]] = []
    for node, why in failed.items():
        events.append(("node_unchecked", f"cannot check that {node} is a node of the same cluster: {why}"))
    if first is not None and strangers:
        line = (
            f"{', '.join(strangers)} did not know a session of {first}, so these are not nodes of one cluster, "
            "and messages wait at all but one of them: give each broker a --broker and a --name of its own"
        )
        events.append(("not_one_cluster", line))
    elif first is not None and (known := [node for node, knows in answers.items() if knows]):
        events.append(("one_cluster", f"{first}, {', '.join(known)} share their sessions"))
    return events
