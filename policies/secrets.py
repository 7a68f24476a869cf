"""Secrets in texts, masked as `[secret:kind:last4]`: the same text always gives the same bytes."""

import re
from dataclasses import replace

from policies.transcript import Utterance

_LAST = 4
# What providers' keys look like; each begins with what no other text does.
_KEYS = (
    ("anthropic", r"sk-ant-[\w-]{20,300}"),
    ("openai", r"sk-(?:proj-|svcacct-|or-v1-)?[A-Za-z0-9_-]{20,300}"),
    ("stripe", r"(?:[sr]k|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,200}"),
    ("aws", r"A(?:KIA|SIA)[A-Z0-9]{16}"),
    ("github", r"(?:gh[pousr]_[A-Za-z0-9]{30,300}|github_pat_\w{30,300})"),
    ("gitlab", r"gl(?:pat|dt|rt|ptt)-[\w-]{20,100}"),
    ("slack", r"(?:xox[abeoprs]|xapp)-[A-Za-z0-9-]{10,300}"),
    ("google", r"AIza[\w-]{35}"),
    ("npm", r"npm_[A-Za-z0-9]{36}"),
    ("pypi", r"pypi-[\w-]{50,300}"),
    ("huggingface", r"hf_[A-Za-z0-9]{30,100}"),
    ("sendgrid", r"SG\.[\w-]{16,40}\.[\w-]{30,80}"),
    ("groq", r"gsk_[A-Za-z0-9]{30,100}"),
    ("telegram", r"\d{8,10}:AA[\w-]{33}"),
    ("jwt", r"eyJ[\w-]{10,2000}\.[\w-]{10,4000}\.[\w-]{10,1000}"),
)
_KEY = re.compile(r"(?<![\w/+-])(?:" + "|".join(f"(?P<{name}>{shape})" for name, shape in _KEYS) + r")(?![\w-])")
_PEM = re.compile(
    r"-----BEGIN (?P<of>[A-Z ]{0,30})PRIVATE KEY-----(?P<key>[^-]{16,16000})(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
_DSN = re.compile(r"(?P<before>[a-z][a-z0-9+.-]{1,20}://[^\s:/@\"'<>]{0,100}:)(?P<value>[^\s/@\"'<>]{3,200})(?=@)")
_BEARER = re.compile(r"(?P<before>\b(?:[Bb]earer|[Bb]asic)[ \t]{1,4})(?P<value>[\w.~+/-]{16,2000}={0,2})")
_NAME = (
    r"(?:[\w-]{0,40}(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key"
    r"|credentials?|pwd)|密码|口令|密钥|令牌)"
)
_BESIDE = re.compile(
    rf"(?P<before>(?<![\w-])(?!secret:[a-z_]{{2,20}}:[^\]\s]{{0,4}}\]){_NAME}"
    r"\\?[\"']?[ \t]{0,4}(?::=|=>|[:=：]|(?<=[码令钥牌])[是为]|[ \t]is(?=[ \t]))[ \t]{0,4}\\?[\"']?)"
    r"(?P<value>[^\s\"'\\,;&<>，。；]{6,500})",
    re.IGNORECASE,
)
_FLAG = re.compile(
    r"(?P<before>--(?:password|token|api-key|secret)[ \t=]{1,2}[\"']?)(?P<value>[^\s\"'-][^\s\"']{5,300})"
)
# Values that name a place, a type or a call in the stead of the secret.
_NO_VALUE = re.compile(
    r"[$%{<\[(*]|.{0,80}\(|(?:\.{0,2}|~)/|https?://|(?:your|my|the|change|example|dummy|placeholder|xxx|todo|os\.|env\.|process\.)"
    r"|(?:string|str|bytes|number|boolean|optional|required|secretstr|none|null|true|false|undefined)\b"
    r"|[A-Za-z]{1,20}(?:\.[A-Za-z_]{1,40}){1,6}\Z|[A-Za-z_]{1,60}\Z|\.{3}",
    re.IGNORECASE,
)
# One of these stands in every text that holds a secret: most texts are done with after one look.
_HINT = re.compile(
    r"sk-|[sr]k_|whsec_|A(?:KIA|SIA)|gh[pousr]_|github_pat|gl(?:pat|dt|rt|ptt)-|xox|xapp-|AIza|npm_|pypi-|hf_|SG\.|gsk_"
    r"|:AA|eyJ|PRIVATE KEY|://|earer|asic|pass|secret|token|key|cred|pwd|密码|口令|密钥|令牌",
    re.IGNORECASE,
)


def masked_in(said: Utterance) -> Utterance:
    """What a role says, without secrets: its text, and what its calls are given."""
    calls = tuple(replace(call, arguments=masked(call.arguments)) for call in said.calls)
    return replace(said, text=masked(said.text), calls=calls)


def masked(text: str) -> str:
    """The text with a mask in the place of every secret; words around them stay. Masking again changes nothing."""
    if not _HINT.search(text):
        return text
    text = _PEM.sub(lambda found: _mask("private_key", found["key"].strip()), text)
    text = _KEY.sub(lambda found: _mask(str(found.lastgroup), found[0]), text)
    for kind, pattern in (("dsn", _DSN), ("bearer", _BEARER), ("value", _FLAG), ("value", _BESIDE)):
        text = pattern.sub(lambda found, kind=kind: _beside(kind, found), text)  # type: ignore[misc]
    return text


def _beside(kind: str, found: re.Match[str]) -> str:
    value = found["value"]
    return found[0] if _NO_VALUE.match(value) else found["before"] + _mask(kind, value)


def _mask(kind: str, value: str) -> str:
    return f"[secret:{kind}:{value[-_LAST:]}]"
