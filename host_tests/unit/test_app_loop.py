"""The loop ends when the store fails; the application then starts again with a store in RAM."""

import _app_fakes as fakes
from app.application import Application
from app.board import Board
from umqtt_testkit.portable import equal, raises

from umqtt_robust.errors import StoreError


class Ended(Exception):
    """The end of a test's endless loop."""


class Part:
    """Any part of the application, which does nothing."""

    connected = True
    asked = False
    error = None
    aside = ()

    def step(self, *arguments):
        return None


class Client(fakes.Client):
    """A client whose poll() ends the loop."""

    def poll(self, ms):
        raise Ended


def _application():
    board = Board("", {}, None, "0.1.0")
    board.clock = fakes.clock()[1]
    board.wifi = board.status = board.log = board.commands = board.gaps = board.restart = board.health = Part()
    board.crash_report = None
    board.client = Client()
    return Application(board, None)


def test_a_store_that_fails_ends_the_loop():
    def full(client):
        raise StoreError("cannot write 0/1: 28")

    application = _application()
    raises(Ended, application.run)
    application.board.status = Part()
    application.board.status.step = full
    equal(application.run(), "cannot write 0/1: 28")


def test_a_pass_that_lacks_memory_is_made_again_and_told_and_too_many_end_the_application():
    """Planted: a MemoryError ends the loop at once; it is not reported; 50 over the life of the board end it."""

    class Polled(Client):
        polls = 0

        def poll(self, ms):
            self.polls += 1
            if self.polls == 200:
                raise Ended

    def lacks(client):
        shortage[0] += 1
        if shortage[0] % 40:
            raise MemoryError("planted")

    def lacks_always(client):
        raise MemoryError("planted")

    for part, ends_with, polls in ((lacks, Ended, 200), (lacks_always, MemoryError, 50)):
        shortage = [0]
        application = _application()
        application.board.log = log = fakes.Log()
        application.board.status = Part()
        application.board.status.step = part
        application.board.client = Polled()
        raises(ends_with, application.run)
        equal(application.board.client.polls, polls)
        equal(log.records[0][:2], ("warning", "planted"))


def test_what_a_part_cannot_note_in_flash_is_told():
    """Planted: the errors of one part are not asked for."""
    for name in ("gaps", "health"):
        board = _application().board
        board.log = fakes.Log()
        part = Part()
        part.error = "not noted in flash: OSError(28,)"
        setattr(board, name, part)
        Application(board, None).step()
        equal(board.log.records, [("warning", part.error, None)])
