"""An Azure store: the blob service of Azurite, as a separate process.

``npm install -g azurite@3.37`` puts it on the PATH. Azurite 3.35 ignores `startFrom` in a list request, and delta-rs
then finds an "Invalid table version" at the second commit.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import urllib.request
from email.utils import formatdate

import pytest
from spark_helpers import Process
from umqtt_testkit.ports import reserved_port

# Azurite's own account, which its documentation names.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-08-06"
_PROGRAM = shutil.which("azurite-blob")

needs_azurite = pytest.mark.skipif(_PROGRAM is None, reason="azurite is not on the PATH: npm install -g azurite")


class AzureStore:
    """A server with the container ``readings``, whose content is lost when it ends.

    :ivar root: the URL of the container.
    """

    root = "az://readings"

    def __enter__(self) -> AzureStore:
        version = subprocess.run([_PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        if tuple(map(int, version.split(".")[:2])) < (3, 37):
            pytest.skip(f"azurite is {version}, and 3.37 is needed")
        port = reserved_port()
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        self._process = Process([_PROGRAM, "--blobHost", "127.0.0.1", "--blobPort", port, *options])
        self._process.wait_for_line("Azurite Blob service successfully listens")
        self.endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        self._create("readings")
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()

    def environment(self) -> dict[str, str]:
        """Return the environment variables that delta-rs needs."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }

    def _create(self, container: str) -> None:
        named = f"x-ms-date:{formatdate(usegmt=True)}\nx-ms-version:{_VERSION}"
        # The method, eleven empty headers, then those of Azure's own; the account is in the path, too.
        signed = f"PUT{12 * chr(10)}{named}\n/{_ACCOUNT}/{_ACCOUNT}/{container}\nrestype:container"
        mac = base64.b64encode(hmac.digest(base64.b64decode(_KEY), signed.encode(), hashlib.sha256)).decode()
        headers = dict(line.split(":", 1) for line in named.splitlines())
        headers |= {"Authorization": f"SharedKey {_ACCOUNT}:{mac}", "Content-Type": "", "Content-Length": "0"}
        request = urllib.request.Request(f"{self.endpoint}/{container}?restype=container", b"", headers, method="PUT")
        urllib.request.urlopen(request).close()
