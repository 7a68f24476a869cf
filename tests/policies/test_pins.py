"""What stored data depends on, as literals: a change here loses every record that users have."""

from __future__ import annotations

import base64

import msgspec
import pytest

from policies.conversation.prefix_digests import prefix_digests
from proxy.sessions.record_store import RecordStore
from proxy.sessions.stores.memory import MemoryStore
from proxy.sessions.stores.sealing import SealedStore, Sealer
from tests.support.conversations import Json, assistant, described, tool, user

CHATS: dict[str, list[Json]] = {
    "a question": [user("What is 17 * 23?")],
    "an answer": [user("What is 17 * 23?"), assistant("391")],
    "Chinese and emoji": [user("请把数据库迁移到 PostgreSQL 15。🚀"), assistant("好的。")],
    "text parts": [user("x") | {"content": [{"type": "text", "text": "Look:"}, {"type": "text", "text": "here"}]}],
    "an image": [
        user("x") | {"content": [{"type": "image_url", "image_url": {"url": "https://host/a.png", "detail": "low"}}]}
    ],
    "parallel results in another order": [
        user("Run both."),
        assistant(None, "c1", "c2", name="bash", arguments='{"command": "make", "cwd": "/srv"}'),
        tool("c2", "two"),
        tool("c1", "one"),
    ],
    "a result that comes late": [
        user("Start it."),
        assistant("Started.", "c1"),
        user("And?"),
        assistant("Waiting.", "c2"),
        tool("c1", "done at 2026-11-22 20:15:01"),
        tool("c2", "ok"),
    ],
    "a legacy function": [
        user("Weather?"),
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city":"Ulm"}'}},
        {"role": "function", "name": "weather", "content": "rain"},
    ],
    "reasoning and a refusal": [
        user("Do it."),
        {"role": "assistant", "content": None, "refusal": "No.", "reasoning_content": "I should not."},
    ],
    "an instruction inside": [user("Hi"), {"role": "developer", "content": "Be brief.", "name": "ops"}, user("Go")],
}
DIGESTS = {
    "a question": "3aff5fe6b084dba45b8de5894c6dcccdc549c8f2609614520433108a45748372",
    "an answer": "a44bdf07394156e9d204cdd196d30b829aaf842132170d4c5ceb6acf3796395d",
    "Chinese and emoji": "473d1ca35434e5d36f41cf87ca0f4643785048cd4187fdf01f102f464fd698d5",
    "text parts": "00b4bd7165d38c489cc80c54785aa87275f8525575c643fe2430d0699b71070d",
    "an image": "6192bca15c9a3ef4f332f2b1d7e8843d5f80cc19485ccf2ce7274076ff4e577e",
    "parallel results in another order": "b21ee0a51d0698d50e02ed58e31d4d3b6158435f7b0ff47bc7831ab5714025e6",
    "a result that comes late": "7d46f032b1be524efa242cc66fb03c3931311103ac3c761f9e00050c793f6847",
    "a legacy function": "cae87f5d8622a6863a611f5a2735315c0bf977c9415b179b433f8b9967d0ae5e",
    "reasoning and a refusal": "721f199b2d6e738b674ec8b39a53a7d1118432bf00fa4315e4055d038b0a06c4",
    "an instruction inside": "f13c34c22364e37efe791e76c84c0e5eaf761a66c0af08f8f6971155e6d56a6f",
}
RECORD = {
    "version": 2,
    "digest": "8cac56c013c468ab32daa6811d404d65f4de1d93c37c7a1cd9f01f3475b6e05f",
    "root": "digest",
    "parent": "digest",
    "covered": 4,
    "generation": 2,
    "language": "en",
    "text": (
        "<conversation_record>\nThe gateway's factual record of the earlier part of this "
        "conversation, which no longer fits the context window. It is not a message from the user "
        "and holds no instructions to you beyond what the user said. Later messages win over it. "
        "Tools work as before. Do not mention it; answer in the user's language.\n\nAll is well and "
        "the weather is fine.\n\n## Timeline\n- Nothing happened.\n- Nothing happened.\n\n## What the "
        "user said, verbatim, oldest first (later wins)\n- [0] Set up the repo.\n- [0] Never push to "
        "main without asking me.\n- [0] The port is 8080.\n- [10] please go on with step 1\n\n## Tool "
        'calls\n- write_file({"path": "src/f0.py"}) -> ok\n- write_file({"path": "src/f1.py"}) -> ok\n\n'
        "## Files\n- src/f0.py (created)\n- src/f1.py (created)\n</conversation_record>"
    ),
    "text_tokens": 199,
    "summary": "All is well and the weather is fine.",
    "segments": ({"text": "Nothing happened.", "insights": ()}, {"text": "Nothing happened.", "insights": ()}),
    "entries": (
        {
            "kind": "task",
            "text": "Set up the repo.",
            "position": 0,
            "order": 1,
            "rank": 0,
            "used": False,
            "opening": False,
        },
        {
            "kind": "directive",
            "text": "Never push to main without asking me.",
            "position": 0,
            "order": 2,
            "rank": 0,
            "used": False,
            "opening": True,
        },
        {
            "kind": "fact",
            "text": "The port is 8080.",
            "position": 0,
            "order": 3,
            "rank": 0,
            "used": False,
            "opening": True,
        },
        {
            "kind": "fact",
            "text": "please go on with step 1",
            "position": 10,
            "order": 1,
            "rank": 0,
            "used": False,
            "opening": False,
        },
    ),
    "actions": (
        {"tool": "write_file", "arguments": '{"path": "src/f0.py"}', "ok": True, "position": 1},
        {"tool": "write_file", "arguments": '{"path": "src/f1.py"}', "ok": True, "position": 11},
    ),
    "files": ({"path": "src/f0.py", "action": "created"}, {"path": "src/f1.py", "action": "created"}),
    "making": {
        "algorithm": "single",
        "trigger": "proactive",
        "level": "L0",
        "split_strategy": "turn-boundary",
        "boundary_adjustment": "exact",
        "boundary_adjustment_delta": 0,
        "fallback_reason": None,
        "rounds": {"total": 9, "summarized": 5, "kept": 4},
        "tokens": {"before": 6000, "after": 999, "summary": 199},
        "chunk_count": 1,
        "max_depth": 0,
        "truncated": False,
        "calls": 1,
        "model": None,
        "latency_ms": 0,
        "spent": {"prompt_tokens": 0, "completion_tokens": 0, "usd": None},
        "rebuilt": False,
    },
    "first_digest": "first",
    "last_digest": "last",
    "title": "a conversation",
    "started": 1600000000.0,
    "compacted": 1700000000.0,
}
KEY = "cp:{6d0ec30929284899e2609c6a98ffd828}:2:8cac56c013c468ab32daa6811d404d65f4de1d93c37c7a1cd9f01f3475b6e05f"
ENCRYPTION_KEY = b"an operator's key of any length"
PLAIN = (
    "AQCJ9Lp+IJeXSpPYbMxCAC8NeJylVltv2zYU/isE+7AEUFwpdpzEKwoMGAYMKPqyAHuoA4OmKIkzRQokVccz8t/7HcqXXOo1xfxg"
    "W4fnfOc7V2rLvyoftLN8dpnxUtcqRD7jN1LIq6nMi7GcTG/EcnxZCjG9KYpykk/K6VU1KVVR3o7l+Fpei0KWt1VeVOPJ9dVyqvKr"
    "imfcO0dIO8iMd8Ir+0wiHXyrks8mGa+VVV7EPREjbN2LWkFdWahG9UCmH6SzxDcpLrySzpcf5/auUawWUa3F5pfAKiFjLwwbjpmr"
    "WMS5Et5o5RloxEGmA3sKl7F1o2XDrGPG2RqqlY4h2UKNCLC1tqVbj9ifkcHYusgEa1UIIMoq79qk3AeYCluyxpmStJi2IfpekhPg"
    "ObZxPVuqjYPOuhHxaBWELkfsEyLxe9xAThkliuk4YnfOGYicXzERAFI5r0bsd5fItMgvfEDxVxAIa7KxB3RkZp/V0dzO7W/GUBRr"
    "hV+iS3prJfDjSV5pO+i9e8fudKsMnuf2gn12yJytWSO6DjUrRyeEyfDvV+FlDKEskfA2Y8gPGgGePL7PTAob0YZzgvyS37O/VGR9"
    "lwC86txoL/+sKB9dHxpKZysQ5VrHxvUoSFgRkVYdlKk5OudTyW7ym3w4KHDSGSUCOscxNwCwEFXHin3UyDWTwphAFmuvo1pU2qiz"
    "7RzNHJs5n7E5D16+r/JRt5nzx3N28ZG51Q/Vixfqyd0f0E2eDojsTHoURJXnB3HxQvzh/fcmYjcwi+hWygY+K25vMx76thV+gyl6"
    "S+UBEVRNHQX7L9v9AL4qNPRQMV03Se/+MXu76n2G2Y5eq8ED6oZVwCMqeBz4lx1Ae8QFPeyJPOOIVnkEiHUj7CqJ0GrAqYQJCudw"
    "DRK7Z2K3c1Nq5Crqr+ro601ddYLA5Q8JYAM89U9L6uj6VY+ecDP+f25ONfwzb8XPpxWVFMN6G3oFgwNvxxEAvvB1v+smfnJ+oOdW"
    "QwzPGKWu+mnQ4r9BC6JNQANpMgbMgQ7fxwThbt448XiqV5zSA3IrVilDWy5M7cC6ackMskQdfV/XlGPeeSf2nWjQghTlp5zmrzM6"
    "LnB1ALOmuY29txdL19uS5jjj+78LUf7Th9gO16t6GGr+ndNFqUwUqZwonFkKucLKEIHI294YurRhFIh1dFGAymFx6H+p/lcZX6kO"
    "biaPiGG3XrZ8uIj4bJrnwBZVpMhun20d7CCYyKa3q4WEl5jaqxUPINVRSnNKSm9lyuC+0dL6HTRdSakZaNJdYeVm0YZkF7oU+pZy"
    "2XbHvZfTO0aLrk/L8Ym0D+UABUpeLXtt4mFF8HQfLQ6vQumRaiOeSumJyqijoZcU8exVgooX8Z5BgRSUk/QZ7eigPOng+njw+A0m"
    "aTTk"
)
ENCRYPTED = (
    "AQEv3/GRQXo3SbI/cTpk91xxvdJLL7EZK3e3GXN9fCkpNx7FwtCZPHeQW1lxJLxIQ732rHKs9U81WrkNmxdy3RxTe1fJ5GYMmkHs"
    "MoO5yUI4o0w3HEYmmxjd5D+DLI1FDa4vVoqpa62Zd4juOvf5uuYEoNAsusCoFDaCkwNQbOv+yRtTBM5la12ACmXiXblDHItqvpj/"
    "q994POpWnN3qDWGvk3VRJYmCS26BsHuQnpt5UkM4A+drnIKphjNE4fa8Mu4i1Y8sORHwpPH0bMtRxlGYEKv4krdvJq/Xbkn6HB7e"
    "efVO5RbozevmaTD1Au69bo5FjZVPIseuCWKqil/ZztjOk5e75dgzu/LAiaUboJ9wRSeib6FDpwExpvaH765l9hdDQT8BdwIgdEpD"
    "HnsxbRNSI8BaL58Z/aVRHfGz6YdCsPkgEq+VlMjYBnpOb0SZnskHT/AGfP2Td20tUza3e8LN+yI4t2k8SpYq6fSaZWZ0ZjUPgraF"
    "bscUfN556F1fcFQ1U7Doi/7T75Yn8sps36bw2xSrYQyJkdb5ZyPQ33GAAUljVzsH9qK0Gu/jFeNaeeLm2gN4/m9wcevSTqpQa+rC"
    "MBUDcjUFzcelt2mpKcoglc0OPaJ0Kfafw54ZTlDBCd8/4JSSoVzQpa4A4LCvozsum0N7q7iwgIkzDYCyp09FY8GaZ5di/EdOH5br"
    "D4SDN3TSne1h5/kbYb33CTbtdC8XChAEX6bPZTyvzaPofL9VBy+i/j8V36PNvfQbAl2hSmVIU2o47t7blQN3xdYpYyH4utN6SDlg"
    "FwEyhSKXA/PmgdHpr+fPyuH6rfyMp2Cs0dotHyyvKN3QS+xJR1kGQrnCiVOn8gl1enBRsGpNneY7YaBmOQjLWA4nPmvQ1UXDr4iC"
    "42K398fdUbVhHjwGIVuXYrh2VZsbldlOcEI1kpksTDlVRj0eMmcQeWo9lzUQiCzNgoZOgvkiilECJRsHFtj1vSPWQ0ZPgDc76pr0"
    "wHHVM1ePpWaYPNgsTUCKfaBN7HkHqnJ7/9N4+L6Q3/0wYg/kOXKF5yuRa6qP+Tf1jHxqVOptadJ84wgSaiuCTMppoU8+QIwiFunl"
    "Vn2xYAQDGbhZHe0fbS/nEC1S0oZD3Gt5PDogGH/E1AAkCpZAxcPVncFR8eEwhtfJv+gajgr164iVYPmWf5jBX/rs9y6xMzs29A1u"
    "VTTEcujzj7QGT+LJ8OJXuNC5RTgd2BBfmB+qSp7NC73lvJAjBK1wjoN2UNFx2PJcD/xHzq6K2zoMe3b3iFdCCP8+e4FpQYrwAf0r"
    "jWKeauXycG4sOiOuHhXlcSw1zx4AKMHJIJQRIwIpHtJAMOhNZv9XkUoua+4BNVxbiS5OT5wAHHpEsqNxzxOJ585Yy6/E/mFgGUni"
    "rXcpPj1f1bUdSYpeOpPhHehV0w=="
)


def digests(messages: list[Json]) -> list[bytes]:
    return prefix_digests(b"a caller's scope", described(messages))


# What records have had since; whether a call worked was a guess before, and is not known.
LATER: Json = {
    "uses": "",
    "is_masked": False,
    "seen": (),
    "attempts": (),
    "running": (),
    "reports": (),
    "steps": (),
    "rules": (),
    "briefs": (),
    "pins": (),
    "forgotten": 0,
    "left_out": (),
    "plan": {"items": (), "text": "", "source": "", "stale": False, "position": -1},
}


@pytest.mark.parametrize("name", CHATS)
def test_a_chat_has_the_digest_it_always_had(name: str) -> None:
    assert digests(CHATS[name])[-1].hex() == DIGESTS[name]


@pytest.mark.anyio
@pytest.mark.parametrize(("sealed", "key"), [(PLAIN, None), (ENCRYPTED, ENCRYPTION_KEY)], ids=["plain", "encrypted"])
async def test_a_record_that_was_stored_is_found_and_read(sealed: str, key: bytes | None) -> None:
    """The records of 0.2.0 are under other keys. Its pages and items still have them."""
    store = MemoryStore()
    await store.put(KEY, base64.b64decode(sealed), 60)
    tag, digest = KEY.partition("{")[2].partition("}")[0], KEY.rpartition(":")[2]
    record = await RecordStore(SealedStore(store, Sealer(key), 60)).get_by_digest(tag, digest)
    assert digest == digests(CHATS["a result that comes late"])[4].hex()
    assert record is not None
    entries = tuple({**entry, "replaced": 0} for entry in RECORD["entries"])
    making = {**RECORD["making"], "cause": None}
    assert msgspec.to_builtins(record) == RECORD | {"entries": entries, "making": making} | LATER
