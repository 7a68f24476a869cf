"""Whatever a conversation holds of secrets, nothing that is written of it does: neither upstream, nor in the store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace as changed

from policies.record import working_set
from policies.record.masking import as_allowed
from policies.record.record import Record
from proxy.admin.sessions.records import export_session, view_of
from proxy.callers.api_head import ApiHead
from proxy.callers.tenants import Tenants
from proxy.cli.mcp_server import _utterances_of
from proxy.cli.replay.replay import with_window
from proxy.cli.replay.stand_in import StandIn
from proxy.compaction.explain.explainer import explain
from proxy.compaction.plan_input import plan_input_of, with_newest_lessons
from proxy.compaction.prefetch import is_worth_following
from proxy.config.loading import load
from proxy.dialects.base import Usage
from proxy.models.tokenizer import Tokenizer
from proxy.sessions.index import Session
from proxy.wiring import open_apart
from tests.policies.secrets_table import SECRETS as TEXTS
from tests.policies.secrets_table import broken_up, whole
from tests.support.dialects import PLAIN, WRITERS, Called, Entry, Writer, model, request_body, user
from tests.support.scenarios import prose

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

_WINDOW = 12_000
_SAID = [said for text in TEXTS if len((said := broken_up(text))[1]) >= 8 and "\n" not in whole(text)]
_ROUNDS = 44
SECRETS = {secret for _, secret, _ in _SAID} | {f"tulip{at}Gx9" for at in range(_ROUNDS)}


def conversation(rounds: int) -> list[Entry]:
    """In each round a user's sentence, a call's argument, a result's two ends and the model's words hold a secret."""
    texts = [before + secret + after for before, secret, after in _SAID]
    entries = [user("Always deploy to the quince cluster. " + texts[0])]
    for at in range(rounds):
        one, two, three, four = (texts[(4 * at + part) % len(texts)] for part in range(4))
        aside = f"The password of the zebra{at} valve is tulip{at}Gx9"
        entries += [
            model(f"I look. {two}", Called(f"c{at}", "bash", one)),
            Entry("tool", results=((f"c{at}", f"{three}\n{prose(at, 450)}\n{aside}\n{prose(at, 450)}\n{four}"),)),
            model(f"The machine is named marker{at}. {one}"),
            user(f"Use port {7000 + at} for service{at}. {two}"),
        ]
    return entries


def asked(writer: Writer, entries: list[Entry]) -> bytes:
    items = [item for entry in entries for item in writer.items(entry, PLAIN)]
    return json.dumps(request_body(writer.dialect, "You work.", items, writer.fields())).encode()


def words_of_ours(writer: Writer, body: bytes, sent: bytes) -> str:
    """What of a request is not the client's: without its messages, and their texts where ours stand before them."""
    key = writer.dialect.array.name
    of_client = msgspec.json.decode(body)[key]
    left = json.dumps([item for item in msgspec.json.decode(sent)[key] if item not in of_client], ensure_ascii=False)
    for text in sorted(_strings(of_client), key=len, reverse=True):
        if len(text) > 12:
            left = left.replace(json.dumps(text, ensure_ascii=False)[1:-1], "")
    return left


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _strings(part)]


def secrets_in(text: str) -> set[str]:
    return {secret for secret in SECRETS if secret in text or json.dumps(secret)[1:-1] in text}


class Seen:
    """What was written of a conversation: sent, asked of a summarizer, stored, and shown."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.asked: list[str] = []
        self.stored: list[str] = []
        self.shown: list[str] = []
        self.records: dict[str, Record] = {}
        self.cooled = self.quoted = 0

    @property
    def secrets(self) -> set[str]:
        return secrets_in("\n".join([*self.sent, *self.asked, *self.stored, *self.shown]))


@pytest.fixture(params=WRITERS, ids=lambda writer: writer.dialect.name)
def writer(request: pytest.FixtureRequest) -> Writer:
    return request.param


async def played(writer: Writer, path: Path, secrets: str, model_name: str) -> Seen:
    """A conversation until it was compacted twice and comes back to something, in an engine of its own."""
    policy = {"secrets": secrets, "large_messages": {"threshold": 400}, "summarizer": {"cache_aligned": False}}
    policy["summarizer"] |= {"model": model_name} if model_name else {}
    path.write_text(json.dumps({"policies": {"default": policy}}))  # noqa: ASYNC240
    config = with_window(load(path, {}), _WINDOW)
    caller = Tenants(config).operator_of("default")
    assert caller is not None
    stand_in, seen = StandIn(Tokenizer()), Seen()
    async with open_apart(config, stand_in, lambda _: None) as engine:
        router = engine.router(config)
        for rounds in range(2, _ROUNDS):
            entries = conversation(rounds)
            entries.append(user("What was the password of the zebra1 valve, and which port has service1?"))
            body, head = asked(writer, entries), ApiHead("POST", "/", []).asking(writer.dialect)
            request = await engine.reader.read(body, caller.scope, router.encoding, writer.dialect)
            assert request is not None
            case = await engine.prompt_builder.place(plan_input_of(head, router, caller, "on", request))
            prompt = await engine.prompt_builder.build_first(case)
            seen.sent.append(words_of_ours(writer, body, prompt.body))
            seen.cooled += prompt.outcome == "cooled"
            quotations = prompt.view.quotations.values() if prompt.view else ()
            seen.sent += [one.text for one in quotations]
            seen.quoted += len(quotations)
            explained = await explain(engine, case, request)
            seen.shown.append(msgspec.json.encode([explained.pinned, explained.left_out]).decode())
            if is_worth_following(case, prompt):
                await engine.prefetch.follow_up(
                    with_newest_lessons(case, router), changed(prompt), Usage(prompt.tokens, 30)
                )
            seen.asked += [call.body.decode() for call in stand_in.take_calls()]
            if prompt.record is None:
                continue
            seen.records[prompt.record.digest] = prompt.record
            listed = Session("a" * 64, "", "m", 0.0, record=(case.chain.tag, prompt.record.digest))
            found = await export_session(engine.sessions, listed, case.chain.session, caller.policy.secrets)
            uses = [working_set.unpack_names(record.uses) for record in found.records]
            views = [view_of(record, found.records[-1]) for record in found.records]
            said = [text.text for record in found.records for text in _utterances_of(listed, record)]
            seen.shown.append(msgspec.json.encode([found, uses, views, said]).decode())
        entries_of_store = engine.sessions.sealed.store._entries  # type: ignore[attr-defined]
        for key, entry in entries_of_store.items():
            plain = engine.sessions.sealed.sealer.open(key, entry.value) or b""
            seen.stored.append(plain.decode("utf-8", "replace"))
            if key.startswith("cp:"):
                uses = working_set.unpack_names(msgspec.json.decode(plain, type=Record).uses)
                seen.stored.append(msgspec.json.encode(uses).decode())
    return seen


# Without a model in one dialect: such records hold a part of what the others hold.
@pytest.mark.parametrize(
    ("writer", "model_name"), [*((writer, "") for writer in WRITERS), (WRITERS[0], "none")], indirect=["writer"]
)
async def test_no_secret_of_a_conversation_is_written_anywhere(writer: Writer, tmp_path: Path, model_name: str) -> None:
    seen = await played(writer, tmp_path / "config.yaml", "mask", model_name)
    assert len(seen.records) >= 2
    # A record without a model has room for all that the user said: nothing is left to quote.
    assert seen.quoted or model_name == "none"
    assert "shortened by the gateway" in "".join(seen.sent)
    assert bool(seen.asked) is not bool(model_name)
    assert "[secret:" in "".join(seen.sent)
    assert "[secret:" in "".join(seen.stored)
    assert not seen.secrets


async def test_secrets_are_kept_where_the_policy_keeps_them(writer: Writer, tmp_path: Path) -> None:
    seen = await played(writer, tmp_path / "config.yaml", "keep", "none")
    assert len(seen.secrets) >= 20
    assert "[secret:" not in "".join([*seen.sent, *seen.stored])


async def test_a_record_made_before_secrets_were_masked_is_sent_and_shown_without_them(
    writer: Writer, tmp_path: Path
) -> None:
    seen = await played(writer, tmp_path / "config.yaml", "keep", "none")
    for record in seen.records.values():
        allowed = as_allowed(record, "mask")
        told = msgspec.json.encode([allowed, working_set.unpack_names(allowed.uses)]).decode()
        assert not secrets_in(told)
        assert as_allowed(allowed, "mask") is allowed
        assert as_allowed(record, "keep") is record
