"""Searching a conversation: words in any language, passages of readable length, answers behind their questions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.conversation.transcript import Utterance
from policies.record.search import LONGEST, Index, join_blocks, places, terms, without_accents


def index(*texts: str) -> Index:
    """User and assistant in turns."""
    return Index(Utterance(at, "assistant" if at % 2 else "user", text) for at, text in enumerate(texts))


def best(searched: Index, question: str) -> str:
    ranked = searched.rank(searched.find(terms(question)))
    return searched.text_of(ranked[0][1]) if ranked else ""


FILLER = tuple(f"Part {number} of the story goes on and nothing much happens in it." for number in range(40))


@given(st.text())
def test_folding_keeps_every_place(text: str) -> None:
    assert len(without_accents(text)) == len(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [("Crème BRÛLÉE", "creme brulee"), ("İstanbul", "istanbul"), ("ПЛАН ё", "план е"), ("Ünïcödé ﬁ", "unicode ﬁ")],
)
def test_case_and_accents_make_no_difference(text: str, plain: str) -> None:
    assert without_accents(text) == plain


@pytest.mark.parametrize(
    ("said", "question"),
    [
        ("Our landlord is called Tremblay.", "What was the landlord's name?"),
        ("I scheduled the migrations for dawn.", "When is the migration scheduled?"),
        ("Mein Zahnarzt heißt Doktor Weiß.", "Wie heißt mein Zahnarzt?"),
        ("La réunion est dans la salle Curie.", "Dans quelle salle est la reunion ?"),
        ("El contraseñero guarda las llaves en Toledo.", "¿Dónde guardó las llaves el contraseñero?"),
        ("Мой пароль от сейфа знает Ольга.", "Кто знает пароли от сейфов?"),
        ("我们的数据库端口是九千零九十。", "数据库端口是多少？"),
        ("会議室の鍵は受付にあります。", "会議室の鍵はどこですか？"),
        ("회의실 열쇠는 접수처에 있습니다.", "회의실 열쇠는 어디에 있나요?"),
        ("The value of max_retry_count is 17.", "What did we set max_retry_count to?"),
        ("The build number was 48213.", "Which build was 48213?"),
    ],
)
def test_what_was_said_is_found_in_any_language_whatever_its_words_end_in(said: str, question: str) -> None:
    assert best(index(*FILLER, said, *FILLER), question) == said


def test_short_words_and_numbers_stand_for_themselves() -> None:
    plain = without_accents("An article on arts, and art 10 of 100.")
    assert [plain[at:][:4] for at in places("art", plain)] == ["arts", "art "]
    assert len(list(places("10", plain))) == 1


def test_words_that_questions_are_made_of_find_nothing() -> None:
    assert terms("What did I say about that, and when?") == []


def test_an_answer_is_found_by_its_question() -> None:
    searched = index(*FILLER, "Where do you keep the ladder?", "Behind the shed, next to the compost.", *FILLER)
    ranked = searched.rank(searched.find(terms("Where was the ladder kept?")))
    assert [searched.text_of(passage) for _, passage in ranked[:2]] == [
        "Where do you keep the ladder?",
        "Behind the shed, next to the compost.",
    ]


@given(st.lists(st.text(max_size=30)), st.integers(1, 40))
def test_blocks_are_the_texts_in_order_and_bounded(texts: list[str], most: int) -> None:
    blocks = [*join_blocks(texts, most)]
    assert "\n".join(blocks) == "\n".join(texts)
    assert all(len(block) <= most or block in texts for block in blocks)


def test_words_of_a_long_text_and_of_those_around_it_are_found_in_their_places() -> None:
    long = "Nothing much happens in it. " * 12_000
    searched = index(*FILLER, "The ladder is new.", f"{long}A kettle whistles.", "Spoons are old.", *FILLER)
    assert best(searched, "ladder") == "The ladder is new."
    assert best(searched, "kettle") == "A kettle whistles."
    assert best(searched, "spoon") == "Spoons are old."


def test_what_was_found_already_is_left_out() -> None:
    searched = index(*FILLER, "The ladder is new.", *FILLER)
    found = searched.find(terms("ladder"))
    first = searched.rank(found)[0][1]
    assert first not in [passage for _, passage in searched.rank(found, {first})]


def test_results_say_which_tool_they_are_of_and_instructions_are_not_searched() -> None:
    said = [
        Utterance(0, "system", "The ladder is secret."),
        Utterance(1, "tool", "ladder: 3 m", answers="c1", tool="read_file"),
        Utterance(2, "user", "the ladder of a harness", voice="harness"),
    ]
    assert [one.who for one in Index(said).messages] == ["tool (read_file)"]


@given(st.text(alphabet=st.sampled_from("ab .!?\n。"), max_size=2_000))
def test_passages_hold_all_of_a_text_and_are_short(text: str) -> None:
    searched = index(text)
    passages = searched.passages(0) if searched.messages else []
    assert "".join(text[start:end] for _, start, end in passages) == (text if searched.messages else "")
    assert all(end - start <= LONGEST for _, start, end in passages)
