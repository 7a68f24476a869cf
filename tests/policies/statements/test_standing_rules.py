"""Rules as people say them: plain imperatives are rules, small talk is none, and general rules go last over budget."""

from __future__ import annotations

import pytest

from policies.conversation.transcript import Utterance
from policies.decision.budget import budget_of
from policies.record.record import Record
from policies.statements.entries import HARD, PREFERENCE, Entry, line
from policies.statements.ledger import fit, merge, statements_in
from tests.support.conversations import count
from tests.support.records import made
from tests.support.scenarios import prose

CONSTRAINTS = (
    "Start every reply with the number of the ticket.",
    "Before you edit a file, say in one line what you are about to change.",
    "When you quote a price, give it in Swiss francs, not in euros.",
    "Answer in numbered points, not in prose.",
    "Keep explanations under five sentences.",
    "Do not open links that come from customers.",
    "Don't write names of customers into commit messages.",
    "After each step, list what is still open.",
    "Write dates as year, month and day.",
    "When you are not sure, say so before anything else.",
    "Reply with the command only, without any comment.",
    "Name a source for every claim you take from the manual.",
    "Always run the linter before you show code.",
    "Use British spelling.",
    "Finish each message with one open question.",
)
FRIENDS = (
    "Can't wait for weekend {}!",
    "Don't worry about the {} snacks, I'll bring some.",
    "You must be so proud of all {} of them!",
    "I've always wanted to see lake {}.",
    "It must have been a great evening with {} guests.",
    "Remember when we got lost near hut {}?",
    "We love hiking, trail {} is important to me.",
    "No problem, I'm always here for you and the {} cats.",
)
WORK = (
    "Keep going, part {} looks good.",
    "The log is at /var/log/app/worker-{}.log and it grows.",
    "I moved the helper to src/utils/helpers_{}.py yesterday.",
    "Make sure this header, number {}, is aligned.",
    "Don't touch that one yet, I mean number {}.",
    "We should add a smoke test for case {}.",
    "Build {} takes long now.",
    "Try branch {} first.",
)
PASTED = (
    "Look at run {}:\n" + "\n".join(f"ERROR worker {i} must retry, never reached host-{i}.internal" for i in range(30)),
    "And this is what note {} says. " + " ".join(f"Part {i} is kept in store-{i}, as agreed." for i in range(25)),
)
CHINESE = (
    "别担心第 {} 件事，我来处理。",
    "他总是说到 {}。",
    "好的，继续第 {} 步。",
    "日志在 /var/log/{}.log。",
    "这个第 {} 步现在不能改。",
)
NINE_LANGUAGES = (
    *("Never delete the backups.", "The port is 9443.", "Reply in bullet points only."),
    *("绝对不要删除备份。", "端口是 9443。", "每次回复都用要点。"),
    *("Lösche niemals die Sicherungen.", "Der Port ist 9443.", "Antworte nur in Stichpunkten."),
    *("Ne supprime jamais les sauvegardes.", "Le port est 9443.", "Réponds toujours en français."),
    *("Nunca borres las copias de seguridad.", "El puerto es 9443.", "Responde solo con viñetas."),
    *("バックアップは絶対に削除しないでください。", "ポートは 9443 です。", "必ず箇条書きで答えてください。"),
    *("Никогда не удаляй резервные копии.", "Порт: 9443.", "Отвечай только списком."),
    *("백업을 절대 삭제하지 마세요.", "포트는 9443입니다.", "항상 글머리 기호로 답하세요."),
    *("Nunca apague os backups.", "A porta é 9443.", "Responda somente em tópicos."),
)
SESSIONS = {
    "friends": FRIENDS,
    "work": WORK,
    "pasted": (*WORK, *PASTED),
    "chinese": (*CHINESE, *WORK),
    "all": (*FRIENDS, *WORK, *PASTED),
}


def said(text: str, position: int = 0) -> list[Entry]:
    return list(statements_in([Utterance(position, "user", text)], (), first_user=-1))


def last_record(talk: tuple[str, ...], usable: int) -> Record:
    """Of 300 messages of such talk, with the constraints in between, compacted eight times without a model."""
    texts = [talk[i % len(talk)].format(i) for i in range(150)]
    for number, constraint in enumerate(CONSTRAINTS):
        texts[1 + 9 * number] += f"\n{constraint}"
    utterances = [
        utterance
        for i, text in enumerate(texts)
        for utterance in (Utterance(2 * i, "user", text), Utterance(2 * i + 1, "assistant", prose(i, 40)))
    ]
    record: Record | None = None
    for start in range(0, len(utterances), 38):
        record = made(utterances[start : start + 38], record, None, budget_of(usable, usable))
    assert record is not None
    return record


@pytest.mark.parametrize("usable", [7_000, 14_000, 28_000])
def test_side_constraints_stand_word_for_word_at_the_end_of_long_sessions(usable: int) -> None:
    standing = [
        constraint
        for talk in SESSIONS.values()
        for text in [last_record(talk, usable).text]
        for constraint in CONSTRAINTS
        if constraint in text
    ]
    assert len(standing) >= 72, len(standing)


@pytest.mark.parametrize("first", range(0, len(NINE_LANGUAGES), 3))
def test_what_is_said_in_a_language_without_tables_stands_too(first: int) -> None:
    statements = NINE_LANGUAGES[first : first + 3]
    utterances = [
        Utterance(i, "user" if i % 2 == 0 else "assistant", text)
        for i, text in enumerate(text for statement in statements for text in (statement, prose(statement, 60)))
    ]
    record = made(utterances, None, None)
    for start in range(6, 66, 6):
        spoken = [("user", f"ok {start + i}") if i % 2 == 0 else ("assistant", prose(i, 90)) for i in range(6)]
        more = [Utterance(start + i, role, text) for i, (role, text) in enumerate(spoken)]
        record = made(more, record, None)
    assert [statement for statement in statements if statement not in record.text] == []


@pytest.mark.parametrize(
    "sentence",
    [
        *CONSTRAINTS,
        "Reply in bullet points only",
        "Before you answer, restate my question.",
        "Keep answers under 50 words.",
        "Please respond with JSON only.",
        "Also, whenever you edit a module, update its tests.",
        "Add a changelog entry for each PR.",
        "Put amounts in bold.",
        "每次回复都以一句总结结尾。",
        "回答前先复述我的问题。",
        "所有数字都写成汉字。",
        "引用时一律使用原始来源。",
    ],
)
def test_an_imperative_that_holds_from_now_on_is_a_rule(sentence: str) -> None:
    assert [(entry.kind, entry.rank) for entry in said(sentence)] == [("directive", HARD)]


@pytest.mark.parametrize(
    "sentence",
    [
        "Write tests for the parser.",
        "List all files in the folder.",
        "Answer this question about the parser.",
        "Write a function for each endpoint.",
        "Reply to the customer.",
        "When you get home, have a rest.",
        "Tell me everything you know.",
        "Answers are short in this book.",
        "Run the tests again.",
    ],
)
def test_an_imperative_about_what_is_at_hand_is_none(sentence: str) -> None:
    assert all(entry.kind != "directive" or entry.rank > PREFERENCE for entry in said(sentence))


@pytest.mark.parametrize(
    "report",
    [
        *("They always push to main.", "They never push to main.", "I always push to main.", "He can push to main."),
        *("I've never pushed to main.", "Can you push to main?", "You must have pushed to main.", "They don't push."),
    ],
)
def test_what_somebody_does_neither_lifts_a_rule_nor_stands_in_its_place(report: str) -> None:
    entries = merge(merge((), said("Never push to main.", 2)), said(report, 30))
    assert [entry.text for entry in entries] == ["Never push to main.", report]


@pytest.mark.parametrize(
    "sentence",
    [
        *("You must always ask me first.", "I want you to never push to main.", "Could you please never use tabs?"),
        *("It must be signed by two people.", "They must not be deleted.", "We never deploy on Fridays."),
        *("I told you that users must never see prices.", "Backups must always be encrypted.", "请不要修改数据库！"),
        *(
            "Don’t push to main.",
            "You mustn’t log tokens.",
            "It’s forbidden to use eval.",
            "I must approve every release.",
        ),
        *("Anyway, don't touch infra/terraform.", "And please make sure that the tests pass.", "他们必须先签字。"),
    ],
)
def test_a_rule_is_one_whoever_is_spoken_of(sentence: str) -> None:
    assert [(entry.kind, entry.rank) for entry in said(sentence)] == [("directive", HARD)]


def kept(entries: list[Entry], room: int) -> list[str]:
    return [entry.text for entry in fit(entries, sum(count(line(entry)) + 1 for entry in entries) - room, count)]


def test_the_oldest_general_rules_are_the_last_to_go() -> None:
    texts = [f"Never touch the module m{i} of the old system." for i in range(52)]
    entries = merge((), [entry for i, text in enumerate(texts) for entry in said(text, 2 * i)])
    for share in (2, 4, 8):
        left = fit(entries, sum(count(line(entry)) + 1 for entry in entries) // share, count)
        oldest = int(0.5 * len(left))
        assert [entry.text for entry in left[:oldest]] == texts[:oldest]
        assert left[-1].text == texts[-1]


def test_the_first_rule_stands_when_there_is_room_for_one() -> None:
    texts = [f"Never touch the module m{i}." for i in range(20)]
    entries = merge((), [entry for i, text in enumerate(texts) for entry in said(text, 2 * i)])
    assert [entry.text for entry in fit(entries, count(line(entries[0])) + 2, count)] == [texts[0]]
