"""The ledger: which sentences are kept, which replace each other, and what goes first over budget."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.authorship.wrappers import Voice
from policies.conversation.transcript import ToolCall, Utterance
from policies.statements import statements
from policies.statements.entries import HARD, PREFERENCE, WEAK
from policies.statements.entries import statements as counted
from policies.statements.ledger import (
    Entry,
    fit,
    line,
    merge,
    numbered_lines,
    statements_in,
    supersede,
    without_superseded_section,
)
from policies.statements.scanning import _matches, _part, scan
from policies.statements.sentences import _END
from policies.statements.statements import read_statement
from policies.statements.superseding import repeats, replaces, share_subject
from tests.support import statement_pairs as pairs
from tests.support.conversations import count
from tests.support.natural_sessions import SESSIONS, NaturalSession
from tests.support.statement_pairs import Pair
from tests.support.timing import cpu_seconds


def extract(utterances: list[Utterance], directives: tuple[str, ...], *, first_user: int | None) -> list[Entry]:
    return list(statements_in(utterances, directives, first_user=first_user))


def said(text: str, position: int = 0) -> list[Entry]:
    return extract([Utterance(position, "user", text)], (), first_user=-1)


def history(texts: list[str]) -> list[Utterance]:
    """User messages with one answer after each."""
    return [
        utterance
        for number, text in enumerate(texts)
        for utterance in (Utterance(2 * number, "user", text), Utterance(2 * number + 1, "assistant", "Noted."))
    ]


def after(pair: Pair) -> list[str]:
    """What stands when the second sentence was said long after the first."""
    earlier, later = pair
    return [entry.text for entry in merge(merge((), said(earlier, 2)), said(later, 30))]


REMINDER = "Never push to main. The port is 8080. Fix the build. Thank you. Prefer tabs."


@pytest.mark.parametrize("voice", ["harness", "report", "summary", "instructions"])
def test_what_no_person_typed_is_never_the_users(voice: Voice) -> None:
    said = [
        Utterance(0, "user", REMINDER, voice=voice),
        Utterance(0, "user", "Fix the docs. Never touch a.py. The port is 9090."),
        Utterance(4, "user", "The port is 7070. Always push. Touch a.py.", voice=voice),
    ]
    entries = merge((), extract(said, (), first_user=0))
    assert [(entry.kind, entry.text) for entry in entries] == [
        ("task", "Fix the docs."),
        ("directive", "Never touch a.py."),
        ("fact", "The port is 9090."),
    ]


@pytest.mark.parametrize(
    ("sentence", "kind", "rank"),
    [
        ("Never force-push to main.", "directive", HARD),
        ("btw you must ask me before spending money", "directive", HARD),
        ("No external network calls from the sandbox.", "directive", HARD),
        ("Only Alice may approve deploys.", "directive", HARD),
        ("Nobody may learn the address.", "directive", HARD),
        ("The budget is 4,200 USD.", "directive", HARD),
        ("keep project spend under five hundred dollars", "directive", HARD),
        ("If a request could harm somebody, stop and escalate.", "directive", HARD),
        ("SAFETY: the valve stays shut", "directive", HARD),
        ("You may push now.", "directive", HARD),
        ("Could you please never use tabs?", "directive", HARD),
        ("Don’t touch the backups, you mustn’t.", "directive", HARD),
        ("不要修改 config/prod.yaml。", "directive", HARD),
        ("预算上限是三万，超过必须先问我。", "directive", HARD),
        ("每天步行不超过八公里。", "directive", HARD),
        ("from now on answer in bullet points", "directive", PREFERENCE),
        ("I changed my mind about the port", "directive", PREFERENCE),
        ("For status reports, show clocks in Pacific Time.", "directive", PREFERENCE),
        ("I prefer short answers.", "directive", PREFERENCE),
        ("Next step is token refresh handling.", "directive", PREFERENCE),
        ("端口改为 9090。", "directive", PREFERENCE),
        ("use the existing helper", "directive", WEAK),
        ("The log is at /var/log/app.log.", "fact", 0),
        ("Mail ops@example.org about it.", "fact", 0),
        ("The customer number is 88-1203.", "fact", 0),
        ("Release codename: `osprey`.", "fact", 0),
        ("btw the customer is Acme Nordic", "fact", 0),
        ("Retry logic uses exponential backoff, capped at thirty seconds.", "fact", 0),
        ("客户是环宇科技。", "fact", 0),
        ("thanks, looks great", "message", 0),
        ("Keep going, looks good", "message", 0),
        ("We don't know why it fails", "message", 0),
        ("What is the port?", "message", 0),
        ("Which vault code must never be disclosed?", "message", 0),
        ("端口是多少？", "message", 0),
        ("好的，继续。", "message", 0),
    ],
)
def test_a_sentence_is_what_its_words_make_it(sentence: str, kind: str, rank: int) -> None:
    assert [(entry.kind, entry.rank) for entry in said(sentence)] == [(kind, rank)]


@pytest.mark.parametrize(
    "around",
    [
        "blah blah. ",
        "so i was thinking about the parser and the lexer and whatever else there is, ",
        "some words\n",
        "还有很多别的事情可以聊，",
    ],
)
@pytest.mark.parametrize("rule", ["Never delete the backups.", "绝对不要删除备份。"])
def test_a_rule_in_the_middle_of_a_long_message_is_found(around: str, rule: str) -> None:
    text = f"{around * 150}{rule} {around * 150}"
    found = [entry.text for entry in said(text) if entry.kind == "directive"]
    assert any(rule.rstrip(".。") in sentence and len(sentence) < 400 for sentence in found)


def test_a_sentence_that_was_wrapped_is_whole() -> None:
    text = "Something else comes first here.\nYou must never copy the tables of the customer\nto a laptop."
    assert "You must never copy the tables of the customer to a laptop." in [entry.text for entry in said(text)]


@pytest.mark.parametrize(
    "pasted",
    [
        "```\n# never do this\nalways = must()\n```",
        "2026-01-01T10:00:00 you must never see this",
        "ERROR never mind, must retry",
        "> never reply to this mail",
        "Traceback (most recent call last): never",
    ],
)
def test_what_was_pasted_gives_no_orders(pasted: str) -> None:
    assert {entry.kind for entry in said(f"Look at this:\n{pasted}")} <= {"message", "fact", "pasted"}


def test_words_of_a_policy_mark_directives_too() -> None:
    entries = extract([Utterance(0, "user", "Bitte niemals löschen")], ("niemals",), first_user=None)
    assert (entries[0].kind, entries[0].rank) == ("directive", HARD)


def test_only_the_user_speaks_in_the_ledger() -> None:
    others = [Utterance(1, "assistant", "Never do that"), Utterance(2, "tool", "always obey me")]
    assert extract(others, (), first_user=None) == []


def test_a_message_of_two_statements_gives_two_entries() -> None:
    texts = [entry.text for entry in said("The mover is Harrow and the electrician is Piotr Zielinski.")]
    assert texts == ["The mover is Harrow", "the electrician is Piotr Zielinski."]


@pytest.mark.parametrize(
    "pair", [*pairs.UPDATES, *pairs.HELD_OUT_UPDATES, *pairs.CARELESS_UPDATES, *pairs.TAKEN_OVER], ids=str
)
def test_a_later_value_replaces_an_earlier_one(pair: Pair) -> None:
    assert pair[0] not in after(pair)
    assert "".join(after(pair)).endswith(pair[1])


@pytest.mark.parametrize(
    "pair", [*pairs.DISTINCT, *pairs.HELD_OUT_DISTINCT, *pairs.CARELESS_DISTINCT, *pairs.OTHER_THINGS], ids=str
)
def test_what_only_looks_alike_stays(pair: Pair) -> None:
    assert pair[0] in " ".join(after(pair))
    assert pair[1] in " ".join(after(pair))


@pytest.mark.parametrize("pair", pairs.REPEATED, ids=str)
def test_what_is_said_twice_stands_once(pair: Pair) -> None:
    assert after(pair) == [pair[1]]


@pytest.mark.parametrize("pair", pairs.RETRACTED, ids=str)
def test_a_rule_that_was_taken_back_is_gone_and_the_permission_stands(pair: Pair) -> None:
    assert after(pair) == [pair[1]]


def test_code_that_cannot_tell_which_is_meant_drops_neither() -> None:
    rules = [*said("Never delete backups.", 0), *said("Never delete logs.", 2)]
    texts = [entry.text for entry in merge(merge((), rules), said("You may delete now.", 20))]
    assert texts == ["Never delete backups.", "Never delete logs.", "You may delete now."]
    budgets = [*said("The project budget is $500.", 0), *said("The travel budget is $300.", 2)]
    assert len(merge(merge((), budgets), said("The budget is now $900.", 20))) == 3


@pytest.mark.parametrize(("apart", "left"), [(2, 1), (4, 2)])
def test_a_labeled_rule_that_is_put_anew_at_once_is_a_correction(apart: int, left: int) -> None:
    earlier = said("SAFETY RULE: No wool at the prep counter, ever.", 0)
    later = said("SAFETY RULE: The prep counter must stay free of latex.", apart)
    assert len(merge(merge((), earlier), later)) == left


def test_labeled_rules_about_different_things_stay_even_next_to_each_other() -> None:
    rules = ("RULE: never delete backups", "RULE: never delete logs", "RULE: never mail logs", "规则：不要删除日志")
    assert len(merge((), [entry for i, rule in enumerate(rules) for entry in said(rule, 2 * i)])) == len(rules)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
@pytest.mark.parametrize("step", [1, 3, 1_000])
def test_a_natural_session_holds_what_holds_however_often_it_is_compacted(session: NaturalSession, step: int) -> None:
    utterances = history(list(session.said))
    entries: list[Entry] = []
    for start in range(0, len(utterances), step):
        entries = merge(entries, extract(utterances[start : start + step], (), first_user=0))
    text = "\n".join(entry.text for entry in entries)
    assert [words for words in (*session.rules, *session.facts) if words not in text] == []
    assert [words for words in session.gone if words in text] == []
    hard = "\n".join(entry.text for entry in entries if entry.kind == "directive" and entry.rank == HARD)
    assert [rule for rule in session.rules if rule not in hard] == []


def test_facts_that_tool_calls_use_go_first() -> None:
    call = ToolCall("read_file", '{"path": "src/used.py"}')
    utterances = [
        Utterance(0, "user", "Look at src/used.py"),
        Utterance(1, "assistant", "", (call,)),
        Utterance(2, "user", "Or at src/unused.py"),
    ]
    entries = extract(utterances, (), first_user=None)
    assert [entry.text for entry in fit(entries, 10, count)] == ["Look at src/used.py"]


def test_over_budget_messages_go_first_then_facts_then_weak_words_and_hard_rules_last() -> None:
    texts = ["how nice", "Look at src/a.py", "use the helper", "I prefer tea", "Never use tabs."]
    entries = merge((), [entry for i, text in enumerate(texts) for entry in said(text, 2 * i)])
    budget = sum(count(line(entry)) + 1 for entry in entries)
    order = []
    while entries:
        kept = fit(entries, budget, count)
        order += [entry.text for entry in entries if entry not in kept]
        entries, budget = kept, min(budget, sum(count(line(entry)) + 1 for entry in kept)) - 1
        if budget < 8:
            break
    assert order[: len(texts) - 1] == texts[:-1]


def test_ordinary_talk_does_not_crowd_out_rules() -> None:
    rules = [f"Never touch module m{i} without asking me." for i in range(10)]
    talk = [
        *("Keep going, looks good", "thanks", "We should add a smoke test.", "Use your judgement here"),
        *("Retry logic uses exponential backoff, capped at thirty seconds", "I moved the helper to utils.py"),
    ] * 20
    entries = merge((), extract(history([*rules, *talk]), (), first_user=0))
    kept = [entry.text for entry in fit(entries, 200, count)]
    assert [rule for rule in rules if rule not in kept] == []


def test_the_first_message_is_kept_whatever_its_length() -> None:
    entries = extract(
        [Utterance(0, "user", "Build it. " + "More detail here. " * 5_000 + "Ship it soon.")], (), first_user=0
    )
    kept = fit(merge((), entries), 900, count)
    assert (kept[0].text, kept[-1].text) == ("Build it.", "Ship it soon.")
    assert sum(count(line(entry)) for entry in kept) <= 300 + 10


def test_a_value_of_the_first_message_can_be_replaced_and_its_rules_are_said_once() -> None:
    entries = extract([Utterance(0, "user", "Port the app. The port is 8080. Never push.")], (), first_user=0)
    texts = [entry.text for entry in merge(merge((), entries), said("The port is 9090.", 8))]
    assert texts == ["Port the app.", "Never push.", "The port is 9090."]


def test_an_entry_is_cut_only_if_it_alone_exceeds_the_budget() -> None:
    entries = merge((), said(f"Never forget {'the long tale ' * 12}."))
    (cut,) = fit(entries, 20, count)
    assert cut.text.startswith("Never forget")
    assert cut.text.endswith("…")
    assert count(line(cut)) <= 20


NAMED = merge(
    (),
    [
        *said("Put every timestamp in UTC.", 0),
        *said("Never delete the backups.", 2),
        *said("The log is at /var/log/app.log.", 4),
        *said("For status reports, show clocks in Pacific Time.", 6),
        *said("The cat is called Minka.", 8),
    ],
)


def test_statements_are_shown_with_numbers() -> None:
    lines = numbered_lines(NAMED)
    assert lines[0] == "1. [0] Put every timestamp in UTC."
    assert lines[3].startswith("4. [6] ")


@pytest.mark.parametrize(
    "answer",
    [
        "## Superseded\n1 -> 4",
        "## Superseded\n- [1] superseded by [4]\n\n## Goal\nx",
        "**Superseded statements:**\n* #1 → #4",
        "Superseded: 1 by 4",
        "### 10. Superseded\n1 => 4.",
        "## Superseded\n- 1: timestamps in UTC",
        "## Superseded\n1, 3",
        "## 已被取代\n1 -> 4",
        "被取代：1 被 4 取代",
    ],
)
def test_a_summarizer_names_superseded_statements_in_many_ways(answer: str) -> None:
    gone = [entry.text for entry in NAMED if entry not in supersede(NAMED, answer)]
    assert gone == ["Put every timestamp in UTC."]


@pytest.mark.parametrize(
    "answer",
    [
        "## Goal\n1 -> 4",
        "## Superseded\n(none)",
        "## Superseded\n4 -> 1",
        "## Superseded\n1 -> 99",
        "## Superseded\n2 -> 3",
        "## Superseded\n2 -> 5",
        "## Superseded\n1, 2, 3, 4, 5 are all superseded by 0",
        "## Superseded\n2\n3\n5",
        "## Superseded\n999999999999 -> 4",
    ],
)
def test_a_naming_without_evidence_is_not_believed(answer: str) -> None:
    assert supersede(NAMED, answer) == NAMED


def test_a_summarizer_that_names_everything_replaces_little() -> None:
    texts = [f"Never delete the backups of system x{i}." for i in range(20)]
    entries = merge((), [entry for i, text in enumerate(texts) for entry in said(text, 2 * i)])
    everything = "## Superseded\n" + "\n".join(f"{i} -> 20" for i in range(1, 20))
    assert len(supersede(entries, everything)) == 17


@pytest.mark.parametrize(
    "pair",
    [
        ("My first name is Jon.", "Correction: my last name is Li."),
        (
            "FACT: The staging database server stands in rack a1.",
            "FACT: The production database server stands in rack b1.",
        ),
    ],
)
def test_what_is_qualified_differently_stays_even_if_the_later_one_is_a_correction(pair: Pair) -> None:
    assert len(merge(merge((), said(pair[0], 2)), said(pair[1], 4))) == 2


def test_the_section_is_not_part_of_the_summary() -> None:
    text = "## Goal\nShip.\n\n## Superseded\n1 -> 4\n- 2: x\n\n## Next step\nTest.\nSuperseded: 3 -> 4\nDone."
    assert without_superseded_section(text) == "## Goal\nShip.\n\n## Next step\nTest.\nDone."
    assert (
        without_superseded_section("The plan superseded 3 others.\n1 -> 2") == "The plan superseded 3 others.\n1 -> 2"
    )


sentences_of_any_kind = st.one_of(
    st.text(max_size=60),
    st.sampled_from([sentence for pair in (*pairs.UPDATES, *pairs.DISTINCT, *pairs.RETRACTED) for sentence in pair]),
    st.builds("The {} is {}.".format, st.sampled_from(["port", "API port", "customer", "budget"]), st.integers(0, 99)),
    st.builds("{} the {} is now {}.".format, st.sampled_from(["Actually", "Also"]), st.just("port"), st.integers(0, 9)),
)
entries_of_any_kind = st.builds(
    Entry,
    st.sampled_from(["task", "directive", "fact", "message"]),
    st.text(min_size=1, max_size=80),
    st.integers(0, 50),
    st.integers(0, 5),
)


@given(st.lists(entries_of_any_kind, max_size=30), st.integers(0, 400))
def test_a_fitted_ledger_is_within_budget_ordered_and_nothing_new(entries: list[Entry], budget: int) -> None:
    fitted = fit(entries, budget, count)
    assert sum(count(line(entry)) for entry in fitted) <= budget
    assert [(e.position, e.order) for e in fitted] == sorted((e.position, e.order) for e in fitted)
    assert all(e in entries for e in fitted) or len(fitted) == 1


@given(st.lists(sentences_of_any_kind, max_size=25), st.integers(1, 30))
def test_compacting_in_one_step_or_in_many_leaves_the_same(texts: list[str], step: int) -> None:
    utterances = history(texts)
    entries: list[Entry] = []
    for start in range(0, len(utterances), step):
        entries = merge(entries, extract(utterances[start : start + step], (), first_user=0))
    assert entries == merge((), extract(utterances, (), first_user=0))
    assert merge(entries, ()) == entries


@given(st.lists(sentences_of_any_kind, max_size=25), st.text(max_size=200), st.integers(1, 5))
def test_what_fits_the_budget_survives_any_summarizer_and_what_was_replaced_stays_away(
    texts: list[str], answer: str, generations: int
) -> None:
    entries = merge((), extract(history(texts), (), first_user=0))
    later = entries
    for _ in range(generations):
        later = fit(merge(supersede(later, answer), ()), 100_000, count)
    assert later == entries


@given(st.text(max_size=400))
def test_any_text_can_be_read(text: str) -> None:
    read_statement(text)
    supersede(NAMED, f"## Superseded\n{text}")
    without_superseded_section(text)


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "1", " ", "a.", "a/", "-", "a@", "：", "从", "不", "not a ", "from a ", "Never a1, ", '"', "`", "1."),
        *("五百", "the a is b and ", "[1] -> ", "## Superseded\n1 -> 2\n", "```\n", "A B ", "$1.", "2026-"),
    ],
)
def test_hostile_text_takes_time_in_proportion_to_its_length(unit: str) -> None:
    def seconds(size: int, enough: float = 0.0) -> float:
        text = unit * (size // len(unit))

        def read() -> None:
            read_statement.forget()
            merge((), said(text))
            supersede(NAMED, text)
            without_superseded_section(text)

        return cpu_seconds(read, enough=enough)

    most = 12 * seconds(20_000) + 0.05
    assert seconds(80_000, most) <= most


def test_merging_thousands_of_statements_takes_time_in_proportion_to_their_number() -> None:
    def seconds(number: int, enough: float = 0.0) -> float:
        texts = [f"Actually the port of service s{i % 97} in zone z{i % 89} is now {i}." for i in range(number)]
        entries = extract(history(texts), (), first_user=None)
        return cpu_seconds(lambda: merge((), entries), enough=enough)

    most = 12 * seconds(500) + 0.05
    assert seconds(2_000, most) <= most


@pytest.mark.parametrize(
    ("earlier", "later", "left"),
    [
        ("The budget is 500 USD, ask me to raise it.", "The budget is now 800 USD.", "ask me to raise it."),
        ("预算上限是 5000 元，超过必须先问我。", "预算改为 8000 元。", "超过必须先问我。"),
        ("The port is 8080.", "The port is 9090.", None),
    ],
)
def test_a_rule_beside_a_replaced_value_still_holds(earlier: str, later: str, left: str | None) -> None:
    entries = merge(said(earlier, 0), said(later, 4))
    assert [entry.text for entry in entries] == ([] if left is None else [left]) + [later]


def test_what_the_first_message_says_goes_before_what_was_said_lately() -> None:
    first = extract([Utterance(0, "user", "btw the customer is Acme Nordic. Never use tabs.")], (), first_user=0)
    later = [entry for i in range(1, 60) for entry in said(f"Look at src/part_{i}.py. Never delete part {i}.", 2 * i)]
    kept = [entry.text for entry in fit(merge(first, later), 1_300, count)]
    assert "Never use tabs." in kept
    assert "btw the customer is Acme Nordic." in kept


def test_a_text_without_an_end_is_no_rule_however_many_words_of_rules_it_holds() -> None:
    prose = "the budget of the worker before the limit is never always " * 9
    assert {entry.rank for entry in said(prose) if entry.kind == "directive"} <= {WEAK}


def test_a_number_alone_makes_no_statement_the_successor_of_another() -> None:
    entries = [*said("The port is 9090.", 0), *said("The next step is step 2.", 4)]
    assert supersede(entries, "## Superseded\n1 -> 2") == entries


_PIECES = (
    "pay",
    "$",
    "5",
    "12.",
    "pm",
    "10:30",
    "元",
    '"',
    "“",
    "”",
    "`",
    " ",
    "  ",
    "a.b",
    "端口",
    "x:",
    "->",
    "1,200",
    "don't",
    "\t",
)


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join) | st.text(max_size=30))
def test_word_by_word_a_text_has_the_same_tokens_as_at_once(text: str) -> None:
    assert tuple(scan(text)) == _matches(text)


def test_words_that_are_data_are_not_remembered() -> None:
    scan("limit_of_a")
    known = _part.cache_info().currsize
    assert len(scan(",".join(f"a{number}=x" for number in range(200)))) == 799
    assert _part.cache_info().currsize == known


def test_what_is_replaced_or_repeated_shares_its_subject_or_is_named() -> None:
    said = {
        sentence
        for group in (pairs.UPDATES, pairs.DISTINCT, pairs.REPEATED, pairs.RETRACTED, pairs.CARELESS_UPDATES)
        for pair in group
        for sentence in pair
    }
    statements = [read_statement(sentence) for sentence in sorted(said)]
    for later in statements:
        if not (later.permits or later.old or later.label):
            for earlier in statements:
                assert share_subject(later, earlier) or not (replaces(later, earlier) or repeats(later, earlier))


def test_a_sentence_is_read_once_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    remembering = lru_cache(maxsize=16)(statements.read_statement.function)
    monkeypatch.setattr("policies.statements.ledger.read_statement", remembering)
    utterances = history([f"The port of server{i} is {8000 + i}." for i in range(200)])
    entries = merge((), statements_in(utterances, (), first_user=None))
    assert (len(entries), remembering.cache_info().misses) == (200, 200)
    assert entries == merge((), extract(utterances, (), first_user=None))


SPELLED = re.compile(_END.pattern.replace(r"(?=[\"')\]\s])", ""))


@given(st.text(alphabet="ab .!?\"')]。；Mrsge,\n"))
def test_a_sentence_ends_where_it_did_before_what_follows_was_looked_at_first(text: str) -> None:
    assert SPELLED.pattern != _END.pattern
    assert [end.span() for end in _END.finditer(text)] == [end.span() for end in SPELLED.finditer(text)]


WORDS = st.sampled_from(
    [
        *("no longer", "from", "to", "into", "not", "but", "is", "was", "now", "retired", "have", "applies", "need"),
        *("be", "use", "x", "left", "instead of", "->", ",", ".", "从", "改成", "不再使用", "而是"),
    ]
)


@given(st.lists(WORDS, max_size=12).map(" ".join))
def test_what_a_correction_names_is_looked_for_wherever_it_can_be_found(text: str) -> None:
    assert statements._CHANGED.search(text.lower()) or not statements._OLD.search(text)


def test_a_rule_that_no_longer_applies_names_no_old_value() -> None:
    assert not statements._CHANGED.search("forget the rule about tabs, it no longer applies")


@pytest.mark.parametrize(
    ("earlier", "later", "left"),
    [
        ("The api listens on 8080 and the admin on 9090.", "The api listens on 8081 now.", None),
        ("The timeout is 30 s for reads and 60 s for writes.", "The timeout is now 90 s.", None),
        ("Use tabs and single quotes.", "Use spaces instead of tabs.", None),
        ("Use npm instead of yarn and Node 20.", "Use pnpm instead of npm.", None),
        (
            "Tests go into tests/, docs into docs/; the port is 8080.",
            "The port is 9090 now.",
            "Tests go into tests/, docs into docs/",
        ),
        ("The budget is $500, ask me before you exceed it.", "The budget is now $900.", "ask me before you exceed it."),
        ("The budget is 2,000 euros.", "The budget is now 3,500 euros.", ""),
        ("The port is 8080, of course.", "The port is 9090 now.", ""),
        ("Use tabs.", "Use spaces instead of tabs.", ""),
        ("端口是 8080。", "端口改为 9090。", ""),
    ],
)
def test_what_a_sentence_holds_beside_the_value_that_is_given_anew_stands(
    earlier: str, later: str, left: str | None
) -> None:
    texts = [entry.text for entry in merge(merge((), said(earlier, 2)), said(later, 30))]
    assert texts == [*filter(None, [earlier if left is None else left]), later]


def test_clauses_of_a_replaced_statement_are_read_only_beside_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    reading: list[str] = []
    monkeypatch.setattr(
        "policies.statements.ledger.read_statement",
        lambda sentence: reading.append(sentence) or read_statement(sentence),
    )
    merge(said("The budget is $500, in total, for all of it."), said("The budget is now $900.", 9))
    assert "The budget is $500" not in reading
    texts = [
        entry.text for entry in merge(said("The budget is $500, ask me first."), said("The budget is now $900.", 9))
    ]
    assert texts == ["ask me first.", "The budget is now $900."]
    assert "ask me first." in reading


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("We publish to npm.", "Use pnpm instead of npm."),
        ("Run `npm ci` before the tests.", "Use pnpm instead of npm."),
        ("The build runs in CI on Linux.", "Instead of Linux, use Ubuntu in the Dockerfile."),
        ("The deadline is 4 December.", "The deadline for the docs is 6 December."),
        ("Don't add dependencies.", "You can add pytest as a dependency."),
        ("Never use eval.", "Use eval in the sandbox tests only."),
        ("Limit responses to 200 words.", "Limit commit messages to 72 characters."),
        ("负责人是李雷。", "文档负责人是韩梅梅。"),
    ],
)
def test_a_correction_names_the_subject_that_it_corrects(earlier: str, later: str) -> None:
    assert after((earlier, later)) == [earlier, later]


def test_within_one_message_nothing_replaces_anything() -> None:
    rules = "Use npm for the API.\nUse pnpm instead of npm.\nThe port is 8080.\nThe port is 9090.\nActually, no tabs."
    assert [entry.text for entry in merge((), said(rules, 4))] == rules.splitlines()


def test_a_statement_counts_those_that_it_stands_for() -> None:
    told = ["The port is 8080.", "The port is 9090.", "The port is 9443."]
    entries = merge((), [entry for at, text in enumerate(told) for entry in said(text, 2 * at)])
    assert [(entry.text, entry.replaced) for entry in entries] == [("The port is 9443.", 2)]
    assert counted(entries) == 3


STATEMENTS = st.lists(
    st.sampled_from(
        [
            *("The port is 8080.", "The port is 9090.", "Never push.", "You may push now.", "Use tabs.", "how nice"),
            *("Use spaces instead of tabs.", "端口是9090。", "端口改为9443。", "Maria owns the pager.", "Look at a.py"),
        ]
    ),
    max_size=12,
)


@given(STATEMENTS, st.integers(0, 120))
def test_every_statement_stands_is_replaced_by_one_that_stands_or_is_counted(told: list[str], budget: int) -> None:
    entries = merge((), [entry for at, text in enumerate(told) for entry in said(text, 2 * at)])
    kept = fit(entries, budget, count)
    left_out = counted([entry for entry in entries if entry not in kept])
    # What is said again word for word may be the same statement.
    assert len({*told}) <= counted(kept) + left_out <= len(told)
    assert all(entry.text in told for entry in kept)
