"""The command line as a user meets it: what each command prints, on which stream, and how it ends."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import yaml

from proxy.admin.why import REASONS
from proxy.callers.tenants import Tenants
from proxy.cli.main import app
from proxy.cli.running import announce
from proxy.config.loading import load
from proxy.errors import AuthenticationError
from tests.support.servers import reserve_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("concertina")
COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d(?:;\d+)*m")
SERVED = re.compile(r"concertina listens on http://127\.0\.0\.1:(\d+), upstream main \(https://api\.openai\.com/v1\)\n")


@dataclass(frozen=True)
class Ended:
    """A command that ran to its end."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty directory, without the variables that config and terminal would obey."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("CONCERTINA_", "OPENAI_")) or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)


def concertina(*words: str, **env: str) -> Ended:
    """The installed command, in a process of its own."""
    ended = subprocess.run(
        [COMMAND, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same within this process, which is quicker."""

    def command(*words: str, **env: str) -> Ended:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            app(words)
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    return command


class Serving:
    """A `concertina serve` that listens; what it printed is known to the line in which it says so."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self.first = process.stdout.readline()
        served = SERVED.fullmatch(self.first)
        assert served, self.first
        self.port = int(served[1])

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connected(self) -> closing[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30))

    def end(self, by: signal.Signals = signal.SIGTERM) -> Ended:
        self._process.send_signal(by)
        code = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        # `communicate` would miss what was read ahead with the first line.
        return Ended(code, self.first + self._process.stdout.read(), self._process.stderr.read())


@contextmanager
def serving(*words: str, port: int = 0) -> Iterator[Serving]:
    started = [COMMAND, "serve", "--port", str(port), *words]
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield Serving(process)
        finally:
            process.kill()


def get(connection: http.client.HTTPConnection, path: str) -> tuple[int, object]:
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_help_names_every_command(run: Run, words: tuple[str, ...]) -> None:
    ended = run(*words)
    assert (ended.code, ended.err) == (0, "")
    for command in ("serve", "demo", "check", "explain", "replay", "schema", "keys", "healthcheck", "version"):
        assert f"\n  {command}: " in ended.out


@pytest.mark.parametrize(("no_color", "colored"), [("1", False), ("", True)])
def test_no_color_is_obeyed_and_an_empty_one_says_nothing(no_color: str, colored: bool) -> None:
    ended = concertina(NO_COLOR=no_color, FORCE_COLOR="1")
    assert (COLOR.search(ended.out) is not None) == colored


def test_the_demo_obeys_no_color_too() -> None:
    ended = concertina("demo", "--once", NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b[" in ended.out, "it is drawn as on a terminal"
    assert COLOR.search(ended.out) is None
    assert ended.code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bogus",), 'Unknown command "bogus"'),
        (("keys", "new"), "--tenant requires an argument"),
        (("serve", "--bogus"), "Unknown option: --bogus"),
        (("serve", "--port", "65536"), "Must be <= 65535; see `concertina serve --help`"),
        (("serve", "--port", "-1"), "Must be >= 0"),
        (("serve", "--port", "http"), "unable to convert"),
    ],
)
def test_a_slip_of_the_pen_is_explained(run: Run, words: tuple[str, ...], said: str) -> None:
    ended = run(*words, COLUMNS="40")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), "one line, however narrow the terminal was"
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_is_the_packages(word: str) -> None:
    assert concertina(word) == Ended(0, f"concertina {version('concertina')}\n", "")


@pytest.mark.parametrize("words", [("schema",), ("--help",), ("check",)])
def test_a_closed_pipe_ends_a_command_quietly(words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as closed:  # noqa: PTH123 - a descriptor
        ended = subprocess.run([COMMAND, *words], stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) != (0, b""), "what was to be printed was not"
    assert ended.stderr == b""


@pytest.mark.parametrize("words", [("schema",), ("version",), ("print", "client", "codex")])
def test_a_full_disk_is_told_in_a_line(words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        ended = subprocess.run([COMMAND, *words], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.count(b"\n")) == (1, 1), ended.stderr
    assert b"No space left on device; check free space" in ended.stderr


def test_a_closed_output_is_no_fault() -> None:
    ended = subprocess.run(["sh", "-c", f"{COMMAND} version >&-"], capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_help_and_rows_are_plain_lines_where_no_terminal_is(run: Run) -> None:
    for words in (("--help",), ("keys", "add", "--help"), ("models", "gpt-4o", "claude-sonnet-4-5")):
        out = run(*words, COLUMNS="40").out
        assert not re.search("[\x1b\u2500-\u257f]", out), "neither colors nor boxes"
        assert all(line == line.rstrip() for line in out.splitlines())
    heading, *rows = run("models", "gpt-4o", "claude-sonnet-4-5", COLUMNS="40").out.splitlines()
    assert [row.split()[0] for row in rows] == ["gpt-4o", "claude-sonnet-4-5"]
    assert {row.index("http") for row in rows} == {heading.index("upstream")}


def test_what_is_empty_says_what_to_do(run: Run) -> None:
    assert run("keys", "list") == Ended(0, "", "no key is listed; `concertina keys add TENANT` issues one\n")
    models = run("models")
    none = "the config names no model, and none was requested yet; name models"
    assert (models.code, models.err.startswith(none)) == (1, True)
    Path("empty").mkdir()
    replayed = run("replay", "empty")
    assert (replayed.code, replayed.err.startswith("empty: nothing to replay; name a request body, ")) == (1, True)


def test_a_store_that_another_program_holds_is_told_so(run: Run) -> None:
    Path("config.yaml").write_text("tenants: {acme: {}}\nstore: {url: 'sqlite:///k.db'}")
    assert run("keys", "add", "acme").code == 0
    with closing(sqlite3.connect("k.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        ended = run("keys", "add", "acme")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "another program has locked it" in ended.err


def test_schema_is_what_editors_are_pointed_to(run: Run) -> None:
    ended = run("schema")
    assert json.loads(ended.out)["title"] == "Concertina config"
    assert ended == Ended(0, (ROOT / "docs" / "config.schema.json").read_text("utf-8"), "")


def test_a_good_config_is_counted(run: Run) -> None:
    Path("good.yaml").write_text("policies: {own: {extends: cost}}\ntenants: {acme: {policy: own}}", encoding="utf-8")
    assert run("check", "good.yaml") == Ended(0, "good.yaml: ok (2 upstreams, 6 policies, 2 tenants)\n", "")


def test_what_an_operator_should_know_is_noted(run: Run) -> None:
    Path("good.yaml").write_text("policies: {own: {}}\nclosed: true", encoding="utf-8")
    ended = run("check", "good.yaml")
    assert (ended.code, ended.err) == (0, "")
    first, last = ended.out.splitlines()
    assert first.startswith("note: closed: no tenant has keys")
    assert last == "good.yaml: ok (2 upstreams, 6 policies, 1 tenant)"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "server:\n  prot: 1\nstore: {ttl: soon}\n",
            "bad.yaml:2: server.prot: unknown key; did you mean 'port'?\n"
            "bad.yaml:3: store.ttl: must be a duration such as 250ms, 10s, 2m, 1h or 7d, or a number of seconds\n",
        ),
        (
            "store: {secret: '${GONE}'}",
            "bad.yaml:1: store.secret: the environment variable GONE is not set;"
            " set it, or give a default: ${GONE:-…}\n",
        ),
        ("server: [", "bad.yaml:1: is not valid YAML: expected the node content, but found '<stream end>'\n"),
        ("", "bad.yaml: is empty; write at least one section, or name no file to use the built-in defaults\n"),
    ],
)
@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_broken_config_is_one_line_a_problem(run: Run, command: str, content: str, said: str) -> None:
    Path("bad.yaml").write_text(content, encoding="utf-8")
    assert run(command, "bad.yaml") == Ended(1, "", said)


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_missing_config_is_told(run: Run, command: str) -> None:
    said = "gone.yaml: not found; create it, or name no file to use the built-in defaults\n"
    assert run(command, "gone.yaml") == Ended(1, "", said)


def test_without_a_name_the_config_of_the_directory_is_checked(run: Run) -> None:
    Path("config.yaml").write_text("closed: maybe", encoding="utf-8")
    assert run("check") == Ended(1, "", "config.yaml:1: closed: must be true or false\n")
    Path("config.yaml").write_text("closed: false", encoding="utf-8")
    assert run("check") == Ended(0, "config.yaml: ok (2 upstreams, 5 policies, 1 tenant)\n", "")


def test_without_a_name_the_config_of_the_environment_goes_before_that_of_the_directory(run: Run) -> None:
    Path("config.yaml").write_text("closed: maybe", encoding="utf-8")
    Path("other.yaml").write_text("closed: false", encoding="utf-8")
    ok = Ended(0, "other.yaml: ok (2 upstreams, 5 policies, 1 tenant)\n", "")
    assert run("check", CONCERTINA_CONFIG="other.yaml") == ok
    assert run("check", "config.yaml", CONCERTINA_CONFIG="other.yaml").code == 1


def test_without_any_config_the_built_in_defaults_are_checked_as_they_would_be_served(run: Run) -> None:
    assert run("check") == Ended(0, "built-in defaults: ok (2 upstreams, 5 policies, 1 tenant)\n", "")
    ended = run("check", OPENAI_BASE_URL="ftp://x")
    assert ended.err == "built-in defaults:7: upstreams.main.base_url: must be an http:// or https:// URL with a host\n"
    assert ended.code == 1


CHAT = {"model": "m", "messages": [{"role": "system", "content": "be brief"}]}
LONG = [
    {"role": "user", "content": "Never delete src/a.py. Now port it."},
    *(
        message
        for i in range(60)
        for message in (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{i}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": f"c{i}", "content": f"result {i} " + "word " * 100},
        )
    ),
]
SMALL_WINDOW = "models: [{match: m, context_window: 8192}]\npolicies: {quiet: {extends: default, mode: 'off'}}\n"


HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def request_file() -> str:
    Path("config.yaml").write_text(SMALL_WINDOW, encoding="utf-8")
    Path("r.json").write_text(json.dumps(CHAT | {"messages": [*CHAT["messages"], *LONG]}), encoding="utf-8")
    return "r.json"


def test_a_request_is_explained_as_a_table_in_runs(run: Run, request_file: str) -> None:
    ended = run("explain", request_file, COLUMNS="120")
    assert (ended.code, ended.err) == (0, "")
    source, first, *_, last = ended.out.splitlines()
    assert source.startswith("no store was read")
    assert first == "m, policy default, window 8,192 tokens (policy), 6,554 usable"
    assert re.search(r"^0 +system +1 +\d+ +\d+ +system prompt +system message: always sent *$", ended.out, re.MULTILINE)
    assert re.search(
        r"^2-\d+ +tool loop +\d+ +[\d,]+ +0 +summarised now +older than the rounds ", ended.out, re.MULTILINE
    )
    assert re.search(r"^\d+-121 +tool loop .* unchanged +newest rounds that fit the target *$", ended.out, re.MULTILINE)
    assert re.fullmatch(r"[\d,]+ of a 8,192-token window's 6,554 usable; would send at most [\d,]+ \(\d+ %\)", last)
    assert re.search(r"^the record: By estimate every later request is [\d,]+ tokens smaller,", ended.out, re.MULTILINE)
    assert f"compacted: {REASONS['tool_execution']}\n" in ended.out
    assert "\x1b" not in ended.out


def test_the_policy_the_tenant_and_the_wish_can_be_chosen(run: Run, request_file: str) -> None:
    quiet = run("explain", request_file, "--policy", "quiet")
    assert "policy quiet" in quiet.out
    assert f"relayed unchanged: {REASONS['off']}\nin mode on: compacted: {REASONS['tool_execution']}\n" in quiet.out
    assert f"compacted: {REASONS['manual']}\n" in run("explain", request_file, "--policy", "quiet", "--force").out
    assert run("explain", request_file, "--tenant", "default").code == 0


def test_the_whole_explanation_is_json(run: Run, request_file: str) -> None:
    found = json.loads(run("explain", request_file, "--json").out)
    assert (found["outcome"], found["reason"], len(found["messages"])) == ("applied", "tool_execution", 122)


def test_a_request_for_an_alias_is_explained_for_its_model(run: Run, request_file: str) -> None:
    with Path("config.yaml").open("w", encoding="utf-8") as config:
        config.write("models: [{match: m, serve_as: gpt-4o}, {match: gpt-4o, context_window: 9k}]\n")
    explained = json.loads(run("explain", request_file, "--json").out)
    assert (explained["model"], explained["window"]["tokens"]) == ("gpt-4o", 9000)


def test_a_request_is_read_from_standard_input() -> None:
    given = json.dumps(CHAT).encode()
    ended = subprocess.run([COMMAND, "explain", "-"], input=given, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    out = ended.stdout.decode()
    assert f"sent unchanged: {REASONS['unknown_window']}\n" in out
    assert 'set models: [{match: "m", context_window: TOKENS}] in the config\n' in out


def test_what_a_terminal_would_obey_is_not_printed(run: Run) -> None:
    Path("r.json").write_text(json.dumps(CHAT | {"model": "m\x1b[2J\n"}), encoding="utf-8")
    assert "\x1b" not in run("explain", "r.json").out


@pytest.mark.parametrize(
    ("fields", "words", "dialect"),
    [
        ({"messages": HELLO}, (), "chat"),
        ({"input": HELLO}, (), "responses"),
        ({"messages": HELLO, "system": "Be brief."}, (), "messages"),
        ({"messages": HELLO, "system": "Be brief."}, ("--dialect", "chat"), "chat"),
    ],
)
def test_a_request_is_explained_in_its_dialect(
    run: Run, fields: dict[str, object], words: tuple[str, ...], dialect: str
) -> None:
    Path("spoken.json").write_text(json.dumps({"model": "gpt-4o", **fields}))
    assert json.loads(run("explain", "spoken.json", "--json", *words).out)["dialect"] == dialect
    assert run("explain", "spoken.json", "--dialect", "gemini").code == 2


def test_explain_obeys_no_color(request_file: str) -> None:
    colored, plain = (concertina("explain", request_file, FORCE_COLOR="1", **more) for more in ({}, {"NO_COLOR": "1"}))
    assert COLOR.search(colored.out)
    assert COLOR.search(plain.out) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gone.json",), "gone.json: No such file or directory; name a file with one request body, or - for"),
        (("no.json",), "no.json: The request body is not valid JSON: "),
        (("list.json",), "list.json: not a chat request; it must be a JSON object with a list of objects as messages"),
        (("list.json", "--dialect", "responses"), "list.json: not a responses request; it must be a JSON object with"),
        (("list.json", "--policy", "defalt"), "--policy defalt: no policy has this name; did you mean 'default'?"),
        (("list.json", "--tenant", "x"), "--tenant x: no tenant has this name; known names: default"),
        (("list.json", "--config", "gone.yaml"), "gone.yaml: not found; "),
    ],
)
def test_what_cannot_be_explained_is_told_with_the_way_out(run: Run, words: tuple[str, ...], said: str) -> None:
    Path("no.json").write_text("{", encoding="utf-8")
    Path("list.json").write_text("[]", encoding="utf-8")
    ended = run("explain", *words)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(said)
    assert ended.err.count("\n") == 1


def test_explain_starts_without_litellm_and_without_a_server(request_file: str) -> None:
    code = "import sys; from proxy.cli.main import app\ntry: app(['explain', 'r.json'])\nexcept SystemExit: pass\n"
    loaded = f"{code}print('loaded', {{'litellm', 'uvicorn'}} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.endswith("loaded set()\n"), ended.stderr


def test_a_new_key_is_printed_once_and_its_hash_makes_it_known(run: Run, tmp_path: Path) -> None:
    ended = run("keys", "new", "acme")
    assert (ended.code, ended.err) == (0, "")
    (key,) = re.findall(r"^  (ck-[\w-]{43})$", ended.out, re.MULTILINE)
    assert ended.out.count(key) == 1
    assert f'"sha256:{hashlib.sha256(key.encode()).hexdigest()}"' in ended.out

    config = tmp_path / "config.yaml"
    config.write_text("closed: true\n" + ended.out.partition("Put its hash into the config:\n\n")[2], encoding="utf-8")
    known = Tenants(load(config, {}))
    assert known.identify(b"Bearer " + key.encode()).tenant == "acme"
    with pytest.raises(AuthenticationError):
        known.identify(b"Bearer " + key.encode()[:-1])


def test_a_key_for_viewers_is_printed_with_its_own_setting_for_the_default_tenant_too(run: Run) -> None:
    for tenant in ("acme", "default"):
        ended = run("keys", "new", tenant, "--viewer")
        assert re.search(rf'^  {tenant}:\n    viewer_keys: \["sha256:[0-9a-f]{{64}}"\]$', ended.out, re.MULTILINE)


def test_no_two_keys_are_the_same(run: Run) -> None:
    assert run("keys", "new", "acme").out != run("keys", "new", "acme").out


def test_the_tenant_for_callers_without_a_key_gets_none(run: Run) -> None:
    said = "tenant default has no keys: it serves clients without a known key; name another tenant\n"
    assert run("keys", "new", "default") == Ended(1, "", said)


def test_issued_keys_are_added_listed_and_revoked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("tenants: {acme: {api_key: k}}\nstore: {url: 'sqlite:///k.db'}\n")
    added = run("keys", "add", "acme", "--name", "ci", "--expires", "30d", "--usd-per-month", "5.5")
    assert (added.code, added.err) == (0, "")
    (key,) = re.findall(r"^  (ck-[0-9a-f]{8}-[\w-]{43})$", added.out, re.MULTILINE)
    (row,) = json.loads(run("keys", "list", "acme", "--json").out)
    assert (row["name"], row["state"], row["limits"]) == ("ci", "active", {"usd_per_month": 5.5})
    assert row["used"] == {"tokens_today": 0, "tokens_month": 0, "usd_today": 0, "usd_month": 0, "unpriced": 0}
    assert row["expires"] - row["created"] == pytest.approx(30 * 86_400, abs=5)
    assert key not in run("keys", "list", "acme").out
    assert "$5.50 a month" in run("keys", "list").out
    assert run("keys", "add", "acme", "--name", "ci").err.startswith(f"--name ci: key {row['id']} of acme has")
    run("keys", "add", "acme", "--name", "other")
    assert run("keys", "revoke", "acme", "nothing").err == (
        "tenant acme has no such key: nothing; `concertina keys list acme` lists them\n"
    )
    assert run("keys", "revoke", "acme", row["id"][:6]).out == f"revoked {row['id']} (ci)\n"
    assert [one["state"] for one in json.loads(run("keys", "list", "acme", "--json").out)] == ["revoked", "active"]
    assert run("keys", "add", "acme", "--name", "ci").code == 0
    assert run("keys", "revoke", "acme", "ci").code == 0


def test_where_a_key_lies_is_told_and_lists_make_no_store(run: Run, tmp_path: Path) -> None:
    file, written = tmp_path / "config.yaml", "tenants: {acme: {}}\nstore: {url: 'sqlite:///k.db'%s}\n"
    file.write_text(written % "")
    assert json.loads(run("keys", "list", "--json").out) == []
    assert (
        run("keys", "revoke", "acme", "ci").err
        == "nothing is stored: k.db does not exist; `concertina serve` creates it\n"
    )
    assert not [*tmp_path.glob("k.db*")]
    added = run("keys", "add", "acme")
    assert f"It is stored in {tmp_path}/k.db, a new file.\n" in added.out
    assert added.err.startswith("note: its requests go to main and anthropic without a key; set tenants.acme.api_key")
    assert f"It is stored in {tmp_path}/k.db.\n" in run("keys", "add", "acme").out
    assert {each.name for each in tmp_path.glob("k.db*")} >= {"k.db", "k.db.secret"}
    file.write_text(written % f", encryption_key: {'a1' * 32}")
    ended = run("keys", "list")
    note, hint = ended.err.splitlines()
    assert note == "note: 2 more keys were evicted, or are sealed with another store.encryption_key"
    assert hint == "no key is listed; `concertina keys add TENANT` issues one"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("default",), "tenant default has no keys"),
        (("acme", "--name", "a" * 65), "--name: must have at most 64 characters, all printable"),
        (("acme", "--name", "a\nb"), "--name: must have at most 64 characters, all printable"),
        (("acme", "--usd-per-day", "inf"), 'Invalid value "inf" for --usd-per-day'),
        (("acme", "--tokens-per-day", "1" + 26 * "0"), "for --tokens-per-day"),
        (("nobody",), "tenant nobody is not in the config; known names: acme, default; add it to the config"),
        (("acme", "--expires", "soon"), "--expires soon: give a duration, such as 12h, 30d or 2w, or the last day"),
        (("acme", "--expires", "2020-01-01"), "--expires 2020-01-01: 2020-01-01 is in the past"),
        (("acme", "--tokens-per-day", "0"), 'Invalid value "0" for --tokens-per-day'),
        (("acme",), "memory:// is inside the running proxy"),
    ],
)
def test_what_no_key_can_be_issued_for(run: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "config.yaml").write_text("tenants: {acme: {}}\nstore: {url: 'memory://'}\n")
    ended = run("keys", "add", *words)
    assert ended.code in (1, 2)
    assert said in ended.err


def test_serve_prints_the_address_the_line_to_paste_and_the_policy_in_force() -> None:
    with serving() as served, served.connected() as connection:
        assert get(connection, "/livez") == (200, {"status": "alive"})
        assert get(connection, "/readyz") == (200, {"status": "ready", "store": "up"})
        ended = served.end()
    assert ended.out == (
        f"concertina listens on {served.address}, upstream main (https://api.openai.com/v1)\n"
        f"  export OPENAI_BASE_URL={served.address}/v1\n"
        f"  export ANTHROPIC_BASE_URL={served.address}\n"
        "policy default: mode on, compacts at 80% of the usable window down to 45%,"
        " summarizer the request’s own model, store sqlite\n"
        f"admin pages {served.address}/admin/, with the token in var/concertina.db.admin-token\n"
        "config built-in defaults\n"
    )
    assert ended.code == 0
    assert [json.loads(line)["event"] for line in ended.err.splitlines()] == ["start", "stopping", "stopped"]


def test_the_link_with_the_token_is_printed_on_a_terminal_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("store: {url: 'memory://'}", encoding="utf-8")
    ours, theirs = pty.openpty()
    with subprocess.Popen([COMMAND, "serve", "--port", "0"], stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        shown = b""
        while b"token=" not in shown or not shown.endswith(b"\n"):
            shown += os.read(ours, 10_000)
        (link,) = re.findall(r"admin pages (http://127\.0\.0\.1:\d+/admin/\?token=[\w-]{43})\r?\n", shown.decode())
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
        page = direct.open(link, timeout=30)
        assert (page.geturl(), b"Overview" in page.read()) == (link.partition("?")[0], True)
        process.terminate()
        assert process.stderr is not None
        assert all(line.startswith(b"{") for line in process.stderr.read().splitlines()), "the log alone"
    os.close(ours)
    with serving() as served:
        ended = served.end()
    assert "token=" not in ended.out
    assert ended.out.endswith("/admin/, after server.admin_token is set\nconfig config.yaml\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_ends_no_command(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    with serving() as served, served.connected() as connection:
        assert get(connection, "/livez") == (200, {"status": "alive"})
        ended = served.end()
    assert "summarizer the request\\u2019s own model" in ended.out
    assert ended.code == 0


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_at_once_although_a_connection_is_kept_open(by: signal.Signals) -> None:
    with serving() as served, served.connected() as connection:
        get(connection, "/livez")
        assert connection.sock is not None, "it is still open"
        assert served.end(by).code == 0


def test_serve_says_what_an_operator_should_know_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "open.yaml").write_text("upstreams: {main: {base_url: 'https://api.openai.com/v1'}}\nclosed: true")
    with serving("open.yaml", "--host", "127.0.0.1") as served:
        note = "note: closed: no tenant has keys here, so only issued keys are accepted;"
        note += " `concertina keys add` issues them\n"
        assert served.end().err.startswith(f'{note}{{"ts":')


def test_a_taken_port_is_told_with_the_way_out(run: Run) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        way_out = "choose another with --port or --host, or with server.port and server.host in the config"
        said = f"cannot listen on 127.0.0.1:{port}: Address already in use; {way_out}\n"
        assert run("serve", "--port", str(port)) == Ended(1, "", said)


def test_an_address_that_is_not_ours_is_told_with_the_way_out(run: Run) -> None:
    ended = run("serve", "--host", "2001:db8::1", "--port", "0")
    assert ended.err.startswith("cannot listen on [2001:db8::1]:0: ")
    assert (ended.code, ended.out) == (1, "")


def test_a_store_that_cannot_be_opened_ends_serve_before_it_says_that_it_listens(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no database, but long enough to be none", encoding="utf-8")
    (tmp_path / "config.yaml").write_text("store: {url: 'sqlite:///store'}", encoding="utf-8")
    ended = concertina("serve", "--port", "0")
    assert (ended.code, ended.out) == (1, "")
    assert "store cannot be used as the store" in ended.err


def test_healthcheck_tells_a_running_proxy_from_none(run: Run) -> None:
    with serving(port=reserve_port()) as served:
        for address in (served.address, served.address + "/"):
            ended = run("healthcheck", address, http_proxy="http://127.0.0.1:9")
            assert ended == Ended(0, '{"status":"ready","store":"up"}\n', "")
    ended = run("healthcheck", served.address)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("not ready: ")
    assert "Connection refused" in ended.err


def test_healthcheck_asks_where_the_config_says(run: Run, tmp_path: Path) -> None:
    with serving(port=reserve_port()) as served:
        (tmp_path / "config.yaml").write_text(f"server: {{port: {served.port}, host: 0.0.0.0}}", encoding="utf-8")
        assert run("healthcheck") == Ended(0, '{"status":"ready","store":"up"}\n', "")
        (tmp_path / "other.yaml").write_text(f"server: {{port: {served.port}}}", encoding="utf-8")
        assert run("healthcheck", "--config", "other.yaml").code == 0
        nowhere = "server: {port: 0}\nstore: {url: 'memory://'}"
        (tmp_path / "config.yaml").write_text(nowhere, encoding="utf-8")
        assert run("healthcheck", "--url", served.address).code == 0
        assert "name its address: concertina healthcheck URL" in run("healthcheck").err
    assert run("healthcheck", "--config", "other.yaml").err.startswith("not ready: ")


def test_healthcheck_asks_the_running_proxy_whatever_became_of_its_config(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    defaults = load(None, {})
    with serving() as served, announce(defaults, defaults.server.model_copy(update={"port": served.port})):
        (tmp_path / "config.yaml").write_text("closed: maybe", encoding="utf-8")
        ended = run("healthcheck")
    assert (ended.code, ended.out) == (0, '{"status":"ready","store":"up"}\n')
    assert "closed: must be true or false; looking for a running proxy without it" in ended.err


@pytest.mark.parametrize(
    ("host", "base_url", "is_itself"),
    [
        ("127.0.0.1", "http://127.0.0.1:{}/v1", True),
        ("127.0.0.1", "http://localhost:{}/v1", True),
        ("localhost", "http://LOCALHOST:{}", True),
        ("0.0.0.0", "http://127.0.0.1:{}/v1", True),
        ("0.0.0.0", "http://0.0.0.0:{}/v1", True),
        ("0.0.0.0", f"http://{socket.gethostname()}:{{}}/v1", True),
        ("127.0.0.1", "http://127.0.0.1:9/v1", False),
        ("127.0.0.1", "http://model.example:{}/v1", False),
        ("10.0.0.5", "http://127.0.0.1:{}/v1", False),
        ("10.0.0.5", "http://10.0.0.5:{}/v1", True),
    ],
)
def test_a_proxy_that_would_be_its_own_upstream_is_told(run: Run, host: str, base_url: str, is_itself: bool) -> None:
    port = reserve_port()
    base_url = base_url.format(port)
    Path("config.yaml").write_text(f"server: {{host: {host}, port: {port}}}", encoding="utf-8")
    ended = run("check", OPENAI_BASE_URL=base_url)
    assert ended.code == int(is_itself)
    assert ("is this proxy itself; name the model server instead" in ended.err) == is_itself
    if is_itself and host != "10.0.0.5":
        ended = concertina("serve", OPENAI_BASE_URL=base_url)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.splitlines()[-1].startswith(f"upstreams.main.base_url: {base_url} is this proxy itself")


def test_the_config_to_check_is_named_as_for_other_commands(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("closed: true", encoding="utf-8")
    for words in (("check", str(file)), ("check", "--config", str(file))):
        assert run(*words).out.splitlines()[-1].startswith(f"{file}: ok")


@pytest.mark.parametrize("there", [None, ModuleType("mcp")], ids=["not there", "another version"])
def test_a_part_that_is_not_installed_is_told_with_its_extra(
    run: Run, monkeypatch: pytest.MonkeyPatch, there: ModuleType | None
) -> None:
    monkeypatch.delitem(sys.modules, "proxy.cli.mcp_server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", there)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "mcp.server", raising=False)
    ended = run("mcp")
    assert (ended.code, "uv tool install '.[mcp]'" in ended.err) == (1, True)


def test_a_base_url_without_a_path_is_noted(run: Run) -> None:
    (said, last) = run("check", OPENAI_BASE_URL="http://model.example:8000").out.splitlines()
    assert said == ("note: upstreams.main.base_url: has no path; most servers need /v1: http://model.example:8000/v1")
    assert last.startswith("built-in defaults: ok")
    assert run("check", OPENAI_BASE_URL="http://model.example:8000/v1").out.count("\n") == 1


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://generativelanguage.googleapis.com/v1beta", "Gemini"),
        ("https://generativelanguage.googleapis.com", "Gemini"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", None),
        ("https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google", "Vertex"),
        ("https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/l/endpoints/openapi", None),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/model", "Bedrock"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", None),
        ("https://api.cohere.com/v2", "Cohere"),
        ("https://api.cohere.ai/compatibility/v1", None),
    ],
)
def test_an_address_of_an_api_that_is_never_compacted_is_noted(run: Run, base_url: str, name: str | None) -> None:
    lines = run("check", OPENAI_BASE_URL=base_url).out.splitlines()
    assert [f"is {name}" in line and "and never compacted" in line for line in lines[:-1]] == [True] * bool(name)


@pytest.mark.parametrize("more", ["/chat/completions", "/messages", "/models", "/v1"])
def test_a_base_url_with_more_than_its_path_is_noted(run: Run, more: str) -> None:
    said, _ = run("check", OPENAI_BASE_URL=f"http://model.example:8000/v1{more}").out.splitlines()
    assert said == (
        f"note: upstreams.main.base_url: paths are appended to it; remove {more}: http://model.example:8000/v1"
    )


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ("", None),
        ("/openai/v1", None),
        ("/openai/deployments/m?api-version=1", None),
        ("/openai/deployments/m", "Azure needs a version with a deployment: {}/openai/deployments/m?api-version=..."),
        (
            "/openai/deployments/m/chat/completions?api-version=1",
            "paths are appended to it; remove /chat/completions: {}/openai/deployments/m?api-version=1",
        ),
    ],
)
def test_an_address_of_azure_needs_no_path_and_a_deployment_a_version(run: Run, more: str, note: str | None) -> None:
    host = "https://name.openai.azure.com"
    *notes, _ = run("check", OPENAI_BASE_URL=host + more).out.splitlines()
    assert notes == ([] if note is None else [f"note: upstreams.main.base_url: {note.format(host)}"])


def test_commands_that_only_read_create_nothing(run: Run, tmp_path: Path) -> None:
    assert run("models", "gpt-4o").code == 0
    nothing = "nothing is stored: var/concertina.db does not exist; `concertina serve` creates it\n"
    assert run("sessions", "ls", "--json") == Ended(0, "[]\n", nothing)
    assert run("check").code == 0
    assert list(tmp_path.iterdir()) == []


def test_healthcheck_is_not_misled_by_what_is_no_proxy(run: Run) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as stranger:

        def greet() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"220 mail.example.com ESMTP\r\n")

        threading.Thread(target=greet, daemon=True).start()
        ended = run("healthcheck", f"http://127.0.0.1:{stranger.getsockname()[1]}")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("not ready: 220 mail.example.com ESMTP")


@pytest.mark.parametrize("url", ["localhost", "file:///etc", "http://127.0.0.1:65536", ""])
def test_healthcheck_takes_no_nonsense(run: Run, url: str) -> None:
    ended = run("healthcheck", url)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("not ready: ")


def test_what_differs_from_the_defaults_is_printed_without_secrets(run: Run) -> None:
    upstreams, policies = (
        "{main: {base_url: 'http://h/v1', api_key: sk-secret}}",
        "{mine: {extends: cost, fail: closed}}",
    )
    Path("config.yaml").write_text(f"upstreams: {upstreams}\npolicies: {policies}\n", encoding="utf-8")
    ended = run("config")
    assert (ended.code, ended.err) == (0, "")
    printed = yaml.safe_load(ended.out)
    assert printed["upstreams"] == {"main": {"base_url": "http://h/v1", "api_key": "**********"}}
    assert printed["policies"]["mine"]["fail"] == "closed"
    assert "keepalive" not in printed["policies"]["mine"], "it is as in the preset default"
    assert yaml.safe_load(run("config", "--all").out)["policies"]["mine"]["keepalive"] == 10.0
    Path("config.yaml").write_text("closed: false\n", encoding="utf-8")
    assert run("config") == Ended(0, "", "config.yaml: no setting differs from its default\n")
