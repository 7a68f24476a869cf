"""What users say over a session, without any markers: rules in passing, changed minds, things that only look alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NaturalSession:
    """rules: must stand in every window. facts: from 3,000 tokens up. gone: words of values that no longer hold."""

    name: str
    said: tuple[str, ...]
    rules: tuple[str, ...]
    facts: tuple[str, ...]
    gone: tuple[str, ...]


_LONG_EN = """I looked at the importer over the weekend and wrote down what I noticed, sorry for the length. The first
pass over the feed is fine and quick enough for what we need. The second pass reads every row again, which nobody
understood when I asked around, and the comments in there are from two teams ago. The parser keeps the whole file in
memory. It would be good to find out whether the rows could be streamed, although I am not convinced that it matters.
Oh, and never write to the customer's warehouse directly, everything goes through the outbox. The tests around it are
thin. There are a few for the happy path, one for an empty file, and that is about it. I also found two helpers that do
nearly the same, and a class that is not used anywhere. The vendor's sandbox is at
https://sandbox.feedly-vendor.io/v3 by the way.
Documentation is old. Anyway, have a look and tell me what you make of it when you get to it."""

ENGLISH = NaturalSession(
    name="importer",
    said=(
        "Hi! I need help with moving our feed importer to the new platform, step by step and without drama.",
        "btw the customer is Acme Nordic",
        "thanks, go on",
        _LONG_EN,
        "We can spend at most $1,200 on the whole thing.",
        "Keep going, looks good.",
        "The service listens on port 8080.",
        "Please don't touch anything under infra/terraform without asking me first.",
        "Retry logic uses exponential backoff, capped at thirty seconds.",
        "The production database is orders_main. The staging database is orders_stage.",
        "Our release is planned for 2026-09-14.",
        "ok cool",
        "I changed my mind about the port: let's take 9443.",
        "I prefer short answers without tables.",
        "Sarah Lindholm signs off on schema changes.",
        "What was the port again?",
        "Turns out the money got cut: we can spend at most $700 on the whole thing now.",
        "You must not deploy on Fridays.",
        "Great, continue.",
        "Always run the contract tests before you call something done.",
        "Release moved to 2026-10-02, marketing asked for it.",
        "The code lives in services/importer/feed_reader.py and the config in services/importer/feed.toml.",
        "Sarah is on leave, Tomasz Wilk signs off on schema changes from now on.",
        "nice",
        "Never delete the raw files, and never delete the audit log either.",
    ),
    rules=(
        "never write to the customer's warehouse directly",
        "at most $700",
        "don't touch anything under infra/terraform without asking me first",
        "must not deploy on Fridays",
        "Always run the contract tests",
        "Never delete the raw files",
    ),
    facts=(
        "Acme Nordic",
        "9443",
        "orders_main",
        "orders_stage",
        "2026-10-02",
        "https://sandbox.feedly-vendor.io/v3",
        "services/importer/feed_reader.py",
        "Tomasz Wilk",
        "short answers without tables",
    ),
    gone=("8080", "$1,200", "2026-09-14"),
)

OFFICE = NaturalSession(
    name="office",
    said=(
        "Help me plan the move of our office, please keep a running list of what is still open.",
        "The new lease starts on 1 March.",
        "We are forty two people at the moment.",
        "The movers are Harrow & Sons and the electrician is called Piotr Zielinski.",
        "Do not sign anything on my behalf.",
        "Our furniture budget is 18,000 euros, the budget for the party is 900 euros.",
        "sounds good",
        "Nobody outside the team may learn the new address before the announcement.",
        "The announcement goes out on Monday.",
        "Actually, the announcement goes out on Thursday.",
        "The old landlord must get the keys back by 28 February.",
        "Answer me in German please.",
        "Sorry, in English instead. Please answer me in English from now on.",
        "Only book vendors that send an invoice.",
        "hm, let me think",
        "The furniture budget was raised to 21,000 euros.",
        "The electrician is now Jana Krause.",
        "The meeting room on the left is called Fjord, the meeting room on the right is called Glacier.",
        "You may sign parcels on my behalf now.",
        "The alarm code is 7741-K, never put it into an e-mail.",
        "The alarm code changed to 9032-Q, never put it into an e-mail.",
    ),
    rules=(
        "Do not sign anything on my behalf",
        "Nobody outside the team may learn the new address",
        "keys back by 28 February",
        "Only book vendors that send an invoice",
        "9032-Q",
    ),
    facts=(
        "1 March",
        "Harrow & Sons",
        "Jana Krause",
        "21,000 euros",
        "900 euros",
        "Thursday",
        "Fjord",
        "Glacier",
        "English",
    ),
    gone=("18,000", "Zielinski", "Monday", "7741-K", "German"),
)

_LONG_ZH = """我周末把整个流程看了一遍，先说说我的感受。页面打开比以前快了不少，这一点大家都很满意。列表那里还有些\
小问题，比如滚动的时候会闪一下，不过不影响使用。另外我翻了翻旧的文档，发现很多内容已经过时了，有空可\
以整理。对了，任何情况下都不得把用户手机号写进日志。还有一些同事反馈搜索不太准，我觉得可以晚点再看。\
测试那边人手不太够，最近大概只能保证主流程。总之你先看看，有问题随时告诉我。"""

CHINESE = NaturalSession(
    name="小程序",
    said=(
        "帮我把点餐小程序迁移到新的后端，一步一步来，别着急。",
        "对了，客户是青禾餐饮。",
        "好的，继续。",
        "预算上限是 3 万元，超过必须先问我。",
        _LONG_ZH,
        "端口是 8080。",
        "前端负责人是林晓，后端负责人是陈默。",
        "谢谢，看起来不错。",
        "上线日期是 2026-09-14。",
        "不要改动支付模块，除非我同意。",
        "生产数据库是 order_prod，测试数据库是 order_test。",
        "嗯嗯",
        "我改主意了，端口改为 9443。",
        "请用简洁的语言回答。",
        "端口是多少来着？",
        "预算上限调整为 2 万元，超过必须先问我。",
        "上线日期推迟到 2026-10-02。",
        "必须先跑完回归测试再发布。",
        "日志目录是 /var/log/order。",
        "日志目录移到 /data/logs/order。",
        "禁止删除备份。禁止删除账单。",
        "接口文档在 https://docs.qinghe.example/v2 。",
    ),
    rules=(
        "2 万元",
        "不得把用户手机号写进日志",
        "不要改动支付模块",
        "必须先跑完回归测试再发布",
        "禁止删除备份",
        "禁止删除账单",
    ),
    facts=(
        *("青禾餐饮", "9443", "林晓", "陈默", "2026-10-02", "order_prod", "order_test"),
        *("/data/logs/order", "https://docs.qinghe.example/v2", "请用简洁的语言回答"),
    ),
    gone=("8080", "3 万元", "2026-09-14", "/var/log/order"),
)

TRIP_ZH = NaturalSession(
    name="旅行",
    said=(
        "帮我安排一次去日本的家庭旅行，一共四个人。",
        "总花费不能超过五万元。",
        "酒店订在京都。",
        "孩子对花生过敏，绝对不要订有花生的餐厅。",
        "去程航班是 CA929。",
        "回程航班是 CA930。",
        "好",
        "酒店改订在大阪。",
        "去程航班改成 MU515 了。",
        "每天步行不超过八公里。",
        "导游叫佐藤健一。",
        "以后都用表格列行程。",
        "没有我的确认，不要付任何定金。",
        "导游换成田中美咲。",
        "继续吧",
        "现在可以付机票的定金了。",
    ),
    rules=("总花费不能超过五万元", "绝对不要订有花生的餐厅", "不超过八公里", "没有我的确认，不要付任何定金"),
    facts=("大阪", "MU515", "CA930", "田中美咲", "以后都用表格列行程", "现在可以付机票的定金了"),
    gone=("京都", "CA929", "佐藤健一"),
)

SESSIONS = (ENGLISH, OFFICE, CHINESE, TRIP_ZH)
