"""The path of a QoS 1 message through the broker to its PUBACK is the one that docs/architecture.md describes."""

import asyncio
import re
import sys
import threading
from pathlib import Path
from types import FrameType

import umqtt_broker
from umqtt_broker import Broker, BrokerConfig
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S

_FOLDER = Path(umqtt_broker.__file__).parent
_PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
_ROW = re.compile(r"^\| `([a-z_/]+\.py)` \| (?!asked)", re.MULTILINE)
_ASKED = re.compile(r"^\| `([a-z_/]+\.py)` \| asked", re.MULTILINE)

# Limit for the files that pass the message on.
MOST_FILES = 8


class Recorder:
    """Records the broker's files in the order in which they are entered, in every thread that begins meanwhile."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.records = False

    def __enter__(self) -> "Recorder":
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if not self.records or event != "call" or not path.is_relative_to(_FOLDER):
            return
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_name == "_tick":
                return  # reading the clock is not part of the path
            above = above.f_back
        name = path.relative_to(_FOLDER).as_posix()
        if name not in self.entered:
            self.entered.append(name)


async def _client(port: int, client_id: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await _ask(reader, writer, encoder.connect(client_id, clean_session=False), 4)
    return reader, writer


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, packet: bytes, size: int) -> None:
    """Send a packet and read its answer, of `size` bytes."""
    writer.write(packet)
    await asyncio.wait_for(reader.readexactly(size), WAIT_LIMIT_S)


async def _walk(store: Path, recorder: Recorder) -> None:
    async with Broker(BrokerConfig(port=0, sys_interval=0, store=str(store))) as broker:
        reader, writer = await _client(broker.port, b"absent")
        await _ask(reader, writer, encoder.subscribe(1, (b"a", 1)), 5)
        writer.write(encoder.disconnect())
        await asyncio.wait_for(reader.read(), WAIT_LIMIT_S)
        writer.close()
        reader, writer = await _client(broker.port, b"publisher")
        # The first message finds out who wants the topic, and creates the queue.
        await _ask(reader, writer, encoder.publish(b"a", b"1", 1, 1), 4)
        recorder.records = True
        await _ask(reader, writer, encoder.publish(b"a", b"2", 1, 2), 4)
        recorder.records = False
        writer.close()


def test_the_way_of_a_durable_message_to_its_puback_is_as_documented_and_short(tmp_path: Path) -> None:
    """Planted: a call of core.clock in GroupCommitStore._done(); a missing row on the page."""
    page = _PAGE.read_text().partition("## The broker")[2].partition("\n## ")[0]
    with Recorder() as recorder:
        asyncio.run(_walk(tmp_path / "broker.db", recorder))
    asked = set(_ASKED.findall(page))
    assert [name for name in recorder.entered if name not in asked] == _ROW.findall(page)
    assert asked <= set(recorder.entered)
    assert len(_ROW.findall(page)) <= MOST_FILES
