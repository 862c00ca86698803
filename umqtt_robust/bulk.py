"""A client for programs on a host that receive very many messages: it hands them over in groups, as raw packets.

    client = BulkClient("recorder", "mqtt://broker.example", clean_session=False)
    client.subscribe("fleet/+/telemetry", qos=1)
    while True:
        client.poll(1000)
        group = client.take()
        if group:
            write_and_sync(group.packets)
            client.acknowledge_group(group)

A message costs a few steps of one loop and no call, its bytes are copied but not taken apart, and the acknowledgements
of a group leave in one write. It is not installed on boards.
"""

from select import POLLIN, POLLOUT
from time import monotonic

from ._platform import poll
from .base_errors import MQTTError, ProtocolError
from .client import Client
from .errors import Downgraded, Refused
from .malformed import no_broker
from .mqtt5 import variable
from .packets import (
    AWAIT_CONNACK,
    CLOSED,
    DISCONNECT,
    LINK,
    LINK_5,
    PING_SENT,
    PUBACK,
    PUBLISH,
    RESERVE,
    SUBACK,
    UP,
    decode_length,
)

_PUBACK_HEAD = b"\x40\x02"
_PUBREC_HEAD = b"\x50\x02"
_SHORT = [bytes((n,)) for n in range(128)]
_SOON = 1200  # ms: some brokers take one CONNECT of a client a second


class Group:
    """Messages that were received together.

    :ivar packets: their PUBLISH packets, one after the other in the order of arrival (bytes)
    :ivar level: the protocol level of `packets`: 5 if a message has properties, else 4, also where they came by MQTT 5
    :ivar count: how many they are
    :ivar redelivered: how many of them have DUP set
    """

    def __init__(self, link):
        self.link = link
        self.packets = self.acks = b""
        self.level = 4
        self.count = self.redelivered = self.size = 0
        self._pieces = []  # of the packets as they came
        self._stripped = []  # the same without their empty properties

    def add(self, found, data, level):
        """Adds the messages that scan() has found in `data`."""
        consumed, count, redelivered, acks, stripped = found
        self._pieces.append(data[:consumed])
        if level == 5:
            self._stripped.append(stripped)
        self.acks += acks
        self.count += count
        self.redelivered += redelivered
        self.size += consumed

    def close(self):
        """Puts the packets together and returns self."""
        if None in self._stripped:
            self.level = 5
        self.packets = b"".join(self._pieces if self.level == 5 else self._stripped or self._pieces)
        self._pieces = self._stripped = None
        return self


def scan(data, level):
    """Finds the complete PUBLISH packets at the front of `data` (bytes), up to any other packet.

    Returns (bytes that they take, how many they are, how many have DUP set, the packets that acknowledge them, packets
    without properties). The last is None where level is 4, or a message has properties: a PUBLISH of MQTT 5 without
    them differs from one of MQTT 3.1.1 by one byte. Raises ProtocolError if the first packet is malformed; a later one
    is left for the next call.

    What does not disturb the stream is accepted, because a message that ends the link would come again on the next:
    QoS 2 on a subscription at QoS 1, wildcards in a topic, properties that are malformed within their length.
    """
    offset = count = redelivered = 0
    size = len(data)
    packet_ids = []
    acks = b""
    stripped = [] if level == 5 else None
    try:
        while offset + 2 <= size:
            first = data[offset]
            if first & 0xF0 != 0x30:  # PUBLISH; here a name would take longer
                break
            length = data[offset + 1]
            body = offset + 2
            if length & 128:
                # Two bytes are the usual length of telemetry, so they are decoded without a call.
                if body < size and data[body] < 128:
                    length = length & 127 | data[body] << 7
                    body += 1
                else:
                    got = decode_length(data, offset + 1, size)
                    if got is None:
                        break
                    length, body = got
            end = body + length
            if end > size:
                break
            at = body + 2 + (data[body] << 8 | data[body + 1]) if length >= 2 else end + 1
            qos = first & 6
            if qos:
                packet_id = data[at : at + 2]
                at += 2
                if packet_id == b"\0\0" or qos == 6:
                    at = end + 1  # malformed
            if level == 5 and at <= end:
                if at < end and not data[at]:
                    if stripped is not None:
                        stripped += data[offset : offset + 1], _variable(length - 1), data[body:at], data[at + 1 : end]
                else:
                    got = decode_length(data, at, end)
                    at = got[0] + got[1] if got else end + 1
                    stripped = None
            if at > end:
                raise ProtocolError("malformed PUBLISH")
            if qos == 2:
                packet_ids.append(packet_id)
                if first & 8:
                    redelivered += 1
            elif qos:
                acks += _join(packet_ids) + _PUBREC_HEAD + packet_id
                packet_ids = []
                redelivered += first >> 3 & 1
            count += 1
            offset = end
    except ProtocolError:
        if not count:
            raise
    return offset, count, redelivered, acks + _join(packet_ids), stripped and b"".join(stripped)


def _join(packet_ids):
    return _PUBACK_HEAD + _PUBACK_HEAD.join(packet_ids) if packet_ids else b""


def _variable(n):
    # Most packets are this short.
    return _SHORT[n] if n < 128 else bytes((n & 127 | 128, n >> 7)) if n < 16384 else variable(n)


class BulkClient(Client):
    """A Client that hands received messages over in groups; handlers and on_message are not called.

    Arguments as for Client, and the options below. A message at QoS 2 is handled at least once: it is acknowledged like
    the others, and comes again if the link ends before. With protocol="auto" each link tries MQTT 5 first, also after a
    broker had none; MQTT 3.1.1 follows also if a broker closes the link at CONNECT, answers with something else, or is
    silent twice.

    :param group_bytes: a group of this size is full: no more is read until it is taken
    :param longest_delay: ms: the longest wait between two attempts to connect
    """

    rx_size = 262144
    tx_size = 65536
    group_bytes = 1048576
    longest_delay = 128000

    def __init__(self, *arguments, **options):
        self._group = None
        self._unsent = b""  # acknowledgements that the send buffer had no room for
        self._holds = False  # packets behind the group wait in the receive buffer until it is taken
        self.may_be_old = False  # the broker may know nothing newer than MQTT 3.1.1
        self._was_silent = False  # at the last CONNECT of MQTT 5
        self._is_refused = False
        self.links = 0
        Client.__init__(self, *arguments, **options)

    # The program's side

    def take(self):
        """Returns the Group of messages that have arrived, or None. The program stores and acknowledges it."""
        group = self._group
        if group is None:
            return None
        self._group = None
        self.wait_ms = 0  # what waits behind a full group is due
        return group.close()

    def waiting(self):
        """Returns how many messages have arrived that take() has not returned yet."""
        return self._group.count if self._group else 0

    def acknowledge_group(self, group):
        """Acknowledges all messages of a group. Groups are acknowledged in the order of take() [MQTT-4.6.0-2].

        Returns False if their link is gone: the broker sends them again.
        """
        if group.link != self.links or self.state != UP:
            return False
        self.advance()  # storing them may have taken long
        self._unsent += group.acks
        try:
            self._send_acks()
        except OSError as error:
            self.broken = error  # tick() handles it
        return True

    def poll(self, ms, wake=None):
        """Does what Client.poll() does. wake: a file or socket that ends the wait when it is readable, or None."""
        if self._busy:
            raise MQTTError("poll() in a handler")
        self.advance()
        left = min(ms, self.wait_ms)
        if left > 0 and not self.broken:
            poller = poll()
            if wake is not None:
                poller.register(wake, POLLIN)
            if self.socket is not None:
                reads = not self.connected or not self._pauses()
                poller.register(self.socket, (POLLIN if reads else 0) | (POLLOUT if self.waits() else 0))
            poller.ipoll(left)
        return self.tick()

    def finish(self, ms):
        """Ends the link so that the broker gets every acknowledgement: waits until it has answered DISCONNECT.

        It answers by closing the link, within `ms` at most. What arrives meanwhile is dropped, and comes again on the
        next link. Closing at once, with unread bytes, could destroy what is on the way to the broker. connect() begins
        again. Returns True if the broker has answered.
        """
        deadline = monotonic() + ms / 1000
        told = ended = False
        try:
            while self.connected and not ended and (left := deadline - monotonic()) > 0:
                self._send_acks()
                told = told or not self._unsent and self.out.put(DISCONNECT, b"")
                self.out.flush()
                n = self.transport.read(self._rx, 0)
                if n is None:
                    self.transport.wait(int(left * 1000) + 1, self.out.end > 0)
                ended = n == 0
        except (OSError, MQTTError):
            ended = True  # it is gone: what was not acknowledged comes again
        self._closing_at = None
        self._drop()
        self.closed = True
        return ended

    # The link

    def open(self, write, broker="", accepted=None):
        """Begins a link; see Session.open()."""
        self.links += 1
        self._unsent = b""
        old = self.part("mqtt5")._old if self.protocol == "auto" else []
        if self.may_be_old:
            old.append(broker)
        Client.open(self, write, broker, accepted)
        self.may_be_old = False
        old.clear()  # the broker may be a newer one next time

    def _handle_loss(self, error):
        if self.level == 5:
            asked = self.protocol == "auto" and self.state == AWAIT_CONNACK
            is_silent = asked and error.args == ("connect_timeout",)
            ends = isinstance(error, (ConnectionError, ProtocolError)) or error.args == ("closed by the broker",)
            self.may_be_old = asked and ends or is_silent and self._was_silent
            self._was_silent = is_silent
            if self.may_be_old:
                self.retry_delay = 0  # it is there: no reason to wait long with the older version
        self._is_refused = isinstance(error, Refused)
        Client._handle_loss(self, error)
        self._is_refused = False
        if self.may_be_old:
            self._begin(_SOON)
        elif self.wait_ms > self.longest_delay:  # the wait after a refusal
            self._begin(self.longest_delay - self.random(self.longest_delay // 4 + 1))

    def forget(self, session, unsure=True):
        """Drops the state that died with the link; see Session.forget(). A refused CONNECT begins no session."""
        Client.forget(self, session, unsure and not self._is_refused)

    def _back_off(self):
        return Client._back_off(self) % (self.longest_delay + 1)

    def before_reading(self):
        """Handles what waited behind a group. Returns True if nothing is to be read now."""
        if self._holds and self._group is None:
            # First: the link may have ended since, and the broker's reason be in the buffer.
            end = self._rx_end
            used = self.receive(self._rx, end)
            if self.transport is None:  # a callback closed the link
                return True
            self._rx_end = end = end - used
            self._rx[:end] = self._rx[used : used + end]
        return self._pauses()

    def _pauses(self):
        # Whether nothing is to be read now: a full group waits, or the broker does not read.
        if self._unsent:
            return True
        if self._group is None or self._group.size < self.group_bytes:
            return False
        # Nothing is read, so no packet counts as late.
        self.heard_at = self.now
        self.restart_ack_timer()
        if self.ping == PING_SENT:
            self.ping = 0
        return True

    def _pump(self):
        if self._unsent:
            self._send_acks()
        Client._pump(self)

    def _send_acks(self):
        # Moves acknowledgements into the send buffer and sends them.
        out = self.out
        while self._unsent:
            i = out.end
            k = len(out._bytes) - i - RESERVE & ~3  # no part of a packet
            if k > 0:
                piece = self._unsent[:k]
                out._bytes[i : i + len(piece)] = piece
                out.end = i + len(piece)
                self._unsent = self._unsent[k:]
            if not out.flush():
                return

    # Receiving

    def receive(self, buf, n):
        """Handles the complete packets in buf[:n], as Session.receive() does; the messages go to the group."""
        if n > self._left:  # not the same bytes again
            self.heard_at = self.now
        if n <= self.rx_size < len(buf):
            self._resize(buf, self.rx_size)
        i = 0
        self._holds = self._is_full()
        while n - i > 1 and not self._holds:
            try:
                used = self._handle_next(buf, i, n)
            except (ProtocolError, Refused):
                if self._group is None:
                    raise
                # The messages before it are acknowledged first, or they would come again with it on every link.
                self._holds = True
                break
            if self.state == CLOSED:  # a callback closed the link
                return n
            if not used:
                break
            i += used
            self._holds = self._is_full()
        self._left = n - i
        if self.out.end:
            self.out.flush()
        return i

    def _handle_next(self, buf, i, n):
        # Handles the packet at buf[i], or all messages from there on. Returns how many bytes they take, 0: incomplete.
        head = buf[i]
        publishes = self.state == UP and head & 0xF0 == PUBLISH
        key = self.state << 8 | head
        if not publishes and key not in LINK and key not in LINK_5:
            # Refused before it is complete: garbage may announce 256 MB that never arrive.
            if self.state == AWAIT_CONNACK:
                raise no_broker(bytes(buf[i:n]))
            raise ProtocolError("unexpected packet %d" % (head >> 4))
        got = decode_length(buf, i + 1, n)
        if got is None:
            return 0
        length, j = got
        end = j + length
        if end > n:
            if end - i > len(buf) and not publishes:
                raise ProtocolError("packet above rx_size")
            if publishes and n == len(buf) and not i:
                self._resize(buf, min(end, 2 * n))  # as it arrives: the length may be a lie
            return 0
        if publishes:
            return self._add(bytes(self._view[i:n]))
        if head == SUBACK and length > 2:
            self._check_granted(buf[j] << 8 | buf[j + 1], buf[end - 1])
        if head == PUBACK and length == 2 and self.state == UP:
            self.handle_puback(buf[j] << 8 | buf[j + 1])
        elif not self._handle_other(head, buf, j, length):
            return 0  # there is no room for its answer now
        return end - i

    def _check_granted(self, packet_id, qos):
        # A request is for one topic filter, whose return code is the last byte of SUBACK.
        subscriptions = self.subscriptions
        topic_filter = subscriptions.requests.get(packet_id)
        if topic_filter and qos < subscriptions.filters[topic_filter] & 3:
            told = "the broker granted only QoS %d for %s" % (qos, str(topic_filter, "utf-8"))
            self.report(Downgraded(told, topic_filter, qos))

    def _is_full(self):
        group = self._group
        return group is not None and (group.size >= self.group_bytes or group.link != self.links)

    def _add(self, data):
        # Adds the messages at the front of `data` to the group. Returns how many bytes they take.
        level = 5 if self.mqtt5 else 4
        found = scan(data, level)
        if self._group is None:
            self._group = Group(self.links)
        self._group.add(found, data, level)
        self.received += found[1]
        return found[0]

    def _resize(self, buf, size):
        # In place: tick() has the buffer.
        self._view.release()
        if size < len(buf):
            del buf[size:]
        else:
            buf.extend(bytes(size - len(buf)))
        self._view = memoryview(buf)
