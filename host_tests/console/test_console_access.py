"""Who may see and do what, and which requests are refused before any handler runs."""

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from served_console import Serve
from umqtt_console import access
from umqtt_console.access import COOKIE, TOKEN_HEADER, UsersWrong, add_user, read_users
from umqtt_console.app import VIEWS
from umqtt_console.routes import ROLE_OF

from umqtt_cli.__main__ import umqtt
from umqtt_cli.errors import KitError

PASSWORD = "correct horse"


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    for role in access.ROLES:
        add_user(file, f"{role}er", role, PASSWORD)
    return file


def test_every_route_asks_for_its_role(serve: Serve, fleet_of_forty: Path, users: Path) -> None:
    """Planted: a route that the guard did not find in its table needed nothing."""
    console = serve(fleet_of_forty, users=users)
    cookies = {role: console.login(f"{role}er", PASSWORD).cookie for role in access.ROLES}
    assert all(cookies.values()) and len(set(cookies.values())) == 3
    for route, needed in ROLE_OF:
        if not needed or route.path == "/api/logout":
            continue
        assert console.call(route.method, route.path).status == 401, route.path
        for role, cookie in cookies.items():
            may = access.ROLES.index(role) >= access.ROLES.index(needed)
            headers = {"Cookie": f"{COOKIE}={cookie}", TOKEN_HEADER: console.get("me", cookie)["token"]}
            status = console.call(route.method, route.path, {}, headers).status
            assert (status == 403) != may and status != 401, (route.path, role)
    for path in ("/api/openapi.json", "/api/events", "/api/nothing"):
        assert console.call("GET", path).status == 401
    assert console.call("GET", "/api/nothing", headers={"Cookie": f"{COOKIE}={cookies['read']}"}).status == 404
    assert all(console.call("GET", view).status == 200 for view in VIEWS)
    assert console.call("GET", "/healthz").json == {"status": "ok"}


def test_acts_of_an_admin_are_refused_to_others(serve: Serve, fleet_of_forty: Path, users: Path) -> None:
    console = serve(fleet_of_forty, users=users)
    cookie = console.login("operateer", PASSWORD).cookie
    refused = console.post("acts", {"kind": "rotate", "args": {"device": "pump-1"}}, cookie)
    assert refused.status == 403 and "needs admin" in refused.message
    assert console.get("acts", cookie)["acts"] == []


def test_a_change_needs_the_token_of_the_session(serve: Serve, fleet_of_forty: Path) -> None:
    console = serve(fleet_of_forty)
    body = {"sql": "SELECT 1", "form": "json"}
    for headers in ({}, {TOKEN_HEADER: "x"}, {TOKEN_HEADER: "ä"}):
        assert console.call("POST", "/api/query", body, headers).status == 403
    token = console.get("me")["token"]
    assert console.call("POST", "/api/query", body, {TOKEN_HEADER: token}).status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_other_sites_cannot_ask(serve: Serve, fleet_of_forty: Path, headers: dict[str, str], status: int) -> None:
    console = serve(fleet_of_forty)
    reply = console.call("GET", "/api/fleet", headers=headers)
    assert reply.status == status
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    assert reply.headers["x-frame-options"] == "DENY" and reply.headers["cache-control"] == "no-store"


def test_wrong_logins_are_told_apart_from_nothing_and_slowed_down(
    serve: Serve, fleet_of_forty: Path, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = serve(fleet_of_forty, users=users)
    answers = {console.login(name, "wrong password").message for name in ("reader", "nobody", "<img src=x>")}
    assert answers == {"name or password are wrong"}
    for _ in range(access._FREE_FAILURES):
        refused = console.login("reader", "wrong password")
    assert "try again in" in console.login("reader", PASSWORD).message and refused.status == 403
    assert console.login("adminer", PASSWORD).status == 200, "other names are not slowed down"
    monkeypatch.setattr(access, "_PAUSE_S", 0.0)
    assert console.login("reader", PASSWORD).status == 200


def test_a_session_ends_by_logging_out_by_time_and_with_its_user(
    serve: Serve, fleet_of_forty: Path, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = serve(fleet_of_forty, users=users)
    cookie = console.login("reader", PASSWORD).cookie
    assert console.get("me", cookie)["role"] == "read"
    assert console.post("logout", {}, cookie).status == 200
    assert console.get("me", cookie)["name"] is None
    monkeypatch.setattr(access, "_SESSION_S", -1)
    assert console.get("me", console.login("reader", PASSWORD).cookie)["name"] is None
    monkeypatch.undo()
    # Another role in the file ends the sessions of that user, at the next login of anybody.
    cookie = console.login("reader", PASSWORD).cookie
    add_user(users, "reader", "admin", "another password")
    os.utime(users, ns=(time.time_ns(), time.time_ns() + 1_000_000_000))
    assert console.login("operateer", PASSWORD).status == 200
    assert console.get("me", cookie)["name"] is None
    assert console.login("reader", PASSWORD).status == 403
    assert console.login("reader", "another password").json["role"] == "admin"


def test_a_cookie_is_for_this_site_and_no_script(serve: Serve, fleet_of_forty: Path, users: Path) -> None:
    console = serve(fleet_of_forty, users=users)
    given = console.login("reader", PASSWORD).headers["set-cookie"]
    assert "HttpOnly" in given and "SameSite=Strict" in given and "Path=/" in given


def test_a_users_file_is_private_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "users"
    with pytest.raises(UsersWrong, match="make it"):
        read_users(file)
    with pytest.raises(UsersWrong, match="at least 10"):
        add_user(file, "ann", "read", "short")
    with pytest.raises(UsersWrong, match="colon"):
        add_user(file, "a:b", "read", PASSWORD)
    add_user(file, "ann", "read", PASSWORD)
    add_user(file, "bob", "admin", PASSWORD)
    add_user(file, "ann", "operate", PASSWORD)
    assert {name: role for name, (role, _) in read_users(file).items()} == {"ann": "operate", "bob": "admin"}
    assert file.stat().st_mode & 0o077 == 0 and PASSWORD not in file.read_text()
    file.chmod(0o644)
    with pytest.raises(UsersWrong, match="chmod 600"):
        read_users(file)
    file.chmod(0o600)
    for line in ("ann:king:$argon2id$", "ann:read:secret", "nonsense"):
        file.write_text(line + "\n")
        with pytest.raises(UsersWrong, match="line 1 must be"):
            read_users(file)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "0.0.0.0:0"], "give --users and --web-cert and --web-key"),
        (["--listen", "192.168.1.2:0", "--users", "users"], "give --web-cert and --web-key"),
        (["--web-cert", "users"], "go together"),
        (["--users", "none"], "make it"),
        (["--users", "users", "--web-cert", "users", "--web-key", "users"], "give a certificate and its key"),
    ],
)
def test_it_does_not_start_unsafe(
    users: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(users.parent)
    result = CliRunner().invoke(umqtt, ["console", "--tables", "tables", *arguments])
    assert isinstance(result.exception, KitError) and said in str(result.exception) and result.exception.exit_code == 2


def test_add_user_writes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMQTT_CONSOLE_PASSWORD", PASSWORD)
    file = tmp_path / "users"
    result = CliRunner().invoke(umqtt, ["console", "--users", str(file), "--add-user", "ann", "--role", "operate"])
    assert result.exit_code == 0 and read_users(file)["ann"][0] == "operate"
    assert PASSWORD not in result.output + json.dumps(file.read_text())
