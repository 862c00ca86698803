"""Virtual boards that use a cluster: the firmware on real MicroPython, over TLS, set up as docs/engines.md says."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from engines import PASSWORDS, Cluster
from umqtt_kit.deploy.build import deployed_files
from umqtt_kit.ground_truth import ground_truth_path, read_ground_truth
from umqtt_testkit.board import VirtualBoard

# A reading every two seconds, and room for those of ten minutes without a link: a board waits up to two minutes before
# it tries again, and a fault may come meanwhile. Each reading takes a block of the flash of 2 MB.
_SETTINGS = {"interval_ms": 2000, "outbox": 300, "keep_alive": 10}


class Boards:
    """`count` virtual boards. A context runs them. names: their device ids."""

    def __init__(self, cluster: Cluster, count: int, folder: Path) -> None:
        self.names = [f"board-{number}" for number in range(count)]
        self._cluster = cluster
        self._folder = folder
        self._boards: list[VirtualBoard] = []
        folder.mkdir()

    def __enter__(self) -> Self:
        secrets = {"mqtt": {"username": "devices", "password": PASSWORDS["devices"]}, "tls": {"ca": "/ca.pem"}}
        files: dict[str, Any] = {**deployed_files(), "/ca.pem": self._cluster.ca, "/secrets.json": _json(secrets)}
        with ExitStack() as starting:
            for number, name in enumerate(self.names):
                board = VirtualBoard(
                    self._folder / f"{name}.img",
                    env={"UMQTT_GROUND_TRUTH": str(ground_truth_path(self._folder, name))},
                    log=self._folder / f"{name}.log",
                )
                self._boards.append(starting.enter_context(board))
                board.install({**files, "/settings.json": _json(self._settings(number, name))})
                board.start()
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def _settings(self, number: int, name: str) -> dict[str, Any]:
        servers = self._cluster.device_servers(number)
        brokers = {"brokers": [servers]}
        if isinstance(servers, dict):
            ((cluster, nodes),) = servers.items()
            brokers = {"brokers": list(nodes), "cluster": cluster}
        return {"device_id": name, **brokers, **_SETTINGS}

    @property
    def made(self) -> set[tuple[str, str, int]]:
        """The identities of the readings that the boards hold in their flash, or have delivered."""
        return {tuple(identity) for identity in read_ground_truth(self._folder)}

    def told(self) -> str:
        """Return the last output of each board, for a message."""
        return "; ".join(f"{name}: {board.output[-500:]}" for name, board in zip(self.names, self._boards, strict=True))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
