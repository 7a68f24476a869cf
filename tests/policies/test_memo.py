"""What is remembered of texts: once asked, bounded by characters, right from every thread."""

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from policies.memo import Memo, memoize


def held(memo: Memo[str]) -> int:
    return sum(map(len, (*memo._new, *memo._old)))


def test_a_text_is_read_once() -> None:
    asked: list[str] = []

    @memoize(characters=20)
    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    assert [length("abc"), length("abc"), length("abcd")] == [3, 3, 4]
    assert asked == ["abc", "abcd"]
    length.forget()
    assert length("abc") == 3
    assert asked == ["abc", "abcd", "abc"]


def test_what_was_asked_longest_ago_gives_way() -> None:
    asked: list[str] = []
    memo = Memo(lambda text: asked.append(text), 8)
    for text in ("aa", "bb", "cc", "aa", "dd", "ee", "aa", "bb"):
        memo(text)
    assert asked == ["aa", "bb", "cc", "dd", "ee", "bb"]


def test_a_text_that_is_too_long_is_not_remembered() -> None:
    memo = Memo(str.upper, 8)
    assert (memo("abcde"), held(memo)) == ("ABCDE", 0)


@given(st.lists(st.text(max_size=9), max_size=60), st.integers(0, 30))
def test_it_holds_no_more_characters_than_it_may(texts: list[str], characters: int) -> None:
    memo = Memo(str.upper, characters)
    for text in texts:
        assert memo(text) == text.upper()
        assert held(memo) <= characters


def test_threads_share_it() -> None:
    memo = Memo(str.upper, 50)
    texts = [f"{number % 37}x" for number in range(4_000)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(memo, texts)) == [text.upper() for text in texts]
