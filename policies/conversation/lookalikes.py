"""Folding of characters that look like an ASCII character, for comparisons of what a reader or model may confuse."""

import re
import unicodedata
from collections.abc import Iterator

# Blocks with variants of ASCII characters by Unicode decomposition: accented, circled, full-width, mathematical, small,
# superscript.
_FORMS = ((0xA0, 0x2500), (0xFE30, 0xFE70), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F100, 0x1F1F0))
# Letters of their own from Unicode's list of confusables (Cyrillic, Greek, Armenian, Cherokee, Lisu, small capitals),
# and similar brackets, bars and slashes.
_ALIKE = {
    "a": "аɑαᴀᎪꓮАΑ",
    "b": "вьʙβᏴꓐВΒ",
    "c": "сϲᴄⅽᏟꓚСϹ",
    "d": "ԁᴅⅾᎠꓓđ",
    "e": "еєҽεϵᴇᎬꓰЕΕ℮",
    "f": "ϝꜰꓝ",
    "g": "ɡɢցԍᏀꓖԌ",
    "h": "һнհʜᎻꓧНΗħ",
    "i": "іıɩιɪᎥꓲІΙ",
    "j": "јϳյᴊᎫꓙЈ",
    "k": "кκᴋᏦꓗКΚ",
    "l": "ӏʟᏞꓡӀ",
    "m": "мᴍᎷꓟМΜ",
    "n": "пηոɴꓠΝ",
    "o": "оοσօᴏꓳОΟՕø",
    "p": "рρքᴘᏢꓑРΡ",
    "q": "ԛզգԚ",
    "r": "гʀᏒꓣ",
    "s": "ѕꜱᏚꓢЅՏ",
    "t": "тτᴛᎢꓔТΤŧ",
    "u": "υսᴜꓴμ",
    "v": "ѵνᴠᏙꓦѴ",
    "w": "ԝѡωᴡᎳꓪԜ",
    "x": "хχꓫХΧ",
    "y": "уγʏᎩꓬУΥ",
    "z": "ᴢᏃꓜΖ",
    "<": "〈⟨‹❮❬❰˂ᐸ≺⋖",
    ">": "〉⟩›❯❭❱˃ᐳ≻⋗",
    "[": "【〔⟦❲",
    "]": "】〕⟧❳",
    "|": "∣│❘ǀ┃",
    "/": "∕⁄╱⧸",
    "_": "▁",
}


def _forms() -> Iterator[tuple[str, str]]:
    for start, end in _FORMS:
        for sign in map(chr, range(start, end)):
            base = [part for part in unicodedata.normalize("NFKD", sign) if not unicodedata.combining(part)]
            if len(base) == 1 and "!" <= base[0] <= "~":
                yield sign, base[0]


_TABLE = str.maketrans({**dict(_forms()), **{sign: plain for plain, signs in _ALIKE.items() for sign in signs}})
# Characters beyond the first plane are a separate set: `re` has a table for a set within that plane, and otherwise
# compares one by one.
_WITHIN = re.escape("".join(chr(sign) for sign in _TABLE if sign <= 0xFFFF))
_signs = re.compile(f"[{_WITHIN}]+|[\U0001d400-\U0001d7ff\U0001f100-\U0001f1ef]+").sub


def fold_lookalikes(text: str) -> str:
    """Return the text with ASCII characters for those that look like one. Its length stays the same."""
    return text if text.isascii() else _signs(lambda match: match[0].translate(_TABLE), text)
