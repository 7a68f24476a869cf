"""Masking of secrets in texts as `[secret:kind:last4]`. The same text always gives the same bytes.

Three kinds are found: formats of providers' keys; secrets in addresses, headers and key files; and values next to the
name of a secret. Such a value must not be a type, a placeholder, an identifier of code, or a word of a sentence.
"""

import re
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from policies.conversation.transcript import Utterance
from policies.searching import has_any
from policies.secrets.formats import FORMATS, Format
from policies.secrets.prefilter import Form, Prefilter

_LAST = 4
# The last characters of a shorter value would be most of it.
_LEAST_SHOWN = 6
# Characters of a value by which it is judged.
_JUDGED = 200
# A mask may complete the context of another secret. More passes than this mean that the text is constructed.
_MOST_PASSES = 10
_MASK = "[secret:"
# Escaped letters beyond ASCII and Latin-1 controls, without surrogates.
_ESCAPED = re.compile(r"\\{1,7}u((?!00|d[89a-f]|D[89A-F])[0-9a-fA-F]{4}|00[c-fC-F][0-9a-fA-F])")
_NOT_SHOWN = re.compile(r"[^\w+/=.!#$%~-]")
_NO_KEY = re.compile(r"-----?[A-Z0-9 ]+-----?|\\[nr]|[^A-Za-z0-9+/=]")
_ALPHABET = "abcdefghijklmnopqrst"
# The share of changes between upper and lower case in random text.
_RANDOM_SWITCHES = 0.36


class _SecretSpan(NamedTuple):
    """The range and kind of a secret in a text."""

    start: int
    end: int
    kind: str


# SSH2 has four dashes and a space.
_PEM_BEGIN = re.compile(r"-----?(?: (?=BEGIN SSH2))?BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?-----?")
_PEM_END = re.compile(r"-----?(?: (?=END SSH2))?END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)? ?-----?")
_PEM_LINES = re.compile(
    r"(?:\s{0,4}(?:\\[nr]){0,4}(?:Proc-Type|DEK-Info|Version|Comment|Hash): [^\n\\]{0,80}){0,4}"
    r"(?:[\s\"'+,>|#]{0,12}(?:\\{1,7}[nr]){0,4}(?:\d{1,5}[ \t|→:]{1,8})?[A-Za-z0-9+/=]{16,}){0,400}"
    r"(?:(?:\s|\\{1,7}[nr]){0,6}(?![A-Z]?[a-z]+\b)[A-Za-z0-9+/]{1,16}={0,2}(?![\w-]))?"
)
_MOST_PEM = 20_000
_PEM_CUT_BEGIN = re.compile(r"(?:\A|(?<=[\n\"'…]))(?:(?:P?R)?I)?V?ATE KEY(?: BLOCK)?-----(?:\s|\\{1,7}[nr]){0,4}")
_REVERSED_LINES = re.compile(
    r"(?:[nr]\\{1,7}){0,2}(?:[\s\"'+,>|#\\→]{0,12}(?:\d{1,5}\s{1,8})?[A-Za-z0-9+/=]{16,}){0,400}"
)
# The base64 beginnings of DER and magic bytes: PKCS #1, PKCS #8 of RSA, EC and Ed25519, and OpenSSH.
_KEY_DATA = re.compile(
    r"(?<![A-Za-z0-9+/=-])(?:MII[A-Za-z0-9+/]{3}IBA(?:DANBgkqhkiG9w0BAQEFAASC|AKC)|MHcCAQEEI|MIG[A-Z]AgEAMBMGByqGSM49"
    r"|MC4CAQAwBQYDK2Vw|b3BlbnNzaC1rZXktdjE)"
)
_KEY_DATA_SIGNS = ("MII", "MHcCAQEEI", "MIG", "MC4CAQAwBQYDK2Vw", "b3BlbnNzaC1rZXktdjE", "Private-Lines:")
_PUTTY = re.compile(
    r"Private-Lines:[ \t]{0,4}\d{1,3}(?:\r?\n|\\{1,7}n)"
    r"(?P<value>[A-Za-z0-9+/=]{4,80}(?:(?:\r?\n|\\{1,7}n)[A-Za-z0-9+/=]{4,80}(?![A-Za-z0-9+/=:-])){0,400})"
)

_DSN = re.compile(r"://(?<=[a-zA-Z0-9]://)[^\s:/@\"'<>\\`?#\[]{0,100}:(?P<value>[^\s/\"'<>\\`]{1,300})(?=@[\w\[$%{-])")
_BEARER = re.compile(
    r"(?:(?:earer|SSWS)[ \t]{1,4}|uthorization\\{0,7}[\"']?[ \t]{0,2}[:=][ \t]{0,4}\\{0,7}[\"']?(?!AWS4-|Digest"
    r"|Basic)(?:[A-Za-z-]{2,20}[ \t]{1,4})?)"
    r"(?P<value>[\w.~+/-]{16,4000}={0,2})"
)
_BASIC = re.compile(r"(?:asic[ \t]{1,4}|\"auth\\{0,7}\"\s{0,4}:\s{0,4}\\{0,7}\")(?P<value>[A-Za-z0-9+/]{8,2000}={0,2})")
_COOKIE = re.compile(r"ookie\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,7}[\"']?(?P<value>[^\n\"'\\]{8,4000})")
_COOKIE_VALUE = re.compile(r"(?:^|[;\s])[^\s=;]{1,100}=(?P<value>[^\s;]{12,4000})")
_TELEGRAM = re.compile(r"(?<!\d)(?P<value>\d{8,10}:AA[\w-]{32,34})")
_SIGNATURE = re.compile(
    r"(?:[?&;](?:sig|[Ss]ignature|X-(?:Amz|Goog)-Signature|auth|key|jwt|pat|hmac|code)|,[ \t]?Signature)="
    r"(?P<value>[\w%+/=.-]{20,600})"
)
_LOGIN_OF_URL = re.compile(r"://(?<=[a-z]://)(?P<value>[\w.~-]{20,300})@(?!o\d{1,12}\.ingest|[\w.-]{0,60}sentry)")
_ORACLE = re.compile(r":(?:thin|oci):[\w$]{1,60}/(?P<value>[^@\s\"'/]{4,100})@")
_CURL_USER = re.compile(
    r"\b(?:curl|xh|http)\b[^|;]{0,400}?[ \t\n](?:-[a-zA-Z]{0,6}u|--(?:proxy-)?user|-a|--auth)[ \t=]{0,2}\\{0,7}[\"']?"
    r"(?:[A-Za-z][\w.@+-]{0,80})?:(?P<value>[^\s\"'\\:]{4,200})"
)
_CURL_KEY = re.compile(
    r"-(?<=[ \t]-)(?:[a-zA-Z]{0,6}u|-user)[ \t=]{0,2}\\{0,7}[\"']?(?P<value>[\w.-]{16,200}):(?=[\s\"'\\])"
)
_USER_OPTION = re.compile(
    r"(?<![\w-])(?:-u|--(?:proxy-)?user)[ \t=]{0,2}[\"']?[A-Za-z][\w.@+-]{0,80}:(?P<value>[^\s\"'\\:]{4,200})"
)
_ARGUMENTS = r"(?:[ \t]{1,8}(?!-[pawPN])[\w./:@=,-]{1,80}){0,8}[ \t]{1,8}"
_MYSQL = re.compile(
    r"\b(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump|7za?)\b"
    + _ARGUMENTS
    + r"-p[\"']?(?P<value>(?:[^\s\"'\\|;&<>]|&(?=\w)){4,200})"
)
_COMMAND = re.compile(
    r"\b(?:sshpass|login|twine|htpasswd|redis-cli|mongo|mongosh|mongodump|ldapsearch|ldapmodify|sqlcmd|bcp|zip|unzip|unrar"
    r"|ssh-keygen)\b" + _ARGUMENTS + r"(?:-p ?|-a |-w |-P |-N )[\"']?(?P<value>(?:[^\s\"'\\|;&<>]|&(?=\w)){4,200})"
)
_OPTION = re.compile(
    r"(?:(?<=\s)-U[ \t=]{0,2}[\"']?[\w.\\/-]{1,60}%|(?<=\s)-pass(?:in|out)?[ \t]{1,4}[\"']?pass:"
    r"|\bhtpasswd[ \t]{1,4}-\w{0,4}b\w{0,4}[ \t]{1,4}\S{1,80}[ \t]{1,4}\S{1,80}[ \t]{1,4}[\"']?"
    r"|\blftp[ \t]{1,4}-u[ \t]{1,4}[\"']?[\w.@-]{1,60},"
    r"|\bpoetry[ \t]{1,4}config[ \t]{1,4}(?:--[\w-]{1,20}[ \t]{1,4})?(?:pypi-token\.[\w.-]{1,60}"
    r"|http-basic\.[\w.-]{1,60}[ \t]{1,4}[^\s\"']{1,80})[ \t]{1,4}[\"']?"
    r"|\bbundle[ \t]{1,4}config[ \t]{1,4}(?:(?:set|--[\w-]{1,20})[ \t]{1,4}){0,2}[\w.:/-]{1,80}[ \t]{1,4}"
    r"[\w.@-]{1,60}:(?!//)"
    r"|\bopenssl[ \t]{1,4}(?:enc|aes[\w-]{1,20}|des\d?)"
    r"(?:[ \t]{1,8}(?!-k[ \t])[\w./:@=,-]{1,80}){0,12}[ \t]{1,8}-k[ \t]{1,4}[\"']?)"
    r"(?P<value>[^\s\"'\\]{4,200})"
)
_OF_WINDOWS = re.compile(
    r"(?:[ \t]/r?p(?:ass(?:word)?)?:|[ \t]/user:[\w\\.@-]{1,60}[ \t]{1,4}"
    r"|\bnet[ \t]{1,4}user[ \t]{1,4}[\w.-]{1,60}[ \t]{1,4})[\"']?(?P<value>[^\s\"'/\\][^\s\"'\\]{3,200})"
)
# Commands that read a secret from standard input.
_READER_OF_INPUT = (
    r"(?:--password-stdin|--with-token|--passphrase-fd|--data-file=-|\bpasswd[ \t]{1,4}--stdin|--key-file[ =]-"
    r"|\bsecrets?[ \t]{1,4}(?:set|put|add|create)|\benv[ \t]{1,4}add"
    r"|\bconfig[ \t]{1,4}set[ \t]{1,4}--secret)(?![\w-])"
)
_PIPED = re.compile(
    r"\b(?:echo|printf)[ \t]{1,4}(?:-n[ \t]{1,4}|%s[ \t]{1,4}|[\"']%s"
    r"(?:\\{1,7}n)?[\"'][ \t]{1,4})?\\{0,7}[\"']?(?P<user>[\w.-]{1,40}:)?"
    r"(?P<value>[^\s\"'|\\:]{4,500})\\{0,7}[\"']?[ \t]{0,4}"
    r"\|[ \t]{0,4}(?(user)(?:sudo[ \t]{1,4})?chpasswd|[^\n|;]{0,200}?(?:\bsudo[ \t]{1,4}-S|" + _READER_OF_INPUT + "))"
)
_ARGUMENT = re.compile(
    r"(?:ConvertTo-SecureString(?:[ \t]{1,4}-String)?[ \t]{1,4}|\b(?:HTTP)?(?:Basic|basic_?"
    r"|Digest)[Aa]uth\([ \t]{0,4}\\{0,7}[\"'][^\"'\n]{1,60}[\"'],[ \t]{0,4}"
    r"|\bauth[ \t]?=[ \t]?\(\\{0,7}[\"'][^\"'\n]{1,60}[\"'],[ \t]{0,4})"
    r"\\{0,7}[\"'](?P<value>[^\s\"'\\]{4,200})(?=\\{0,7}[\"'])"
)
_HERE = re.compile(
    _READER_OF_INPUT
    + r"[ \t]{0,4}(?:[ \t][\w./:@=-]{1,80}){0,6}[ \t]{0,4}<<<[ \t]{0,4}\\{0,7}[\"']?(?P<value>[^\s\"'\\]{4,500})"
)
_LITERAL = re.compile(r"--from-literal[ \t=]{1,2}\\{0,7}[\"']?[\w.-]{1,80}=\\{0,7}[\"']?(?P<value>[^\s\"'\\]{4,300})")
_DOCKER_CONFIG = re.compile(
    r"dockerc(?:onfigjson|fg)\\{0,7}[\"']?:[ \t]{1,4}\\{0,7}[\"']?(?P<value>[A-Za-z0-9+/]{20,20000}={0,2})"
)
_NPM_AUTH = re.compile(r"(?<![\w-])_auth[ \t]{0,4}=[ \t]{0,4}[\"']?(?P<value>[A-Za-z0-9+/]{8,2000}={0,2})")
_REDIS = re.compile(
    r"(?:(?<![\w-])|(?<=\\n))(?:requirepass|masterauth|AUTH)[ \t]{1,8}[\"']?(?P<value>[^\s\"'\\]{4,200})"
)
_PGPASS = re.compile(
    r"(?<![\w.:/-])[\w.*-]{1,100}:(?:54\d\d|6432|6543|2506\d|26257|\*):[\w.*-]{1,60}:(?!password:|user:password)"
    r"[\w.*@-]{1,60}:(?P<value>[^\s:\"'`\\]{4,200})(?=[\s\"'`\\]|\Z)"
)
# Any other port: the host must be an address or have three labels, which a file before a line number seldom has.
_PGPASS_ELSEWHERE = re.compile(
    r"(?:(?<![\w.:/-])|(?<=\\n))(?:localhost|[\w-]{1,63}(?:\.[\w-]{1,63}){2,8}):\d{4,5}:[a-zA-Z*][\w.*-]{0,60}:"
    r"(?!password:|user:password)[a-zA-Z*][\w.*@-]{0,60}:(?P<value>[^\s:\"'`\\]{4,200})(?=[\s\"'`\\]|\Z)"
)
_SQL = re.compile(
    r"(?i:\bidentified\s{1,4}(?:with\s{1,4}[\w\"'`]{1,60}\s{1,4})?by\s{1,4}(?:password\s{1,4})?|=\s{0,4}password\()\\?['\"](?P<value>[^'\"\n\\]{4,200})"
)
# The hash of a password in a line of /etc/shadow.
_SHADOW = re.compile(
    r"(?:^|(?<=[\s\"'`])|(?<=\\n))[a-z_][\w.-]{0,31}:!?(?P<value>\$(?:\d|2[abxy]|g?y|sha1|md5)\$[\w./$=,+-]{8,400}):(?=\d{0,6}:)"
)
# The text of such a line after the number or name of an algorithm.
_SHADOW_SIGNS = tuple(f"{sign}$" for sign in "0123456789abxy")
# The private members of a JSON key, which has a member "kty".
_JSON_OBJECT = re.compile(r"\{(?P<members>[^{}]{1,12000})")
_JWK_MEMBER = re.compile(
    r"\"(?:d|k|p|q|dp|dq|qi)\\{0,7}\"\s{0,8}:\s{0,8}\\{0,7}\"(?P<value>[\w-]{16,1400}={0,2})(?=\\{0,7}\")"
)
_GAP = r"(?:\s|\\{1,7}[nrt]){1,20}"
_MACHINE = re.compile(
    rf"(?:\b(?:machine{_GAP}[^\s\"'\\]{{1,100}}|default(?={_GAP}login))(?:{_GAP}(?:login|account){_GAP}[^\s\"'\\]{{1,100}}){{0,2}}"
    rf"|(?:^|(?<=\n))[ \t]{{0,8}}login[ \t]{{1,8}}\S{{1,100}}){_GAP}password{_GAP}(?P<value>[^\s\"'\\]{{3,200}})"
)

# A port between colons, as in a line of .pgpass.
_PORT = re.compile(r":\d{4,5}:[a-zA-Z*]")

_LINE = r"(?:[^\n\\]|\\(?!\\{0,7}n)){3,1000}+"
_HEAD = re.compile(
    rf"(?:^|(?<=\n)|(?<=\\n))(?P<head>(?=[^\n|,;\t]{{0,300}}[|,;\t]){_LINE})(?P<rule>(?:\r?\n"
    rf"|\\{{1,7}}n)[ \t]{{0,8}}[|+:]?[-+|: ]{{3,500}})?(?:\r?\n|\\{{1,7}}n)"
)
_LONGEST_HEAD = 1_000
_CSV_BEGIN = re.compile(r"\"?[A-Za-z][\w .-]{0,40}\"?[,;\t]")
_CSV_HEAD = re.compile(r"\"?[A-Za-z][\w .-]{0,40}\"?(?:[,;\t]\"?[A-Za-z][\w .-]{0,40}\"?){1,60}")
_AROUND_CELL = ' \t`*"\\'
_ROW = re.compile(rf"(?P<row>{_LINE})(?:\r?\n|\\{{1,7}}n)?")
_SEPARATORS = ("|", "\t", ";", ",")
_COLUMN_NAMES = ("pass", "pw", "token", "secret", "key")
_HEAD_NAME = re.compile(
    r"(?i)(?:[\w ]{0,20}[ _-])?(?:password|passwd|pwd|pass|pw|token|secret|(?:api|secret|access)[ _-]?key)\Z"
)

# The names of secrets. A plain word may be the value of a strong name. Other values must look machine-made.
_STRONG = (
    *("pwd", "kennwort", "contrase\\u00f1a", "contrasena", "senha", "wachtwoord", "heslo", "salasana", "adgangskode"),
    "kata sandi",
)
_STRONG_ABROAD = (
    *(
        "contraseña",
        "hasło",
        "пароль",
        "パスワード",
        "비밀번호",
        "密码",
        "密碼",
        "口令",
        "lösenord",
        "mật khẩu",
        "şifre",
    ),
    *("jelszó", "كلمة المرور", "كلمة السر", "סיסמה", "סיסמא", "รหัสผ่าน", "पासवर्ड", "κωδικός"),
)
_WEAK = (
    "secret",
    "auth_salt",
    "nonce_salt",
    "logged_in_salt",
    "token",
    "credential",
    "credentials",
    "jeton",
    "clave",
    "chave",
    "chiave",
    "parola",
)
_WEAK_ABROAD = (
    *(
        "密钥",
        "密鑰",
        "令牌",
        "凭证",
        "токен",
        "ключ",
        "トークン",
        "シークレット",
        "キー",
        "토큰",
        "시크릿",
        "키",
        "clé",
    ),
    *("schlüssel", "clé api", "clé d'api", "مفتاح"),
)
_PASS = re.compile(r"pass(?:word|wd|phrase|[_-]?code|wort|ord\b)|(?<=mot[ _]de[ _])passe|(?P<weak>(?<=[_-])pass)")
# Short names that are words of their own, and parts of names that end with `pass`. Beginning with a letter makes the
# pattern fast. The characters before it are checked afterwards.
_SHORT = re.compile(r"p(?:w|sk|(?P<pass>ass)|(?P<weak>at))(?![a-z])")
_BEFORE_PASS = ("pg", "db", "key", "user", "root", "smtp", "mail", "store", "admin")
_WORD_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
# Words before `key` that make it a secret, whatever precedes them.
_KEYS_OF = """
api access private account auth secret encrypt encryption sign signing master license service storage client app deploy
consumer admin webhook subscription application function functions session shared fernet recovery server wallet root
team project personal ingest ingestion hmac jwt merchant partner bot write
"""
_KEY_OF = tuple(_KEYS_OF.split())
# chosen: may be a password, and must look like one.
Strength = Literal["strong", "chosen", "weak", "faint"]
_PREFIX = re.compile(r"[\w.-]{0,40}\Z")
# Suffixes that may follow in a name; then suffixes and prefixes that make it the name of something else.
_SUFFIX = re.compile(r"(?:[_-][\w-]{1,30}|(?i:key|value|base)(?![a-z])|\d{1,2}(?!\w))?")
_OTHER_SUFFIX = re.compile(
    r"(?i)(?:[_-][a-z]{1,20})?[_-](?:id|name|file|path|dir|url|uri|type|ref|counts?|len(?:gth)?|size"
    r"|limit|expir\w*|ttl|version|field|label"
    r"|policy|hash|digest|prefix|suffix|arn|env|var|index|usage|budget|used|provider|store|manager"
    r"|endpoint|class|format"
    r"|mode|kind|alg\w*|min|max|regex|pattern|hint|reset|fingerprint)s?\b"
)
_OTHER_PREFIX = re.compile(
    r"(?i)(?:^|[_.-])(?:next|page|continuation|sync|pad|eos|bos|unk|sep|cls|mask|stop|start|end|special"
    r"|input|output|prompt"
    r"|completion|total|cached?|max|min|num|n|per|public|primary|foreign)[_-]?\Z"
)
_OTHER_WORD = re.compile(r"(?i)\b(?:public|primary|foreign|partition|cache|sort|object|host)[ _-]\Z")
# The text between the name and its value. The words are for sentences: "the password for the box is", "密码改成了".
_OF = r"(?:[ \t]?\([^()\n]{1,40}\)|[ \t](?:for|of|to|on|del?|da|für)[ \t][\w.@'-]{1,40}(?:[ \t][\w.@'-]{1,40}){0,3}?)?"
_SPACE, _NEW_LINE = r"(?:\s|\\{1,7}[nrt])", r"(?:\r?\n|\\{1,7}n)"
_BLOCK = rf"(?:N(?='))?(?:[|>][+-]?{_NEW_LINE}[ \t]{{1,16}})?"
_TRIPLE = r"(?:\\{0,7}\"\\{0,7}\"(?=\\{0,7}\")|''(?='))?"
# The type of a constant between its name and its value: `apiKey: String = "..."`, in Go without a colon.
_TYPED = (
    r"(?:[ \t]?[:?][ \t:]{0,4}(?:&(?:'static[ \t])?)?[A-Za-z][\w.]{0,40}(?:[<\[][^\n=\"']{1,40})?[?!]?"
    r"(?:[ \t]?\|[ \t]?[A-Za-z]{1,20}){0,3}|[ \t]{1,4}(?:string|String|str|text|const char\*))"
    r"[ \t]{0,4}=[ \t]{0,4}(?:Some\()?(?=\\{0,7}[\"'])"
)
_OPERATOR = re.compile(
    r"(?P<said>" + _OF + r"[ \t]{1,4}(?:is|was|ist|lautet|es|est|è|é|är|er|это|–|—)(?:[ \t]now|[ \t]still)?[ \t]{1,4}"
    r"(?:[:：][ \t]{0,4})?"
    r"|[ \t]{0,2}[已被改设置重更新修就]{0,6}[是为為成了はは은는]{1,2}[ \t]{0,4}(?:[:：][ \t]{0,4})?)"
    r"|"
    + _TYPED
    + r"|\\{0,7}[\"'`]?\]?[ \t]{0,8}=[ \t]{0,8}\[=?\[(?=[^\s\[\]]{4,200}\]=?\])|"
    + _OF
    + r"\\{0,7}[\"'`]?\]?[ \t]{0,8}(?:===?|!==?|:=|=>|[:=：])[ \t]{0,8}"
    + _BLOCK
    + _TRIPLE
    + r"|\\{0,7}[\"']?,?(?:\s|\\{1,7}[nrt]){0,40}-?\s{0,4}\\{0,7}[\"']?(?i:value)\\{0,7}[\"']?\s{0,4}[:=]\s{0,4}"
    r"|(?:[ \t]{1,4}[\w:]{1,20}=\\{0,7}[\"'][^\"'<>\n]{0,40}[\"'])?>(?:<!\[CDATA\[)?(?=[^\s<>=@:])"
    rf"|>{_SPACE}{{0,20}}<(?:string|[Vv]alue|[Tt]ext)>(?=[^\s<>=])"
    rf"|</(?:key|[Nn]ame)>{_SPACE}{{0,20}}<(?:string|[Vv]alue)>(?=[^\s<>=])"
    r"|[ \t](?=\\{0,7}[\"'][^\s\"'])|(?<=[码令钥牌])[ \t](?=[\w!-~]{0,40}\d)"
)
# The default of a variable or parameter with the name: in Terraform and JSON, and in YAML.
_DEFAULT = re.compile(
    r"\\{0,7}[\"']?[ \t]{0,4}[:=,]?[ \t]{0,4}\{(?:"
    r"(?<=[=:] )\\{0,7}\"[^\"\\\n{}]{0,200}[{}][^\"\\\n]{0,200}\\{0,7}\"|\{[^{}]{0,300}\}"
    r"|[^{}Dd]|[Dd](?!efault\b)){0,600}+[Dd]efault\\{0,7}[\"']?[ \t]{0,20}[:=][ \t]{0,8}"
    rf"|:[ \t]{{0,8}}{_NEW_LINE}(?P<indent>[ \t]{{1,16}})(?![ \t])"
    rf"(?:(?![Dd]efault:)[^\n\\]{{0,200}}{_NEW_LINE}(?P=indent)[ \t]{{0,8}}){{0,8}}+[Dd]efault:[ \t]{{1,4}}"
)
_MOST_OF_DEFAULT = 700
# After these the value must look like a secret: a cell of a table, an argument, an element, a word of a sentence.
_LOOSE = re.compile(
    r"\\{0,7}[\"'`]?[\])]{0,2}[ \t]{0,4}(?:\|\||\?\?|\?:|or\b)[ \t]{0,4}(?=\\{0,7}[\"'`])"
    r"|\\{0,7}[\"'],(?:\s{0,40}[a-z_]{1,20}=(?:\"[^\"\n]{0,80}\"|'[^'\n]{0,80}'|[\w.()\[\]]{1,40}),){0,5}+\s{0,40}default="
    r"(?=\\{0,7}[\"'])|"
    r"\\{0,7}[\"'`*]{0,3}[ \t]{0,20}(?:[|│┃\t]|\\{1,7}t)[ \t]{0,20}"
    r"|\\{0,7}[\"'],[ \t]{0,40}(?=\\{0,7}[\"'])"
    r"|\\{0,7}[\"']>(?=[^\s<>]{1,300}<)"
    rf"|</t[dh]>{_SPACE}{{0,8}}<t[dh]>"
    r"|(?:[ \t](?:was |has been )?(?:changed|set|reset|updated|rotated))?[ \t]to[ \t]"
    r"|[ \t](?:[-–—][ \t])?(?=[\w\"'`])"
)
_LEAST_LOOSE = 16
# A command that sets the variable that it names next.
_SETTING = re.compile(
    r"\b(?:set(?:[ \t]{1,4}--?[\w-]{1,12}){1,3}|setenv|setx|ENV|secrets?[ \t]set|config(?:ure)?"
    r"(?:[ \t]{1,4}--?[\w-]{1,12})?(?:[ \t]{1,4}set)?)"
    r"[ \t]{1,4}\Z"
)
_FLAG = re.compile(r"[ \t](?:--?[a-z]{1,10}[ \t=])?(?=[^\s-])")
# A name that is itself the value of a member: `"type": "token", "value": ...`.
_OF_KIND = re.compile(r"(?i:type|kind|tag|role|class|category)\\{0,7}[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\{0,7}[\"']?\Z")
_COLOR = re.compile(r"#(?:[0-9a-fA-F]{3,4}|[0-9a-fA-F]{6}|[0-9a-fA-F]{8})\Z")
# The identifier and secret of a key.
_KEY_PAIR = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9a-f]{32,64}\Z")
_LOOSE_STRENGTHS: dict[Strength, Strength] = {"strong": "chosen"}
_CLOSED = {quote: re.compile(rf"(?P<value>(?:[^\n{quote}\\]|\\.){{1,500}}){quote}") for quote in "\"'`"}
_OPEN = re.compile(r"(?:[bBrRuUfF]{0,2}(?=\\{0,7}[\"']))?(?P<escape>\\{0,7})(?P<quote>[\"'`])")
_LONGEST_QUOTED = 500
# Values of elements and of Lua strings, by the character before them.
_ENCLOSED = {">": re.compile(r"[^\s<>\"'\\]{1,500}(?=<)"), "[": re.compile(r"[^\s\[\]\"'\\]{1,500}(?=\])")}
_ASIAN = "\u3000-\u9fff\uac00-\ud7af\uff00-\uffef"
_BARE = re.compile(rf"(?:[^\s\"'`\\,;&<>{_ASIAN}]{{1,2000}}|\\(?![nrtu\"'\\])){{1,20}}")
_OF_SHELL = re.compile(rf"(?:[^\s\"'`\\<>{_ASIAN}]{{1,2000}}|\\(?![nrtu\"'\\])){{1,20}}")
_ENDING = re.compile(r"(?<![.)\]}:,;&|])[.)\]}:,;&|]++\Z")

# Placeholders in place of a secret.
_PLACEHOLDER = re.compile(
    r"\A(?:(?:\$\w+(?:/\S*)?|\$\{.*|\$\(.*|\$\{\{.*|%\w+%?|%[({].*|\{.*|<.*|\[.*|\(.*|\*+|&\w+|!\w.*"
    r"|@\w+@?|\.{2,}.*|-+|\|.*|\#\{.*)\Z"
    r"|.*(?:x{4,}|\*{3,}|\.{3}|…|\$\{|\{\{|<[a-z_ -]+>)"
    r"|(?:your|my|the|a|some|insert|enter|put|add|replace|use|see|change)(?:[-_ ]|\Z)|change_?(?:me|it)\b|your[A-Z]"
    r"|(?:example|dummy|placeholder|sample|todo|tbd|fixme|redacted|removed|hidden|masked|omitted|undisclosed)\b"
    r"|(?:arn|vault|op|sops|env|file|keyvault|gcp|aws|sha\d+|ref\+\w+)[:+]|https?://|ssh-|ecdsa-|secret:"
    r"|\S{4,60}(?-i:EXAMPLE(?:KEY)?)\Z"
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
    must should may please minimum mínimo minimo mindestens au
""")
_OF_SENTENCES = _words("""
    a an and are at be been can cannot enter field for has have if in incorrect invalid is must my not of or
    please required should too least minimum characters chars digits that the this to type was when will with without
    wrong your
""")
_IDENTIFIER = re.compile(r"\A[A-Za-z_$@][\w$]*\Z")
_PATH_OF_CODE = re.compile(r"\A[&*!]?[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.|!\.)[A-Za-z_$][\w$]*)+[!?]?\Z")
_CALL = re.compile(r"\A[&*!]?(?:await\s|new\s)?[A-Za-z_$][\w$.:?>-]*[(\[<{]")
_NAMES_ONE = re.compile(r"(?i)passw|passphrase|secret|token|pwd|cred|api_?key|auth")
_OF_ENV = re.compile(r"\A[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\Z")
_LOCATION = re.compile(r"(?:\.{0,2}|~|[A-Za-z]:)[/\\]")
_PART = re.compile(r"[-_./: ]")
# Names of algorithms, encodings and kinds, which contain digits.
_ALGORITHM = re.compile(
    r"(?i)(?:sha|md|base|utf|argon|pbkdf|oauth|http|ipv|rfc|aes|rsa|[bs]crypt|ed|x|pkcs|python|node|v|tls"
    r"|int|uint|float"
    r"|varchar|level|step|test|type|user|line|part|field|input|column|page|es|hs|rs|ps|iso|uuid|blake|k8s|s3|ec)[-_]?\d"
)
_CHOSEN_SIGNS = frozenset("!@#$%^&*+~?")
_CODE_WORD = re.compile(r"\A(?:[A-Za-z]+|v?\d{1,4}|[A-Z]?[a-z]+\d{1,2}|[A-Z]+\d{1,2})\Z")


def mask_utterances(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return the utterances with masked texts, reasoning and call arguments. One call for many is faster."""
    texts = [_texts_of(utterance) for utterance in utterances]
    masked = iter(_mask_texts([text for utterance in texts for text in utterance]))
    return [
        utterance if (masked_texts := [next(masked) for _ in of]) == of else _with_texts(utterance, masked_texts)
        for utterance, of in zip(utterances, texts, strict=True)
    ]


def _texts_of(utterance: Utterance) -> list[str]:
    return [utterance.text, utterance.reasoning, *(call.arguments for call in utterance.calls)]


def _with_texts(utterance: Utterance, texts: Sequence[str]) -> Utterance:
    text, reasoning, *arguments = texts
    calls = tuple(
        replace(call, arguments=arguments_text) for call, arguments_text in zip(utterance.calls, arguments, strict=True)
    )
    return replace(utterance, text=text, calls=calls, reasoning=reasoning)


def masked_within(value: object) -> object:
    """Return a decoded JSON value with the secrets in its strings masked."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, list):
        return [masked_within(item) for item in value]
    if isinstance(value, dict):
        return {key: masked_within(item) for key, item in value.items()}
    return value


def mask_secrets(text: str) -> str:
    """Return the text with a mask in place of every secret. Masking again changes nothing."""
    return _mask_texts([text])[0]


def _mask_texts(texts: Sequence[str]) -> list[str]:
    return [_mask_text(text, forms) for text, forms in zip(texts, _PREFILTER.possible(texts), strict=True)]


def _mask_text(text: str, forms: Sequence[int]) -> str:
    text = _mask_forms(text, forms)
    if "\\u" not in text:
        return text
    # JSON in ASCII: an escaped "密码" is a name, too.
    plain = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    return text if plain == text or (masked := _mask_forms(plain, _forms_in(plain))) == plain else masked


def _mask_forms(text: str, forms: Sequence[int]) -> str:
    """Return the text with masks, without undoing escapes. forms: numbers of those that may occur in it."""
    for _ in range(_MOST_PASSES):
        if not (spans := _spans(text, forms)):
            break
        text = _replace_spans(text, spans)
        forms = _forms_in(text)
    return text


def values_in(text: str) -> dict[str, str]:
    """Return the secrets of a text with their masks, to find them where they occur alone. Short ones are left out."""
    secrets = ((text[start:end], kind) for start, end, kind in _spans(text, _forms_in(text)))
    return {value: _mask(kind, value) for value, kind in secrets if len(value) >= _LEAST_SHOWN}


def _forms_in(text: str) -> Sequence[int]:
    return _PREFILTER.possible([text])[0]


def _spans(text: str, forms: Sequence[int]) -> list[_SecretSpan]:
    """Return the secrets in a text. forms: numbers of those that may occur in it."""
    spans = [span for number in forms if number < len(_FINDERS) for span in _FINDERS[number][1](text)]
    if names := [_NAMES[number - len(_FINDERS)][1] for number in forms if number >= len(_FINDERS)]:
        spans += _find_by_name(text, names)
    return sorted(spans, key=lambda span: (span.start, -span.end))


def _replace_spans(text: str, spans: list[_SecretSpan]) -> str:
    """Return the text with masks. The first of overlapping spans decides the kind, and extends over the others."""
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


def _positions_of(text: str, part: str) -> Iterator[int]:
    """Yield the positions of a part in a text, much faster than a pattern."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


class _Text(NamedTuple):
    """A text as written and in lower case, of the same length."""

    written: str
    small: str


_FindSecrets = Callable[[str], Iterator[_SecretSpan]]
# Yields start, end and strength of each name of a secret.
_FindNames = Callable[[_Text], Iterator[tuple[int, int, Strength]]]


@dataclass(frozen=True, slots=True)
class _Key:
    """Finds keys of a known format by their beginning."""

    begin: str
    form: Format

    def __call__(self, text: str) -> Iterator[_SecretSpan]:
        """Yield the keys in a text."""
        kind, left, pattern, lead = self.form
        for position in _positions_of(text, self.begin):
            match = pattern.match(text, position - lead) if position >= lead else None
            if match is None or not left.match(text, match.start()):
                continue
            start = match.end("before") if "before" in pattern.groupindex else match.start()
            key = text[start : match.end()]
            if not _PLACEHOLDER.match(key) and not _is_words(key[:_JUDGED]):
                yield _SecretSpan(start, match.end(), kind)


@dataclass(frozen=True, slots=True)
class _Place:
    """Finds secrets at a place for secrets."""

    pattern: re.Pattern[str]
    kind: str
    is_secret: Callable[[str], bool]

    def __call__(self, text: str) -> Iterator[_SecretSpan]:
        """Yield the secrets in a text."""
        for match in self.pattern.finditer(text):
            if self.is_secret(match["value"]):
                yield _SecretSpan(*match.span("value"), self.kind)


def _find_by_port(text: str) -> Iterator[_SecretSpan]:
    if _PORT.search(text):
        yield from _Place(_PGPASS_ELSEWHERE, "value", _is_chosen)(text)


def _cookies(text: str) -> Iterator[_SecretSpan]:
    """Yield the random values of cookies."""
    for match in _COOKIE.finditer(text):
        for pair in _COOKIE_VALUE.finditer(match["value"]):
            if _is_random(pair["value"]):
                start = match.start("value")
                yield _SecretSpan(start + pair.start("value"), start + pair.end("value"), "cookie")


def _jwk_members(text: str) -> Iterator[_SecretSpan]:
    """Yield the private members of JSON keys."""
    for match in _JSON_OBJECT.finditer(text):
        if '"kty' in match["members"]:
            for member in _JWK_MEMBER.finditer(text, *match.span("members")):
                yield _SecretSpan(*member.span("value"), "private_key")


def _columns(text: str) -> Iterator[_SecretSpan]:
    """Yield the values in columns of secrets: in a table with a line below its head, and in CSV."""
    at = line = looked_at = 0
    headless = -1
    if not has_any(text, _SEPARATORS):
        return
    small = _lower(text)
    for position in sorted(position for name in _COLUMN_NAMES for position in _positions_of(small, name)):
        if position < at:
            continue
        # Only the text after the previous position can begin another line: a text may be one line of a megabyte.
        escaped = text.rfind("\\n", max(looked_at - 1, 0), position)
        line = max(line, text.rfind("\n", looked_at, position) + 1, escaped + 2 if escaped >= 0 else 0)
        looked_at = position
        if line == headless:
            continue
        may_be_head = text.find("|", line, line + _LONGEST_HEAD) >= 0 or _CSV_BEGIN.match(text, line)
        if not may_be_head or (head := _HEAD.match(text, line)) is None:
            headless = line
            continue
        at = head.end()
        separator = next((sign for sign in "|\t;," if sign in head["head"]), ",")
        if (separator == "|") != bool(head["rule"]):
            continue
        if separator != "|" and not _CSV_HEAD.fullmatch(head["head"].rstrip("\r")):
            continue
        cells = head["head"].split(separator)
        columns = {number for number, cell in enumerate(cells) if _HEAD_NAME.match(cell.strip(_AROUND_CELL))}
        while columns and (row := _ROW.match(text, at)) and row["row"].count(separator) == len(cells) - 1:
            at = row.end()
            yield from _cells(row["row"].split(separator), columns, row.start())


def _cells(cells: list[str], columns: set[int], start: int) -> Iterator[_SecretSpan]:
    """Yield the secrets of the row that begins at `start`."""
    for number, cell in enumerate(cells):
        value = cell.strip(_AROUND_CELL)
        if number in columns and not _is_code(value, "", is_quoted=False) and _is_random_or_chosen(value):
            position = start + cell.index(value)
            yield _SecretSpan(position, position + len(value), "value")
        start += len(cell) + 1


def _pem(text: str) -> Iterator[_SecretSpan]:
    """Yield whole blocks, and the remainders of blocks that are cut off at their beginning or end."""
    closed_ends = set[int]()
    for match in _PEM_BEGIN.finditer(text):
        following = _PEM_BEGIN.search(text, match.end(), match.end() + _MOST_PEM)
        limit = following.start() if following else match.end() + _MOST_PEM
        closed = _PEM_END.search(text, match.end(), limit)
        lines = _PEM_LINES.match(text, match.end())
        end = closed.end() if closed else lines.end() if lines else match.end()
        if closed:
            closed_ends.add(closed.start())
        if end > match.end() + 16:
            yield _SecretSpan(match.start(), end, "private_key")
    yield from _pem_without_begin(text, closed_ends)
    for match in _PEM_CUT_BEGIN.finditer(text):
        lines = _PEM_LINES.match(text, match.end())
        if lines and lines.end() > match.end() + 16:
            yield _SecretSpan(match.end(), lines.end(), "private_key")


def _pem_without_begin(text: str, closed_ends: set[int]) -> Iterator[_SecretSpan]:
    """Yield the lines before an end without a beginning, read backwards from it."""
    passed = 0
    for match in _PEM_END.finditer(text):
        begin, passed = max(passed, match.start() - _MOST_PEM), match.end()
        lines = _REVERSED_LINES.match(text[begin : match.start()][::-1])
        if match.start() in closed_ends or lines is None or lines.end() <= 16:
            continue
        start = match.start() - lines.end()
        start += text[start - 1 : start] == "\\"  # the letter of an escape
        yield _SecretSpan(start, match.end(), "private_key")


def _key_data(text: str) -> Iterator[_SecretSpan]:
    """Yield base64 private keys without the lines around them, by the beginning of their data, and those of PuTTY."""
    for match in _KEY_DATA.finditer(text):
        lines = _PEM_LINES.match(text, match.start())
        if lines and lines.end() > match.start() + 40:
            yield _SecretSpan(match.start(), lines.end(), "private_key")
    for match in _PUTTY.finditer(text):
        yield _SecretSpan(*match.span("value"), "private_key")


def _find_by_name(text: str, names: Sequence[_FindNames]) -> Iterator[_SecretSpan]:
    passed = 0
    both = _Text(text, _lower(text))
    for start, stem, strength in sorted(name_span for name in names for name_span in name(both)):
        if start < passed:
            continue
        prefix, suffix = _prefix(text, start), None if strength == "faint" else _SUFFIX.match(text, stem)
        prefix_start = start - len(prefix)
        if _is_other_name(text, start, stem, prefix, strength):
            continue
        end = suffix.end() if suffix else stem
        name = prefix + text[start:end]
        is_flag = prefix.startswith("-") or bool(_SETTING.search(text, max(0, prefix_start - 40), prefix_start))
        operator = _operator(text, end, is_flag=is_flag)
        is_kind = strength == "weak" and _OF_KIND.search(text, max(0, prefix_start - 30), prefix_start)
        is_loose = operator is None or bool(is_kind)
        operator = operator or _LOOSE.match(text, end)
        if operator is None:
            continue
        is_said = is_flag or operator.lastgroup == "said"
        value = _enclosed_value(text, operator) or _value(
            text, operator.end(), is_of_shell=name.isupper() and operator[0] == "="
        )
        if value is None or (text[value.start - 1] == "`" and " " in text[value.start : value.end]):  # a command
            continue
        if value.end - value.start > _LONGEST_QUOTED:  # names within a longer text are skipped together with it
            passed = value.end
        needed = _LOOSE_STRENGTHS.get(strength, strength) if is_loose else strength
        is_telling = not is_loose or needed != "weak" or _is_long_and_random(text[value.start : value.end][:_JUDGED])
        if is_telling and _is_secret(text, value, needed, name, is_said=is_said):
            yield _SecretSpan(value.start, value.end, "value")


def _is_other_name(text: str, start: int, stem: int, prefix: str, strength: Strength) -> bool:
    """Return True if the name belongs to something else, to an address, or to a mask."""
    if text.endswith(("://", _MASK), 0, start - len(prefix)) or text.startswith(_MASK, start - 1):
        return True
    if strength == "weak" and not prefix and text[start - 1 : start] == ":":  # part of an ARN
        return True
    is_other = _OTHER_SUFFIX.match(text, stem) or _OTHER_PREFIX.search(prefix)
    return bool(is_other or _OTHER_WORD.search(text, max(0, start - 12), start))


def _operator(text: str, end: int, *, is_flag: bool) -> re.Match[str] | None:
    """Return the match between a name and its value, or None."""
    has_default = text.find("efault", end, end + _MOST_OF_DEFAULT) >= 0
    operator = (_DEFAULT.match(text, end) if has_default else None) or _OPERATOR.match(text, end)
    return operator or (_FLAG.match(text, end) if is_flag else None)


@dataclass(frozen=True, slots=True)
class _Name:
    """Finds the positions of one name of a secret."""

    name: str
    strength: Strength

    def __call__(self, text: _Text) -> Iterator[tuple[int, int, Strength]]:
        """Yield start, end and strength of each occurrence."""
        for start in _positions_of(text.small, self.name):
            yield start, start + len(self.name), self.strength


def _pass_names(text: _Text) -> Iterator[tuple[int, int, Strength]]:
    for start in _positions_of(text.small, "pass"):
        if match := _PASS.match(text.small, start):
            yield start, match.end(), "weak" if match["weak"] else "strong"


def _short_names(text: _Text) -> Iterator[tuple[int, int, Strength]]:
    small = text.small
    for match in _SHORT.finditer(small):
        start, end = match.span()
        is_word = small[start - 1 : start] not in _WORD_SIGNS and small[end : end + 1] not in _WORD_SIGNS
        if is_word or (match["pass"] and small.endswith(_BEFORE_PASS, 0, start)):
            yield start, end, "weak" if match["weak"] else "chosen"


def _lower(text: str) -> str:
    """Return the text in lower case with the same length. A few letters would become two."""
    small = text.lower().replace("ſ", "s")  # as case-insensitive patterns read it
    if len(small) == len(text):
        return small
    return "".join(sign.lower() if len(sign.lower()) == 1 else sign for sign in text).replace("ſ", "s")


def _key_names(text: _Text) -> Iterator[tuple[int, int, Strength]]:
    """Yield the positions where `key` means a secret key, or any key."""
    written = text.written
    for start in _positions_of(text.small, "key"):
        preceding = written[max(0, start - 2) : start]
        end = start - (text.small[start - 1 : start] in (" ", "_", "-"))
        if text.small.endswith(_KEY_OF, 0, end):
            yield start, start + 3, "weak"
        elif (
            written[start - 1 : start + 3] == "_KEY"
            or preceding in ("\\n", "\\r", "\\t")
            or not (preceding[-1:].isalnum() or preceding[-1:] in ("_", "-"))
        ):
            yield start, start + 3, "faint"


def _prefix(text: str, start: int) -> str:
    """Return the part of the same name before this position."""
    match = _PREFIX.search(text[max(0, start - 40) : start])
    prefix = match[0] if match else ""
    # The letter of an escape is not part of the name.
    escape = max(0, start - 40) + len(text[max(0, start - 40) : start]) - len(prefix) - 1
    return prefix[1:] if prefix[:1] in ("n", "r", "t") and prefix and escape >= 0 and text[escape] == "\\" else prefix


class _Value(NamedTuple):
    """The value after a name, and whether it is quoted."""

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


def _enclosed_value(text: str, operator: re.Match[str]) -> _Value | None:
    """Return the value within an element or long brackets; None if there are none around it."""
    enclosed = _ENCLOSED.get(operator[0][-1:])
    match = enclosed.match(text, operator.end()) if enclosed and not operator[0].endswith("=>") else None
    return _unmasked_value(text, operator.end(), match.end(), is_quoted=False) if match else None


def _closing(text: str, opened: re.Match[str]) -> int | None:
    """Return the end of the quotation; None if it does not end on its line."""
    if not opened["escape"]:
        closed = _CLOSED[opened["quote"]].match(text, opened.end())
        return None if closed is None else closed.end("value")
    end = text.find(opened["escape"] + opened["quote"], opened.end(), opened.end() + _LONGEST_QUOTED)
    while end > 0 and text[end - 1] == "\\":  # a nested one
        end = text.find(opened["escape"] + opened["quote"], end + 1, opened.end() + _LONGEST_QUOTED)
    return None if end <= opened.end() or "\n" in text[opened.end() : end] else end


def _unmasked_value(text: str, start: int, end: int, *, is_quoted: bool) -> _Value | None:
    """Return the value up to a mask that it contains already."""
    mask = text.find(_MASK, start, end)
    end = end if mask < 0 else mask
    return _Value(start, end, is_quoted) if end > start else None


def _is_secret(text: str, value: _Value, strength: Strength, name: str, *, is_said: bool) -> bool:
    """Return True if a value next to the name of a secret is one. Only a password may be any word."""
    judged = text[value.start : min(value.end, value.start + _JUDGED)]
    if (
        len(judged) < 4
        or _ALPHABET in judged.lower()
        or judged.startswith("-----")
        or _PLACEHOLDER.match(judged)
        or _is_code(judged, text[value.end : value.end + 1], is_quoted=value.is_quoted)
    ):
        return False
    if strength == "strong":
        is_plain = not value.is_quoted and not is_said and not name.isupper()
        return _is_word(judged) and not (is_plain and "_" in judged and judged.islower() and _IDENTIFIER.match(judged))
    if _COLOR.match(judged):
        return False
    if strength == "chosen":
        return _is_chosen(judged)
    if strength == "faint":
        return (
            len(judged) >= 32
            and (_is_mixed(judged) or bool(_KEY_PAIR.match(judged)))
            and ("/" not in judged or judged.endswith("="))
        )
    if name.endswith(("KEY", "Key", "key")) and not value.is_quoted and all(map(_CODE_WORD.match, judged.split("_"))):
        return _is_random(judged)
    return _is_random(judged) or ((value.is_quoted or name.isupper()) and _is_phrase(judged))


def _is_code(value: str, following: str, *, is_quoted: bool) -> bool:
    """Return True if it is an expression, a variable or a path instead of a secret."""
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
    """Return True if it may be a password: any word except those of sentences and types."""
    if len(value) < 4 or _PLACEHOLDER.match(value):
        return False
    words = [word.strip("'!?.,:;") for word in value.lower().split()]
    return not (_OF_SENTENCES.intersection(words) if len(words) > 1 else _WORDS.intersection(words))


def _is_password_of_address(value: str) -> bool:
    return not _PLACEHOLDER.match(value) and value.lower() not in _WORDS and value.lower() not in ("port", "pass")


def _is_random(value: str) -> bool:
    """Return True if it looks machine-made: letters and digits, but not words followed by numbers."""
    if len(value) < 8 or _PLACEHOLDER.match(value) or _ALPHABET in value.lower():
        return False
    if value.isdigit():
        return len(value) >= 20
    if not any(map(str.isdigit, value)):
        return len(value) >= 16 and _case_changes(value) > _RANDOM_SWITCHES * len(value)
    parts = _PART.split(value)
    return not all(_CODE_WORD.match(part) for part in parts if part) or (len(parts) == 1 and _is_numbered(value))


def _is_words(value: str) -> bool:
    """Return True if the value is a series of words, like the name of a class or a table."""
    parts = [part for part in _PART.split(value) if part]
    return len(parts) > 3 and all(map(_CODE_WORD.match, parts))


def _is_chosen(value: str) -> bool:
    """Return True if the value looks like a password without a name next to it: letters and digits, no word of code."""
    has_letter, digits = any(map(str.isalpha, value)), sum(map(str.isdigit, value))
    if len(value) < 6 or not has_letter or not digits or not _is_word(value) or _ALGORITHM.match(value):
        return False
    has_sign = not _CHOSEN_SIGNS.isdisjoint(value)
    if any(sign in value for sign in "(){}[]<>=/\\:;,|") or (value.endswith(("!", "?")) and not has_sign):
        return False
    parts = [part for part in _PART.split(value) if part]
    if len(parts) > 1 and all(map(_CODE_WORD.match, parts)):
        return False
    return has_sign or digits > 1 or not (value.islower() or value.isupper())


def _is_random_or_chosen(value: str) -> bool:
    return _is_random(value) or _is_chosen(value)


def _is_long_and_random(value: str) -> bool:
    return len(value) >= _LEAST_LOOSE and _is_random(value) and (value.isalpha() or _is_numbered(value))


def _is_numbered(value: str) -> bool:
    """Return True if it has more digits than a variable has."""
    return sum(map(str.isdigit, value)) >= 2


def _is_phrase(value: str) -> bool:
    """Return True if a person may have chosen it as a secret."""
    if value.islower() and value.count("_") > 2 and _IDENTIFIER.match(value):  # a name of code
        return False
    return len(value) >= 10 and " " not in value and not _NAMES_ONE.search(value) and value.lower() not in _WORDS


def _is_mixed(value: str) -> bool:
    """Return True if it has digits and letters of both cases, as random values do."""
    has = (any(map(kind, value)) for kind in (str.isdigit, str.isupper, str.islower))
    return len(value) >= 16 and all(has)


def _case_changes(value: str) -> int:
    return sum(a.islower() != b.islower() for a, b in pairwise(value))


def _is_encoded_login(value: str) -> bool:
    """Return True if it is a user and a password in base64."""
    try:
        return b":" in b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (BinasciiError, ValueError):
        return False


_COMMANDS = (
    *(
        "sshpass",
        "login",
        "twine",
        "htpasswd",
        "redis-cli",
        "mongo",
        "ldapsearch",
        "ldapmodify",
        "sqlcmd",
        "bcp",
        "zip",
        "unrar",
    ),
    "ssh-keygen",
)
# The parts that a text with such a secret contains, and how to find the secret.
_FINDERS: tuple[tuple[Form, _FindSecrets], ...] = (
    *((Form((begin,), long=True), _Key(begin, form)) for begin, form in FORMATS.items()),
    (Form(("ATE KEY",)), _pem),
    (Form(_KEY_DATA_SIGNS), _key_data),
    (Form(("://",)), _Place(_DSN, "dsn", _is_password_of_address)),
    (Form(("earer", "uthorization", "SSWS ")), _Place(_BEARER, "bearer", _is_random)),
    (Form(("asic ", '"auth')), _Place(_BASIC, "basic", _is_encoded_login)),
    (Form((":AA",)), _Place(_TELEGRAM, "telegram", _is_random)),
    (
        Form(("sig=", "ignature=", "auth=", "key=", "jwt=", "pat=", "hmac=", "code=")),
        _Place(_SIGNATURE, "signature", _is_random),
    ),
    (Form(("://",)), _Place(_LOGIN_OF_URL, "dsn", _is_random)),
    (Form((":thin:", ":oci:")), _Place(_ORACLE, "dsn", _is_password_of_address)),
    (Form(("curl", "xh ", "http ")), _Place(_CURL_USER, "value", _is_word)),
    (Form(("u ", "-user")), _Place(_CURL_KEY, "value", _is_random)),
    (Form((" -u", "-user")), _Place(_USER_OPTION, "value", _is_chosen)),
    (Form(("mysql", "mariadb", "7z")), _Place(_MYSQL, "value", _is_word)),
    (Form(_COMMANDS), _Place(_COMMAND, "value", _is_word)),
    (Form((" -U", " -pass", "htpasswd", "lftp", "poetry", "bundle", "openssl")), _Place(_OPTION, "value", _is_word)),
    (
        Form((" /p", "\t/p", " /rp", "\t/rp", " /user:", "\t/user:", "net ", "net\t")),
        _Place(_OF_WINDOWS, "value", _is_chosen),
    ),
    (Form(("echo ", "printf ")), _Place(_PIPED, "value", _is_word)),
    (Form(("SecureString", "uth(", "uth=", "uth =", "uth\t=")), _Place(_ARGUMENT, "value", _is_chosen)),
    (Form(("<<<",)), _Place(_HERE, "value", _is_word)),
    (Form(("--from-literal",)), _Place(_LITERAL, "value", _is_random_or_chosen)),
    (Form(("dockerc",)), _Place(_DOCKER_CONFIG, "value", _is_random)),
    (Form(("_auth",)), _Place(_NPM_AUTH, "basic", _is_encoded_login)),
    (Form(("requirepass", "masterauth", "AUTH")), _Place(_REDIS, "value", _is_random_or_chosen)),
    (Form((":54", ":6432:", ":6543:", ":2506", ":26257:", ":*:")), _Place(_PGPASS, "value", _is_word)),
    (Form(_SHADOW_SIGNS), _Place(_SHADOW, "value", bool)),
    (Form(("dentified", "DENTIFIED", "assword(", "ASSWORD(")), _Place(_SQL, "value", _is_word)),
    (Form(("password",)), _Place(_MACHINE, "value", _is_word)),
    (Form(('"kty',)), _jwk_members),
    (Form(_COLUMN_NAMES, small=True), _columns),
    (Form((":",)), _find_by_port),
    (Form(("ookie",)), _cookies),
)
_NAMES: tuple[tuple[Form, _FindNames], ...] = (
    *((Form((name,), small=True), _Name(name, "strong")) for name in (*_STRONG, *_STRONG_ABROAD)),
    *((Form((name,), small=True), _Name(name, "weak")) for name in (*_WEAK, *_WEAK_ABROAD)),
    (Form(("pass",), small=True), _pass_names),
    (Form(("pw", "psk", "pass", "pat"), small=True), _short_names),
    (Form(("key",), small=True), _key_names),
)
_PREFILTER = Prefilter([form for form, _ in (*_FINDERS, *_NAMES)], _lower)
