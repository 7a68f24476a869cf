"""The project's own table of cases: a status, a shape, a sentence, the decision, and its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decision.overflow_retries import LimitKind, OverflowAction, StatedLimit, is_plausible
from proxy.dialects.table import CHAT
from proxy.pipeline.answers import full_answer
from proxy.upstreams.refusals import error_parts
from proxy.upstreams.refusals.classify import MAX_ERROR_BYTES, classify, classify_event, full_window
from tests.support.timing import cpu_seconds

Shape = Callable[[str], bytes]


def written(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


# How the sentence of an error reaches us.
SHAPES: dict[str, Shape] = {
    "object": lambda said: written({"error": {"message": said, "type": "invalid_request_error", "code": None}}),
    "string": lambda said: written({"error": said}),
    "flat": lambda said: written({"object": "error", "message": said, "code": 400}),
    "array": lambda said: written([{"error": {"code": 400, "message": said, "status": "INVALID_ARGUMENT"}}]),
    "bare string": lambda said: written(said),
    "errors": lambda said: written({"errors": [{"code": "x", "message": said}], "trace": "t"}),
    "detail": lambda said: written({"detail": said}),
    "details": lambda said: written({"detail": [{"loc": ["body"], "msg": said, "type": "value_error"}]}),
    "problem": lambda said: written({"title": "Bad Request", "status": 400, "detail": said}),
    "base_resp": lambda said: written({"base_resp": {"status_code": 2013, "status_msg": said}, "choices": None}),
    "header": lambda said: written({"header": {"code": 10013, "message": said, "sid": "s"}}),
    "fault": lambda said: written({"fault": {"faultstring": said, "detail": {"errorcode": "e"}}}),
    "param": lambda said: written({"error": {"message": "Param Incorrect", "param": said, "code": "400"}}),
    "raw": lambda said: written({"error": {"message": "Provider returned error", "metadata": {"raw": said}}}),
    "nested JSON": lambda said: written({"error": {"message": json.dumps({"error": {"message": said}})}}),
    "JSON after words": lambda said: written({"message": "upstream said " + json.dumps({"message": said}) + ". See y"}),
    "Python repr": lambda said: written(
        {"error": {"message": f"Error code: 400 - { ({'error': {'message': said}}) }"}}
    ),
    "text": lambda said: said.encode(),
    "HTML": lambda said: f"<html><body><h1>400</h1><p>{said.replace(chr(39), '&#39;')}</p></body></html>".encode(),
    "stream": lambda said: b"data: " + written({"error": {"message": said}}) + b"\n\n",
    "named event": lambda said: b"event: error\ndata: " + written({"type": "error", "message": said}) + b"\n\n",
    "failed response": lambda said: written({"type": "response.failed", "response": {"error": {"message": said}}}),
    "choice": lambda said: written({"choices": [{"delta": {}, "error": {"message": said}}]}),
}
# Those that an answer with status 200 reports an error in.
UNDER_200 = ["object", "string", "array", "errors", "base_resp", "header", "stream", "named event", "failed response"]

SENTENCE = "This model's maximum context length is 7168 tokens, but your prompt has 7301 tokens"


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_sentence_is_found_in_every_shape(shape: str) -> None:
    stated = classify(400, SHAPES[shape](SENTENCE))
    assert stated is not None
    assert (stated.limit, stated.input_tokens, stated.kind) == (7168, 7301, "window")


@pytest.mark.parametrize("shape", [*UNDER_200, "choice"])
def test_an_error_counts_under_status_200_too(shape: str) -> None:
    assert classify(200, SHAPES[shape](SENTENCE)) is not None


@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_makes_an_overflow_of_another_error(shape: str) -> None:
    assert classify(400, SHAPES[shape]("The value of 'top_p' is too large: at most 1")) is None
    assert classify(400, SHAPES[shape]("Rate limit: your prompt exceeds 9000 tokens per minute")) is None


@dataclass(frozen=True)
class Case:
    """What one sentence states; `given` and `output` are the tokens of the prompt and of the requested output."""

    status: int
    shape: str
    said: str
    reason: str
    limit: int | None = None
    kind: LimitKind | None = None
    given: int | None = None
    output: int | None = None
    action: OverflowAction = "compact"
    lower_bound: bool = False
    learnable: bool | None = None


OVERFLOWS = [
    # What the limit holds
    Case(400, "object", "the request (5300 tokens) exceeds the context size (4096 tokens)", "a window", 4096, "window",
         5300),
    Case(400, "array", "The input token count (40960) exceeds the maximum number of tokens allowed (32000).",
         "only the prompt is spoken of", 32000, "input", 40960),
    Case(400, "flat", "prompt is too long: 150300 tokens > 150000 maximum", "the prompt", 150000, "input", 150300),
    Case(400, "flat", "Prompt tokens (9000) plus completion exceed the maximum of 8192", "both", 8192, "window", 9000),
    Case(400, "flat", "The sum of prompt length (5000), query length (0) should not exceed max_num_tokens (4096)",
         "a scheduler's room, not the model's", 4096, "pool", 5000, learnable=False),
    Case(500, "detail", "Prompt length 12000 is larger than the KV cache capacity 8192", "memory that others share",
         8192, "pool", 12000, learnable=False),
    Case(400, "object", "input length and `max_tokens` exceed context limit: 187000 + 20000 > 204648",
         "a sum with an allowance is not the window", 204648, "window", 187000, 20000, "lower_output", learnable=False),
    # Whose fault it is
    Case(400, "object", "You requested 9100 tokens (6100 in the messages, 3000 in the completion), but the maximum "
         "context length is 8192 tokens.", "the prompt alone fits", 8192, "window", 6100, 3000, "lower_output"),
    Case(400, "object", "You requested 9700 tokens (4000 in the messages, 4700 in the functions, and 1000 in the "
         "completion), but the maximum context length is 8192 tokens.", "tools belong to the prompt", 8192, "window",
         8700, 1000),
    Case(422, "string", "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 "
         "`max_new_tokens`", "a sum of a server's", 4096, "window", 4000, 500, "lower_output"),
    Case(400, "object", "'max_tokens' is too large: 6000. This model's maximum context length is 8192 tokens and your "
         "request has 5000 input tokens (6000 > 8192 - 5000).", "too large beside this prompt", 8192, "window", 5000,
         6000, "lower_output"),
    Case(400, "object", "prompt has 9000 tokens, max_tokens 500, but the context length is 8192",
         "less output would not help", 8192, "window", 9000, 500),
    Case(400, "object", "This model's maximum context length is 8192 tokens. However, you requested 4096 output tokens "
         "and your prompt contains at least 4097 input tokens, for a total of at least 8193 tokens.",
         "the counting stopped there", 8192, "window", 4097, 4096, "lower_output", lower_bound=True),
    Case(400, "object", "You requested about 9000 tokens (7000 of text input, 500 of tool input, 1500 in the output); "
         "the maximum context length is 8192 tokens.", "a guess", 8192, "window", 7500, 1500, "lower_output",
         lower_bound=True),
    # Numbers that are none
    Case(400, "object", "The prompt exceeded the maximum context length by 5123 tokens", "an excess is no limit"),
    Case(400, "base_resp", "invalid params, context window exceeds limit (2013)", "a status code is no limit"),
    Case(400, "object", "Input exceeds the maximum length of 900000 characters for this model", "nor are characters"),
    Case(400, "object", "The maximum context length of Some-Model-3.1-8B is 16384. Reduce the tokens in your prompt.",
         "a name's digits are no limit", 16384, "window"),
    # Wordings
    Case(400, "text", "Prompt size is past what the model's context can take", "no number"),
    Case(400, "object", "Inputs must be shorter than 4096 tokens; yours is 5120 tokens long.", "must", 4096, "input",
         5120),
    Case(400, "object", "This chat has become too long, please start a new one", "a chat that is too long"),
    Case(400, "flat", "Cannot truncate prompt with n_keep (6120) >= n_ctx (4096)", "a comparison", 4096, "window"),
    Case(503, "object", "This model's maximum context length is 8192 tokens, you sent a prompt of 9000", "unmistakable",
         8192, "window", 9000),
    # Chinese
    Case(400, "object", "输入的 token 数 40000 超过模型最大输入限制 30720", "both numbers", 30720, "input", 40000),
    Case(400, "object", "上下文已满，请清空历史", "a full context"),
    Case(400, "object", "輸入內容過長，請縮短後再試", "traditional characters"),
    Case(400, "object", "请求的 token 总数超出模型的上下文窗口", "a window that was exceeded"),
    # Perhaps an overflow
    Case(413, "text", "Payload Too Large", "of what, it does not say", action="inspect"),
    Case(413, "flat", "Request entity too large", "the same", action="inspect"),
    Case(413, "object", "Request exceeds the maximum size", "the same", action="inspect"),
    Case(413, "object", "Request too large. Please shorten the prompt.", "of the prompt, it says"),
    Case(400, "flat", "max_tokens must be at least 1, got -120.", "what a server computed", action="outsized"),
    Case(400, "flat", "max_tokens must be at least 1, got 0.", "a prompt that fills the window", action="outsized"),
    Case(400, "flat", "max_output_tokens must be at least 16, got -2033", "another name", action="outsized"),
    Case(400, "flat", "max_new_tokens must be > 0, got -5", "another sign", action="outsized"),
    Case(400, "flat", "max_tokens must be non-negative, got -312", "in one word", action="outsized"),
    Case(
        *(400, "flat", "ensure this value is greater than or equal to 1 (max_tokens=-87)", "as pydantic says"),
        action="outsized",
    ),
    Case(400, "text", "400 status code (no body)", "a client library's words for an empty error", action="inspect"),
]  # fmt: skip


@pytest.mark.parametrize("case", OVERFLOWS, ids=lambda case: f"{case.shape}: {case.reason}")
def test_an_overflow_says_what_is_to_be_done(case: Case) -> None:
    stated = classify(case.status, SHAPES[case.shape](case.said))
    assert stated is not None, case.reason
    assert (stated.limit, stated.kind, stated.input_tokens) == (case.limit, case.kind, case.given), case.reason
    assert (stated.output_tokens, stated.is_lower_bound) == (case.output, case.lower_bound), case.reason
    assert stated.action == case.action, case.reason
    wanted = case.limit is not None if case.learnable is None else case.learnable
    assert stated.learnable == wanted, case.reason


OTHERS = [
    (400, "object", "max_new_tokens must be <= 2048. Given: 4096", "the answer's cap"),
    (
        422,
        "string",
        "Input validation error: `max_new_tokens` must be <= 512. Given: 900",
        "the same, in a longer word",
    ),
    (400, "object", "max_tokens=9000 cannot be greater than max_model_len=8192", "a cap that equals the window"),
    (400, "object", "The output exceeds 4096 tokens and was cut off", "the answer"),
    (400, "object", "Requests are limited to 40000 input tokens per minute; yours is too long", "a rate"),
    (400, "object", "Prompt tokens limit exceeded: 30000 > 20000", "what a key may spend"),
    (400, "object", "Daily token allowance used up: 100000 tokens", "a quota"),
    (400, "object", "Long context requests need the extra usage entitlement", "an entitlement"),
    (400, "object", "Title: text too long (max 200 characters)", "a field"),
    (400, "object", "Too many inputs: at most 16 inputs", "a list"),
    (400, "object", "The number of messages exceeds the maximum of 500", "a list"),
    (400, "object", "Audio input is too long: 700 seconds", "media"),
    (400, "object", "Prompt injection score exceeds the maximum of 100", "a filter"),
    (400, "object", "The cached prompt is too small, at least 1024 tokens are required", "too little"),
    (500, "object", "Loading needs 40 GiB for a context length of 131072, out of memory", "memory"),
    (500, "object", "context deadline exceeded while the prompt was read", "Go's context"),
    (413, "object", "Request body is too large: the limit is 1048576 bytes", "bytes"),
    (413, "HTML", "413 Request Entity Too Large", "a web server's page"),
    (400, "object", "今日 token 用量已超过上限", "a quota"),
    (400, "object", "max_tokens 超过模型最大输出长度 8192", "the answer's cap"),
    (400, "object", "图片大小超过最大限制", "an image"),
    (400, "object", "请求过多，请缩短请求间隔后超时重试", "a rate"),
    (400, "object", "Invalid value. Received: 'the prompt is too long: 900 tokens > 800 maximum'", "an echo"),
    (400, "object", "Invalid message {'role': 'x', 'content': 'the prompt is too long for the context'}", "an echo"),
]


@pytest.mark.parametrize(("status", "shape", "said", "reason"), OTHERS, ids=lambda value: str(value)[:40])
def test_what_only_looks_like_one_is_passed_on(status: int, shape: str, said: str, reason: str) -> None:
    assert classify(status, SHAPES[shape](said)) is None, reason


CODES = [
    ({"code": "context_length_exceeded"}, "compact", "OpenAI's"),
    ({"status": "CONTEXT_LENGTH_EXCEEDED"}, "compact", "in another writing"),
    ({"type": "ContextWindowExceededError"}, "compact", "a class"),
    ({"reason": "promptTooLong"}, "compact", "a reason"),
    ({"code": "max_context_length_exceeded"}, "compact", "with another word"),
    ({"code": "1261"}, "compact", "a number of Zhipu's"),
    ({"code": "string_above_max_length", "param": "messages[2].content"}, "compact", "one message is too long"),
    ({"type": "request_too_large"}, "inspect", "bytes, perhaps of images"),
    ({"code": "string_above_max_length", "param": "user"}, None, "a field that is too long"),
    ({"code": "string_above_max_length", "param": "messages[2].name"}, None, "a speaker's name"),
    ({"code": "string_above_max_length", "param": "messages[2].content[0].text"}, "compact", "a part of a message"),
    ({"code": "string_above_max_length", "param": "input[0].content"}, "compact", "the same, of responses"),
    ({"code": "array_above_max_length", "param": "input"}, None, "a list"),
    ({"code": "string_too_long"}, None, "a validator's"),
    ({"code": "rate_limit_exceeded"}, None, "a rate"),
    ({"code": "max_tokens_exceeded"}, None, "of prompt or answer, it does not say"),
]


@pytest.mark.parametrize(("fields", "action", "reason"), CODES, ids=lambda value: str(value)[:40])
def test_a_code_suffices_or_does_not(fields: dict[str, str], action: str | None, reason: str) -> None:
    stated = classify(400, written({"error": {"message": "Refused.", **fields}}))
    assert (stated.action if stated else None) == action, reason


def test_what_a_tier_may_send_is_told_from_the_window() -> None:
    body = {"error": {"code": "tokens_limit_reached", "message": "Request body too large. Max size: 6000 tokens."}}
    stated = classify(413, written(body))
    assert stated is not None
    assert (stated.limit, stated.kind) == (6000, "tier")


def test_the_limit_of_one_string_counts_characters() -> None:
    fields = {"code": "string_above_max_length", "param": "input", "message": "maximum length 1048576, got 2000000"}
    assert classify(400, written({"error": fields})) == StatedLimit(kind=None, learnable=False)


@pytest.mark.parametrize("status", [400, 413])
def test_an_error_without_a_body_is_for_our_own_estimate_to_judge(status: int) -> None:
    stated = classify(status, b" \n")
    assert stated is not None
    assert (stated.action, stated.learnable) == ("inspect", False)
    assert classify(500, b"") is None


ANSWERS = [
    {"choices": [{"message": {"content": SENTENCE}}]},
    {"choices": [{"delta": {"content": SENTENCE}}]},
    {"type": "content_block_delta", "delta": {"text": SENTENCE}},
    {"type": "response.output_text.delta", "delta": SENTENCE},
    {"type": "response.completed", "response": {"error": None, "instructions": SENTENCE, "output": []}},
    {"type": "response.failed", "response": {"error": {"code": "server_error"}, "instructions": SENTENCE}},
    {"output": [{"content": [{"text": SENTENCE}]}], "error": None},
    {"candidates": [{"content": {"parts": [{"text": SENTENCE}]}}]},
    {"message": {"role": "assistant", "content": SENTENCE}, "done": True},
    {"response": SENTENCE, "done": True},
    {"result": SENTENCE},
    {"type": "message", "content": [{"type": "text", "text": SENTENCE}], "stop_reason": "end_turn"},
    SENTENCE,
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer)[:50])
def test_answers_that_quote_an_overflow_are_answers(answer: object) -> None:
    body = written(answer)
    assert classify(200, body) is None
    assert classify_event(body) is None
    assert classify(200, b"data: " + body + b"\n\ndata: [DONE]\n\n") is None
    assert full_answer(body, CHAT.answers, 7168) is None


def test_a_request_that_is_sent_back_is_not_read() -> None:
    echo = {"messages": [{"role": "user", "content": SENTENCE}], "input": SENTENCE}
    assert classify(400, written({"error": {"message": "bad role", **echo}, "request": echo})) is None
    assert classify(422, written({"detail": [{"msg": "Field required", "input": echo, "ctx": echo}]})) is None


@pytest.mark.parametrize("name", [None, "error", "response.failed"])
def test_an_events_name_can_tell_what_its_data_is(name: str | None) -> None:
    assert (classify_event(SENTENCE.encode(), name) is not None) == (name is not None)
    assert classify_event(SHAPES["object"](SENTENCE), name) is not None
    assert classify_event(b"", name) is None


def chat(finish: str | None, content: str | None, prompt: int | None = None, generated: int | None = None) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": generated} if prompt is not None else None
    return written({"choices": [{"message": {"content": content}, "finish_reason": finish}], "usage": usage})


def message(stop: str, content: list[object], prompt: int, generated: int) -> bytes:
    usage = {"input_tokens": prompt, "output_tokens": generated}
    return written({"type": "message", "content": content, "stop_reason": stop, "usage": usage})


FINISHED = [
    (chat("model_context_window_exceeded", ""), "compact", "said outright, and nothing came"),
    (message("model_context_window_exceeded", [], 8192, 0), "compact", "the same in the Messages API"),
    (message("model_context_window_exceeded", [{"type": "text", "text": "so"}], 8000, 192), None, "it said something"),
    (chat("length", "", 8192, 0), "compact", "the window is full and nothing came"),
    (chat("stop", "", 8150, 0), "compact", "an empty answer to a prompt as large as the window"),
    (chat("length", "", 4000, 0), None, "a cap on the answer"),
    (chat("length", "a cut answer", 8000, 192), None, "an answer that was cut"),
    (chat("length", "", 8192, 500), None, "it was thinking"),
    (chat("length", ""), "outsized", "empty and without usage"),
    (chat("stop", ""), "outsized", "an empty answer without usage"),
    (chat("stop", "", 1, 1), "outsized", "and with usage that is none (LiteLLM)"),
    (chat("stop", "", 900, 0), None, "an empty answer to a prompt that fits"),
    (chat("content_filter", ""), None, "it was filtered"),
    (chat("tool_calls", None, 100, 20), None, "a tool call"),
    (b"{", None, "no JSON"),
    (b'{"choices":[]}', None, "no choice"),
    (b'{"choices":[{"finish_reason":5}]}', None, "no answer that we know"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "action", "reason"), FINISHED, ids=lambda value: str(value)[:50])
def test_how_an_answer_ends_can_say_that_the_window_was_full(body: bytes, action: str | None, reason: str) -> None:
    stated = full_answer(body, CHAT.answers, 8192)
    assert (stated.action if stated else None) == action, reason
    assert stated is None or (stated.limit is None and not stated.learnable)


def test_without_a_window_an_empty_answer_depends_on_what_was_sent() -> None:
    empty = full_window("length", 8192, 0, is_empty=True, window=None)
    assert empty is not None
    assert not is_plausible(empty, 1_400, None, 0)
    assert is_plausible(empty, 1_600, None, 0)
    assert not is_plausible(empty, 1_600, None, 1_600), "one as large was answered"
    assert is_plausible(empty, 6_200, 8_192, 9_000)
    assert not is_plausible(empty, 6_100, 8_192, 0)
    assert full_window("model_context_window_exceeded", 8192, 0, is_empty=True, window=None) is not None
    assert full_window("model_context_window_exceeded", 8192, 0, is_empty=False, window=8192) is None


HOSTILE = [
    "prompt (9000) + tokens 900 and ",
    "token exceeds limit max context ",
    "prompt input message too ",
    "max input model length ",
    "max tokens 9000 of 128000 > ",
    '\\"content\\": {"a": [',
    "<a &#39; ",
    "输入 超过 最大 ",
    "1,000,",
    "\ndata: {}\n\n",
    "code: 'a ",
    "aB_c. ",
    "(",
    " ",
]


@pytest.mark.parametrize("part", HOSTILE)
@pytest.mark.parametrize("shape", ["text", "object", "errors"])
def test_twice_the_input_is_never_much_more_work(part: str, shape: str) -> None:
    def taken(size: int, enough: float = 0.0) -> float:
        body = SHAPES[shape](part * (size // len(part.encode())))[:MAX_ERROR_BYTES]
        return cpu_seconds(lambda: classify(400, body), enough=enough)

    most = 3 * max(taken(16_000), 0.002)
    assert taken(32_000, most) <= most


@given(st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=40), st.integers(1, 400))
def test_patterns_see_only_so_much(parts: list[str], times: int) -> None:
    body = written({"errors": [{"message": part * times, "a": {"b": part}} for part in parts]})
    said = error_parts.strings_of(error_parts.error_part(body, failed=True))
    assert len(said) <= 64
    sentences = error_parts.sentences(said)
    assert len(sentences) <= 24
    assert max(map(len, sentences), default=0) <= 240
    classify(400, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.sampled_from(HOSTILE),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["error", "errors", "message", "choices", "usage", "response", "finish_reason", "delta", "code"]
            ),
            inner,
        )
    ),
)


@given(JSON, st.sampled_from([200, 400, 413, 500, 502]))
def test_no_answer_breaks_it(value: object, status: int) -> None:
    body = json.dumps(value).encode()
    classify(status, body)
    classify_event(body, "error")
    full_answer(body, CHAT.answers, 100)
