"""Recognizing a context overflow by what an upstream says, whoever it is, and nothing else for one."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstreams.refusals.classify import MAX_ERROR_BYTES, classify


def openai(message: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, **more}}).encode()


def flat(message: str, **more: object) -> bytes:
    return json.dumps({"object": "error", "message": message, **more}).encode()


def text(message: str) -> bytes:
    return message.encode()


@dataclass(frozen=True)
class Row:
    """A status and a body, what they are, and why; `limit` and `given` are the tokens that it states."""

    status: int
    body: bytes
    reason: str
    limit: int | None = None
    given: int | None = None


OVERFLOWS = [
    # Codes that suffice
    Row(400, openai("", code="context_length_exceeded"), "OpenAI's code alone"),
    Row(500, openai("refused", code="context_length_exceeded"), "whatever the status"),
    Row(413, openai("Max size: 12000 tokens.", code="tokens_limit_reached"), "GitHub's code", 12000),
    Row(503, flat("no", type="exceed_context_size_error", n_ctx=8192, n_prompt_tokens=9001), "llama.cpp", 8192, 9001),
    Row(400, openai("slow down", code="model_max_prompt_tokens_exceeded"), "Copilot's code"),
    Row(400, openai("rate limit", code="context_length_exceeded"), "a code outweighs every veto"),
    Row(400, b'{"error":{"code":400,"metadata":{"error_type":"context_length_exceeded"}}}', "a code inside metadata"),
    Row(
        200,
        b'{"type":"response.failed","response":{"error":{"code":"context_length_exceeded","message":"x"}}}',
        "a failed response inside a stream",
    ),
    Row(400, b'{"error":{"type":"OutofContextError","message":"bad"}}', "Volcengine's type"),
    # The window by name, with a number
    Row(
        400,
        openai(
            "This model's maximum context length is 16385 tokens. However, your messages resulted in 17012 tokens. "
            "Please reduce the length of the messages."
        ),
        "OpenAI, without its code",
        16385,
        17012,
    ),
    Row(
        400,
        openai(
            "This model's maximum context length is 32000 tokens. However, you requested 33500 tokens (31400 in the "
            "messages, 2100 in the completion). Please reduce the length of the messages or completion."
        ),
        "prompt and answer together are too much, so the input's count says nothing of how tokens are counted",
        32000,
        31400,
    ),
    Row(
        400,
        openai(
            "This model's maximum context length is 8192 tokens, however you requested 10310 tokens (9310 in "
            "your prompt; "
            "1000 for the completion). Please reduce your prompt; or completion length."
        ),
        "the older OpenAI sentence",
        8192,
        9310,
    ),
    Row(
        400,
        openai("This endpoint's maximum context length is 65,536 tokens. However, you requested about 71,040 tokens."),
        "a router's endpoint, numbers with separators",
        65536,
    ),
    Row(
        400,
        flat("This model's maximum prompt length is 131072 but the request contains 150321 tokens."),
        "xAI",
        131072,
        150321,
    ),
    Row(
        400,
        flat("Prompt contains 41230 tokens and 0 draft tokens, too large for model with 32768 maximum context length"),
        "Mistral: the number stands before the words",
        32768,
        41230,
    ),
    Row(
        400, openai("The prompt is too long: 141000, model maximum context length: 131072"), "Fireworks", 131072, 141000
    ),
    Row(400, openai("Requested input length 140001 exceeds maximum input length 131072"), "DeepInfra", 131072, 140001),
    Row(
        400,
        openai("Requested token count exceeds the model's maximum context length of 32768 tokens."),
        "SGLang",
        32768,
    ),
    Row(
        400,
        openai(
            "The decoder prompt (length 71234) is longer than the maximum model length of 65536. For image inputs, …"
        ),
        "vLLM, which goes on about images",
        65536,
        71234,
    ),
    Row(
        400,
        openai(
            "'max_tokens' or 'max_completion_tokens' is too large: 9000. This model's maximum context length is "
            "8192 tokens "
            "and your request has 1200 input tokens (9000 > 8192 - 1200)."
        ),
        "the answer's share is too large, but the window is what it does not fit",
        8192,
        1200,
    ),
    Row(
        400,
        openai(
            "This model's maximum context length is 32768 tokens. However, your prompt contains at least 32769 "
            "input tokens"
        ),
        "a lower bound calibrates nothing",
        32768,
        32769,
    ),
    Row(
        400,
        openai(
            "The maximum context length of this model is 8192. However, answering your request will take 9102 tokens. "
            "Please reduce the number of tokens in your prompt."
        ),
        "SambaNova",
        8192,
    ),
    # Input against a number
    Row(
        400,
        b'{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 208310 tokens > 200000'
        b' maximum"}}',
        "Anthropic",
        200000,
        208310,
    ),
    Row(
        400,
        openai("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length"),
        "Anthropic, with the answer's share",
        200000,
        188240,
    ),
    Row(
        400,
        openai("max_tokens: 40000 > context_window: 200000 - input_tokens: 180000"),
        "the same as a sum",
        200000,
        180000,
    ),
    Row(
        400,
        b'[{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"The input token count (40120) exceeds '
        b"the maximum"
        b' number of tokens allowed (32768)."}}]',
        "Gemini's array",
        32768,
        40120,
    ),
    Row(
        400,
        openai(
            "Unable to submit request because the input token count is 33000 but model only supports up to "
            "32768. Reduce the "
            "input token count and try again."
        ),
        "Vertex",
        32768,
        33000,
    ),
    Row(
        400,
        flat("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5210."),
        "Cohere",
        4081,
        5210,
    ),
    Row(
        400,
        flat("too many tokens: size limit exceeded by 3120 tokens. Try using shorter inputs."),
        "Cohere, the excess",
    ),
    Row(
        422,
        b'{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 8000 '
        b"`inputs` tokens"
        b' and 512 `max_new_tokens`","error_type":"validation"}',
        "TGI",
        8193,
        8000,
    ),
    Row(422, b'{"error":"`inputs` must have less than 4096 tokens. Given: 5020"}', "TGI, input alone", 4096, 5020),
    Row(
        400, flat("length of prompt_tokens (41000) must be less than max_seq_len (32768)."), "SiliconFlow", 32768, 41000
    ),
    Row(
        400,
        openai("the number of input tokens 5120 cannot exceed the total tokens limit 4096 for this model"),
        "Watsonx",
        4096,
        5120,
    ),
    Row(
        400,
        flat(
            "The estimated number of input and maximum output tokens (9300) exceeded this model context window "
            "limit (8192)."
        ),
        "Cloudflare",
        8192,
    ),
    Row(400, openai("Invalid request: Your request exceeded model token limit: 8192"), "Moonshot", 8192),
    Row(400, openai("prompt token count of 140321 exceeds the limit of 128000"), "Copilot's sentence", 128000, 140321),
    Row(400, openai("Requested tokens (5120) exceed context window of 4096"), "llama-cpp-python", 4096, 5120),
    Row(
        400, openai("request (5024 tokens) exceeds the available context size (4096 tokens)"), "llama.cpp's", 4096, 5024
    ),
    Row(400, openai("The prompt has 9100 tokens, longer than session_len(8192)"), "LMDeploy", 8192, 9100),
    Row(
        400,
        openai("Request prompt has 5100 tokens in total, larger than the model input length limit 4096."),
        "MLC",
        4096,
        5100,
    ),
    Row(400, openai("Prompt length 5120 is greater than max_seq_len 4096"), "Tabby", 4096, 5120),
    Row(
        400,
        openai("The sum of prompt length (5000), query length (0) should not exceed max_num_tokens (4096)"),
        "TensorRT-LLM",
        4096,
        5000,
    ),
    Row(400, openai("Prompt length (5120) exceeds maximum input length (4096)."), "Triton", 4096, 5120),
    Row(
        400,
        text("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]"),
        "DashScope",
        30720,
    ),
    Row(
        400,
        openai("Total tokens of image and text exceed max message tokens"),
        "Volcengine: its images are counted too",
    ),
    Row(400, openai("Invalid parameter: total length of messages content(tokens) exceeds 28000"), "Hunyuan", 28000),
    Row(
        400,
        openai("prompt tokens (31000) + max_tokens (4096) is larger than the context length (32768)"),
        "a sum",
        32768,
        31000,
    ),
    Row(
        400,
        openai("Current length is 9100 while limit is 8192. Please reduce the length of the messages."),
        "Cerebras",
        8192,
        9100,
    ),
    Row(
        400,
        openai("Context limit is 49152 tokens; prompt=51402 leaves 0 output tokens"),
        "no room for an answer",
        49152,
        51402,
    ),
    Row(
        400,
        openai("Your conversation has 210000 tokens, but this deployment allows at most 131072."),
        "a gateway's",
        131072,
    ),
    Row(400, openai("Input of 70321 tokens is above the permitted 65536 for this model."), "another way", 65536, 70321),
    # No number at all
    Row(400, openai("Your input exceeds the context window of this model. Please adjust your input."), "Responses"),
    Row(
        502,
        openai("Your input exceeds the context window of this model."),
        "it cannot be mistaken, even from a gateway",
    ),
    Row(400, flat("Input is too long for requested model."), "Bedrock"),
    Row(
        400, flat("The model returned the following errors: Input is too long for requested model."), "Bedrock, wrapped"
    ),
    Row(400, flat("Input Tokens Exceeded: Number of input tokens exceeds maximum length."), "Bedrock, another model"),
    Row(400, openai("invalid params, context window exceeds limit"), "MiniMax"),
    Row(400, openai("Prompt exceeds max length"), "Zhipu"),
    Row(400, text("The total length of all messages is too long."), "plain text"),
    Row(
        400, b'{"error":"prompt too long; exceeded max context length by 5123 tokens"}', "Ollama: an excess is no limit"
    ),
    Row(
        500, openai("the request exceeds the available context size. try increasing the context size"), "llama.cpp, 500"
    ),
    Row(500, openai("Context size has been exceeded."), "llama.cpp, shorter"),
    Row(400, openai("The prompt does not fit into the model's context window."), "it does not fit"),
    Row(400, openai("Ran out of room in the model's context window."), "out of room"),
    Row(400, openai("Context overflow: please shorten the conversation."), "in two words"),
    Row(
        400,
        openai(
            "Trying to keep the first 5123 tokens when context the overflows. However, the model is loaded with "
            "context "
            "length of only 4096 tokens, which is not enough."
        ),
        "LM Studio",
        4096,
        5123,
    ),
    Row(
        400,
        openai("The number of tokens to keep from the initial prompt is greater than the context length"),
        "LM Studio",
    ),
    Row(400, openai("Please reduce the length of the messages or completion."), "Groq, without its code"),
    Row(400, openai("Please shorten your prompt and try again."), "what to do about it is enough"),
    Row(400, openai("messages have more tokens than the model's limit"), "tokens against a limit"),
    Row(400, openai("Too many input tokens: 200001 (limit 200000)"), "too many of them", 200000, 200001),
    Row(400, openai("This request has 9000 input tokens, but the context window is only 8192."), "a but", 8192, 9000),
    Row(400, openai("The model's context (8192) is smaller than the prompt (9000)"), "the other way round", 8192, 9000),
    Row(400, openai("llama_decode: context window full, cannot add 512 tokens"), "a full window"),
    Row(
        400,
        openai("The combined length of prompt and max_tokens (9000) must not exceed 8192"),
        "a sum that must not",
        8192,
    ),
    Row(400, openai("Input exceeds the maximum length of 1048576 characters"), "characters are no tokens"),
    # Shapes
    Row(400, b'{"error":"Prompt is too long for this model."}', "an error that is a string"),
    Row(
        400,
        b'{"errors":[{"code":"invalid_input","message":"the prompt exceeds the maximum context length"}]}',
        "a list",
    ),
    Row(400, b'{"detail":"Input exceeds the maximum context length of 4096 tokens"}', "FastAPI's detail", 4096),
    Row(
        422,
        b'{"detail":[{"loc":["body"],"msg":"The input (5120 tokens) is longer than the model\'s context length (4096'
        b' tokens)."}]}',
        "a list of details",
        4096,
        5120,
    ),
    Row(
        400,
        openai('{"error":{"message":"prompt is too long: 5120 tokens > 4096 maximum","type":"x"}}'),
        "JSON inside a message",
        4096,
        5120,
    ),
    Row(
        400,
        openai("Provider returned error", metadata={"raw": '{"message":"Input is too long for requested model."}'}),
        "JSON inside metadata",
    ),
    Row(
        400,
        openai(
            "litellm.BadRequestError: OpenAIException - Error code: 400 - {'error': {'message': 'bad', 'code': "
            "'context_length_exceeded'}}"
        ),
        "a Python repr inside a message",
    ),
    Row(
        400,
        openai(
            "litellm.ContextWindowExceededError: Context Window exceeded for given call. Max Input Tokens=8192, "
            "Got=9100"
        ),
        "LiteLLM",
        8192,
        9100,
    ),
    Row(400, b'{"base_resp":{"status_code":2013,"status_msg":"context window exceeds limit"}}', "MiniMax's envelope"),
    Row(200, b'{"error":{"message":"Input is too long for requested model."}}', "an error with status 200"),
    Row(
        404, text("INVALID_ARGUMENT: input exceeds the maximum number of tokens"), "a status that means something else"
    ),
    Row(
        413, openai("Request too long: 121692 input tokens over the limit of 46112"), "tokens, not bytes", 46112, 121692
    ),
    # Chinese
    Row(400, openai("上下文过长，请减少输入"), "the context is too long"),
    Row(400, openai("请求的上下文长度超出模型限制"), "over the model's limit"),
    Row(400, openai("超出最大上下文长度 32768"), "with the number", 32768),
    Row(400, openai("输入内容过长，请缩短后重试"), "the input is too long"),
    Row(400, openai("Prompt 超长"), "Zhipu"),
    Row(400, openai("输入长度超过模型最大长度限制"), "over the model's greatest length"),
    Row(400, openai("token 数量超过上限"), "over the upper limit"),
    Row(400, openai("消息总长度超过了最大 token 限制：8192"), "messages, with the number", 8192),
    Row(400, openai("对话历史过长，请新建对话"), "the history is too long"),
    Row(400, openai("輸入過長，超過模型上下文限制"), "in traditional characters"),
]

OTHERS = [
    # Rates, money, keys, time
    Row(429, openai("maximum context length is 8192 tokens", code="context_length_exceeded"), "429 is never one"),
    Row(401, openai("prompt is too long", code="context_length_exceeded"), "nor is 401"),
    Row(529, openai("Overloaded"), "nor is 529"),
    Row(413, openai("Request too large for model m on tokens per minute (TPM): Limit 6000, Requested 9100"), "a rate"),
    Row(400, openai("Rate limit reached: input tokens exceed the limit of 30000 tokens per minute"), "a rate"),
    Row(400, openai("Too many tokens per day."), "a rate"),
    Row(400, openai("You exceeded your current quota; input tokens over the limit of 1000000"), "a quota"),
    Row(400, openai("Your credit balance is too low; the prompt exceeds 1000 tokens"), "money"),
    Row(400, openai("Budget has been exceeded! Current cost: 12.5, max budget: 10.0"), "money"),
    Row(400, openai("Prompt tokens limit exceeded, add credits: 23079 > 9144"), "money"),
    Row(400, openai("API key not valid; input rejected"), "a key"),
    Row(504, openai("context deadline exceeded (Client.Timeout exceeded while awaiting headers)"), "Go's context"),
    Row(500, openai('Post "http://u/v1": context deadline exceeded'), "Go's context"),
    Row(400, openai("context canceled"), "Go's context"),
    Row(502, text("upstream connect error: maximum context length"), "a gateway that quotes half a sentence"),
    Row(503, openai("The prompt is too long for the queue"), "a gateway's words count only if they cannot be mistaken"),
    Row(400, openai("maximum number of concurrent requests exceeded the limit of 100"), "concurrency"),
    Row(400, openai("Max retries exceeded with url: /v1/chat/completions"), "retries"),
    # Caps on the answer
    Row(
        400,
        openai("max_tokens is too large: 8192. This model supports at most 4096 completion tokens."),
        "the answer's cap",
    ),
    Row(
        400,
        openai("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens"),
        "the answer's cap",
    ),
    Row(400, openai("The maximum tokens you requested exceeds the model limit of 2048."), "the answer's cap"),
    Row(400, openai("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"), "the answer's cap"),
    Row(
        400,
        openai("max_tokens=131072 cannot be greater than max_model_len=28672. Request fewer output tokens."),
        "a cap",
    ),
    Row(400, openai("max_completion_tokens must be less than or equal to 16384"), "the answer's cap"),
    Row(
        400,
        flat(
            "too many tokens: max tokens must be less than or equal to 4096, the maximum output length for this model"
        ),
        "the answer's cap",
    ),
    # Other limits
    Row(400, openai("Invalid 'user': string too long. Expected a string with maximum length 64, got 65."), "a field"),
    Row(400, openai("Invalid 'tools': array too long. Expected an array with maximum length 128"), "a list"),
    Row(400, openai("Invalid 'messages[4].name': string does not match pattern"), "a field of a message"),
    Row(
        400,
        openai("tools.0.function.description: exceeds the maximum length of 1024 for a tool description"),
        "a field",
    ),
    Row(
        400, openai("messages.1.content.0.image: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"), "an image"
    ),
    Row(400, openai("A maximum of 100 PDF pages may be provided in one prompt."), "a document"),
    Row(400, openai("At most 1 image(s) may be provided in one prompt."), "images"),
    Row(413, text("<html><head><title>413 Request Entity Too Large</title></head></html>"), "bytes, from nginx"),
    Row(413, openai("Request payload size exceeds the limit: 20971520 bytes."), "bytes"),
    Row(413, openai("Maximum request body size 1048576 exceeded, actual body size 1056562"), "bytes"),
    Row(400, openai("prompt_cache_key is too long: at most 64 characters"), "a key"),
    Row(400, openai("logit_bias has too many entries: at most 1024 tokens"), "another list"),
    Row(400, openai("You have reached the limit of messages for this plan, upgrade"), "an entitlement"),
    Row(500, openai("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
    Row(500, openai("Maximum recursion depth exceeded while decoding a JSON object"), "a depth"),
    Row(400, openai("temperature: Input should be less than or equal to 1"), "a parameter"),
    Row(400, openai("top_logprobs must be less than or equal to 20"), "a parameter"),
    Row(
        400, openai("The cached content has 512 tokens; the minimum token count to start caching is 1024"), "a minimum"
    ),
    Row(500, openai("input is too large to process. increase the physical batch size"), "an embedding's batch"),
    # Not about size
    Row(
        400, openai("messages with role 'tool' must be a response to a preceding message with 'tool_calls'."), "pairing"
    ),
    Row(400, openai("messages.3: `tool_use` ids were found without `tool_result` blocks immediately after"), "pairing"),
    Row(400, openai("In context=('properties', 'path'), schema must have a 'type' key."), "a schema"),
    Row(400, openai("The long context beta is not yet available for this subscription."), "an entitlement"),
    Row(
        400, openai("The response was filtered due to the prompt triggering our content management policy."), "a filter"
    ),
    Row(400, openai("The context you gave is not allowed by our content filter"), "a filter"),
    Row(404, openai("The model `long-context-128000` does not exist", code="model_not_found"), "a name with a number"),
    Row(400, openai("The maximum context length is not available for this model."), "no number, no evidence"),
    Row(400, openai("At least one token is required in the prompt."), "too little"),
    Row(400, openai("unknown field `tokens`"), "the word alone"),
    Row(500, openai("The server had an error while processing your request."), "an ordinary fault"),
    Row(
        400, openai("Provider returned an empty response, maybe because of a very low max_tokens."), "an ordinary fault"
    ),
    Row(400, b"{", "a broken body"),
    Row(400, b"null", "no error"),
    Row(400, b"[]", "no error"),
    Row(200, b"{}", "no error"),
    # Answers and echoes
    Row(
        200,
        b'{"choices":[{"message":{"content":"prompt is too long: 208310 tokens > 200000 maximum"}}]}',
        "an answer that talks about overflows",
    ),
    Row(
        200, b'{"output":[{"content":"This model\'s maximum context length is 8192 tokens"}],"error":null}', "an answer"
    ),
    Row(
        422,
        b'{"detail":[{"type":"list_type","loc":["body","stop"],"msg":"Input should be a valid '
        b'list","input":"prompt is too'
        b' long: 208310 tokens > 200000 maximum"}]}',
        "a validator that sends back what it was given",
    ),
    Row(
        400,
        openai(
            "Invalid user message={'role': 'user', 'content': 'is my prompt too long?'}. Please check your messages."
        ),
        "an echo inside a message",
    ),
    Row(400, b"data: this model's maximum context length is 8192 tokens\n\n", "an event stream is not an error's body"),
    Row(400, openai("请求过于频繁，输入超过限制"), "a rate, in Chinese"),
    Row(400, openai("账户余额不足，请求的 token 超出上限"), "money, in Chinese"),
    Row(400, openai("调用频率超限"), "a rate, in Chinese"),
    Row(400, openai("图片大小超过上限"), "an image, in Chinese"),
]


def shown(row: Row) -> str:
    return f"{row.status} {row.body[:60]!r}"


@pytest.mark.requirement("R1 5.1 overflow", "R3 BR-01")
@pytest.mark.parametrize("row", OVERFLOWS, ids=shown)
def test_an_overflow_is_recognized_with_what_it_states(row: Row) -> None:
    stated = classify(row.status, row.body)
    assert stated is not None, row.reason
    assert (stated.limit, stated.input_tokens) == (row.limit, row.given), row.reason


@pytest.mark.requirement("R1 5.1 overflow")
@pytest.mark.parametrize("row", OTHERS, ids=shown)
def test_anything_else_is_passed_on(row: Row) -> None:
    assert classify(row.status, row.body) is None, row.reason


@given(st.integers(200, 599), st.binary() | st.text().map(str.encode))
def test_no_body_breaks_it(status: int, body: bytes) -> None:
    classify(status, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["{}", '{"a":', "context_length_exceeded"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["error", "message", "code", "n_ctx", "x"]), inner),
)


@given(JSON)
def test_no_json_breaks_it(value: object) -> None:
    classify(400, json.dumps(value).encode())
    classify(400, json.dumps({"error": {"message": json.dumps(value), "n_ctx": value}}).encode())


def test_a_body_larger_than_any_error_is_not_read() -> None:
    message = openai("prompt is too long")
    assert classify(400, message + b" " * (MAX_ERROR_BYTES - len(message))) is not None
    assert classify(400, message + b" " * MAX_ERROR_BYTES) is None


@pytest.mark.parametrize("depth", [1, 3, 8, 200, 100_000])
def test_errors_inside_errors_are_read_a_few_levels_deep(depth: int) -> None:
    body = b'{"error":' * depth + b'{"message":"prompt is too long"}' + b"}" * depth
    assert (classify(400, body) is not None) == (depth <= 8)


def test_the_end_of_a_long_sentence_is_read_too() -> None:
    assert classify(400, openai("Error from provider x " * 60 + "the prompt is too long")) is not None
