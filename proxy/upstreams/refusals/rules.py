"""Tables that decide whether an error is an overflow: sufficient codes, vetoes, and wordings.

Every pattern is tried on one or two sentences of at most 240 characters, as `error_parts.sentences` writes them. So no
input takes long.
"""

import re

# The vocabulary of the tables. A name may be made of later ones.
_VOCABULARY = {
    "WHAT": r"(?:SAID|\b(?:requests?|requested|sequence|sequences|tokens?|payload|body|job|session)\b)",
    "SAID": r"\b(?:prompts?|(?<!invalid )inputs?(?! validation)|messages?|conversations?|chat|history|context|"
    r"quer(?:y|ies)|questions?|texts?)\b",
    "WINDOW": r"\b(?:context(?: window| length| size| limit| len| capacity| budget){1,2}|n ctx"
    r"|(?:max )?(?:model|seq(?:uence)?|session) len(?:gth)?|max(?:imum)? context|context max(?:imum)?"
    r"|(?:models?|its|the|this|available|configured|total) context)\b",
    "OVER": r"\b(?:(?:exceed|surpass|overflow|overrun|outgr[eo]w)\w*|over|above|beyond|past|(?:GREATER|"
    r"more(?: tokens)?|higher) than)\b",
    "GREATER": r"(?:long|great|larg|bigg)er",
    "BELOW": r"(?:<=|< |\b(?:less|fewer|smaller|shorter|greater|larger) than\b|\b(?:at most|no more than|"
    r"below|under|up to)\b|\bor (?:less|fewer)\b)",
    "MOST": r"(?:\b(?:context|window|capacity|max(?:imum)?|allowed|allows?|supports?|supported|"
    r"permitted|handle|accepts?|can read)\b|\blimits?\b|\blimited\b|NUM)",
    "MUST": r"\b(?:must|should|cannot|cant|can not|may not|has to|have to|needs? to)\b",
    "SHRINK": r"\b(?:reduc|shorten|decreas|trim|truncat|shrink|condens|drop|clear|cut)\w*\b",
    "BIG": r"\b(?<!took )(?<!takes )too (?:long|large|big|lengthy|many tokens)\b",
    # A number in the range of windows.
    "SIZE": r"(?:(?=[2-9]\d\d|\d{4})NUM)",
    "NUM": r"(?<![\d.])\d{3,9}(?![\dk%])(?!\.\d*[1-9])",
    "主语": r"(?:输入|提示词?|prompt|消息|对话|会话|聊天|问题|文本|历史|请求|内容|tokens?)",
    "超越": r"(?:超出|超过|大于|超限|超长|不能超|不得超|不可超|长于)",
}


def patterns(*rows: str) -> tuple[re.Pattern[str], ...]:
    """Return the compiled rows, with the vocabulary's names replaced."""
    for name, words in _VOCABULARY.items():
        rows = tuple(row.replace(name, words) for row in rows)
    return tuple(re.compile(row) for row in rows)


def matches(table: tuple[re.Pattern[str], ...], sentence: str) -> bool:
    """Return True if a pattern of the table matches the sentence."""
    return any(pattern.search(sentence) for pattern in table)


# Statuses that never come with a real overflow.
NEVER = frozenset({401, 402, 403, 407, 408, 429, 499, 529})
# From this status on a gateway responds, which may quote only half of an error. Only certain wordings count.
GATEWAY = 502
# Fields that hold a code. `error` holds one if the text is next to it.
CODE_FIELDS = frozenset({"code", "type", "status", "error_type", "error_code", "errorcode", "error", "reason", "kind"})
# Codes that mean an overflow whatever the text is, without separators and in lower case.
_SUFFICIENT = re.compile(
    r"(?:max(?:imum)?|model|input)?context(?:length|window|size|limit|tokens?)?(?:is|was|has been)?"
    r"(?:exceed\w*|overflow\w*|reached|toolong|toolarge|full)(?:error|exception)?"
    r"|(?:exceeds?|exceeded)(?:the)?(?:max|maximum|model)?context\w{0,20}|outofcontext(?:error)?"
    r"|(?:prompt|input|inputs|conversation|history|inputtokens|prompttokens)(?:is)?toolong(?:error|exception)?"
    r"|modelmaxprompttokensexceeded|maxprompttokensexceeded|tokenquantityexceeded|tokenslimitreached"
)
# Numeric codes, which count only together with a field of a code (Zhipu; iFlytek; Baidu).
NUMBERED = frozenset({"1261", "10907", "336103"})
# Limits of an account for a single request. Waiting never helps, so they are not rate limits.
TIER_CODES = frozenset({"tokenslimitreached"})


def normal_code(value: str) -> str:
    """Return a code in lower case without separators."""
    return re.sub(r"[^a-z0-9]", "", value[:80].lower())


def suffices(code: str) -> bool:
    """Return True if a code alone means an overflow."""
    return _SUFFICIENT.fullmatch(code) is not None


# Texts that veto an overflow: rates, money, time, keys, load, and content filters.
VETOES = patterns(
    r"tokens? ?(?:per|/|a) ?(?:min|hour|day|second|month)|\bper (?:minute|hour|day|second|month)\b",
    r"\bdaily\b|\bmonthly\b|\b\d+ ?s window",
    r"\b[tr]p[mdsh]\b|\bqps\b|rate.{0,3}limit|throttl|throughput|retry.after|try again (?:in|tomorrow)",
    r"too many requests|for today",
    r"quota|credits?\b|billing|balance|afford|payment|spend|(?<!context )(?<!thinking )(?<!token )budget",
    r"usage limit|allowance|subscription",
    r"\b(?:entitle|upgrade (?:your|to a paid)|your plan\b|extra usage|beta\b)|\bresource exhausted\b",
    r"concurren|overload|max retries exceeded|batch size|\bbatch too\b|\bqueued?\b|in flight|out of memory|cuda\b",
    r"deadline|timed? ?out\b|timeout|cancell?ed|took too long|api key|unauthori[sz]ed|authenticat",
    r"permission|not found|does not exist",
    r"\b(?:access|bearer|refresh|auth\w*|jwt) tokens?\b|\btoken (?:has )?expired\b|\bjwt\b",
    r"content.?(?:filter|management|policy)|\bflagged\b|\bblocked\b|moderation|injection|sensitive|\bsafety\b",
    r"速率|余额|频率|频繁|限流|鉴权|额度|充值|欠费|并发|配额|过载|次数|用量|今日|当日|每日|每天|每分钟|单日|排队|敏感|安全|违规|审核|间隔|繁忙",
    r"不存在|超时|权限|套餐",
    # OpenRouter's text for the remaining budget of a key
    r"^\W{0,3}prompt tokens limit exceeded:? NUM > NUM",
)
# Texts that ask for less output veto it too.
ASKS_FOR_LESS_OUTPUT = patterns(
    r"fewer (?:output|completion) tokens|maximum tokens (?:you|value)|supports? at most \d+ (?:completion|output)"
)
# Two neighbouring sentences that compare two numbers of tokens, in any words.
COMPARISONS = patterns(
    r"^(?=.*(?:SAID|\bsequence length\b))(?=.*\b(?:tokens?|context|length|long|sequence|n ctx)\b)"
    r"(?=.*(?:\b(?:max\w*|limit\w*|allow\w*|accept\w*|support\w*|permit\w*|handle|window|cannot|cant)\b"
    r"|\bcontext (?:size|length|of|is)\b"
    r"|OVER|>|\b(?:can take|no more than|at most|up to|does not fit|do not fit)\b))(?=.*?SIZE.*?SIZE)",
    r"^(?=.*(?:输入|提示|prompt|上下文|请求|对话|消息))(?=.*(?:token|长度|上下文|窗口))"
    r"(?=.*(?:最大|上限|限制|最多|至多|超|仅支持|只支持))(?=.*?SIZE.*?SIZE)",
)
# A sentence only about the output. Its cap is no overflow, even if it equals the window.
OUTPUT_ONLY = patterns(
    r"^(?!\W{0,3}max tokens of NUM exceeded\W{0,3}$)(?!.*(?:SAID|\brequests?\b|\bremain\w*|\btotal of\b|输入|上下文|"
    r"提示|对话)).{0,80}\b(?:max (?:completion |new |output )?tokens|(?:output|completion) (?:tokens?|length))\b",
    r"\bmax (?:completion |new |output )?tokens:? NUM > NUM, which is the max(?:imum)? allowed number of output",
    r"^(?!.*(?:prompt|\binputs?\b|\bconversation\b)).{0,80}"
    r"\bmax(?:imum)? (?:output|completion|response|generation) (?:tokens?|length)",
    r"^(?!.*(?:输入|上下文|提示)).{0,80}(?:max tokens.{0,20}(?:超越|最大|上限)|(?:超越|最大|上限).{0,20}max tokens"
    r"|输出长度|最大输出|输出 ?token)",
    r"\b(?:thinking|reasoning)\b.{0,20}\b(?:budget|effort)\b",
    r"^\W{0,3}(?:the )?(?:generation|response|output|answer|completion)\b.{0,60}(?:OVER|stopped|cut off)",
)
# A sentence about something else: single fields, lists, files, media, tool pairing.
ELSEWHERE = patterns(
    r"\bnumber of output tokens",
    r"\b(?:output|completion) (?:tokens?|length)\b.{0,30}(?:must|exceed|at most|allowed|limit)",
    r"\bimages?\b(?! and text)",
    r"\b(?:pdfs?|pages?|audio|videos?|frames?|files?|pixels?|bytes|[kmg]i?b|megabytes|base64)\b",
    r"\b(?:array|list|string|schema|grammar|stop|metadata|user id|names?|description|enum|key|identifier|url|"
    r"uri|headers?)\b",
    r"\b(?:temperature|top p|top k|seed|logprobs|logit bias|token ids?|vocabulary|template|stack size|"
    r"recursion|cookies?|urls)\b",
    r"tool (?:call id|use|result|choice|description)|tool calls",
    r"max(?:imum)? (?:number of )?(?:tools|functions|items|inputs|texts|messages|documents)",
    r"\bnumber of (?:messages|documents|texts|inputs|tools|requests)\b",
    r"\btoo many (?:inputs|texts|messages|documents|tools|completions)\b",
    r"\b(?:at most|only|maximum of) \d+ (?:messages?|texts|inputs|documents|tools)\b|\btexts per call\b",
    r"minimum (?:number of )?tokens?|at least \d+ tokens? (?:is|are|long)|too small\b(?!.{0,40}prompt)",
    r"must contain at least",
    r"invalid (?:user|assistant) message|\broles?\b|\bentity\b|\bscore\b",
    r"^\W{0,3}(?:title|label|suffix|caption|user ?name|password|email)\b",
    r"\b\d{1,3} (?:characters|chars)\b",
    r"\d ?[kmg]i?b(?![a-z])|请求体|\bmalformed input request\b|\b(?:tts|speech|voice|training|(?:fine.?)?tuning)\b",
    r"\b(?:dataset|deprecated|dimensions?|versions?)\b",
    # A minimum, not a maximum.
    r"\b(?:must|should|has to|needs to) be (?:(?:greater|larger|longer|more|higher) than|at least)\b",
    r"^\W{0,3}invalid input\b(?!.*(?:token|length|context))|^output\b|\bcompletion reached\b",
    r"语音|时长|图片|文件|音频|视频|字段|名称|数组|工具|参数(?!:)|图像|轮次不",
    r"\btools\b.{0,12}(?:数量|个数)",
)

# Certain wordings, whatever else a sentence is about, and even from a gateway.
CERTAIN = patterns(
    r"\bmax(?:imum)? (?:\w+ ){0,2}(?:context|seq(?:uence)?|prompt|input|model) ?(?:length|len|size|window|tokens?)\b"
    r"[^\d]{0,60}NUM",
    r"NUM (?:tokens? )?max(?:imum)? context",
    r"(?:SAID.{0,80}|\b(?:requests?|requested|tokens)\b.{0,60})OVER.{0,60}WINDOW",
    r"WINDOW (?:has been |have been |was |were |is |been )?(?:exceed|overflow|exhaust)",
    r"(?:prompt|input|request|context).{0,60}NUM (?:tokens? )?> (?:\w+ ){0,2}NUM|NUM\)? > WINDOW",
    r"\b(?:inputs?|prompt)\b.{0,40}(?:\+|\bplus\b|\band\b).{0,40}\btokens\b.{0,40}(?:BELOW|OVER).{0,40}NUM",
    r"\b(?:prompts?|inputs?|messages|conversation)\b.{0,40}BIG.{0,40}NUM (?:input |prompt )?tokens",
)
# Wordings of overflows, one row a family.
WORDINGS = patterns(
    r"SAID.{0,60}BIG|\btoo many (?:input|prompt|context) tokens\b|\btoo many tokens\b.{0,30}(?:SAID|NUM)",
    r"\b(?:requests?|sequence|session)\b.{0,30}BIG.{0,60}(?:\b(?:tokens?|context)\b|NUM > NUM)",
    r"\bBIG.{0,20}(?:for|to fit).{0,20}\b(?:context|model)\b|\bgrown\b.{0,20}BIG",
    r"WHAT.{0,90}OVER.{0,60}MOST.{0,60}\b(?:tokens?|length|context|window|size|len|limits?|characters)\b",
    r"\b(?:tokens?|prompts?|inputs?|context)\b.{0,90}OVER.{0,60}MOST",
    r"WHAT.{0,60}OVER.{0,40}\b(?:tokens? (?:limit|max|count|length|capacity)|cache size|WINDOW)",
    r"\btokens? (?:limit|count|length)\b.{0,30}OVER|\bmore tokens than\b.{0,60}MOST",
    r"\bcontext shift is disabled\b|\bexceed\w*.{0,30}\bby NUM tokens|^\W{0,3}max tokens of NUM exceeded\b",
    r"^(?=.*\b(?:tokens?|length)\b).{0,160}?WHAT.{0,120}MUST.{0,40}(?:BELOW|OVER|\bNUM or\b).{0,60}(?:NUM|$)",
    r"WHAT.{0,60}MUST.{0,20}\bNUM (?:tokens )?or (?:less|fewer)",
    r"SHRINK.{0,40}\b(?:messages?|prompt|inputs?|conversation|context|history)\b",
    r"\b(?:doesnt|does not|do not|dont|cannot|cant|not|too \w+ to) fit\b.{0,40}"
    r"\b(?:context|window|model|tokens?|cache)\b",
    r"\b(?:ran|run|running|is|are|was) out of (?:room|space|context)\b",
    r"\bcontext\b.{0,40}\b(?:overflow\w*|too (?:small|short|long|large)|insufficient|not enough|full|exhausted)\b",
    r"\b(?:not enough|insufficient|no) (?:context|room)\b.{0,40}(?:NUM|SAID|\bleft\b)",
    r"\bcontext\b.{0,30}\b(?:smaller|shorter|less) than\b.{0,30}SAID",
    r"\b(?:overflow\w*|exceed\w*)\b.{0,20}\bcontext\b",
    r"^(?=.*\b(?:tokens?|context|length)\b).*?\b(?:input|prompt|tokens?)\b.{0,80}"
    r"\b(?:supports?|supported|accepts?|allows?|limited to|takes?|handles?)\b.{0,30}NUM",
    r"^(?=.*SAID).*?\b(?:supports?|accepts?|allows?|takes?|handles?|process)\b.{0,40}"
    r"NUM (?:total |input |prompt )?tokens",
    r"NUM (?:input |prompt )?tokens\b.{0,60}\b(?:but|while|and)\b.{0,60}NUM",
    r"\b(?:prompt|input|length|request|conversation)\b.{0,60}NUM.{0,20}\b(?:but|while|whereas|"
    r"and)\b.{0,40}\b(?:context|max\w*|limit)\b.{0,40}NUM",
    r"\bcontext\b.{0,40}\b(?:but|while|and)\b.{0,40}\b(?:request|prompt|used)\b.{0,40}NUM",
    r"\b(?:remain\w*|left|available)\b.{0,40}NUM.{0,10}\bcontext\b",
    r"SAID.{0,60}\b(?:at most|no more than|up to|maximum of|limited to) NUM tokens",
    r"\bcontext (?:limit|length|size|window) (?:was |is |has been )?(?:reached|hit)\b",
    r"\bcontext limit\b.{0,10}NUM|\bleaves? (?:no|0|-\d+)\b.{0,20}\b(?:tokens?|room)\b",
    r"\bmax(?:imum)? input tokens?\b|\brange of input length\b|\bn keep\b.{0,12}>.{0,4}\bn ctx\b",
    r"\bn tokens:? NUM n ctx",
    r"\b(?:max(?:imum)?|limit)\b.{0,20}\blength of (?:the )?(?:current )?(?:question|query|prompt|input|messages?)\b",
    r"\bNUM (?:tokens? )?max(?:imum)?\b.{0,30}\bNUM given|\btotal cache allocated\b",
    r"SAID (?:is |are )?(?:GREATER|more) than\b.{0,40}\b(?:model|context|window|max\w*|limit|allowed|supported|NUM)",
    r"(?:上下文|窗口).{0,14}(?:[过太超]长|超越|溢出|不足|已满|压缩|过大|已?达到?(?:最大|上限))",
    r"(?:对话|会话|聊天|输入|消息).{0,6}长度.{0,4}达到?(?:最大|上限)",
    r"超越.{0,24}(?:上下文|窗口|(?:最大|输入|模型|支持).{0,12}(?:长度|上限|限制|tokens?)|tokens?.{0,6}(?:上限|限制|长度|数))",
    r"主语.{0,16}(?:[过太超]长|超限|过大|太大)|主语.{0,40}超越.{0,20}(?:长度|token|上限|限制|最大|NUM)",
    r"主语.{0,40}(?:最多|最大|至多|上限).{0,12}NUM|(?:减少|缩短|精简|压缩).{0,8}(?:上下文|主语)",
)
# An output limit that a server has computed from the room after the prompt (NIM, vLLM's relatives). No client requests
# so little.
_NEGATIVE_OUTPUT = (
    r"\bmax (?:(?:completion|output|new) )?tokens\b.{0,12}\bmust be"
    r" (?:non.?negative|positive|(?:at least|greater than(?: or equal to)?|>=?) ?\d{1,2}\b)"
    r".{0,24}(?:-\d+|\b(?:got|received|found|was|is):? 0\b)"
    r"|\bgreater than (?:or equal to )?\d{1,2}\b.{0,12}\bmax (?:(?:completion|output|new) )?tokens ?=? ?-\d+"
)
COMPUTED_OUTPUT = patterns(_NEGATIVE_OUTPUT)
# Possible overflows: an excess of something other than tokens, or an error without a text. Only the proxy's own
# estimate can decide. (Limits in bytes are not among these, since a longer window would not help.)
UNCLEAR = patterns(
    r"^\W{0,3}(?:\d{3} )?(?:http )?(?:error:? )?(?:request )?(?:the )?(?:payload|request(?: body| entity|"
    r" payload)?|content|entity|body)(?: is)? too (?:large|big|long)\W{0,3}$",
    r"^request (?:entity )?exceeds the maximum size\W{0,3}$",
    r"\bmessage (?:length )?(?:too large|larger than max)\b|\bstream read constraints\b",
    r"\bmalformed input request\b.{0,80}\bmax ?length\b",
    _NEGATIVE_OUTPUT,
    r"^\W{0,3}(?:400|413)(?: status code)? \(no body\)",
)
# A count of bytes, or a page from an intermediate web server.
BYTES = patterns(r"\bbody size\b|\bbytes\b|\d ?[kmg]i?b\b|字节|\bnginx\b|\bcloudflare\b|payload too large error")
UNCLEAR_CODES = frozenset({"requesttoolarge", "requestentitytoolarge", "payloadtoolarge"})
# A message whose text is too long. Its position shows whether it belongs to the conversation.
LONG_STRING_CODES = frozenset({"stringabovemaxlength"})
CONVERSATION_FIELD = re.compile(r"(?:messages|input)(?:[.\[]\d+\]?)*(?:[.\[](?:content|text|\d+)\]?)*")
