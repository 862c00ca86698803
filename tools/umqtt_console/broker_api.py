"""The HTTP API of a paired broker, which the console asks for its viewers: they need not have the broker's token."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

_WITHIN_S = 8.0
_MOST_BYTES = 8 * 1024 * 1024


class BrokerAway(Exception):
    """The broker's API does not answer, or refuses. status: what it answered, 0 for nothing."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class BrokerApi:
    """Asks the API at `url`, with the token in a file."""

    def __init__(self, url: str, token_file: Path) -> None:
        self.url = url.rstrip("/")
        self._token_file = token_file

    async def ask(self, method: str, path: str, query: dict[str, Any]) -> Any:
        """Return the JSON of an answer.

        :raises BrokerAway: there is none, or it is a refusal.
        """
        try:
            # Read each time: a restart of the broker may have made another one.
            token = (await asyncio.to_thread(self._token_file.read_text, "utf-8")).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BrokerAway(f"{self._token_file} cannot be read: give the token of {self.url}: {error}") from error
        headers = {"Authorization": f"Bearer {token}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WITHIN_S)) as session,
                session.request(method, self.url + path, params=query, headers=headers) as answer,
            ):
                found = json.loads(await answer.content.read(_MOST_BYTES))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise BrokerAway(
                f"the broker's API at {self.url} does not answer: {error or type(error).__name__}"
            ) from error
        if answer.status != 200:
            said = found.get("error", {}).get("message", "") if isinstance(found, dict) else ""
            raise BrokerAway(said or f"the broker's API answers {answer.status}", answer.status)
        return found

    async def queued(self) -> dict[str, int]:
        """Return the number of messages that wait for each client.

        :raises BrokerAway: the broker's API does not answer.
        """
        page = await self.ask("GET", "/api/sessions", {"sort": "queued", "limit": "100"})
        return {one["client_id"]: one["queued"] for one in page["sessions"] if one["queued"]}
