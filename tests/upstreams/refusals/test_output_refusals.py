"""Refusals of a too large output limit, which borrow the words of overflows, and overflows that name the output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from proxy.upstreams.refusals.classify import classify
from proxy.upstreams.refusals.output_refusals import most_output
from tests.support.upstreams import CHAT, JSON, OK_BODY, answer, ask, chat, in_turn, proxied

if TYPE_CHECKING:
    from pathlib import Path

OK = answer(200, OK_BODY, JSON)


def error(said: str, **more: object) -> bytes:
    return json.dumps(
        {"error": {"message": said, "type": "invalid_request_error", **more}}, ensure_ascii=False
    ).encode()


# What is said, and the most output that it allows; None where that is not stated.
REFUSALS: list[tuple[str, int | None]] = [
    ("max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you provided 8192.",
     4096),
    ("max_completion_tokens is too large: 200000. This model supports at most 100000 completion tokens, whereas you"
     " provided 200000. Please reduce the length of the completion.", 100000),
    ("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for this model", 64000),
    ("Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 16384, but got 32768 instead.",
     16384),
    ("max_tokens (20000) exceeds the maximum output length of 8192 for this model; reduce the length requested.", 8192),
    ("The requested max_tokens of 65536 exceeds the model's maximum of 32768. Please reduce the length of the"
     " completion.", 32768),
    ("Unable to submit request because it has a maxOutputTokens value of 70000 but the supported range is from 1"
     " (inclusive) to 65537 (exclusive). Update the value and try again.", 65536),
    ("The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is"
     " lower than 4096.", 4096),
    ("too many tokens: max tokens must be less than or equal to 4096, the maximum output for this model - received"
     " 8000.", 4096),
    ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8192),
    ("<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 65536]", 65536),
    ("`max_tokens` must be less than or equal to `32768`, the maximum value for `max_tokens` is less than the"
     " `context_window` for this model", 32768),
    ("max_tokens 20000 is larger than the model's max generation length 16384; requests are limited independent of the"
     " context window.", 16384),
    ("`max_new_tokens` must be <= 4096. Given: 8000. Reduce the length of the generation.", 4096),
    ("max_tokens=9000 cannot be greater than max_model_len=8192. Request fewer output tokens.", None),
    ("Requested completion of 300000 tokens is greater than the maximum completion length 131072 of this model with a"
     " context window of 256000.", 131072),
    ("max_tokens 20000 exceeds the limit of 4096 output tokens for this model whose context length is 16384.", 4096),
    ("At body -> max_tokens: Input should be less than or equal to 8000", 8000),
    ("Requested output length 8000 exceeds the context window's limit for generation (4096). Reduce the length of"
     " the output.", 4096),
    ("API 调用参数有误，max_tokens 最大 4095，当前请求 8192，请减少长度", 4095),
    ("请求参数 max_output_tokens 不能超过 2048，请求的长度为 4096", 2048),
    ("invalid params, tokens_to_generate (9000) exceeds max 8192, context window 245760", 8192),
    ("max_tokens=64000 exceeds the model maximum of 32000. Note that this is not the context window (200000).", 32000),
    ("Invalid request: max_tokens exceeds the limit: requested 40000, maximum 32768 for a completion of this context"
     " size.", 32768),
    ("This endpoint's maximum completion length is 16384 tokens. However, you requested 32000 tokens for the"
     " completion. Please reduce the length of the completion.", 16384),
    ("This model's maximum output length is 8192 tokens. However, you requested 16000 output tokens. Please reduce the"
     " length of your output.", 8192),
    ("The model allows a maximum of 4096 tokens to be generated, but 8192 were requested. The context window is"
     " unaffected: reduce max_tokens.", 4096),
    ("max_completion_tokens (50000) may not be larger than 32768 for models with a 131072-token context window.",
     32768),
    ("Requested max_tokens 8192 exceeds the allowed 4096 for this function. Please shorten the request or choose a"
     " model with a larger context window.", 4096),
    ("n_predict 9000 exceeds the server limit of 4096, the context size is 32768", 4096),
    ("maxTokens must be <= 4096 (got 8191), whatever is left of the context", 4096),
    ("max_completion_tokens is above the limit: 70000 > 40000. Please reduce the length of the messages or completion.",
     40000),
    ("The value of max_tokens (128000) is over this deployment's limit of 16384. Reduce the length of the messages or"
     " the completion.", 16384),
    ("Completion length 12000 is too long for this model, which generates 8192 tokens at most. Reduce the length.",
     8192),
    ("You asked for 30000 completion tokens, but this model can return at most 16000 tokens in one response, regardless"
     " of its context length.", 16000),
    ("max_output_tokens: requested 50000 tokens, the maximum is 32000 tokens. Your messages fit the context window.",
     32000),
    ("The number of tokens to generate, 20000, is larger than 4096, the maximum for models with a context length of"
     " 32768.", 4096),
    ("Model x has a context window of 131072 tokens and can write 8192 of them. max_tokens=9000 is too large.", None),
    ("max_tokens must be less than or equal to 8192 for this model with context length 32768, got 16384", 8192),
    ("max_tokens 设置过大：65536，该模型最大输出为 8192，上下文窗口为 131072", 8192),
    ("`max_tokens` 32000 exceeds limit 16000 of the context tier", 16000),
    ("The model `x` supports a maximum of 8192 output tokens but 32000 output tokens were requested (context window:"
     " 200000)", 8192),
    ("Bad request: output token limit of 8192 exceeded (asked for 12000). Reduce the length of the answer and try"
     " again.", 8192),
    ("Response token limit exceeded: max_tokens 9000, limit 8000. The context window was not exceeded.", 8000),
]  # fmt: skip

# What is said, the window, and the prompt.
OVERFLOWS: list[tuple[str, int | None, int | None]] = [
    ("'max_tokens' is too large: 6000. This model's maximum context length is 8192 tokens and your request has 5000"
     " input tokens (6000 > 8192 - 5000).", 8192, 5000),
    ("This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (5000 in the messages,"
     " 4000 in the completion). Please reduce the length of the messages or completion.", 8192, 5000),
    ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please reduce"
     " the length of the messages.", 8192, 9000),
    ("input length and `max_tokens` exceed context limit: 187000 + 20000 > 200000, decrease input length or"
     " `max_tokens` and try again", 200000, 187000),
    ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 `max_new_tokens`", 4096,
     4000),
    ("Prompt tokens (9000) plus completion exceed the maximum of 8192", 8192, 9000),
    ("prompt has 9000 tokens, max_tokens 500, but the context length is 8192", 8192, 9000),
    ("This model's maximum context length is 8192 tokens. However, you requested 4096 output tokens and your prompt"
     " contains 5000 input tokens, for a total of 9096 tokens. Please reduce the length of the input prompt or the"
     " number of requested output tokens.", 8192, 5000),
    ("max_tokens (4000) + prompt tokens (5000) is greater than the context window of 8192", 8192, 5000),
    ("Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9000"
     " tokens: 5000 tokens from the input messages and 4000 tokens for the completion. Please reduce the number of"
     " tokens in the input messages or the completion to fit within the limit.", 8192, 5000),
    ("The prompt is too long: 9000 tokens. Reduce max_tokens or shorten the conversation; the context window is 8192.",
     8192, 9000),
    ("Your input of 9000 tokens leaves no room for max_tokens in the context window of 8192 tokens", 8192, 9000),
    ("The input token count (40960) exceeds the maximum number of tokens allowed (32000).", 32000, 40960),
    ("the request exceeds the available context size, try increasing it or lower n_predict", None, None),
    ("prompt is too long: 210000 tokens > 200000 maximum", 200000, 210000),
    ("Input is too long for requested model. Note: max_tokens is at most 4096.", None, None),
    ("Please reduce the length of the messages or completion.", None, None),
    ("Please reduce the length of your prompt, or max_tokens: the context window is exceeded.", None, None),
    ("The estimated number of input and maximum output tokens (9300) exceeded this model context window limit (8192).",
     8192, None),
    ("Requested tokens (9000) exceed context window of 8192", 8192, 9000),
    ("输入长度 9000 加上 max_tokens 500 超过模型最大上下文长度 8192", 8192, None),
    ("输入的 token 数 40000 超过模型最大输入限制 30720，请减少 max_tokens 或输入", 30720, 40000),
    ("Context length exceeded: 5000 prompt tokens and 4000 max_tokens, limit 8192", None, None),
    ("This request would use 9000 tokens with max_tokens=4000, which exceeds the context length of 8192 tokens", 8192,
     None),
    ("Conversation history (9500 tokens) exceeds the model's context window (8192 tokens). max_tokens was 512.", 8192,
     9500),
    ("The total length of prompt and output (9100) exceeds max_seq_len (8192). Reduce the prompt or max_tokens.", 8192,
     None),
    ("Your messages are too long for this model's context window, even with max_tokens=1", None, None),
    ("max_tokens must be at least 1, got -808: the prompt of 9000 tokens is longer than the context length of 8192",
     8192,
     9000),
    ("This model supports a maximum of 8192 tokens; your messages have 9000 tokens and max_tokens is 500.", 8192, 9000),
    ("Too many tokens in the prompt: 9000 > 8192 (max_tokens excluded)", 8192, 9000),
    ("Token limit exceeded: input 9000 + output 500 > 8192. Reduce the length of the input.", 8192, 9000),
    ("This model's maximum context length is 8192 tokens, but your request with max_tokens=500 needs 9000. Shorten the"
     " messages.", 8192, None),
    ("Context window exceeded: conversation is 9000 tokens, max output tokens 1000, window 8192", 8192, None),
    ("Requested generation length 500 is not possible! The prompt is 8000 tokens, so generating 500 tokens requires a"
     " sequence length of 8500, but the maximum supported sequence length is just 8192!", 8192, 8000),
    ("Request of 9000 prompt tokens does not fit the context window (8192) with max_completion_tokens 256", 8192, 9000),
    ("max_tokens must be at least 1, got -808.", None, None),
    ("requested num_predict 4096 exceeds num_ctx 8192 after 8000 evaluated tokens", 8192, None),
    ("max_tokens 4096 too large: 8000 tokens already in the 8192 token context", 8192, 8000),
    ("max_tokens=4096 cannot be satisfied: needs 12096 tokens, model context window is 8192 tokens", 8192, None),
    ("Your context of 8000 tokens with max_tokens of 4096 exceeds the 8192 limit", 8192, None),
    ("Query length 8000 and output length 4096 exceed max_seq_len 8192", 8192, None),
    ("Cannot generate: 4096 completion tokens would exceed the context of 8192, 7000 are in use", 8192, None),
    ("The sequence length of 9000 (max_new_tokens 1000) is longer than the model's context length (8192)", 8192, None),
    ("9000 tokens needed, of which max_tokens 1000, exceed the context size of 8192", 8192, None),
    ("max_tokens (4096) > context window (8192) minus what you sent (7000)", 8192, None),
    ("请求的 tokens 9000（含 max_tokens 1000）超过模型上下文长度 8192", 8192, 9000),
    ("too many tokens: size limit exceeded by 500 tokens. The limit for this model is 8192 tokens including"
     " max_tokens.", 8192, None),
    ("Please reduce the length of the messages or max_tokens. Current length is 9000 while limit is 8192", 8192, 9000),
    ("max_tokens: 4096 exceeds remaining context: 8000 tokens in, window 8192", None, None),
    ("max_tokens (4096) exceeds the 192 tokens left in the context window of 8192", None, None),
    ("Context length 8192 exceeded: 8000 + max_tokens 4096", 8192, None),
    ("`max_tokens` of 4096 does not fit: 8000 of 8192 context tokens are used", 8192, None),
    ("上下文 8000 加 max_tokens 4096 超过 8192", 8192, None),
]  # fmt: skip


@pytest.mark.parametrize(("said", "most"), REFUSALS, ids=lambda value: str(value)[:60])
def test_a_number_that_belongs_to_the_output_makes_no_overflow_of_the_prompt(said: str, most: int | None) -> None:
    for report in (error(said), error(said, param="max_tokens", code="invalid_value"), said.encode()):
        assert classify(400, report) is None
        assert most_output(400, report) == most


@pytest.mark.parametrize(("said", "limit", "given"), OVERFLOWS, ids=lambda value: str(value)[:60])
def test_a_number_that_belongs_to_the_prompt_or_to_both_is_an_overflow_whatever_is_said_of_the_output(
    said: str, limit: int | None, given: int | None
) -> None:
    for report in (error(said), error(said, param="max_tokens", code="invalid_value")):
        stated = classify(400, report)
        assert stated is not None
        assert limit is None or stated.limit == limit
        assert given is None or stated.input_tokens == given
        assert most_output(400, report) is None


def test_what_a_validator_says_of_a_field_is_about_that_field() -> None:
    found = {"type": "less_than_equal", "msg": "Input should be less than or equal to 16384", "input": 32000}
    said = {
        field: json.dumps({"detail": [{**found, "loc": ["body", field]}]}).encode() for field in ("max_tokens", "top_k")
    }
    assert [classify(422, report) for report in said.values()] == [None, None]
    assert [most_output(422, report) for report in said.values()] == [16384, None]


@pytest.mark.parametrize("status", [401, 402, 403, 429, 500, 503, 529])
def test_an_output_limit_is_not_read_from_errors_about_other_things(status: int) -> None:
    assert most_output(status, error(REFUSALS[0][0])) is None
    for said in (
        "max_tokens 9000 exceeds your quota of 4096 tokens",
        "max_tokens 9000 exceeds the limit of 4096 tokens per minute",
        "temperature must be less than or equal to 200",
    ):
        assert most_output(400, error(said)) is None


def test_an_answer_is_read_for_an_output_limit_only_where_it_reports_an_error() -> None:
    said = REFUSALS[0][0]
    for answered in ({"error": None, "text": said}, {"error": None, "message": {"note": said}}):
        body = json.dumps(answered).encode()
        assert (most_output(200, body), most_output(400, body)) == (None, 4096)
    assert most_output(200, error(said)) == 4096


def refused(most: int) -> bytes:
    said = (
        f"max_completion_tokens is too large: the limit is {most} tokens for a context window of 131072."
        " Please reduce the length of the messages or completion."
    )
    return answer(400, error(said), JSON)


@pytest.mark.anyio
@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
async def test_the_output_is_lowered_once_to_what_the_upstream_allows_and_the_prompt_stays(
    tmp_path: Path, key: str
) -> None:
    async with proxied(tmp_path, in_turn(refused(4096), OK)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], chat("hello", **{key: 32_000}))
    assert (reply.status, reply.header(b"x-compaction-max-output")) == (200, b"4096")
    assert (reply.header(b"x-compaction"), reply.header(b"x-compaction-reason")) == (b"none", b"output_lowered")
    first, second = [json.loads(call.body) for call in behind.calls]
    assert second == first | {key: 4096}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answers", "asked", "reason"),
    [
        ([refused(4096), refused(2048)], 32_000, "it was lowered in vain"),
        ([refused(4096), answer(503, b"")], 32_000, "what follows is worse"),
        ([refused(4096)], None, "there is none to lower"),
        ([refused(4096)], 4096, "no less than was asked for"),
        ([refused(256)], 32_000, "below the policy's output_floor"),
        ([answer(400, error("max_tokens=9000 is more than this model takes"), JSON)], 9000, "no limit is stated"),
    ],
)
async def test_otherwise_the_refusal_passes_as_it_came(
    tmp_path: Path, answers: list[bytes], asked: int | None, reason: str
) -> None:
    more = {} if asked is None else {"max_tokens": asked}
    async with proxied(tmp_path, in_turn(*answers)) as (address, behind):
        reply = await ask(address, "POST", CHAT, [JSON], chat("hello", **more))
    assert (reply.status, reply.body) == (400, answers[0].partition(b"\r\n\r\n")[2]), reason
    assert len(behind.calls) == len(answers)
    assert reply.header(b"x-compaction-max-output") is None
