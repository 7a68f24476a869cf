"""Lines by which a run only counts what failed, and the line of its output that says what."""

import re
from collections.abc import Iterable

_WORDS = re.compile(r"[^\W\d_]+")
_DIGIT = re.compile(r"\d")
# All that such a line has beside numbers.
_COUNTING_WORDS = """
error errors errored fail fails failed failing failure failures problem problems issue issues warning warnings
pass passed passing ok skipped pending todo ignored xfailed deselected total found fixed
test tests suite suites file files spec specs example examples assertion assertions check checks source sources
run ran of in out and with checked time elapsed s ms sec second seconds
fehler fehlgeschlagen bestanden und erreur erreurs échec échecs échoué échoués réussi réussis errores fallo fallos
fallaron prueba pruebas y et ошибка ошибки ошибок тест теста тестов не пройдено
"""
_COUNTING = frozenset(_COUNTING_WORDS.split())
# Where words are not set apart: the characters of such words, and of those that join them.
_COUNTING_CHARACTERS = frozenset(
    "个個件条條项項用例测測试試失败敗错錯误誤警告通过過共处處有未被跳成功テストエラーのがはで개의테스트실패오류"
)
# What a line has that says what failed: a word for it, a mark, or a place.
_SAYS_WHAT = re.compile(
    r"\berrors?\b|(?:\b|_)fail|(?:Error|Exception)\b|\bfehl|\berreur|\béch|\berrores\b|\bfall[oó]|\bошибк"
    r"|失败|失敗|错误|錯誤|エラー|실패|오류|[✗✕✘×❌]|[\w)][:(]\d{1,7}[:,]\d",
    re.IGNORECASE,
)


def is_tally(line: str) -> bool:
    """Whether a line counts, and says of nothing what it was."""
    if not _DIGIT.search(line):
        return False
    words = _WORDS.findall(line.lower())
    return bool(words) and all(word in _COUNTING or _COUNTING_CHARACTERS.issuperset(word) for word in words)


def what_failed(lines: Iterable[str]) -> str:
    """The first line that says it; empty if none does."""
    return next((line for line in lines if _SAYS_WHAT.search(line) and not is_tally(line)), "")
