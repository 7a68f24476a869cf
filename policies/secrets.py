"""Secrets in texts, masked as `[secret:kind:last4]`: the same text always gives the same bytes.

Three kinds are found: what providers' keys look like; what stands in addresses, headers and files of keys; and values
beside the name of a secret, which must not be a type, a placeholder, an identifier of code, or a word of a sentence.
"""

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple

from policies.transcript import Utterance

_LAST = 4
# Of what is shorter, its last characters would be most of it.
_LEAST_SHOWN = 6
# Characters of a value by which it is judged.
_JUDGED = 200
# A mask may complete what another one is found by; more often than this that is nobody's text.
_MOST_PASSES = 4
_MASK = "[secret:"
# Letters beyond ASCII and Latin controls, but no halves of what takes two.
_ESCAPED = re.compile(r"\\{1,7}u((?!00|d[89a-f]|D[89A-F])[0-9a-fA-F]{4}|00[c-fC-F][0-9a-fA-F])")
_NOT_SHOWN = re.compile(r"[^\w+/=.!#$%~-]")
_NO_KEY = re.compile(r"-----[A-Z ]+-----|\\[nr]|[^A-Za-z0-9+/=]")
# Changes between large and small letters, of a text at random.
_RANDOM_SWITCHES = 0.3


class _SecretSpan(NamedTuple):
    """A secret: where it stands in the text, and what it is."""

    start: int
    end: int
    kind: str


# What providers' keys look like, by what they begin with: a text without that is done with after one look.
_FORMATS: tuple[tuple[str, str, str], ...] = (
    ("anthropic", "sk-ant-", r"[\w-]{20,300}"),
    ("openai", "sk-", r"(?=[^\d\s]{0,60}\d)(?:proj-|svcacct-|or-v1-|admin-)?[\w-]{20,300}"),
    ("stripe", "k_live_", r"\w{16,200}"),
    ("stripe", "k_test_", r"\w{16,200}"),
    ("stripe", "whsec_", r"\w{16,200}"),
    ("aws", "AKIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("aws", "ASIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("github", "ghp_", r"\w{30,300}"),
    ("github", "gho_", r"\w{30,300}"),
    ("github", "ghu_", r"\w{30,300}"),
    ("github", "ghs_", r"\w{30,300}"),
    ("github", "ghr_", r"\w{30,300}"),
    ("github", "github_pat_", r"\w{30,300}"),
    ("gitlab", "glpat-", r"[\w.-]{20,100}"),
    ("gitlab", "gldt-", r"[\w-]{20,100}"),
    ("gitlab", "glrt-", r"[\w-]{20,100}"),
    ("gitlab", "glptt-", r"[\w-]{20,100}"),
    ("slack", "xox", r"[abeoprs]-[A-Za-z0-9-]{10,300}"),
    ("slack", "xapp-", r"[A-Za-z0-9-]{10,300}"),
    ("slack", "hooks.slack.com/", r"(?P<before>(?:services|workflows|triggers)/)[\w/]{20,200}"),
    ("discord", "/api/webhooks/", r"(?P<before>)\d{15,22}/[\w-]{40,100}"),
    ("google", "AIza", r"[\w-]{35}"),
    ("google", "ya29.", r"[\w-]{20,2000}"),
    ("npm", "npm_", r"[A-Za-z0-9]{36}"),
    ("pypi", "pypi-", r"[\w-]{50,300}"),
    ("huggingface", "hf_", r"[A-Za-z0-9]{30,100}"),
    ("sendgrid", "SG.", r"[\w-]{16,40}\.[\w-]{30,80}"),
    ("groq", "gsk_", r"[A-Za-z0-9]{30,100}"),
    ("xai", "xai-", r"[A-Za-z0-9]{30,100}"),
    ("perplexity", "pplx-", r"[A-Za-z0-9]{30,100}"),
    ("replicate", "r8_", r"[A-Za-z0-9]{30,60}"),
    ("mailgun", "key-", r"[0-9a-f]{32}(?![\w-])"),
    ("twilio", "SK", r"[0-9a-f]{32}(?!\w)"),
    ("digitalocean", "dop_v1_", r"[0-9a-f]{60,70}"),
    ("digitalocean", "doo_v1_", r"[0-9a-f]{60,70}"),
    ("shopify", "shpat_", r"[0-9a-fA-F]{30,40}"),
    ("shopify", "shpss_", r"[0-9a-fA-F]{30,40}"),
    ("shopify", "shpca_", r"[0-9a-fA-F]{30,40}"),
    ("databricks", "dapi", r"[0-9a-f]{32}(?:-\d)?(?!\w)"),
    ("vault", "hvs.", r"[\w-]{24,200}"),
    ("linear", "lin_api_", r"\w{30,60}"),
    ("postman", "PMAK-", r"[0-9a-f-]{40,80}"),
    ("jwt", "eyJ", r"[\w-]{10,2000}\.[\w-]{10,4000}\.[\w-]{10,1000}"),
)
# What stands before them: no letter or digit, but that of an escape (`\nsk-`), and of what base64 may hold no sign.
_LEFT = re.compile(r"(?<![\w-])|(?<=\\[nrt])", re.ASCII)
_LEFT_OF_BASE64 = re.compile(r"(?<![\w+/-])|(?<=\\[nrt])", re.ASCII)
_LEFT_OF_URL = re.compile("")
_IN_BASE64 = ("AKIA", "ASIA", "AIza", "SG.", "eyJ", "dapi", "SK", "sk-", "key-", "xox")
_LEFT_OF = dict.fromkeys(_IN_BASE64, _LEFT_OF_BASE64) | dict.fromkeys(
    ("hooks.slack.com/", "/api/webhooks/"), _LEFT_OF_URL
)
# A letter more stands before these.
_OF_STRIPE = ("k_live_", "k_test_")


class _Format(NamedTuple):
    """What keys of a kind begin with, what they look like from there on, and so many characters before it."""

    kind: str
    begin: str
    left: re.Pattern[str]
    pattern: re.Pattern[str]
    before: int


def _format(kind: str, begin: str, rest: str) -> _Format:
    before = 1 if begin in _OF_STRIPE else 0
    return _Format(
        kind, begin, _LEFT_OF.get(begin, _LEFT), re.compile("[sr]" * before + re.escape(begin) + rest, re.ASCII), before
    )


_KEYS = tuple(_format(*each) for each in _FORMATS)

_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_PEM_LINES = re.compile(
    r"(?:[\s\"'+,>|#]{0,12}(?:\\[nr]){0,4}[A-Za-z0-9+/=]{16,}){0,400}[\s\"'+,\\nr]{0,8}[A-Za-z0-9+/=]{0,16}"
)
_MOST_PEM = 20_000

_DSN = re.compile(r"(?<=[a-zA-Z0-9])://[^\s:/@\"'<>\\`?#\[]{0,100}:(?P<value>[^\s/\"'<>\\`]{1,300})(?=@[\w\[$%{-])")
_BEARER = re.compile(
    r"(?:earer|ization\\{0,7}[\"']?:[ \t]{0,4}\\{0,7}[\"']?(?:[Tt]oken|[Aa]pi[Kk]ey))[ \t]{1,4}"
    r"(?P<value>[\w.~+/-]{16,4000}={0,2})"
)
_BASIC = re.compile(r"(?:asic[ \t]{1,4}|\"auth\\{0,7}\"\s{0,4}:\s{0,4}\\{0,7}\")(?P<value>[A-Za-z0-9+/]{8,2000}={0,2})")
_COOKIE = re.compile(r"ookie\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,7}[\"']?(?P<value>[^\n\"'\\]{8,4000})")
_COOKIE_VALUE = re.compile(r"(?:^|[;\s])[^\s=;]{1,100}=(?P<value>[^\s;]{12,4000})")
_TELEGRAM = re.compile(r"(?<!\d)(?P<value>\d{8,10}:AA[\w-]{32,34})")
_SIGNATURE = re.compile(r"[?&;](?:sig|[Ss]ignature|X-(?:Amz|Goog)-Signature)=(?P<value>[\w%+/=.-]{20,600})")
_CURL_USER = re.compile(
    r"(?<![\w-])(?:-u|--(?:proxy-)?user)[ \t=]{0,2}[\"']?[A-Za-z][\w.@+-]{0,80}:(?P<value>[^\s\"'\\:]{4,200})"
)
_COMMAND = re.compile(
    r"\b(?:mysql|mysqldump|mysqladmin|mariadb|sshpass|login|htpasswd|redis-cli|mongo|mongosh|ldapsearch)\b"
    r"(?:[ \t]+(?!-[pawP])[\w./:@=,-]{1,80}){0,8}[ \t]+(?:-p ?|-a |-w )[\"']?(?P<value>[^\s\"'\\|;&<>]{4,200})"
)
_SQL = re.compile(r"(?i:\bidentified\s{1,4}by\s{1,4})\\?['\"](?P<value>[^'\"\n\\]{4,200})")
_MACHINE = re.compile(r"\blogin\s{1,4}\S{1,100}\s{1,4}password\s{1,4}(?P<value>[^\s\"'\\]{3,200})")

# The names of secrets. Of the strong ones a plain word may be the value; of others it must look like one of a machine.
_STRONG = ("pwd", "kennwort", "contrase\\u00f1a", "contrasena", "senha", "wachtwoord")
_STRONG_ABROAD = ("contraseña", "hasło", "пароль", "パスワード", "비밀번호", "密码", "密碼", "口令")
_WEAK = ("secret", "token", "credential")
_WEAK_ABROAD = ("密钥", "密鑰", "令牌", "凭证")
_PASS = re.compile(r"pass(?:word|wd|phrase|[_-]?code|wort)|(?<=mot[ _]de[ _])passe|(?P<weak>(?<=[_-])pass)")
_KEY_OF = re.compile(
    r"(?i:api|access|private|account|auth|secret|encrypt(?:ion)?|sign(?:ing)?|master|license|service|storage|client|app"
    r"|deploy|consumer|admin|webhook)[ _-]?\Z"
)
Strength = Literal["strong", "weak", "faint"]
_NAMES: tuple[tuple[Strength, tuple[str, ...]], ...] = (("strong", _STRONG), ("weak", _WEAK))
_NAMES_ABROAD: tuple[tuple[Strength, tuple[str, ...]], ...] = (("strong", _STRONG_ABROAD), ("weak", _WEAK_ABROAD))
_PREFIX = re.compile(r"[\w.-]{0,40}\Z")
# What may follow in a name; these make it the name of something else, and so do those before it.
_SUFFIX = re.compile(r"(?:[_-][\w-]{1,30}|(?i:key|value|base)(?![a-z])|\d{1,2}(?!\w))?")
_OTHER_SUFFIX = re.compile(
    r"(?i)[_-](?:id|name|file|path|dir|url|uri|type|ref|counts?|len(?:gth)?|size|limit|expir\w*|ttl|version|field|label"
    r"|policy|hash|digest|prefix|suffix|arn|env|var|index|usage|budget|used|provider|store|manager|endpoint|class|format"
    r"|mode|kind|alg\w*|min|max|regex|pattern|hint|reset|fingerprint)s?\b"
)
_OTHER_PREFIX = re.compile(
    r"(?i)(?:^|[_.-])(?:next|page|continuation|sync|pad|eos|bos|unk|sep|cls|mask|stop|start|end|special|input|output|prompt"
    r"|completion|total|cached?|max|min|num|n|per|public|primary|foreign)[_-]?\Z"
)
# Between the name and its value. The words stand for a sentence: "the password for the box is", "密码改成了".
_OF = r"(?:[ \t](?:for|of|to|on|del?|da|für)[ \t][\w.@'-]{1,40}(?:[ \t][\w.@'-]{1,40}){0,3}?)?"
_OPERATOR = re.compile(
    r"(?P<said>" + _OF + r"[ \t]{1,4}(?:is|was|ist|es|est|è|é)(?:[ \t]now|[ \t]still)?[ \t]{1,4}(?:[:：][ \t]{0,4})?"
    r"|[ \t]{0,2}[已被改设置重更新修就]{0,6}[是为為成了は]{1,2}[ \t]{0,4}(?:[:：][ \t]{0,4})?)"
    r"|" + _OF + r"\\{0,7}[\"'`]?\]?[ \t]{0,8}(?:===?|!==?|:=|=>|[:=：])[ \t]{0,8}"
    r"|\\{0,7}[\"']?,?(?:\s|\\{1,7}[nrt]){0,40}-?\s{0,4}\\{0,7}[\"']?(?i:value)\\{0,7}[\"']?\s{0,4}[:=]\s{0,4}"
    r"|>(?=[^\s<>=])|[ \t](?=\\{0,7}[\"'][^\s\"'])|(?<=[码令钥牌])[ \t](?=[\w!-~]{0,40}\d)"
)
_FLAG = re.compile(r"[ \t](?=[^\s-])")
_CLOSED = {quote: re.compile(rf"(?P<value>(?:[^\n{quote}\\]|\\.){{1,500}}){quote}") for quote in "\"'`"}
_OPEN = re.compile(r"(?:[bruf]{0,2}(?=\\{0,7}[\"']))?(?P<escape>\\{0,7})(?P<quote>[\"'`])")
_LONGEST_QUOTED = 500
_ASIAN = "\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
_BARE = re.compile(rf"(?:[^\s\"'`\\,;&<>{_ASIAN}]{{1,2000}}|\\(?![nrtu\"'\\])){{1,20}}")
_OF_SHELL = re.compile(rf"(?:[^\s\"'`\\<>{_ASIAN}]{{1,2000}}|\\(?![nrtu\"'\\])){{1,20}}")
_ENDING = re.compile(r"(?<![.)\]}:,;&|])[.)\]}:,;&|]++\Z")

# What stands in the place of a secret.
_PLACEHOLDER = re.compile(
    r"\A(?:(?:\$\w+|\$\{.*|\$\(.*|\$\{\{.*|%\w+%?|%[({].*|\{.*|<.*|\[.*|\(.*|\*+|&\w+|!\w.*|@\w+@?|\.{2,}.*|-+|\|.*|\#\{.*)\Z"
    r"|.*(?:x{4,}|\*{3,}|\.{3}|…|\$\{|\{\{|<[a-z_ -]+>)"
    r"|(?:your|my|the|a|some|insert|enter|put|add|replace|use|see|change)(?:[-_ ]|\Z)|change_?(?:me|it)\b|your[A-Z]"
    r"|(?:example|dummy|placeholder|sample|todo|tbd|fixme|redacted|removed|hidden|masked|omitted|undisclosed)\b"
    r"|(?:arn|vault|op|sops|env|file|keyvault|gcp|aws|sha\d+|ref\+\w+)[:+]|https?://|ssh-|ecdsa-|secret:"
    r"|(.)\1*\Z)",
    re.IGNORECASE | re.DOTALL,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Types, values and fields of code; and words of sentences about passwords.
_OF_CODE = _words("""
    string str bytes number boolean bool int integer optional required secretstr none null nil true false
    undefined any object text char varchar password passwd passphrase pwd pass secret token key email input
    field type function const let var final private public static self this args kwargs props await async lambda
    return void not and default unset empty readonly unknown never vault stdin prompt hidden env file yes no
    test
""")
_WORDS = _OF_CODE | _words("""
    a an the in on at to for of by with from only now also still too very always wrong incorrect correct invalid
    valid missing stored hashed encrypted needed set changed reset updated protected sent expired weak strong
    short long same different used kept given shown printed logged read written checked tested necessary
    mandatory case being been what where how it that there here just already safe secure exposed leaked rotated
    gone ready okay fine good bad old new your my our their his her its all each one or if so as obligatoria
    obligatoire obrigatória falsch richtig ungültig erforderlich incorrecta incorrecte
""")
_OF_SENTENCES = _words("""
    a an and are at be been can cannot enter field for has have if in incorrect invalid is must my not of or
    please required should that the this to type was when will with without wrong your
""")
_IDENTIFIER = re.compile(r"\A[A-Za-z_$@][\w$]*\Z")
_PATH_OF_CODE = re.compile(r"\A[&*!]?[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.)[A-Za-z_$][\w$]*)+\Z")
_CALL = re.compile(r"\A[&*!]?(?:await\s|new\s)?[A-Za-z_$][\w$.:?>-]*[(\[<{]")
_NAMES_ONE = re.compile(r"(?i)passw|passphrase|secret|token|pwd|cred|api_?key|auth")
_OF_ENV = re.compile(r"\A[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\Z")
_LOCATION = re.compile(r"(?:\.{0,2}|~|[A-Za-z]:)[/\\]")
_PART = re.compile(r"[-_./: ]")
_CODE_WORD = re.compile(r"\A(?:[A-Za-z]+|v?\d{1,4}|[a-z]+\d{1,2}|[A-Z]+\d{1,2})\Z")


def masked_in(said: Utterance) -> Utterance:
    """What a role says and thinks, without secrets, and what its calls are given."""
    calls = tuple(replace(call, arguments=mask_secrets(call.arguments)) for call in said.calls)
    return replace(said, text=mask_secrets(said.text), calls=calls, reasoning=mask_secrets(said.reasoning))


def masked_within(value: object) -> object:
    """A decoded JSON value without secrets in its strings."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, list):
        return [masked_within(each) for each in value]
    if isinstance(value, dict):
        return {key: masked_within(each) for key, each in value.items()}
    return value


def mask_secrets(text: str) -> str:
    """The text with a mask in the place of every secret; words around them stay. Masking again changes nothing."""
    if not text:
        return text
    text = _mask_text(text)
    if "\\u" not in text:
        return text
    # JSON in ASCII: "密码" is a name as well where it is escaped.
    plain = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    return text if (found := _mask_text(plain)) == plain else found


def values_in(text: str) -> dict[str, str]:
    """The secrets of a text, with what stands in their place, but for short ones: for where they stand alone."""
    found = ((text[start:end], kind) for start, end, kind in _spans(text))
    return {value: _mask(kind, value) for value, kind in found if len(value) >= _LEAST_SHOWN}


def _mask_text(text: str) -> str:
    for _ in range(_MOST_PASSES):
        if not (spans := _spans(text)):
            break
        text = _without(text, spans)
    return text


def _spans(text: str) -> list[_SecretSpan]:
    found = (*_by_format(text), *_by_place(text), *_by_name(text))
    return sorted(found, key=lambda span: (span.start, -span.end))


def _without(text: str, spans: list[_SecretSpan]) -> str:
    """Of spans that overlap, the first holds, and grows over the others."""
    parts, end, at = list[str](), 0, 0
    while at < len(spans):
        start, stop, kind = spans[at]
        at += 1
        while at < len(spans) and spans[at].start < stop:
            stop = max(stop, spans[at].end)
            at += 1
        parts += [text[end:start], _mask(kind, text[start:stop])]
        end = stop
    return "".join([*parts, text[end:]])


def _mask(kind: str, value: str) -> str:
    if kind == "private_key":
        value = _NO_KEY.sub("", value)
    shown = _NOT_SHOWN.sub("", value[-_LAST:]) if len(value) >= _LEAST_SHOWN else ""
    return f"{_MASK}{kind}:{shown}]"


def _places(text: str, part: str) -> Iterator[int]:
    """Where a part stands in a text; much quicker than a pattern."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _by_format(text: str) -> Iterator[_SecretSpan]:
    for kind, begin, left, pattern, before in _KEYS:
        if begin not in text:  # nearly always: asked first, it takes a quarter of the time
            continue
        for place in _places(text, begin):
            found = pattern.match(text, place - before) if place >= before else None
            if found is None or not left.match(text, found.start()):
                continue
            start = found.end("before") if "before" in pattern.groupindex else found.start()
            if not _PLACEHOLDER.match(text[start : found.end()]):
                yield _SecretSpan(start, found.end(), kind)


def _by_place(text: str) -> Iterator[_SecretSpan]:
    if "PRIVATE KEY" in text:
        yield from _pem(text)
    for parts, pattern, kind, is_secret in _PLACES:
        if any(part in text for part in parts):
            yield from _values(text, pattern, kind, is_secret)
    if "ookie" in text:
        for found in _COOKIE.finditer(text):
            for pair in _COOKIE_VALUE.finditer(found["value"]):
                if _is_random(pair["value"]):
                    start = found.start("value")
                    yield _SecretSpan(start + pair.start("value"), start + pair.end("value"), "cookie")


def _values(text: str, pattern: re.Pattern[str], kind: str, is_secret: Callable[[str], bool]) -> Iterator[_SecretSpan]:
    for found in pattern.finditer(text):
        if is_secret(found["value"]):
            yield _SecretSpan(*found.span("value"), kind)


def _pem(text: str) -> Iterator[_SecretSpan]:
    """Whole blocks; of one that is cut off what looks like its lines."""
    for found in _PEM_BEGIN.finditer(text):
        following = _PEM_BEGIN.search(text, found.end(), found.end() + _MOST_PEM)
        limit = following.start() if following else found.end() + _MOST_PEM
        closed = _PEM_END.search(text, found.end(), limit)
        lines = _PEM_LINES.match(text, found.end())
        end = closed.end() if closed else lines.end() if lines else found.end()
        if end > found.end() + 16:
            yield _SecretSpan(found.start(), end, "private_key")


def _by_name(text: str) -> Iterator[_SecretSpan]:
    passed = 0
    for start, stem, strength in sorted(_names(text)):
        if start < passed:
            continue
        prefix, suffix = _prefix(text, start), None if strength == "faint" else _SUFFIX.match(text, stem)
        if _OTHER_SUFFIX.match(text, stem) or _OTHER_PREFIX.search(prefix) or text.startswith(_MASK, start - 1):
            continue
        if strength == "weak" and not prefix and text[start - 1 : start] == ":":  # of an ARN
            continue
        end = suffix.end() if suffix else stem
        is_flag, name = prefix.startswith("--"), prefix + text[start:end]
        operator = _OPERATOR.match(text, end) or (_FLAG.match(text, end) if is_flag else None)
        if operator is None:
            continue
        is_said = is_flag or operator.lastgroup == "said"
        value = _value(text, operator.end(), is_of_shell=name.isupper() and operator[0] == "=")
        if value is None:
            continue
        if value.end - value.start > _LONGEST_QUOTED:  # names in what is as long are looked at once, with it
            passed = value.end
        if _is_secret(text, value, strength, name, is_said=is_said):
            yield _SecretSpan(value.start, value.end, "value")


def _names(text: str) -> Iterator[tuple[int, int, Strength]]:
    """What stands for secrets: from where to where, and how surely."""
    small = text.lower()
    if len(small) != len(text):  # a few letters become two
        small = "".join(sign.lower() if len(sign.lower()) == 1 else sign for sign in text)
    for strength, names in _NAMES if text.isascii() else (*_NAMES, *_NAMES_ABROAD):
        for name in filter(small.__contains__, names):
            for start in _places(small, name):
                yield start, start + len(name), strength
    for start in _places(small, "pass"):
        if found := _PASS.match(small, start):
            yield start, found.end(), "weak" if found["weak"] else "strong"
    for start in _places(small, "key"):
        if _KEY_OF.search(text, max(0, start - 12), start):
            yield start, start + 3, "weak"
        elif not (text[start - 1 : start].isalnum() or text[start - 1 : start] in ("_", "-")):
            yield start, start + 3, "faint"


def _prefix(text: str, start: int) -> str:
    """What of the same name stands before this place."""
    before = _PREFIX.search(text[max(0, start - 40) : start])
    prefix = before[0] if before else ""
    # The letter of an escape is none of the name's.
    escape = max(0, start - 40) + len(text[max(0, start - 40) : start]) - len(prefix) - 1
    return prefix[1:] if prefix[:1] in ("n", "r", "t") and prefix and escape >= 0 and text[escape] == "\\" else prefix


class _Value(NamedTuple):
    """What stands behind a name, and whether in quotes."""

    start: int
    end: int
    is_quoted: bool


def _value(text: str, start: int, *, is_of_shell: bool) -> _Value | None:
    opened = _OPEN.match(text, start)
    if opened is not None:
        start, closed = opened.end(), _closing(text, opened)
        if closed is not None:
            return _unmasked_value(text, start, closed, is_quoted=True)
    bare = (_OF_SHELL if is_of_shell else _BARE).match(text, start)
    if bare is None:
        return None
    ending = _ENDING.search(bare[0])
    return _unmasked_value(text, start, bare.end() - (len(ending[0]) if ending else 0), is_quoted=opened is not None)


def _closing(text: str, opened: re.Match[str]) -> int | None:
    """Where the quotation ends; None if it does not on its line."""
    if not opened["escape"]:
        closed = _CLOSED[opened["quote"]].match(text, opened.end())
        return None if closed is None else closed.end("value")
    end = text.find(opened[0].lstrip("bruf"), opened.end(), opened.end() + _LONGEST_QUOTED)
    while end > 0 and text[end - 1] == "\\":  # of a deeper one
        end = text.find(opened[0].lstrip("bruf"), end + 1, opened.end() + _LONGEST_QUOTED)
    return None if end <= opened.end() or "\n" in text[opened.end() : end] else end


def _unmasked_value(text: str, start: int, end: int, *, is_quoted: bool) -> _Value | None:
    """The value up to the mask that is in it already."""
    mask = text.find(_MASK, start, end)
    end = end if mask < 0 else mask
    return _Value(start, end, is_quoted) if end > start else None


def _is_secret(text: str, value: _Value, strength: Strength, name: str, *, is_said: bool) -> bool:
    """Whether a value beside the name of a secret is one: a password may be any word, other secrets look random."""
    said = text[value.start : min(value.end, value.start + _JUDGED)]
    if (
        len(said) < 4
        or said.startswith("-----")
        or _PLACEHOLDER.match(said)
        or _is_code(said, text[value.end : value.end + 1], is_quoted=value.is_quoted)
    ):
        return False
    if strength == "strong":
        is_plain = not value.is_quoted and not is_said and not name.isupper()
        return _is_word(said) and not (is_plain and "_" in said and said.islower() and _IDENTIFIER.match(said))
    if strength == "faint":
        return len(said) >= 32 and _is_mixed(said) and "/" not in said
    return _is_random(said) or ((value.is_quoted or name.isupper()) and _is_phrase(said))


def _is_code(value: str, following: str, *, is_quoted: bool) -> bool:
    """Whether it is an expression, a variable or a path in the stead of a secret."""
    if _OF_ENV.match(value) or (_LOCATION.match(value) and not _is_mixed(value)):
        return True
    if _PATH_OF_CODE.match(value) and not any(_is_mixed(part) for part in value.split(".")):
        return not is_quoted
    if _IDENTIFIER.match(value) and _NAMES_ONE.search(value) and not _is_numbered(value):
        return True
    if is_quoted:
        return False
    if (following in ("(", "[", "{") and following) or _CALL.match(value):
        return True
    is_camel = value.isalpha() and value[0].islower() and not value.islower()
    return is_camel and following in tuple(",;)}].")


def _is_word(value: str) -> bool:
    """Whether it may be a password: any word that is none of a sentence's or of a type's."""
    if len(value) < 4 or _PLACEHOLDER.match(value):
        return False
    words = [word.strip("'!?.,:;") for word in value.lower().split()]
    return not (_OF_SENTENCES.intersection(words) if len(words) > 1 else _WORDS.intersection(words))


def _is_password_of_address(value: str) -> bool:
    return not _PLACEHOLDER.match(value) and value.lower() not in _WORDS and value.lower() not in ("port", "pass")


def _is_random(value: str) -> bool:
    """Whether it looks like made by a machine: letters and digits, and not words with numbers behind them."""
    if len(value) < 8 or _PLACEHOLDER.match(value):
        return False
    if value.isdigit():
        return len(value) >= 20
    if not any(map(str.isdigit, value)):
        return len(value) >= 16 and _switches(value) > _RANDOM_SWITCHES * len(value)
    parts = _PART.split(value)
    return not all(_CODE_WORD.match(part) for part in parts if part) or (len(parts) == 1 and _is_numbered(value))


def _is_numbered(value: str) -> bool:
    """Whether it ends with, or holds, more digits than a variable has."""
    return sum(map(str.isdigit, value)) >= 2


def _is_phrase(value: str) -> bool:
    """Whether somebody may have chosen it as a secret."""
    return len(value) >= 10 and " " not in value and not _NAMES_ONE.search(value) and value.lower() not in _WORDS


def _is_mixed(value: str) -> bool:
    """Whether it holds digits and letters of both cases, as random ones do."""
    has = (any(map(kind, value)) for kind in (str.isdigit, str.isupper, str.islower))
    return len(value) >= 16 and all(has)


def _switches(value: str) -> int:
    return sum(a.islower() != b.islower() for a, b in pairwise(value))


def _is_encoded_login(value: str) -> bool:
    """Whether it is a user and a password in base64."""
    try:
        return b":" in b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (BinasciiError, ValueError):
        return False


# What stands in a place for secrets: what a text must hold for it, how it is found, and which values are secrets.
_PLACES: tuple[tuple[tuple[str, ...], re.Pattern[str], str, Callable[[str], bool]], ...] = (
    (("://",), _DSN, "dsn", _is_password_of_address),
    (("earer", "ization: "), _BEARER, "bearer", _is_random),
    (("asic ", '"auth'), _BASIC, "basic", _is_encoded_login),
    ((":AA",), _TELEGRAM, "telegram", _is_random),
    (("sig=", "ignature="), _SIGNATURE, "signature", _is_random),
    ((" -u", "-user"), _CURL_USER, "value", _is_word),
    (("mysql", "mariadb", "sshpass", "login", "redis-cli", "mongo", "ldapsearch"), _COMMAND, "value", _is_word),
    (("dentified", "DENTIFIED"), _SQL, "value", _is_word),
    (("login ", "login\n"), _MACHINE, "value", _is_word),
)
