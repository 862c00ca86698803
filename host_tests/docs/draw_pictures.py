"""Takes the pictures of the pages: the console and the report of an invented fleet, the broker's page, a portal.

.venv/bin/python host_tests/docs/draw_pictures.py [FOLDER]        `make pictures`; a minute, mostly of traffic to show
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "spark" / "report"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "firmware"))

from gold_tables import fleet
from portal.http import form_page
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import eventually

from spark_ingest.report import write_report

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
BROKER, CONSOLE, REPORT, PORTAL = "broker.jpg", "console.jpg", "report.jpg", "portal.jpg"
_CHROMIUM = "/usr/bin/chromium"
_SIZE = {"width": 1100, "height": 640}
_PHONE = {"width": 320, "height": 600}
_TRAFFIC_MS = 45_000


def draw(folder: Path, traffic_ms: int = _TRAFFIC_MS) -> None:
    """Write the pictures into the folder. traffic_ms: how much traffic the broker's page shows."""
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as started, tempfile.TemporaryDirectory(prefix="umqtt-pictures-") as name:
        browser = started.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=_SIZE, color_scheme="light")
        _report(page, Path(name), folder / REPORT)
        _console(page, Path(name), folder / CONSOLE)
        _broker(page, Path(name), folder / BROKER, traffic_ms)
        _portal(browser.new_page(viewport=_PHONE, color_scheme="light"), folder / PORTAL)
        browser.close()


def _portal(page: Page, picture: Path) -> None:
    heard = [("workshop", -52), ("barn", -70)]
    filled = {"heard": "workshop", "broker": "mqtts://broker.example"}
    response = b"".join(form_page("umqtt-3fa2c1", None, filled, heard))
    page.set_content(response.partition(b"\r\n\r\n")[2].decode())
    page.screenshot(path=picture, type="jpeg", quality=22, full_page=True)


def _report(page: Page, scratch: Path, picture: Path) -> None:
    write_report(fleet(scratch / "tables", devices=40, days=3), scratch / "report.html")
    page.goto((scratch / "report.html").as_uri())
    page.wait_for_selector("body[data-state=ready]")
    page.screenshot(path=picture, type="jpeg", quality=55)


def _console(page: Page, scratch: Path, picture: Path) -> None:
    """Take the picture of the fleet whose report has been made."""
    command = [sys.executable, "-m", "umqtt_cli", "console", "--tables", "tables", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=scratch, stdout=subprocess.PIPE, text=True) as console:
        assert console.stdout is not None
        try:
            address = console.stdout.readline().split()[-1]
            columns = '["device","health","link","m:temp_c","m:supply_v","readings","missing","delay_p95"]'
            page.goto(f"{address}/fleet?columns={columns}")
            page.wait_for_selector("svg.spark path")
            page.screenshot(path=picture, type="jpeg", quality=55)
        finally:
            console.terminate()


def _broker(page: Page, scratch: Path, picture: Path, traffic_ms: int) -> None:
    port = reserved_port()
    configuration = scratch / "broker.conf"
    token = scratch / "token"
    lines = ("listener 0 127.0.0.1", "allow_anonymous true", f"http_listener {port}", f"http_token_file {token}")
    configuration.write_text("\n".join((*lines, "")))
    python = [sys.executable, "-m"]
    with subprocess.Popen(
        [*python, "umqtt_cli", "broker", "-c", str(configuration)], cwd=scratch, stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        url = "mqtt://127.0.0.1:" + broker.stdout.readline().rpartition(":")[2].strip()
        files = ("--ground-truth", str(scratch / "made"), "--status", str(scratch / "status.json"))
        clients = [
            ("umqtt_kit.fleet", "--devices", "25", "--interval-ms", "400", *files),
            ("umqtt_cli", "sub", "fleet/+/telemetry"),
        ]
        running = [
            subprocess.Popen(
                [*python, *arguments, "--broker", url],
                cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for arguments in clients
        ]  # fmt: skip
        try:
            eventually(lambda: token.is_file() and token.read_text().strip(), "a token")
            page.goto(f"http://127.0.0.1:{port}/#token={token.read_text().strip()}")
            page.wait_for_selector("body[data-state=live]")
            page.wait_for_selector("#rows tr")  # the clients
            page.wait_for_timeout(traffic_ms)
            page.screenshot(path=picture, type="jpeg", quality=55)
        finally:
            for process in running:
                process.terminate()
                process.wait()
            broker.terminate()


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
