"""Signs of life while an upstream is silent: what stands between it and a client cuts connections that say nothing.

nginx and AWS's balancers wait for 60 s, Heroku's for 30 to the first byte. A stream that has begun has no status any
more, so nothing is said until a refusal would have come, which is within seconds.
"""

import asyncio
from collections.abc import Callable

from proxy.dialects.base import Answers
from proxy.server.exchange import Exchange

# How often `keepalive` goes by until an answer is begun with a comment, before its head is there and behind it.
BEFORE_HEAD, BEHIND_HEAD = 2, 1
# Seconds of silence after which comments are not enough: codex ends what says nothing else for 300 s.
_LONG = 240.0


def signs(answers: Answers, interval: float) -> Callable[[], bytes]:
    """What is said every `interval` seconds of one silence."""
    silent = 0.0

    def sign() -> bytes:
        nonlocal silent
        silent += interval
        if silent < _LONG or not answers.KEEPALIVE:
            return answers.WAITING
        silent = 0.0
        return answers.WAITING + answers.KEEPALIVE

    return sign


class BetweenEvents:
    """Speaks where an answer's events pause; one per answer. A pause is noticed at the second tick in a row without a
    byte, so that what passes starts no timer."""

    def __init__(self, exchange: Exchange, answers: Answers, interval: float, may: Callable[[], bool]) -> None:
        """`may`: whether something of ours may stand where the answer has paused."""
        self._exchange = exchange
        self._answers = answers
        self._interval = interval
        self._may = may
        self._sign = signs(answers, interval)
        self._is_silent = False
        self._timer = asyncio.get_running_loop().call_later(interval, self._tick)

    def heard(self) -> None:
        """Something has passed."""
        self._is_silent = False

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)
        if not self._is_silent:
            self._is_silent, self._sign = True, signs(self._answers, self._interval)
        elif self._may():
            self._exchange.comment(self._sign())
