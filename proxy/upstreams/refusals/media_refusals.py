"""Rejections of a request's bytes or images, though its tokens fit: the kind of excess, and the limit.

The texts are those of Anthropic, Bedrock, OpenAI, Azure, Copilot, vLLM and servers in front of them, as of November
2026. Only the error part of a response is read.
"""

import re
from dataclasses import dataclass
from typing import Literal

from proxy.upstreams.refusals import error_parts, rules
from proxy.upstreams.refusals.rules import normal_code

What = Literal["bytes", "pictures", "wide", "one", "pages"]
"""`wide`: images with a side that is too long next to many others. `one`: a single medium. `pages`: of documents."""

TOO_LARGE = 413
_FAILED = 400
# vLLM and others reject media with status 500.
_STATUSES = frozenset({400, 413, 422, 500})
_MOST_READ = 64 * 1024
_UNITS = {"kb": 10**3, "kib": 2**10, "mb": 10**6, "mib": 2**20, "gb": 10**9, "gib": 2**30}
_UNITS |= {"megabyte": 10**6, "megabytes": 10**6}
# The vocabulary of the table. A name may be made of later ones.
_VOCABULARY = {
    "SIZE": r"(?<!\d)(?P<limit>\d{1,12}(?:\.\d{1,6})?) ?(?P<unit>bytes|[kmg]i?b|megabytes?|b)\b",
    "COUNT": r"(?P<limit>\d{1,5})(?!\d|\.\d| ?(?:bytes|[kmg]i?b|px|pixels|x \d|tokens?|pages?)\b)",
    "MEDIA": r"(?:images?|pictures?|photos?|screenshots?|media|documents?)(?:\(s\))?",
    "MEDIUM": r"(?:image|picture|pdf|document)",
    "BAD": r"(?:invalid|unsupported|corrupt(?:ed)?|damaged|malformed)",
    "IMAGE": r"(?:image|picture|photo|screenshot)",
    "EXCEEDS": r"(?:exceed(?:s|ed)?|(?:is |are )?(?:over|above|(?:more|greater|larger|bigger) than))",
    "AT MOST": r"(?:at most|up to|no more than|only|max(?:imum)?(?: number)?(?: of)?|limited to|supports?(?: only)?)",
    "REQUEST": r"(?:request(?: body| payload| entity)?|body|payload|entity)",
    "图": r"(?:图片|图像|照片)",
}
# The first match counts. `limit` is the limit that the text states.
_ROWS: tuple[tuple[What, str], ...] = (
    ("wide", r"dimensions? exceeds? max allowed size for many.image requests:? (?P<limit>\d+)"),
    ("one", r"(?:image )?dimensions? exceeds? max allowed size:? (?P<limit>\d+)"),
    ("one", r"\bimage exceeds .{0,40}max(?:imum)?:? \d+ bytes > (?P<limit>\d+) bytes"),
    ("one", r"\bimage exceeds SIZE max"),
    ("bytes", r"\btotal (?:size of )?(?:MEDIA|files?|attachments?)(?: data)? (?:size|payload)?\b.{0,60}?SIZE"),
    ("one", r"(?<!total )\bMEDIA (?:file |data )?sizes? (?:of )?(?:\d+ bytes )?(?:EXCEEDS|is too)\b(?:.{0,60}?SIZE)?"),
    ("one", r"(?<!total )\b(?:image|picture|photo|document)\b.{0,20}\bEXCEEDS\b.{0,30}\bsize\b(?:.{0,20}?SIZE)?"),
    ("one", r"\bmax(?:imum)? bytes per (?:data.uri|image|item|file).{0,20}?(?P<limit>\d+)"),
    ("one", r"图(?:的)?(?:大小|体积|尺寸|分辨率).{0,12}(?:超|限|过大|最大)(?:.{0,12}?SIZE)?|图(?:过大|太大)"),
    ("one", r"(?<!total )\bIMAGE\b.{0,20}\btoo (?:large|big)(?:.{0,60}?SIZE)?"),
    ("one", r"(?<!total )\bIMAGE(?: file| data)?\b.{0,12}\bEXCEEDS\b.{0,30}?SIZE"),
    ("one", r"\bIMAGE must be (?:smaller|less) than SIZE"),
    ("one", r"SIZE.{0,20}\b(?:for (?:a single|each|one)|per) (?:image|picture|photo|file)\b"),
    (
        "one",
        r"\bimage (?:dimensions?|width|height|resolution)\b.{0,60}\b(?:EXCEEDS|must be (?:less|smaller|at most)|too)\b",
    ),
    ("pages", r"\bAT MOST (?P<limit>\d+) (?:pdf )?pages"),
    ("pages", r"\b\d+ pages\b.{0,40}\bEXCEEDS\b.{0,40}?\b(?P<limit>\d+)"),
    ("pages", r"\btoo much media:? [1-9]\d* document pages \+ \d+ images > (?P<limit>\d+)"),
    ("pictures", r"\btoo much media:? \d+ document pages \+ \d+ images > (?P<limit>\d+)"),
    ("pictures", r"\btoo many images and documents:? \d+ \+ \d+ > (?P<limit>\d+)"),
    ("pictures", r"\bexceeded max(?:imum)? number of MEDIA \(?(?P<limit>\d+)"),
    ("pictures", r"\bset image (?P<limit>\d+)\b.{0,80}\bpassed \d+ image"),
    ("pictures", r"\btoo many images\b.{0,40}?\d+ images? provided.{0,60}?max(?:imum)? of (?P<limit>\d+)"),
    ("pictures", r"\b(?:AT MOST|(?:fewer|less) than) COUNT (?:IMAGEs?(?:\(s\))?|media)\b"),
    ("pictures", r"\bmax(?:imum)? (?:number of )?MEDIA per (?:request|message|prompt):? COUNT"),
    ("pictures", r"\b\d+ MEDIA\b.{0,40}\bEXCEEDS\b.{0,40}?COUNT"),
    ("pictures", r"\bimages? count:? \d+ > (?:max(?:imum)? )?COUNT"),
    ("pictures", r"\bimages\b.{0,10}\bEXCEEDS\b.{0,40}?\bmax(?:imum)?:? COUNT"),
    ("pictures", r"(?:количество|число|много) изображений(?:.{0,20}?(?P<limit>\d+))?"),
    ("pictures", r"\bnumber of MEDIA\b.{0,30}\bEXCEEDS\b.{0,40}?COUNT"),
    (
        "pictures",
        r"\bmax(?:imum)? (?:of|is|number of MEDIA is)? ?(?P<limit>\d+) MEDIA",
    ),
    ("pictures", r"\btoo many MEDIA\b.{0,40}?\b(?:max(?:imum)?|limit)(?: is| of|:)? COUNT"),
    ("pictures", r"\bimages?\b.{0,60}\bmax(?:imum)? allowed is COUNT|\btoo many (?:images|pictures|photos|media)\b"),
    (
        "pictures",
        r"\bonly supports? (?:one|a single) image\b|\bmore than one image\b.{0,20}\b(?:request|provided|given)",
    ),
    ("pictures", r"图.{0,20}(?:数量|张数|过多|太多|最多|至多|上限|超过).{0,20}?(?P<limit>\d+) ?[张个幅]"),
    ("pictures", r"(?:最多|至多|不超过).{0,12}?(?P<limit>\d+) ?[张个幅]图"),
    ("pictures", r"图(?:数量|张数)?(?:过多|太多)"),
    ("pictures", r"画像.{0,20}?(?P<limit>\d+) ?枚"),
    ("pictures", r"이미지.{0,20}?(?P<limit>\d+) ?(?:개|장)"),
    ("pictures", r"\btrop d ?images\b.{0,40}?(?P<limit>\d+) au maximum"),
    ("pictures", r"\btrop d ?images\b(?:.{0,40}?\bmax\w* (?P<limit>\d+))?"),
    (
        "pictures",
        r"\b(?:zu viele bilder|demasiadas im[aá]genes|troppe immagini|imagens demais|muitas imagens)\b"
        r"(?:.{0,40}?\b(?:max\w*|höchstens|m[aá]x\w*) (?P<limit>\d+))?",
    ),
    ("bytes", r"\bmax(?:imum)? bytes to request body ?:? (?P<limit>\d+)"),
    ("bytes", r"\bimages? content cannot exceed SIZE"),
    ("bytes", r"\bREQUEST\b.{0,60}\b(?:EXCEEDS|limit)\b.{0,30}?SIZE"),
    ("bytes", r"\bREQUEST\b.{0,20}\btoo (?:large|big|long)\b.{0,60}?SIZE"),
    ("bytes", r"\bmax(?:imum)? (?:allowed )?REQUEST size\b.{0,20}?SIZE"),
    ("bytes", r"\bmax(?:imum)? (?:allowed )?REQUEST size\b:? ?(?P<limit>\d{5,12})\b(?! ?[kmg]i?b)"),
    ("bytes", r"请求(?:体|内容|数据)?.{0,8}(?:过大|太大|超过|超出).{0,20}?SIZE|请求体(?:过大|太大)"),
    ("bytes", r"\b(?:anfrage|requ[eê]te|solicitud|requisição|richiesta)\b.{0,60}?SIZE"),
    ("bytes", r"\brequest exceeds the max(?:imum)? (?:allowed )?(?:size|number of bytes)"),
    ("bytes", r"\brequest entity too large|\bpayload too large"),
    ("bytes", r"\b(?:request |body )?(?:body|entity|payload|content) (?:is )?too large|\blength limit exceeded"),
    (
        "one",
        r"\b(?:could not|unable to|failed to|cannot) (?:process|decode|read|load|parse) (?:the |this )?MEDIUM",
    ),
    ("one", r"\bBAD MEDIUM(?![ _](?:url|input))"),
    ("one", r"\bMEDIUM\b(?! (?:url|input)).{0,40}\b(?:BAD|not (?:a )?(?:valid|supported))"),
)


def _compile(pattern: str) -> re.Pattern[str]:
    for name, words in _VOCABULARY.items():
        pattern = pattern.replace(name, words)
    return re.compile(pattern)


_PATTERNS = tuple((what, _compile(pattern)) for what, pattern in _ROWS)
# Texts about generating images are not about media in the request.
_ELSEWHERE = re.compile(
    r"\bimage (?:generation|editing|tools?)\b|\b(?:generat|creat|edit)\w* (?:of )?(?:an )?(?:images?|pictures?)\b"
    r"|\bimages? (?:may|can|to|will) be (?:generat|creat|edit|return)"
)
_CODES = frozenset({"requesttoolarge", "payloadtoolarge", "requestentitytoolarge", "contenttoolarge"})
_STATUS_FIELDS = ("error", "code", "status", "status_code", "statusCode", "http_status")


@dataclass(frozen=True, slots=True)
class MediaRefusal:
    """An excess in a request. limit: as stated; None if it is not."""

    what: What
    limit: int | None = None


def media_refusal(status: int, body: bytes) -> MediaRefusal | None:
    """Return the excess that such an error states; None for any other error."""
    if status not in _STATUSES or len(body) > _MOST_READ:
        return None
    if not body.strip():
        return MediaRefusal("bytes") if status == TOO_LARGE else None
    return _read(error_parts.error_part(body, failed=True), status)


def media_refusal_in(data: bytes, *, failed: bool) -> MediaRefusal | None:
    """Return the excess in an event's data or an object with another status; None if it rejects no media.

    failed: True if it is an error whatever its form.
    """
    if not data.strip() or len(data) > _MOST_READ:
        return None
    return _read(error_parts.error_part(data, failed=failed), _FAILED)


def _read(error: object, status: int) -> MediaRefusal | None:
    strings = error_parts.strings_of(error)
    if _own_status(error) in rules.NEVER:
        return None
    if any(rules.matches(rules.VETOES, sentence) for sentence in error_parts.sentences(strings)):
        return None
    texts = [text for _, text in strings] or ([error] if isinstance(error, str) else [])
    for text in texts:
        plain = error_parts.plain(text[:2_000])
        if _ELSEWHERE.search(plain) is not None:
            return None
        for kind, pattern in _PATTERNS:
            if (match := pattern.search(plain)) is not None:
                limit = _limit_in(match)
                return None if limit == 0 else MediaRefusal(kind, limit)
    if status == TOO_LARGE or _CODES & {normal_code(value) for _, value in strings}:
        return MediaRefusal("bytes")
    return None


def _own_status(error: object) -> int | None:
    """Return the status that an error itself names, as gateways relay one; None without one."""
    for value in map(error.get, _STATUS_FIELDS) if isinstance(error, dict) else ():
        if isinstance(value, dict):
            return _own_status(value)
        if isinstance(value, int | str) and str(value).isascii() and str(value).isdigit():
            return int(value)
    return None


def _limit_in(match: re.Match[str]) -> int | None:
    groups = match.groupdict()
    limit = groups.get("limit")
    return None if limit is None else int(float(limit) * _UNITS.get(groups.get("unit") or "", 1))
