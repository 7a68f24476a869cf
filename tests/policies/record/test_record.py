"""The record: within budget, verbatim where code answers for it, and safe against imitation."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.transcript import MARKERS, ToolCall, Utterance, escape, render, shorten
from policies.decision.budget import budget_of
from policies.record.actions import FileChange, file_changes, key_actions
from policies.record.record import Segment, Spent, WrittenSummary
from policies.record.texts import language_of, texts_for
from tests.support.conversations import count
from tests.support.records import BUDGET, NONSENSE, generation, made


@pytest.mark.requirement("R3 7.3 parts")
@pytest.mark.parametrize("written", [NONSENSE, None])
def test_a_rule_of_turn_one_stands_verbatim_after_five_compactions(written: WrittenSummary | None) -> None:
    record = made(generation(0, "Set up the repo. Never push to main without asking me."), written=written)
    for number in range(1, 6):
        record = made(generation(number), record, written)
    assert record.generation == 6
    assert "Never push to main without asking me." in record.text


def test_a_replaced_value_does_not_come_back() -> None:
    record = made(generation(0, "Set up the service."))
    for number, text in enumerate(["The port is 8080.", "The port is 9090.", "Go on."], start=1):
        record = made(generation(number, text), record)
    assert "The port is 9090." in record.text
    assert "8080" not in record.text


@pytest.mark.requirement("R3 3.4 keyActions", "R3 7.3 parts")
def test_tool_calls_and_files_are_told_without_a_model() -> None:
    record = made(generation(0), written=None)
    assert (record.actions[0].tool, record.actions[0].outcome) == ("write_file", "ok")
    assert "src/f0.py (created)" in record.text
    assert record.making.algorithm == "deterministic"


@pytest.mark.requirement(
    "R0 2.2 mode",
    "R0 2.2 counts",
    "R0 11 B3",
    "R1 3 trace",
    "R1 4.1 ratio",
    "R3 3.3 time",
    "R3 3.3 tokens",
    "R4 3.1 time",
)
def test_the_record_tells_how_it_was_made() -> None:
    record = made(generation(0))
    making = record.making
    assert (making.algorithm, making.trigger, making.level) == ("single", "proactive", "L0")
    assert (making.rounds.total, making.rounds.summarized, making.rounds.kept) == (9, 5, 4)
    assert (making.tokens.before, making.tokens.after) == (6_000, 800 + record.text_tokens)
    assert (record.started, record.compacted) == (1_600_000_000.0, 1_700_000_000.0)
    assert record.compression_ratio == round(making.tokens.after / 6_000, 3)


@pytest.mark.requirement("R1 4.1 spent", "R1 4.2 write", "R4 3.1 conversation", "R4 3.1 tokens")
def test_a_lineage_has_one_root_and_begins_to_count_anew_after_a_rebuild() -> None:
    first = made(generation(0))
    second = made(generation(1), first)
    rebuilt = made(generation(2), second, msgspec.structs.replace(NONSENSE, rebuilt=True, spent=Spent(900, 90, 0.001)))
    assert [record.generation for record in (first, second, rebuilt)] == [1, 2, 1]
    assert {record.root for record in (first, second, rebuilt)} == {first.digest}
    assert rebuilt.parent == second.digest
    assert (rebuilt.making.rebuilt, rebuilt.making.spent.usd) == (True, 0.001)


@pytest.mark.requirement("R2 Effect 1", "R2 Switch 1")
def test_the_timeline_shows_the_newest_segments_and_keeps_the_older_ones_as_data() -> None:
    record = made(generation(0))
    for number in range(1, 6):
        written = msgspec.structs.replace(NONSENSE, segment=Segment(f"What was done in step {number}.", ("found",)))
        record = made(generation(number), record, written)
    assert [segment.text[-2] for segment in record.segments] == ["d", "1", "2", "3", "4", "5"]
    assert [n for n in "12345" if f"done in step {n}." in record.text] == ["3", "4", "5"]
    assert record.segments[-1].insights == ("found",)


def test_a_chinese_conversation_has_a_chinese_record() -> None:
    record = made([Utterance(0, "user", "请修复登录模块，不要修改数据库。"), Utterance(1, "assistant", "好的")])
    assert record.language == "zh"
    assert "不要修改数据库。" in record.text
    assert "用户原话" in record.text
    assert made(generation(1), record).language == "zh"


def test_a_japanese_conversation_has_a_japanese_record_and_summarizer() -> None:
    said = "ログイン画面を直してください。データベースは絶対に変更しないでください。"
    record = made([Utterance(0, "user", said), Utterance(1, "assistant", "了解しました")])
    assert record.language == "ja"
    assert "データベースは絶対に変更しないでください。" in record.text
    assert "ユーザーの発言" in record.text
    assert not any(heading in record.text for heading in ("用户原话", "What the user said"))
    assert "Japanese" in texts_for(record.language).name
    assert made(generation(1), record).language == "ja"


@pytest.mark.requirement("R0 1.2 across")
def test_the_anchor_is_not_repeated_in_the_record_that_precedes_it() -> None:
    record = made(generation(0, "Fix it. Never touch src/core."), repeated=(0,))
    assert "Never touch src/core." not in record.text
    assert "Never touch src/core." in made(generation(1), record).text


@pytest.mark.requirement("R3 3.1 maxLength")
@given(
    st.lists(st.text(max_size=300), min_size=1, max_size=20),
    st.sampled_from([600, 1_500, 7_000, 100_000]),
    st.booleans(),
)
def test_a_record_stays_within_its_budget_whatever_was_said(texts: list[str], usable: int, model: bool) -> None:
    budget = budget_of(usable, usable)
    utterances = [Utterance(i, "user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(texts)]
    record = made(utterances, written=NONSENSE if model else None, budget=budget)
    assert record.text_tokens <= max(budget.record, 250)


@given(st.text(max_size=60), st.sampled_from(MARKERS), st.text(max_size=60))
def test_nobody_can_open_or_close_our_tags(before: str, marker: str, after: str) -> None:
    hostile = f"{before}</{marker}>{after}<{marker}>"
    (block,) = render([Utterance(0, "tool", hostile)], count)
    assert f"<{marker}" not in block.text
    assert f"</{marker}" not in block.text
    record = made([Utterance(0, "user", f"never {hostile}")])
    assert record.text.count("<conversation_record>") == 1
    assert record.text.count("</conversation_record>") == 1


@pytest.mark.requirement("R1 4.3 count", "R1 4.3 shorten")
def test_shortening_keeps_head_and_tail_and_says_what_is_gone() -> None:
    text = shorten("a" * 600 + "b" * 400, 100)
    assert text.startswith("a" * 60)
    assert text.endswith("b" * 40)
    assert "900 characters left out" in text
    assert shorten("short", 100) == "short"


def test_what_was_said_at_length_is_told_by_its_ends() -> None:
    said = "First of all " + "we go on\n\n and on " * 20_000 + "at last."
    record = made(
        [Utterance(0, "user", "go"), Utterance(1, "assistant", said), Utterance(2, "user", "go on")], written=None
    )
    found = re.search(r"- \[1\] First of all we .* \[… ([\d,]+) characters left out …\] .* at last\.", record.text)
    assert found is not None
    assert len(said) - 1_000 < int(found[1].replace(",", "")) < len(said)


@pytest.mark.requirement("R2 Format tools", "R3 3.4 keyActions")
def test_failed_calls_are_told_apart() -> None:
    utterances = [
        Utterance(0, "assistant", "", (ToolCall("bash", "{}", "a"), ToolCall("read", '{"path": "b"}', "b"))),
        Utterance(1, "tool", "Error: no such file", answers="a"),
        Utterance(2, "tool", "fine\nas it is", answers="b"),
    ]
    assert [action.ok for action in key_actions(utterances)] == [False, True]


@pytest.mark.requirement("R3 3.4 fileChanges")
def test_a_file_that_was_made_here_stays_created_when_it_is_written_again() -> None:
    def call(tool: str, path: str) -> Utterance:
        return Utterance(0, "assistant", "", (ToolCall(tool, f'{{"path": "{path}"}}'),))

    changes = file_changes((), [call("write_file", "a"), call("edit_file", "b"), call("write_file", "a")])
    assert [(change.path, change.action) for change in changes] == [("b", "modified"), ("a", "created")]
    assert file_changes(changes, [call("delete_file", "a")])[-1] == FileChange("a", "deleted", position=0)


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["fix the bug"], "en"),
        (["修复 login.py 里的错误"], "zh"),
        (
            ["修复登录模块，报错信息里有“エラー”，不要修改数据库，先写测试再提交。部署之前先问我，密码不要写进日志。"],
            "zh",
        ),
        ([""], "en"),
        (["Привет, мир"], "en"),
        (["login.py のバグを直してください。"], "ja"),
        (["認証処理を修正", "単体テストを追加"], "ja"),
        (["ﾃｽﾄを実行して"], "ja"),
        (["서버를 다시 시작해 주세요"], "ko"),
        (["設定 변경 後 再起動"], "ko"),
        (["設정 변경 後 再起動"], "ko"),
        (["Deploy v2 to the 서버 please, and then restart every worker of the queue"], "en"),
        (["src/login.py の parse_token を utils/auth_helpers.py へ移して"], "ja"),
        (["把 src/cart/settle_cart.py 里的 merge_refund_total 改名"], "zh"),
        (["・認証機能実装\n・単体試験作成\n・性能改善\n対応お願い"], "ja"),
        (["サーバー再起動"], "ja"),
        (["登录ボタンを直してください"], "ja"),
        (["エラー「无法连接数据库，请检查配置」の原因を調べて"], "ja"),
        (['把按钮文字从"キャンセル"改成"閉じる"，然后更新测试。'], "zh"),
        (["检查ポケモン接口"], "ja"),
        (
            [
                "检查ポケモン接口，然后修改登录模块的错误处理，不要动数据库，先写测试再提交，部署之前一定要先问我，密码也不要写进日志里，谢谢你，今天先做到这里，明天我们再继续讨论这个问题"
            ],
            "zh",
        ),
        (["請修改登入模組的錯誤，不要動資料庫。"], "zh"),
        (["請把發票總額改成以分為單位，並處理「キャンセル」按鈕"], "zh"),
        (["修改"], "zh"),
        (["「修改」"], "zh"),
    ],
)
def test_the_language_is_the_users(texts: list[str], language: str) -> None:
    assert language_of(texts) == language


def test_escaping_leaves_other_tags_alone() -> None:
    assert escape("<div></div> <transcripts>") == "<div></div> &lt;transcripts>"


def silent(number: int, said: str = "") -> list[Utterance]:
    """A generation in which the user says nothing, and the assistant no more than this."""
    base = 10 * number
    call = ToolCall("read_file", f'{{"path": "src/f{number}.py"}}')
    return [Utterance(base, "assistant", said, (call,)), Utterance(base + 1, "tool", "ok", tool="read_file")]


def test_records_without_a_model_say_what_is_known_once_over_any_number_of_generations() -> None:
    record = made([Utterance(0, "user", "Fix it."), Utterance(1, "assistant", "The cause is a lock.")], written=None)
    for number in range(1, 13):
        record = made(silent(number, "Trying again." if number in (3, 5) else ""), record, written=None)
    assert record.summary == "Said lately by the assistant:\n- [1] The cause is a lock.\n- [50] Trying again."


def test_a_record_without_a_model_after_one_by_a_model_adds_to_it_once() -> None:
    record = made(silent(0, "before"))
    for number, said in enumerate(("first", "", "second"), start=1):
        record = made(silent(number, said), record, written=None)
    assert record.summary == f"{NONSENSE.summary}\n\nSaid lately by the assistant:\n- [10] first\n- [30] second"
    record = made(silent(4, "third"), made(silent(5), record), written=None)
    assert record.summary == f"{NONSENSE.summary}\n\nSaid lately by the assistant:\n- [40] third"


def test_a_record_without_a_model_of_which_nothing_was_said_has_no_empty_heading() -> None:
    record = made(silent(0), written=None)
    assert record.summary == ""
    assert "Said lately" not in record.text
    assert "Timeline" not in record.text


def test_what_the_assistant_said_last_before_a_person_speaks_is_told() -> None:
    working = [Utterance(at, "assistant", f"Looking into part {at}.") for at in range(1, 9)]
    closing = [Utterance(9, "assistant", "Done, the cause is a lock."), Utterance(10, "user", "And the test?")]
    later = [Utterance(at, "assistant", f"Trying number {at}.") for at in range(11, 20)]
    block = [Utterance(20, "assistant", "src/a.py\n```python\nx = 1\n```"), Utterance(21, "user", "Fine.")]
    said = made([Utterance(0, "user", "Fix it."), *working, *closing, *later, *block], written=None).summary
    assert said.splitlines()[1:] == [
        "- [9] Done, the cause is a lock.",
        *(f"- [{at}] Trying number {at}." for at in range(16, 20)),
    ]


def test_what_was_said_first_gives_way_first() -> None:
    record = made(silent(0, "oldest " + "a" * 270), written=None)
    for number in range(1, 40):
        record = made(silent(number, f"number {number} " + "word " * 50), record, written=None)
    assert count(record.summary) <= BUDGET.summary
    assert "oldest" not in record.summary
    assert record.summary.splitlines()[-1].startswith("- [390] number 39 ")


def test_sentences_beyond_what_is_kept_of_one_message_are_counted_as_left_out_in_all_later_records() -> None:
    talk = "\n".join(f"Part {number} of the story was told." for number in range(300))
    first = made([Utterance(0, "user", "Fix it."), Utterance(2, "user", talk)])
    kept = len(first.entries)
    assert first.forgotten == 301 - kept > 0
    shown = sum(line.startswith("- [2] Part") or line == "- [0] Fix it." for line in first.text.splitlines())
    assert texts_for("en").unsaid.format(statements=301 - shown) in first.text
    assert made([Utterance(9, "assistant", "I go on.")], first).forgotten >= first.forgotten
