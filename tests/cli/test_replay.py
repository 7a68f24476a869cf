"""`concertina replay`: every form of a recording, figures that agree with the real proxy, and nothing but figures."""

from __future__ import annotations

import io
import json
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from rich.console import Console

from policies.conversation.transcript import Block
from policies.record.bisect import SummarizeCall
from policies.record.prompting import Continuity, fill
from policies.record.texts import ALL_TEXTS
from policies.record.validation import Valid, validate
from proxy.callers.tenants import Tenants
from proxy.cli.main import app
from proxy.cli.replay import command as replay_command
from proxy.cli.replay.command import sentence
from proxy.cli.replay.figures import LEAST_CACHED
from proxy.cli.replay.recordings import read_recordings
from proxy.cli.replay.replay import replay, with_window
from proxy.cli.replay.stand_in import StandIn
from proxy.config.loading import load, preset_names
from proxy.dialects.table import CHAT, DIALECTS
from proxy.models.table import ModelTable, Price
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.models.windows import Windows, place_of
from proxy.upstreams.routes import SummaryTarget
from proxy.wiring import open_apart, read_prompts
from tests.support.model_server import ModelServer
from tests.support.plain_talk import path_of, turns, written
from tests.support.scenarios import MODEL, WINDOW, Agent, Message, prefix_reuse, session, stage, user

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.dialects.base import Dialect

describe = CHAT.items.describe

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True)
class Ended:
    """The command's end."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, object]:
        told: dict[str, object] = json.loads(self.out)
        return told

    def row(self, policy: str, number: int = 0) -> dict[str, object]:
        """The figures of one policy in one session."""
        row: dict[str, object] = json.loads(self.out)["sessions"][number]["policies"][policy]
        return row


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ended]:
    """`concertina replay` in this process and an empty directory, where nobody may be connected to."""

    def refused(*_: object) -> NoReturn:
        raise AssertionError("a replay asks nobody")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)

    def command(*words: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            app(("replay", *words))
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    return command


def talk() -> list[Message]:
    """Two questions, one answered with the help of two calls, whose answer is there; the other one is not answered."""
    agent = Agent()
    agent.says("What is in the two parts?")
    agent.works(calls=2)
    return agent.says("Go on.")


def chat() -> list[Message]:
    """The same, without tools."""
    return [user("What is a lease?"), {"role": "assistant", "content": "A claim that ends."}, user("How long?")]


def long_talk(requests: int = 40) -> list[Message]:
    agent = Agent()
    *_, last = session(agent, requests=requests)
    return last


def saved(value: object, name: str = "talk.json") -> str:
    Path(name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return name


def lines(*values: object) -> str:
    return "\n".join(json.dumps(value) for value in values) + "\n"


def requests_of(path: str, model: str | None = None) -> list[dict[str, object]]:
    (recording,) = read_recordings(Path(path), model)
    bodies = [json.loads(body) for body in recording.bodies()]
    assert recording.requests == len(bodies)
    return bodies


CAPTURED = {"method": "POST", "path": "/v1/chat/completions", "body": {"model": MODEL, "messages": chat()}}


@pytest.mark.parametrize(
    "recorded",
    [
        {"model": MODEL, "messages": chat()},
        chat(),
        [{"messages": chat()}],
        lines(*chat()),
        lines({"messages": chat()[:1]}, {"messages": chat()}),
        lines(CAPTURED | {"body": {"messages": chat()[:1]}}, CAPTURED),
        CAPTURED,
        {"info": {"cost": 1}, "trajectory_format": "1", "messages": [m | {"extra": {"t": 1}} for m in chat()]},
        {"meta": {}, "messages": [*chat(), {"role": "exit", "content": "done"}], "qa": []},
        json.dumps({"messages": chat()}, indent=2),
    ],
)
def test_a_conversation_is_the_same_requests_in_every_form(
    recorded: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = requests_of(saved(recorded))
    assert [first["messages"], second["messages"]] == [chat()[:1], chat()]
    assert first["model"] == second["model"] == MODEL
    assert requests_of("talk.json", "other")[1]["model"] == "other"


def test_the_deployment_in_the_path_of_a_recorded_request_is_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "/openai/deployments/My.Model/chat/completions?api-version=1"
    for body in ({"messages": chat()}, {"messages": chat(), "model": MODEL}):
        assert [each["model"] for each in requests_of(saved(CAPTURED | {"path": path, "body": body}))] == [
            "My.Model"
        ] * 2


def test_a_request_is_made_for_every_user_message_and_every_complete_set_of_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = {"model": "m", "tools": [TOOL], "max_tokens": 9, "temperature": 0, "messages": talk()}
    bodies = requests_of(saved(recorded))
    assert [len(body["messages"]) for body in bodies] == [2, 5, 7]  # type: ignore[arg-type]
    assert all(body["tools"] == [TOOL] and body["max_tokens"] == 9 for body in bodies)
    assert bodies[-1]["messages"] == talk()
    incomplete = [*talk()[:4], {"role": "assistant", "content": "One is missing."}, user("Oh.")]
    assert [len(body["messages"]) for body in requests_of(saved(incomplete))] == [2, 6]  # type: ignore[arg-type]
    twice = [user("One."), user("Two."), {"role": "assistant", "content": "Yes."}]
    assert [len(body["messages"]) for body in requests_of(saved(twice))] == [2]  # type: ignore[arg-type]


def test_lines_of_requests_are_replayed_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    raw = [
        b'{ "messages":[{"role":"user","content":"a"}],\t"model":"m"}',
        b'{"model":"m","messages":[ {"role":"user"} ]}',
    ]
    Path("log.jsonl").write_bytes(b"\n\n".join(raw))
    (recording,) = read_recordings(Path("log.jsonl"), None)
    assert list(recording.bodies()) == raw


def test_conversations_that_have_ended_are_a_session_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = {"messages": chat()[:2]}
    assert [r.name for r in read_recordings(Path(saved(lines(ended, ended))), None)] == ["talk.json#1", "talk.json#2"]
    assert [r.requests for r in read_recordings(Path(saved([ended, {"messages": chat()}])), None)] == [1, 2]


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ("", "is empty; give a request body"),
        ("hello", "is neither JSON nor JSON lines"),
        ('{"messages": []}', "contains no conversation; give"),
        ("[1, 2]", "contains no conversation; give"),
        ("[]", "contains no conversation; give"),
        ("{}\n{", "line 2 is not JSON"),
        ({"messages": [{"role": "assistant", "content": "Hi."}]}, "contains no user message"),
        ({"messages": ["hello"]}, "contains no user message"),
        (CAPTURED | {"path": "/v1/completions"}, "is a request to /v1/completions, which is relayed unchanged"),
        (CAPTURED | {"path": "/v1/messages/batches?a=b"}, "is a request to /v1/messages/batches?a=b, which is"),
        ({"input": "Hi."}, "contains no conversation; give"),
    ],
)
def test_what_cannot_be_replayed_is_told_with_the_way_out(
    run: Callable[..., Ended], recorded: object, said: str
) -> None:
    ended = run(saved(recorded))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"talk.json: {said}")
    assert "; " in ended.err


def anthropics() -> list[object]:
    """`talk`, as the Messages API has it."""
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "read_file", "input": {}} for n in range(2)]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "It says so."} for call in calls]
    return [
        {"role": "user", "content": "What is in the two parts?"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
        {"role": "assistant", "content": "This."},
        {"role": "user", "content": "Go on."},
    ]


def openais() -> list[object]:
    """The same as the Responses API has it: an answer of three items, whose results come one by one."""
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "read_file", "arguments": "{}"} for n in range(2)]
    results = [{"type": "function_call_output", "call_id": f"c{n}", "output": "It says so."} for n in (1, 0)]
    return [
        {"role": "user", "content": "What is in the two parts?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        *calls,
        *results,
        {"role": "assistant", "content": "This."},
        {"role": "user", "content": "Go on."},
    ]


@pytest.mark.parametrize(
    ("recorded", "dialect", "key", "ends"),
    [
        ({"input": openais(), "instructions": "Be brief."}, "responses", "input", [1, 6, 8]),
        (CAPTURED | {"path": "/v1/responses", "body": {"input": openais()}}, "responses", "input", [1, 6, 8]),
        ({"messages": anthropics(), "system": "Be brief."}, "messages", "messages", [1, 3, 5]),
        ({"messages": anthropics()}, "messages", "messages", [1, 3, 5]),
        (anthropics(), "messages", "messages", [1, 3, 5]),
        (
            CAPTURED | {"path": "/v1/messages?beta=true", "body": {"messages": anthropics()[:1] + anthropics()[3:]}},
            "messages",
            "messages",
            [1, 3],
        ),
    ],
)
def test_a_recording_is_read_in_its_own_dialect(
    recorded: object, dialect: str, key: str, ends: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (recording,) = read_recordings(Path(saved(recorded)), None)
    assert recording.dialect.name == dialect
    bodies = [json.loads(body) for body in recording.bodies()]
    assert [len(body[key]) for body in bodies] == ends
    beside = {value for body in bodies for name, value in body.items() if name not in (key, "model")}
    assert beside <= {"Be brief."}


def test_requests_of_several_dialects_are_sessions_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_recordings(Path(saved(lines({"input": openais()}, {"messages": anthropics()}))), None)
    assert [(recording.dialect.name, recording.requests) for recording in found] == [("responses", 3), ("messages", 3)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("aligned", [False, True])
def test_a_session_of_any_dialect_is_played(run: Callable[..., Ended], dialect: Dialect, *, aligned: bool) -> None:
    said = turns(60)
    bodies = [json.loads(written(dialect, said[:end])) for end in range(41, len(said) + 1, 2)]
    captured = [{"method": "POST", "path": path_of(dialect), "body": body} for body in bodies]
    policy = {"extends": "default", "summarizer": {"cache_aligned": aligned}}
    saved({"policies": {"mine": policy}}, "config.yaml")
    row = run(saved(lines(*captured)), "--policy", "mine", "--window", str(WINDOW), "--json").row("mine")
    assert row["summarizer_calls"]
    assert row["over_window"] == 0
    assert float(str(row["saved"])) > 0.2
    assert float(str(row["prefix_reuse"])) > 0.8


def test_a_missing_file_is_told(run: Callable[..., Ended]) -> None:
    ended = run("gone.json")
    assert ended.code == 1
    assert ended.err.startswith("gone.json: No such file or directory; name a file")


def test_a_directory_is_replayed_without_what_cannot_be_read(run: Callable[..., Ended]) -> None:
    Path("runs/more").mkdir(parents=True)
    saved(chat(), "runs/a.json")
    saved({"messages": talk()}, "runs/more/b.json")
    saved("# Notes", "runs/README.md")
    saved(lines({"messages": [1, {"role": "user", "content": "?"}]}, {"messages": chat()}), "runs/odd.jsonl")
    ended = run("runs", "--policy", "default", "--json")
    assert [s["name"] for s in ended.json["sessions"]] == ["a.json", "b.json"]  # type: ignore[attr-defined]
    readme, odd = ended.err.splitlines()
    assert readme.startswith("skipped runs/README.md: is neither")
    assert odd == "skipped odd.jsonl: request 1 is no chat request; remove it"
    total = json.loads(ended.out)["total"]
    assert total["requests"] == 5
    parts = [ended.row("default", number) for number in (0, 1)]
    assert total["policies"]["default"]["tokens_sent"] == sum(int(str(part["tokens_sent"])) for part in parts)


def test_an_unknown_policy_is_told_with_the_one_that_was_meant(run: Callable[..., Ended]) -> None:
    ended = run(saved(chat()), "--policy", "coding")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "--policy coding: no policy has this name; did you mean 'coding-agent'?\n"


def weight(messages: Sequence[Message]) -> int:
    tokenizer = Tokenizer()
    described = [describe(message, partial(tokenizer.count, encoding=DEFAULT_ENCODING)) for message in messages]
    return sum(message.tokens for message in described if message is not None)


def test_the_figures_of_a_small_session_are_those_of_a_calculation_by_hand(run: Callable[..., Ended]) -> None:
    agent = Agent(words=600)
    agent.says("Begin.")
    agent.works(calls=2)
    messages = agent.works()
    row = run(
        saved({"model": MODEL, "messages": messages}), "--policy", "default", "--window", "1000000", "--json"
    ).row("default")
    first, second, third = messages[:2], messages[:5], messages[:7]
    sizes = [weight(request) for request in (first, second, third)]
    price = ModelTable().price(MODEL)
    assert price is not None
    assert sizes[0] < LEAST_CACHED < sizes[1], "a short prefix is in no cache"
    cost = price.prompt * (sizes[0] + sizes[1] + sizes[2] - sizes[1]) + price.cached * sizes[1]
    assert row == {
        "tokens_received": sum(sizes),
        "tokens_sent": sum(sizes),
        "saved": 0.0,
        "compactions_inline": 0,
        "compactions_background": 0,
        "cooled_batches": 0,
        "summarizer_calls": 0,
        "prefix_reuse": 1.0,
        "over_window": 0,
        "first_over": None,
        "cost_usd": round(cost, 6),
        "net_usd": 0.0,
    }


@pytest.mark.requirement("R1 2.1")
@pytest.mark.anyio
async def test_the_figures_are_those_of_the_real_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over real sockets, with the record that needs no model: then both send the same bytes."""
    policies = {"default": {"summarizer": {"model": "none"}}}
    # An upstream that counts more than we do would teach the proxy, which none does in a replay.
    async with stage(tmp_path, ModelServer(token_ratio=0.9), policies=policies) as played:
        await played.play(session(Agent(), requests=60))
        outcomes = [reply.headers["x-compaction"] for reply in played.replies]
        received = sum(reply.received for reply in played.replies)
        sent = sum(int(reply.headers["x-compaction-tokens-sent"]) for reply in played.replies)
        reuse = prefix_reuse(played.sent)
        with_record = sum(outcome in ("applied", "reused") for outcome in outcomes)

    monkeypatch.chdir(tmp_path)
    config = tmp_path / "replay.yaml"
    config.write_text(json.dumps({"policies": policies}))
    loaded = load(config, {})
    caller = Tenants(loaded).operator_of("default")
    assert caller is not None
    recordings = read_recordings(Path(saved(long_talk(60))), MODEL)
    replayed = await replay(open_apart, with_window(loaded, WINDOW), recordings, [caller], lambda: None, pytest.fail)
    row = replayed.sessions[0].policies["default"]
    assert row.tokens_received == received
    assert row.compactions_inline == outcomes.count("applied") >= 3
    assert row.compactions_background == row.summarizer_calls == row.over_window == 0
    assert row.prefix_reuse == pytest.approx(reuse, abs=0.005)
    # The estimate leaves out what every message costs beside its text, for the record's.
    assert sent <= row.tokens_sent <= sent + 4 * with_record


def test_every_preset_is_measured_side_by_side_and_two_runs_agree(run: Callable[..., Ended]) -> None:
    words = (saved(long_talk()), "--window", str(WINDOW), "--json")
    ended = run(*words)
    assert (ended.code, ended.err) == (0, "")
    assert list(ended.json["sessions"][0]["policies"]) == ["no proxy", *preset_names()]  # type: ignore[index]
    assert run(*words) == ended
    default = ended.row("default")
    assert default["over_window"] == 0
    assert default["compactions_background"], "summaries are made ahead as the proxy makes them"
    assert default["summarizer_calls"] == int(str(default["compactions_inline"])) + int(
        str(default["compactions_background"])
    ), "every answer of the stand-in is a valid one"


def test_a_policy_that_only_watches_sends_everything_and_dies_where_the_window_ends(run: Callable[..., Ended]) -> None:
    messages = long_talk()
    ended = run(saved({"model": MODEL, "messages": messages}), "--window", str(WINDOW), "--json")
    observe, without = ended.row("observe"), ended.row("no proxy")
    assert observe == without
    ends = [len(json.loads(body)["messages"]) for body in read_recordings(Path("talk.json"), None)[0].bodies()]
    over = [number for number, end in enumerate(ends, 1) if weight(messages[:end]) > WINDOW]
    assert (without["over_window"], without["first_over"]) == (len(over), over[0])
    assert ended.json["watching"] == ["observe"]
    shown = run("talk.json", "--window", str(WINDOW)).out
    assert "observe changes nothing: every request was sent unchanged." in shown
    assert f"request {over[0]} is the first over the window" in shown


@pytest.mark.parametrize("window", [8_192, 32_768])
def test_the_presets_are_for_whom_they_say(run: Callable[..., Ended], window: int) -> None:
    agent = Agent(words=150 * window // 8_192)
    *_, messages = session(agent, requests=60)
    ended = run(saved(messages), "--window", str(window), "--json")
    rows = {name: ended.row(name) for name in preset_names() if name != "observe"}
    assert min(rows, key=lambda name: float(str(rows[name]["cost_usd"]))) == "cost"
    assert max(rows, key=lambda name: int(str(rows[name]["tokens_sent"]))) == "chat", "it keeps the most"
    for name in ("coding-agent", "chat"):
        assert float(str(rows[name]["prefix_reuse"])) > float(str(rows["default"]["prefix_reuse"])) - 0.02, name


def test_a_request_over_the_window_goes_down_the_ladder(run: Callable[..., Ended]) -> None:
    agent = Agent(words=40)
    agent.says("Begin.")
    agent.words = 9_000
    large = agent.works()
    ended = run(saved(large), "--policy", "default", "--window", str(WINDOW), "--json")
    assert ended.row("no proxy")["first_over"] == 2
    assert ended.row("default")["over_window"] == 0, "its contents were cut"
    tools = [TOOL | {"description": agent.write("tool", 9_000)}]
    ended = run(saved({"messages": chat(), "tools": tools}), "--policy", "default", "--window", str(WINDOW), "--json")
    assert ended.row("default")["over_window"] == 2, "nothing can be cut of tools"


def test_large_results_that_are_made_short_are_counted_by_batch(run: Callable[..., Ended]) -> None:
    agent = Agent(words=3_000)
    agent.says("Begin.")
    for _ in range(13):
        agent.works()
    ended = run(saved(agent.messages), "--policy", "default", "--window", "65536", "--json")
    assert int(str(ended.row("default")["cooled_batches"])) >= 1


def test_what_a_summary_costs_is_in_the_price(run: Callable[..., Ended]) -> None:
    config = {
        name: {"extends": "default", "summarizer": {"model": model}}
        for name, model in (("own", MODEL), ("dear", "gpt-4"), ("none", "none"))
    }
    saved({"policies": config}, "config.yaml")
    saved(long_talk())
    policies = [word for name in config for word in ("--policy", name)]
    ended = run("talk.json", *policies, "--window", str(WINDOW), "--json")
    own, dear, none = (ended.row(name) for name in config)
    assert none["summarizer_calls"] == 0
    # A cut follows what a record takes, and models write more or less of it.
    assert min(int(str(own["summarizer_calls"])), int(str(dear["summarizer_calls"]))) > 0
    assert float(str(dear["cost_usd"])) > float(str(own["cost_usd"])) > 0


@pytest.mark.requirement("R1 4.1 length")
def test_what_a_model_would_have_written_is_paid_for(
    run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Windows, "price", lambda *_: Price(0.0, 1.0, 0.0, 0.0, 0.0))
    saved({"policies": {"brief": {"extends": "default", "summarizer": {"target_tokens": 400}}}}, "config.yaml")
    row = run(saved(long_talk()), "--policy", "brief", "--window", str(WINDOW), "--json").row("brief")
    assert row["cost_usd"] == 400 * int(str(row["summarizer_calls"])) > 0


def test_an_unknown_price_or_window_is_said_once(run: Callable[..., Ended]) -> None:
    saved({"model": "nobody-knows-me", "messages": talk()})
    ended = run("talk.json", "--json")
    assert ended.row("default")["cost_usd"] is ended.row("default")["over_window"] is None
    shown = run("talk.json").out
    assert shown.count("nobody-knows-me is not in the table of models") == 1
    assert shown.count("nobody-knows-me: window unknown") == 1
    assert "nobody-knows-me" not in run("talk.json", "--model", MODEL).out


def test_the_table_shows_the_figures_and_whom_the_presets_are_for(run: Callable[..., Ended]) -> None:
    saved({"model": MODEL, "messages": long_talk()})
    ended = run("talk.json", "--window", str(WINDOW))
    row = run("talk.json", "--window", str(WINDOW), "--json").row("default")
    (shown,) = [line for line in ended.out.splitlines() if line.startswith("default ")]
    assert shown.split() == [
        "default",
        f"{row['tokens_sent']:,}",
        f"{row['saved']:.0%}",
        *(str(row[f"{name}"]) for name in ("compactions_inline", "compactions_background", "cooled_batches")),
        str(row["summarizer_calls"]),
        f"{row['prefix_reuse']:.2f}",
        "0",
        f"{row['cost_usd']:.3f}",
        f"{row['net_usd']:+.3f}",
    ]
    assert f"\ntalk.json: 40 requests, {row['tokens_received']:,} tokens received; request" in ended.out
    assert "Summaries are lines of the transcript" in ended.out
    assert "\x1b[" not in ended.out
    for name in preset_names():
        assert f"\n{name}: {sentence(name)}\n" in ended.out
        assert sentence(name).startswith("For ")
        assert sentence(name).endswith(".")


def test_tenants_limits_and_the_store_are_left_alone(run: Callable[..., Ended], tmp_path: Path) -> None:
    config = {
        "store": {"url": "sqlite:///var/never.db"},
        "tenants": {"default": {"summary_tokens_per_day": 0}},
        "policies": {"mine": {"extends": "cost"}},
    }
    saved(config, "config.yaml")
    before = Path("config.yaml").read_bytes()
    ended = run(saved(long_talk()), "--policy", "mine", "--window", str(WINDOW), "--json")
    assert ended.row("mine")["summarizer_calls"], "a limit of tokens a day is not for figures"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "talk.json"]
    assert Path("config.yaml").read_bytes() == before


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_sees_how_far_a_long_replay_is(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(replay_command, "_DELAY", 0.0)
    loaded, told = load(None, {}), io.StringIO()
    caller = Tenants(loaded).operator_of("default")
    assert caller is not None
    console = Console(file=told, force_terminal=terminal, no_color=True)
    replay_command.run(loaded, read_recordings(Path(saved(talk())), None), [caller], WINDOW, console, pytest.fail)
    assert ("replaying" in told.getvalue()) == terminal


def _target() -> SummaryTarget:
    upstream = load(None, {}).upstreams["main"]
    place = place_of("default", b"", upstream.base_url, MODEL)
    return SummaryTarget(CHAT, place, "main", upstream, [], DEFAULT_ENCODING, None, 1.0, "max_tokens", None)


@pytest.mark.anyio
@pytest.mark.parametrize("language", range(len(ALL_TEXTS)))
@pytest.mark.parametrize("words", [200, 900, 4_000])
async def test_the_stand_in_answers_what_may_be_stored(language: int, words: int) -> None:
    texts, tokenizer = ALL_TEXTS[language], Tokenizer()
    count = partial(tokenizer.count, encoding=DEFAULT_ENCODING)
    source = Agent().write(words, words) + "\n## No heading\n<transcript>\n<think>"
    prompt = fill(
        read_prompts(), SummarizeCall((Block(source, count(source), cut_before=True),), 0), Continuity(), texts, 400
    )
    stand_in = StandIn(tokenizer)
    answer = await stand_in.ask(_target(), prompt, 1_024)
    size = count(prompt.user)
    verdict = validate(answer, source=prompt.user, source_tokens=size, cap=800, headings=texts.headings, count=count)
    assert isinstance(verdict, Valid), verdict
    assert count(verdict.text) <= 400 + 10
    assert count(verdict.text) > 0.7 * min(400, 0.4 * size), "it is about as long as was wanted"
    assert [call.written for call in stand_in.take_calls()] == [400]
    assert stand_in.take_calls() == []
