"""The kind of a person's words: a request, or a word to continue."""

import re
from typing import Literal

Speech = Literal["none", "unsure", "brief", "full"]
"""A person's words in a message: none, perhaps some, a word to continue, or more."""

_LONGEST = 60
_WORD = re.compile(r"[^\W_]+")
_SIGN = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# The words of a message without new information: English, German, Spanish, French, Portuguese, Italian, Polish, Dutch,
# Turkish, Russian, Vietnamese, Indonesian.
_GOING_ON = """
go on ahead continue proceed next yes yep yeah yup ok okay k sure fine good great nice thanks thank you please pls do it
that now then keep going carry resume retry again try more done right correct perfect lgtm approved y no nope sounds
looks all just work the works well cool awesome and so still
weiter mach mal ja gut danke bitte genau passt nein jetzt
continua continúa sigue adelante si sí vale gracias por favor bien claro
continuez oui merci vas y suite parfait bon s il te plaît plait
prossegue prossiga continuar sim obrigado obrigada pode seguir isso
avanti procedi grazie va bene
dalej tak dziękuję dobrze verder graag devam evet tamam teşekkürler
продолжай продолжайте дальше да хорошо спасибо ок давай
tiếp tục vâng lanjut lanjutkan terima kasih
"""
_GOING_ON_WORDS = frozenset(_GOING_ON.split())
# The same in scripts without spaces; longer ones first.
_GOING_ON_SIGNS = """
再试一次 没问题 接着来 下一步 开始吧 来吧 做吧 好吧 好的 是的 对的 继续 接着 往下 可以 开始 执行 同意
确认 重试 谢谢 一下 请 就 那 好 行 是 对 嗯 吧 了 做
続けてください 進めてください お願いします ありがとうございます ありがとう よろしく 続けて 続行 進めて どうぞ
お願い ください オーケー 了解 はい うん です 次 ね よ
계속해줘 계속하세요 계속해 계속 진행해줘 진행하세요 진행해 진행 해주세요 해줘 좋아요 좋아 감사합니다 고마워
그래 다음 주세요 네 예 응 요
"""
_GOING_ON_IN_SIGNS = re.compile(
    rf"(?:(?:{'|'.join(_GOING_ON_SIGNS.split())}|ok|go)[\s。，！!,.~～、]{{0,9}}+)++", re.IGNORECASE
)


def speech_of(text: str) -> Speech:
    """Return the kind of a person's text; `none` if it is empty."""
    text = text.strip()
    if not text:
        return "none"
    if len(text) > _LONGEST:
        return "full"
    if _SIGN.search(text):
        return "brief" if _GOING_ON_IN_SIGNS.fullmatch(text) else "full"
    words = [word.lower() for word in _WORD.findall(text)]
    return "brief" if all(word in _GOING_ON_WORDS for word in words) else "full"
