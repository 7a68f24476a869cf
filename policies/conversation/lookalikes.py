"""Signs that look like an ASCII sign, for comparisons: what a reader, and so a model, may take one text for."""

import re
import unicodedata
from collections.abc import Iterator

# What Unicode itself says is a form of an ASCII sign lies in these blocks: with accents, in circles, full-width,
# mathematical, small, raised.
_FORMS = ((0xA0, 0x2500), (0xFE30, 0xFE70), (0xFF00, 0xFFF0), (0x1D400, 0x1D800), (0x1F100, 0x1F1F0))
# What it holds for letters of their own, after its list of confusables: Cyrillic, Greek, Armenian, Cherokee, Lisu,
# small capitals; and for brackets, bars and slashes of their own.
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
    for first, end in _FORMS:
        for sign in map(chr, range(first, end)):
            base = [part for part in unicodedata.normalize("NFKD", sign) if not unicodedata.combining(part)]
            if len(base) == 1 and "!" <= base[0] <= "~":
                yield sign, base[0]


_TABLE = str.maketrans({**dict(_forms()), **{sign: plain for plain, signs in _ALIKE.items() for sign in signs}})
# Signs beyond the first plane apart: `re` has a table for a set of those within it, and compares one by one otherwise.
_WITHIN = re.escape("".join(chr(sign) for sign in _TABLE if sign <= 0xFFFF))
_signs = re.compile(f"[{_WITHIN}]+|[\U0001d400-\U0001d7ff\U0001f100-\U0001f1ef]+").sub


def fold_lookalikes(text: str) -> str:
    """The text with an ASCII sign for every one that looks like it: as long as it was, sign for sign."""
    return text if text.isascii() else _signs(lambda found: found[0].translate(_TABLE), text)
