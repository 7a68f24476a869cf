"""`python -m benchmarks.chats`: whether an old answer is quoted where a user asks for it, in four languages.

Of a chat over many places a user asks again at its end: the answer stands two turns behind the place, between answers
about others. `held`: of the questions, those whose answer is in what goes upstream; `others`: answers of other places
in it. Chats are made up from tables; of the places every second one is held out. Window: a quarter of the chat.
"""

from __future__ import annotations

import asyncio
import json
import random
from statistics import fmean
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.support.shaped_sessions import Opencode, prompts


class Speech(NamedTuple):
    """A language's sentences, with {place} and {answer}, its places, its answers and its small talk."""

    opens: str
    reply: str
    asks: str
    tells: str
    again: str
    places: tuple[str, ...]
    answer: str
    talk: tuple[str, ...]


_PLACES = """
颐和园 故宫 天坛 北海公园 雍和宫 香山 圆明园 景山公园 鼓楼 潭柘寺 八大处 植物园
金閣寺 清水寺 銀閣寺 二条城 嵐山 東寺 南禅寺 平安神宮 龍安寺 三十三間堂 桂離宮 鞍馬寺
경복궁 창덕궁 남산타워 북촌마을 덕수궁 종묘 청계천 광장시장 인사동 서울숲 봉은사 낙산공원
"""
_CHINESE, _JAPANESE, _KOREAN = (tuple(line.split()) for line in _PLACES.strip().splitlines())
_ENGLISH_PLACES = (
    *("Harlow House", "Bexley Hall", "Tarn Chapel", "Wick Museum", "Orme Garden", "Cray Mill", "Dunmore Pier"),
    *("Elm Court", "Fenton Tower", "Gale Park", "Hythe Library", "Iver Gallery"),
)
LANGUAGES: dict[str, Speech] = {
    "English": Speech(
        "Let us talk about {place}.", "Gladly, {place} is worth a visit.", "What is the address?",
        "It is at {answer}.", "What was the address of {place}?", _ENGLISH_PLACES, "{number} Mill Lane",
        ("The weather was fine all week.", "My sister likes old trains.", "We had soup for lunch."),
    ),
    "Chinese": Speech(
        "我们聊聊{place}吧。", "好的，{place}很值得一去。", "地址在哪里？", "地址是{answer}。", "{place}的地址是什么？",
        _CHINESE, "新建路{number}号", ("这周天气一直很好。", "我姐姐喜欢老火车。", "午饭喝了汤。"),
    ),
    "Japanese": Speech(
        "{place}について話しましょう。", "はい、{place}は訪れる価値があります。", "住所はどこですか？",
        "住所は{answer}です。", "{place}の住所は何でしたか？", _JAPANESE, "本町{number}番地",
        ("今週はずっと天気がよかったです。", "姉は古い電車が好きです。", "昼はスープでした。"),
    ),
    "Korean": Speech(
        "{place} 이야기를 해 봅시다.", "네, {place}은 가 볼 만합니다.", "주소가 어디예요?", "주소는 {answer}입니다.",
        "{place}의 주소가 뭐였죠?", _KOREAN, "중앙로 {number}번지",
        ("이번 주는 날씨가 좋았어요.", "누나는 오래된 기차를 좋아해요.", "점심에 국을 먹었어요."),
    ),
}  # fmt: skip


def played(speech: Speech, half: int, seed: int) -> tuple[float, float]:
    """Shares of questions whose answer is in the prompt, and of the other answers that are in it too."""
    chance = random.Random(seed)
    answers = {place: speech.answer.format(number=chance.randrange(100, 999)) for place in speech.places}
    session = Opencode()
    for place in chance.sample(speech.places, len(speech.places)):
        session.says(speech.opens.format(place=place))
        session.answers(speech.reply.format(place=place))
        session.says(speech.asks)
        session.answers(speech.tells.format(answer=answers[place]))
        for _ in range(6):
            session.says(" ".join(chance.choices(speech.talk, k=5)))
            session.answers(" ".join(chance.choices(speech.talk, k=8)))
    length, window = len(session.items), max(2_000, len(json.dumps(session.items, ensure_ascii=False)) // 14)
    held, others = [], []
    for place in speech.places[half::2]:
        session.says(speech.again.format(place=place))
        sent = asyncio.run(prompts(session, [length // 2, length * 3 // 4, length - 1, length + 1], window))[-1]
        session.items = session.items[:length]
        held.append(answers[place] in sent)
        others.append(fmean(answer in sent for other, answer in answers.items() if other != place))
    return fmean(held), fmean(others)


def main() -> None:
    table = Table(header_style="bold")
    for column in ("language", "tuning: held", "others", "held out: held", "others"):
        table.add_column(column, justify="left" if column == "language" else "right")
    for name, speech in LANGUAGES.items():
        cells = [figure for half in (0, 1) for figure in played(speech, half, seed=half + 7)]
        table.add_row(name, *(f"{figure:.2f}" for figure in cells))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
