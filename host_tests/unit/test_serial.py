"""Over a line that loses, garbles, repeats and invents bytes, both directions arrive complete, in order and once."""

from umqtt_testkit.portable import Clock, Rng, equal

from umqtt_robust import serial
from umqtt_robust.serial import ACK, ANY, CLOSE, DATA, OPEN, OPENED, Line

try:
    from os import getenv
except ImportError:
    getenv = None

FULL = bool(getenv and getenv("UMQTT_FULL_SWEEPS"))
UP = bytes([i * 7 & 255 for i in range(700)])
# It holds the byte that begins a frame, and whole frames of another link.
DOWN = b"~~\x05\0\0\0\0~\x03\x01\x00\x00\x02hi1234" * 20
LINK = 0xBEEF


class Uart:
    """A UART that passes each byte written to fault(index, byte), which returns the bytes that arrive."""

    def __init__(self, fault, most, echoes=False):
        self.fault, self.most, self.echoes = fault, most, echoes
        self.inbox, self.peer, self.written = bytearray(), None, 0

    def write(self, data):
        data = bytes(data)[: self.most()]
        for byte in data:
            self.peer.inbox.extend(self.fault(self.written, byte))
            if self.echoes:
                self.inbox.append(byte)
            self.written += 1
        return len(data) or None

    def readinto(self, buf):
        n = min(len(buf), len(self.inbox), self.most())
        buf[:n] = self.inbox[:n]
        self.inbox = self.inbox[n:]
        return n or None


class WaitingUart(Uart):
    """A UART like that of rp2, which waits up to 1 ms for a missing byte, whatever its timeout
    (ports/rp2/machine_uart.c).
    """

    waits = 0

    def any(self):
        return len(self.inbox)

    def readinto(self, buf):
        self.waits += len(buf) > len(self.inbox)
        return super().readinto(buf)


class Ends:
    """A board and a gateway that each send a stream to the other."""

    def __init__(self, fault, most=lambda: 1000, echoes=False, uart=Uart):
        self.clock = Clock()
        self.uarts = [uart(lambda i, byte, end=end: fault(end, i, byte), most, echoes) for end in (0, 1)]
        self.uarts[0].peer, self.uarts[1].peer = self.uarts[1], self.uarts[0]
        self.board, self.gateway = [Line(self.uarts[end], 300, self.clock.ticks_ms, end == 1) for end in (0, 1)]
        self.came, self.sent, self.opened = [b"", b""], [0, 0], False
        self.board.begin(LINK)
        self.board.send(OPEN)

    def step(self):
        buf = bytearray(50)
        for number, line in enumerate((self.board, self.gateway)):
            line.pump()
            if line.event == OPEN:
                if line.new_link != line.link:
                    line.begin(line.new_link)
                line.event = 0
                line.say(OPENED, line.link)
            elif line.event:
                self.opened = self.opened or line.event == OPENED
                line.event = 0
            taken = line.take(buf, 0)
            self.came[number] += bytes(buf[:taken])
            stream = (UP, DOWN)[number]
            if self.opened and not line.busy and self.sent[number] < len(stream):
                self.sent[number] += line.send(DATA, stream, self.sent[number], len(stream) - self.sent[number])
        self.clock.advance(20)

    def exchange(self, most_steps=3000):
        for _ in range(most_steps):
            if self.came == [DOWN, UP] and not self.board.busy and not self.gateway.busy:
                return
            self.step()
        raise AssertionError("stands still: %r" % [len(each) for each in self.came])


def test_every_single_byte_may_be_lost_garbled_or_followed_by_another():
    """Planted: no CRC; ACK without its number; the receiver waits for the rest of a frame that never comes."""
    clean = Ends(lambda end, i, byte: [byte])
    clean.exchange()
    for end in (0, 1):
        for at in range(0, clean.uarts[end].written, 1 if FULL else 31):
            for fault in ([], [0x7E], [0], [255], [0x7E, 3, 0xEF, 0xBE, 0, 240]):
                Ends(lambda e, i, byte: fault if (e, i) == (end, at) else [byte]).exchange()


def test_no_more_is_read_of_a_uart_than_it_has():
    """Planted: pump() requests as many bytes as it has room for."""
    ends = Ends(lambda end, i, byte: [byte], uart=WaitingUart)
    ends.exchange()
    equal([uart.waits for uart in ends.uarts], [0, 0])


def test_random_faults_in_pieces_of_any_size():
    for seed in range(40 if FULL else 4):
        rng = Rng(seed)

        def fault(end, i, byte):
            if rng.below(1000) < 12:
                return [(), (byte ^ 1 << rng.below(8),), (byte, byte), (0x7E, byte)][rng.below(4)]
            return (byte,)

        ends = Ends(fault, lambda: 1 + rng.below(60))
        try:
            ends.exchange(20000)
        except AssertionError as error:
            raise AssertionError("seed %d: %s" % (seed, error))


def test_a_line_that_was_away_for_a_while():
    """500 bytes take 43 ms at 115,200 baud, as long as erasing flash takes."""
    for end in (0, 1):
        for at in range(0, 1500, 20 if FULL else 300):
            Ends(lambda e, i, byte: [] if e == end and at <= i < at + 500 else [byte]).exchange()


def test_a_line_that_echoes_what_is_said():
    """A line with one wire pair for both directions echoes. Planted: an end's own frames are read as the other's."""
    Ends(lambda end, i, byte: [byte], echoes=True).exchange()


def test_while_nothing_is_taken_nothing_more_is_sent_and_nothing_lost():
    ends = Ends(lambda end, i, byte: [byte])
    while not ends.sent[1]:
        ends.step()
    take = ends.board.take
    ends.board.take = lambda buf, offset: 0
    for _ in range(200):
        ends.step()
    assert ends.gateway.busy and len(ends.uarts[0].inbox) < 250 * 200
    equal(ends.came[0], b"")
    ends.board.take = take
    ends.exchange()


def test_an_end_that_starts_anew_says_so():
    """Planted: only a frame from the board reveals it."""
    ends = Ends(lambda end, i, byte: [byte])
    ends.exchange()
    ends.gateway.say(CLOSE, ANY)
    ends.board.pump()
    equal(ends.board.event, CLOSE)


def test_a_board_that_called_before_the_other_end_started_is_answered():
    """Planted: an end that starts ends the link that it is being asked for."""
    ends = Ends(lambda end, i, byte: [byte])
    ends.gateway.say(CLOSE, ANY)
    ends.board.pump()
    equal(ends.board.event, 0)
    ends.exchange()


def test_a_link_that_the_other_end_does_not_know_is_closed():
    ends = Ends(lambda end, i, byte: [byte])
    while not ends.sent[0]:
        ends.step()
    # The gateway restarted.
    ends.gateway.begin(None)
    ends.board.pump()
    assert ends.board.busy or ends.board.send(DATA, UP, 0, 9)
    seen = []
    while CLOSE not in seen:
        for line in (ends.board, ends.gateway):
            line.pump()
            seen.append(line.event)
            line.event = 0
        ends.clock.advance(20)
        assert len(seen) < 200


def test_frames_of_another_link_change_nothing():
    ends = Ends(lambda end, i, byte: [byte])
    ends.exchange()
    stranger = Line(Uart(lambda i, byte: [byte], lambda: 1000), 300, ends.clock.ticks_ms, True)
    stranger._uart.peer = ends.uarts[0]
    stranger.begin(LINK ^ 1)
    for kind in (DATA, OPENED, ACK, CLOSE):
        stranger.say(kind, stranger.link)
    ends.board.pump()
    equal((ends.board.event, ends.board.take(bytearray(9), 0)), (0, 0))
    equal(serial.Line(Uart(None, None)).due(), None)
