"""Tables on an object store: a real S3 server, which disappears, refuses keys, and has two writers at once.

The laws hold on Azure too, where Azurite is on the PATH (tier 3).

`make test` runs a sample: each request takes a server in Python some milliseconds. UMQTT_FULL_SWEEPS=1 runs every
stage, command and order, and sixty kills.
"""

import contextlib
import io
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure_store import AzureStore, needs_azurite
from deltalake import DeltaTable
from object_store import ACCESS_KEY, SECRET_KEY, ObjectStore, use
from spark_helpers import Process
from test_batch import BATCHES, QUERY, lost_and_duplicated, workload
from umqtt_testkit.ports import reserved_port

from spark_ingest import location
from spark_ingest.durable import read_checked, read_checked_json, replace_checked
from spark_ingest.errors import TablesTaken, UsageError
from spark_ingest.gold import Gold
from spark_ingest.gold.database import Database
from spark_ingest.location import Location, StorePath, located, may_pass, open_table, reason
from spark_ingest.pipeline.process import require_writable
from spark_ingest.pipeline.run.claim import claim, tables_at_rest
from spark_ingest.pipeline.write.batch import STAGES, BatchWriter
from spark_ingest.tables import delta as delta_module
from spark_ingest.tables import summary
from spark_ingest.tables.schemas import SCHEMAS
from umqtt_cli import __main__ as umqtt

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))


STORES = [ObjectStore, pytest.param(AzureStore, marks=[pytest.mark.tier(3), needs_azurite])]
# What a test tells the store to answer, only that of S3 can.
on_s3 = pytest.mark.parametrize("store", [ObjectStore], indirect=True)


@pytest.fixture(scope="module", params=STORES, ids=lambda kind: kind.root.partition(":")[0])
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore | AzureStore]:
    with request.param() as store:
        yield store


@pytest.fixture
def tables(store: ObjectStore | AzureStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StorePath:
    """Provide a location for this test alone."""
    use(store, monkeypatch)
    found = located(f"{store.root}/{tmp_path.name}/tables")
    assert isinstance(found, StorePath)
    return found


def writer_of(tables: Location, checkpoint: Path, on_stage: Callable[[str], None] = lambda _stage: None) -> BatchWriter:
    """Return the writer that a starting pipeline makes."""
    (checkpoint / "umqtt").mkdir(parents=True, exist_ok=True)
    return BatchWriter(
        tables,
        checkpoint / "umqtt",
        on_open=lambda opened: claim(opened, tables, checkpoint),
        on_stage=on_stage,
        report=lambda _line: None,
    )


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("round_number", range(20 if FULL else 1))
def test_a_writer_killed_after_any_stage_goes_on_and_nothing_is_lost_or_stored_twice(tables, tmp_path, round_number):
    """The kill is a SIGKILL shortly after the stage, in whatever request.

    Planted: a `Delta.has` that finds nothing.
    """
    seed = random.randrange(1 << 32)
    print("seed", seed)
    program = Path(__file__).with_name("object_store_writer.py")
    command = [sys.executable, program, tables, tmp_path, seed]
    # In full sweeps, each round moves each micro-batch on to its next stage.
    stages = [STAGES[(round_number + number) % len(STAGES)] for number in range(BATCHES)]
    kills = enumerate(stages) if FULL else [(1, "silver committed")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for number, stage in kills:
        with Process(command, env=environment) as process:
            process.wait_for_line(f"{number} {stage}")
            process.signal(signal.SIGKILL)
            process.finish()
    with Process(command, env=environment) as process:
        code, _, err = process.finish()
        assert code == 0, err
    _, made, corrupt = workload(seed)
    assert lost_and_duplicated(tables, made) == (0, 0)
    assert summary(tables) == (len(made), len(made), corrupt)


class TestTwoWriters:
    """Two writers, each with its own checkpoint, as on two machines; both read the same spool."""

    def test_the_newer_one_takes_over_and_the_older_one_writes_nothing_more(self, tables, tmp_path):
        """Planted: a claim that is not checked; a checkpoint that forgets that it owned the tables."""
        batches, made, _ = workload(seed=6, count=2)
        older = writer_of(tables, tmp_path / "a")
        older.write(batches[0], 0, "a")
        newer = writer_of(tables, tmp_path / "b")
        newer.write(batches[0], 0, "b")
        with pytest.raises(TablesTaken, match=rf"another pipeline.*has taken over {tables}.*nothing is lost"):
            older.write(batches[1], 1, "a")
        with pytest.raises(UsageError, match=rf"another pipeline has written to the tables {tables}.*new --checkpoint"):
            (tmp_path / "a" / "metadata").touch()  # Spark has written into it
            writer_of(tables, tmp_path / "a")
        newer.write(batches[1], 1, "b")
        assert lost_and_duplicated(tables, made) == (0, 0)

    @pytest.mark.parametrize("table", ["bronze", "silver"] if FULL else ["silver"])
    def test_one_that_takes_over_in_the_middle_of_a_commit_wins_it(self, tables, tmp_path, monkeypatch, table):
        """Planted: an append without its writer's transaction, which Delta then lets through."""
        batches, made, _ = workload(seed=7, count=2)
        older = writer_of(tables, tmp_path / "a")
        newer: list[BatchWriter] = []
        commit = DeltaTable.create_write_transaction

        def overtaken(delta, *arguments: Any, **options: Any) -> None:
            if delta.table_uri.rstrip("/").endswith(table):
                # The newer one commits its claim of this table by the same method.
                monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
                newer.append(writer_of(tables, tmp_path / "b"))
                newer[0].write(batches[0], 0, "b")
            commit(delta, *arguments, **options)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
        with pytest.raises(TablesTaken):
            older.write(batches[0], 0, "a")
        newer[0].write(batches[1], 1, "b")
        assert lost_and_duplicated(tables, made) == (0, 0)

    def test_a_checkpoint_that_was_killed_while_it_claimed_the_tables_may_claim_them_again(
        self, tables, tmp_path, monkeypatch
    ):
        """Planted: a checkpoint that records its number only after the claim."""
        writer_of(tables, tmp_path / "a")
        claim_one, left = delta_module.Delta.claim, [2]

        def some(table, writer: int) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            claim_one(table, writer)

        for folder in ("a", "b"):
            left[0] = 2
            with monkeypatch.context() as patch, pytest.raises(Killed):
                patch.setattr(delta_module.Delta, "claim", some)
                writer_of(tables, tmp_path / folder)
            (tmp_path / folder / "metadata").touch()
            writer_of(tables, tmp_path / folder)

    def test_a_command_that_needs_rest_stops_a_pipeline_which_may_then_start_again(self, tables, tmp_path):
        """Planted: a command that claims nothing; one whose claim is another pipeline's."""
        batches, made, _ = workload(seed=8, count=2)
        writer = writer_of(tables, tmp_path)
        writer.write(batches[0], 0, QUERY)
        for _ in range(2):
            with tables_at_rest(tables, "umqtt tables retain"):
                pass
        with pytest.raises(TablesTaken):
            writer.write(batches[1], 1, QUERY)
        (tmp_path / "metadata").touch()
        writer = writer_of(tables, tmp_path)
        writer.write(batches[1], 1, QUERY)
        assert lost_and_duplicated(tables, made) == (0, 0)

    def test_two_that_keep_gold_count_each_reading_once(self, tables, tmp_path):
        """Planted: windows that are merged into whatever is there."""
        batches, made, _ = workload(seed=9)
        writer = writer_of(tables, tmp_path)
        golds = [Gold(tables, report=lambda _line: None) for _ in range(2)]
        for number, batch in enumerate(batches):
            writer.write(batch, number, QUERY)
            # Each of the two in turn has a state that the other has made obsolete.
            for gold in golds if FULL else [golds[number % 2]]:
                with_taken(gold.update)
        windows = open_table(tables / "gold" / "windows").to_pyarrow_table(columns=["n"])
        assert sum(windows["n"].to_pylist()) == len(made)
        devices = open_table(tables / "gold" / "devices").to_pyarrow_table(columns=["readings"])
        assert sum(devices["readings"].to_pylist()) == len(made)


@on_s3
def test_gold_s_state_is_kept_when_its_store_is_away_for_a_moment(store, tables, tmp_path):
    """Planted: a state that cannot be read at the moment is taken for damaged."""
    writer_of(tables, tmp_path).write(workload(seed=11)[0][0], 0, QUERY)
    Gold(tables).update()
    state = tables / "gold" / ".state" / "state"
    kept = state.read_bytes()
    gold, load = Gold(tables), Database.load
    with pytest.MonkeyPatch.context() as patch:

        def away(db: Database, path: Location) -> bool:
            store.answer(503)
            try:
                return load(db, path)
            finally:
                store.answer(None)

        patch.setattr(Database, "load", away)
        with pytest.raises(OSError, match="503"):
            gold.update()
    assert state.read_bytes() == kept


def with_taken(update: Callable[[], object]) -> None:
    """Update gold, and try again if it could not be updated, as a pipeline does."""
    try:
        update()
    except TablesTaken:
        update()


def test_what_is_done_to_tables_in_a_folder_is_done_to_those_on_an_object_store(tables, tmp_path):
    """Planted: old gold stays when it is counted again; the size of dead files is 0."""
    folder = tmp_path / "tables"
    commands = [["compact"], ["forget", "d1", "--yes"], ["ls"]]
    others = [["vacuum"], ["retain", "--days", "36500"], ["rebuild"], ["rebuild", "--gold-only"]]
    commands += [*others, ["ls"]] if FULL else []
    said = {}
    for place, checkpoint in ((folder, tmp_path / "a"), (tables, tmp_path / "b")):
        batches, _, _ = workload(seed=10)
        if isinstance(place, Path):
            writer = BatchWriter(place, checkpoint, report=lambda _line: None)
        else:
            writer = writer_of(place, checkpoint)
        for number, batch in enumerate(batches if FULL else batches[:2]):
            writer.write(batch, number, QUERY)
        said[str(place)] = [run("tables", *command, "--tables", place, "--json") for command in commands]
        out = tmp_path / "report.html"
        said[str(place)].append({"": {**run("report", "--tables", place, "--out", out, "--json"), "bytes": 0}})
    assert all(found[-2]["silver"]["dead bytes"] > 0 for found in said.values())
    for one, other in zip(*said.values(), strict=True):
        assert without_sizes(one) == without_sizes(other)
    for name in SCHEMAS:
        assert content(folder / name) == content(tables / name), name


def run(*arguments: object) -> dict:
    """Run a command; return its JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert umqtt.run(list(map(str, arguments))) == 0
    return json.loads(printed.getvalue())


def without_sizes(found: dict) -> dict:
    return {name: {key: n for key, n in one.items() if "bytes" not in key} for name, one in found.items()}


def content(table: Location) -> list[str]:
    rows = open_table(table).to_pyarrow_table()
    # These depend on when the row was counted, and at which version.
    changing = {"since", "last_seen", "until", "delay_p50_ms", "delay_p95_ms", "reboots_24h"}
    return sorted(map(repr, rows.drop_columns([n for n in rows.column_names if n in changing]).to_pylist()))


AWS_SAYS = (
    "<Error><Code>{code}</Code><Message>no</Message><AWSAccessKeyId>{key}</AWSAccessKeyId>"
    "<StringToSign>AWS4-HMAC-SHA256</StringToSign><SignatureProvided>{secret}</SignatureProvided></Error>"
)


@on_s3
class TestBadInput:
    """Bad input gives one line, without any credentials. Planted: the store's own answer as the reason."""

    def refused(self, url: str, capsys: pytest.CaptureFixture[str]) -> str:
        """Return a pipeline's error about the tables before it starts Spark; check that a command gives one too."""
        with pytest.raises(UsageError) as error:
            require_writable(located(url))
        capsys.readouterr()
        assert umqtt.run(["tables", "ls", "--tables", url]) == 2
        for line in (str(error.value), capsys.readouterr().err.strip()):
            assert line and "\n" not in line, line
            assert not any(secret in line for secret in (SECRET_KEY, ACCESS_KEY)), line
        return str(error.value)

    def test_a_bucket_that_is_not_there(self, tables, capsys):
        assert "there is no such bucket: make it" in self.refused("s3://nowhere/tables", capsys)

    def test_a_key_that_the_store_does_not_know(self, store, tables, capsys):
        store.check_keys(True)
        try:
            assert "the store does not know the access key: set AWS_ACCESS_KEY_ID" in self.refused(str(tables), capsys)
        finally:
            store.check_keys(False)

    def test_a_bucket_that_may_only_be_read(self, store, tables, monkeypatch, tmp_path):
        writer_of(tables, tmp_path)
        for name, value in store.reader().items():
            monkeypatch.setenv(name, value)
        location._storage.cache_clear()
        store.check_keys(True)
        try:
            with pytest.raises(UsageError, match="the store does not allow it with these credentials"):
                require_writable(tables)
            assert run("tables", "ls", "--tables", tables, "--json")["silver"]["rows"] == 0
        finally:
            store.check_keys(False)

    def test_no_key_at_all(self, tables, capsys, monkeypatch, tmp_path):
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # a cloud's machine might have a role
        for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        assert "there are no credentials: set AWS_ACCESS_KEY_ID" in self.refused(f"{tables}/other", capsys)

    def test_a_key_in_a_file_is_used(self, tables, monkeypatch, tmp_path):
        """Planted: options without which delta-rs looks for a profile at AWS only."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        keys = f"[fleet]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={SECRET_KEY}\n"
        (tmp_path / "credentials").write_text(keys)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_PROFILE", "fleet")
        require_writable(located(f"{tables}/profile"))

    def test_an_endpoint_that_nobody_listens_at(self, tables, capsys, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{reserved_port()}")
        assert "the store does not answer" in self.refused(f"{tables}/other", capsys)

    def test_an_endpoint_of_plain_http_that_was_not_allowed(self, tables, capsys, monkeypatch):
        monkeypatch.delenv("AWS_ALLOW_HTTP")
        assert "set AWS_ALLOW_HTTP or AZURE_ALLOW_HTTP to true" in self.refused(f"{tables}/other", capsys)

    @pytest.mark.parametrize(
        ("status", "code", "wanted"),
        [
            (403, "SignatureDoesNotMatch", "the secret key does not go with the access key"),
            (403, "AccessDenied", "the store does not allow it with these credentials"),
            (400, "ExpiredToken", "the credentials have expired"),
            (301, "PermanentRedirect", "the bucket is in another region: set AWS_REGION"),
            (400, "AuthorizationHeaderMalformed", "the bucket is in another region: set AWS_REGION"),
            (418, "Teapot", "the store answered 418"),
        ],
    )
    def test_what_a_store_answers(self, store, tables, capsys, status, code, wanted):
        store.answer(status, AWS_SAYS.format(code=code, key=ACCESS_KEY, secret=SECRET_KEY))
        try:
            assert wanted in self.refused(f"{tables}/other", capsys)
        finally:
            store.answer(None)


@pytest.mark.parametrize(
    "url",
    ["s3://key:secret@bucket/tables", "s3://bucket/tables?secret=1", "http://bucket/tables", "s3://", "s3:///tables",
     "s3://bucket/a//b", "s3://bucket/a/../b", "s3://bucket/a b", "s3://bucket/%41"],
)  # fmt: skip
def test_a_url_that_is_none_of_tables(url):
    with pytest.raises(UsageError) as error:
        located(url)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_being_replaced_is_read_as_it_was_or_as_it_is(tables, monkeypatch):
    """Planted: one read, whose length is that of the object that was there a moment before."""
    path, over, written = tables / "state", threading.Event(), [0]

    def replace() -> None:
        while not over.wait(0.002):
            # Longer and shorter in turn.
            replace_checked(path, json.dumps({"number": written[0], "x": "x" * (written[0] % 2 * 3000)}).encode())
            written[0] += 1

    replace_checked(path, b"{}")
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        reads = 0
        while thread.is_alive() and (reads < 60 or written[0] < 20):
            assert read_checked_json(path).keys() in ({"number", "x"}, set())
            assert bytes(read_checked(path)).startswith(b"{")
            reads += 1
        assert thread.is_alive(), "the writer has failed"
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("Generic MicrosoftAzure error\nAccount must be specified", "set AZURE_STORAGE_ACCOUNT_NAME"),
        ("Generic MicrosoftAzure error: http://169.254.169.254/x", "no credentials: set AZURE_STORAGE_ACCOUNT_NAME"),
        ("Generic GCS error: http://169.254.169.254/x", "no credentials: set GOOGLE_APPLICATION_CREDENTIALS"),
        ("Generic MicrosoftAzure error: 404 Not Found: <Code>ContainerNotFound</Code>", "there is no such container"),
    ],
)
def test_azure_and_google_have_hints_of_their_own(said, wanted):
    """The texts are those of delta-rs 1.6. Planted: the hint names Amazon's variables."""
    assert wanted in reason(OSError(said)) and "AWS" not in reason(OSError(said))


def test_only_what_may_pass_is_waited_for():
    """Planted: a pipeline that waits for ever for a bucket that does not exist."""
    away = OSError(
        "Generic S3 error: Error performing PUT http://h/b in 1s, after 3 retries - HTTP error: error sending request"
    )
    gone = OSError("Generic S3 error: Error performing PUT http://h/b - 404 Not Found: <Code>NoSuchBucket</Code>")
    assert (may_pass(away), may_pass(gone), may_pass(OSError(28, "No space left on device"))) == (True, False, False)
    assert reason(OSError(28, "No space left on device")) == "No space left on device"
