"""Failing examples kept on disk, and shared through a Redis (a fake one that talks Redis over TCP)."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import fakeredis
import gdn_toys
import pytest
import redis

from gdn_apc.fuzz import database, kept
from gdn_apc.fuzz.campaign import Drive, Plan
from gdn_apc.fuzz.runs import RunFolder
from gdn_apc.fuzz.session import _without_secrets

HERE = Path(__file__).parent
COMMAND = [sys.executable, "-c", "import sys; from gdn_apc.fuzz.cli import main; sys.exit(main())"]


@pytest.fixture
def server():
    """URL of a Redis of its own."""
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()


def drive(folder: Path, url: str | None, name: str = "fails") -> Drive:
    """One shard of a toy property that fails, in a project of its own."""
    plan = Plan(target="toy", seed=7, root=folder, database=url)
    driven = Drive(gdn_toys.toy(name), gdn_toys.TARGET, plan, RunFolder(folder / "run").create())
    driven.run()
    return driven


def test_a_failure_found_on_one_machine_is_replayed_first_on_another(server, tmp_path):
    first, second, alone = (
        drive(tmp_path / name, url) for name, url in (("a", server), ("b", server), ("c", None))
    )

    assert [d.failure.phase for d in (first, second, alone)] == ["generate", "reuse", "generate"]


def test_properties_and_targets_do_not_mix(server, tmp_path):
    drive(tmp_path, server)

    assert kept.have_examples(tmp_path, "toy", server) == ["fails"]
    assert kept.have_examples(tmp_path / "other", "toy", server) == ["fails"]
    assert kept.have_examples(tmp_path / "other", "to", server) == []
    assert kept.have_examples(tmp_path / "other", "toy") == []


def test_an_example_that_holds_again_is_forgotten(server, tmp_path):
    """What is kept says what still fails: an entry that was mended does not stay in front for ever."""
    drive(tmp_path, server)
    plan = Plan(target="toy", seed=7, root=tmp_path, database=server)
    mended = gdn_toys.toy("fails", check=gdn_toys.CHECKS["holds"])
    driven = Drive(mended, gdn_toys.TARGET, plan, RunFolder(tmp_path / "again").create())
    driven.run()

    assert driven.outcome.replayed > 0 and driven.outcome.status == "held"


def test_a_database_that_goes_away_costs_the_sharing_only(tmp_path):
    lost = []

    class Gone(database.ExampleDatabase):
        def fetch(self, key):
            raise redis.ConnectionError("connection refused")

        save = delete = move = fetch

    forgiving = database.Forgiving(Gone(), "redis://x", lost.append)
    assert list(forgiving.fetch(b"k")) == []
    forgiving.save(b"k", b"v")
    forgiving.delete(b"k", b"v")

    assert len(lost) == 1 and lost[0].startswith("the shared database redis://x was lost (ConnectionError")


def test_an_error_of_ours_is_not_forgiven():
    class Wrong(database.ExampleDatabase):
        def fetch(self, key):
            raise KeyError(key)

        save = delete = fetch

    with pytest.raises(KeyError):
        database.Forgiving(Wrong(), "redis://x", print).fetch(b"k")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:6379", "database: 'localhost:6379' is no Redis, expected a URL like redis://HOST:6379/0"),
        ("http://me:secret@host/0", "database: 'http://host/0' is no Redis"),
        (
            "redis://me:secret@127.0.0.1:1/0",
            r"database: redis://127.0.0.1:1/0 cannot be used: ConnectionError",
        ),
        ("redis://127.0.0.1:port/0", "cannot be used: ValueError"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_without_its_password(url, message):
    with pytest.raises(kept.NoDatabase, match=message) as e:
        kept.connect(url)

    assert "secret" not in str(e.value)


def test_a_password_is_not_written_down(monkeypatch):
    url = "redis://me:secret@host:6379/0"
    monkeypatch.setenv(kept.VARIABLE, url)

    assert kept.url_of({}) == url and kept.url_of({"gdn_database": "redis://x"}) == "redis://x"
    assert _without_secrets(f"--gdn-database={url}") == "--gdn-database=redis://host:6379/0"
    assert _without_secrets(url) == "redis://host:6379/0"
    assert _without_secrets("--gdn-seed=7") == "--gdn-seed=7"


def fuzz(folder, *arguments, **environment):
    """``gdn-apc fuzz`` with toy properties, in a project of its own."""
    folder.mkdir(exist_ok=True)
    toy = {"PYTHONPATH": str(HERE), "PYTEST_PLUGINS": "gdn_toys", "GDN_TOYS": "holds,fails", **environment}
    done = subprocess.run(
        [*COMMAND, "fuzz", "--target", "gdn_toys:TARGET", *arguments], cwd=folder, env={**os.environ, **toy},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_failures_found_earlier_come_first(server, tmp_path):
    """On another machine, in workers too: before the canary and before properties that have not failed."""
    status, said = fuzz(tmp_path / "a", "--database", server)
    assert status == 1 and said.index("passed  holds") < said.index("failed  fails")
    status, said = fuzz(tmp_path / "b", GDN_APC_DATABASE=server)
    assert status == 1 and said.index("failed  fails") < said.index("passed  canary"), said
    status, said = fuzz(tmp_path / "c", "-n", "2", "--run-dir", "run", GDN_APC_DATABASE=server)
    events = RunFolder(tmp_path / "c" / "run").events()

    assert status == 1, said
    assert "reuse" in [e["phase"] for e in events if e["event"] == "found"]
    assert all(server not in str(e) or "@" not in server for e in events)


def test_a_database_that_is_not_there_is_bad_usage(tmp_path):
    status, said = fuzz(tmp_path / "a", "--database", "redis://me:secret@127.0.0.1:1/0")

    assert status == 4 and "database: redis://127.0.0.1:1/0 cannot be used" in said and "secret" not in said
