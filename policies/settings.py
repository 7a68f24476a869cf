"""Every setting of a policy, declared once: type, default, bounds and the sentence for schema and docs."""

import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

_UNITS = MappingProxyType({"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0})
_DURATION = re.compile(r"\A\s{0,9}(\d{1,12}(?:\.\d{1,6})?)\s{0,9}(ms|s|m|h|d)?\s{0,9}", re.ASCII)
_THOUSANDS = MappingProxyType({"": 1, "k": 1_000, "m": 1_000_000})
_TOKENS = re.compile(r"\A\s{0,9}(\d{1,12}(?:\.\d{1,6})?)\s{0,9}([kKmM]?)\s{0,9}", re.ASCII)
_NUMBERS = (int, float, int | None, float | None)

# A compaction must free enough room, or the next request compacts again (docs/design.md, "When to compact").
_LEAST_GAP = 0.1


def _seconds(value: object) -> float:
    """Return the seconds in a number, or in text such as `250ms`, `10s`, `2m`, `1h` and `7d`."""
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        return float(match[1]) * _UNITS[match[2] or "s"]
    raise ValueError("must be a duration such as 250ms, 10s, 2m, 1h or 7d, or a number of seconds")


def _tokens(value: object) -> object:
    """Return the tokens in a number, or in text such as `32k` and `1M`, which are 32,000 and 1,000,000."""
    if not isinstance(value, str):
        if isinstance(value, bool):
            raise ValueError("must be a number, not true or false")  # noqa: TRY004 - pydantic takes a ValueError alone
        return value
    if match := _TOKENS.fullmatch(value):
        number = round(float(match[1]) * _THOUSANDS[match[2].lower()], 6)
        if number.is_integer():
            return int(number)
    raise ValueError("must be a whole number of tokens, such as 32768, 32k or 1M")


TokenCount = Annotated[
    int, BeforeValidator(_tokens), WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]})
]
"""Tokens, written as a number or in thousands (`32k`) and millions (`1M`)."""

Seconds = Annotated[
    float, BeforeValidator(_seconds), WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]})
]
"""A duration in seconds, written as a number or with a unit."""

Ratio = Annotated[float, Field(ge=0, le=1)]
"""A share, 0 to 1; of the room (usable input minus tools and head) unless its description states otherwise."""

Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
"""Literal text that must not be empty: an empty phrase would match everywhere."""


class Settings(BaseModel):
    """A group of settings. Unknown keys are errors, values never change, and errors do not repeat the input."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_not_booleans(cls, value: object, info: ValidationInfo) -> object:
        """Reject `message_limit: true`, which Python would take for 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation in _NUMBERS:
            raise ValueError("must be a number, not true or false")
        return value


class MinGain(Settings):
    """The minimum room that a compaction must free. The larger of the two counts."""

    tokens: TokenCount = Field(default=2_000, ge=0)
    """Minimum tokens that a compaction must free."""

    ratio: Ratio = 0.10
    """Minimum share of the request's tokens that a compaction must free."""


class Media(Settings):
    """Notes in place of pictures and papers when an upstream accepts no more bytes or media."""

    mode: Literal["on", "off"] = "on"
    """`off`: nothing is left out, and refusals of media are passed on."""

    keep_rounds: int | None = Field(default=None, ge=1)
    """Newest rounds whose media do not cool down by their tokens; unset: as many as `large_messages.hot_rounds`."""


class LargeMessages(Settings):
    """Short forms in place of single large tool results."""

    threshold: TokenCount | None = Field(default=None, ge=1)
    """Tokens from which a tool result is large; unset: 4 % of the window, between 2,000 and 20,000."""

    hot_rounds: int = Field(default=5, ge=1)
    """Newest rounds whose tool results always stay unchanged."""

    valve: Ratio = 0.30
    """Share of the room that live large results may take before the oldest are replaced."""

    exclude_tools: tuple[Words, ...] = ()
    """Tools whose results are never replaced."""

    roles: tuple[Literal["tool", "user", "assistant"], ...] = ("tool",)
    """Roles whose messages may be replaced; never the newest message of the user."""


class SummarizerSettings(Settings):
    """The model that writes the summaries, and its limits."""

    model: Words | None = None
    """Model that writes summaries; `none`: deterministic record only; unset: the request's own, with its credential."""

    upstream: Words | None = None
    """Upstream that serves the summarizer's model; unset: the request's own."""

    target_tokens: TokenCount | None = Field(default=None, ge=50)
    """Target tokens of a summary; for parts less; unset: 4 % of the room, between 400 and 4,000."""

    merge_target_tokens: TokenCount | None = Field(default=None, ge=50)
    """Target tokens of a summary merged from parts; unset: the same as `target_tokens`."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    """Temperature of summarizer calls; unset: not sent, since some models refuse it."""

    timeout: Seconds = Field(default=60.0, gt=0, le=600)
    """Maximum time for all summarizer calls of one request together."""

    cache_aligned: bool = True
    """Append the instruction to the session's cached prompt if the request's own model summarizes and has room."""

    history_segments: int = Field(default=3, ge=0, le=20)
    """Newest segments of earlier summaries to show again, to the summarizer and in the summary."""

    insights: bool = True
    """Show the summarizer the insights of earlier summaries."""

    prompt: str | None = Field(default=None, min_length=1, max_length=20_000)
    """The operator's own instructions, added to the summarizer's prompt."""


class BisectSettings(Settings):
    """The bisection of a span that does not fit the summarizer."""

    enabled: bool = True
    """Split a span that overflows the summarizer and merge the summaries of its parts."""

    max_depth: int = Field(default=6, ge=1, le=16)
    """Maximum number of times a span is halved."""

    min_messages: int = Field(default=4, ge=2)
    """Messages below which a span is shortened instead of split."""

    max_calls: int = Field(default=16, ge=1, le=256)
    """Maximum summarizer calls of one compaction."""


class LedgerSettings(Settings):
    """The user's statements that code copies from one summary to the next word for word, without a model."""

    budget_ratio: Ratio | None = None
    """Share of the room that the ledger may take; unset: 10 %, and up to 30 % on windows below 8,000 tokens."""

    max_tokens: TokenCount = Field(default=8_000, ge=0)
    """Maximum tokens of the ledger."""

    directives: tuple[Words, ...] = ()
    """Further words or phrases, taken literally, that mark a sentence as a rule to keep."""


class WorkingSetSettings(Settings):
    """The names that the work used (paths, identifiers, values), kept with lines that contain them."""

    budget_ratio: Ratio = 0.20
    """Share of the room for the working set in addition to the rest of the record; 0: none."""

    max_tokens: TokenCount | None = Field(default=None, ge=0)
    """Maximum tokens; unset: by the root of the room, 9,000 for 64,000 tokens, never over 12,000."""


class ShortenSettings(Settings):
    """Lossless shortening of results: repetitions and padding are left out."""

    repeats: bool = True
    """A result that repeats an earlier one byte for byte becomes a line that names its call."""

    json_: bool = Field(default=True, alias="json")
    """JSON that is no file loses its whitespace outside of strings."""

    terminal: bool = True
    """Output of commands loses escapes, and lines that a carriage return overwrites."""

    from_start: bool = False
    """Also shorten results of requests below `apply_floor`; otherwise these are sent unchanged."""


RecallMode = Literal["off", "quote"]
_NO_TOOL = "the search tool was removed: use `quote`, or let agents search with `concertina mcp`"


class RecallSettings(Settings):
    """Recall of covered messages when a user's message refers to them."""

    mode: RecallMode = "quote"
    """`quote` quotes them before the message; `off`: nothing."""

    @field_validator("mode", mode="before")
    @classmethod
    def _knows_no_tool(cls, value: object) -> object:
        if value == "tool":
            raise ValueError(_NO_TOOL)
        return value

    budget_ratio: Ratio = 0.05
    """Share of the room for one quotation; on small windows up to twice as much, and 400 tokens."""


def _as_recall(value: object) -> object:
    """Return the group of settings for a mode alone: `recall: off` means `recall: {mode: off}`."""
    if not isinstance(value, str) or value == "tool":
        return {"mode": value} if isinstance(value, str) else value
    if value not in get_args(RecallMode):
        raise ValueError("must be off or quote, or a group of settings")
    return {"mode": value}


Recall = Annotated[
    RecallSettings,
    BeforeValidator(_as_recall, json_schema_input_type=RecallMode | RecallSettings),
]


PIN_KINDS = ("tool", "file")
MOST_MATCHES, LONGEST_MATCH = 32, 200


def check_pin_match(match: object) -> str:
    """Return a match of pins without surrounding spaces: `tool:NAME`, or `file:GLOB`. Raises ValueError."""
    kind, _, name = match.strip().partition(":") if isinstance(match, str) else ("", "", "")
    if not isinstance(match, str) or kind not in PIN_KINDS or not name.strip():
        raise ValueError("must be tool:NAME, or file:GLOB")
    if len(match) > LONGEST_MATCH:
        raise ValueError(f"must have at most {LONGEST_MATCH} characters")
    return f"{kind}:{name.strip()}"


class PinSettings(Settings):
    """Texts that stay in the prompt word for word, wherever their messages are."""

    match: tuple[Annotated[str, AfterValidator(check_pin_match)], ...] = Field(default=(), max_length=MOST_MATCHES)
    """`tool:NAME`: the newest result of a tool for each arguments; `file:GLOB`: the newest reading of each file."""

    budget_ratio: float = Field(default=0.15, ge=0, le=0.3)
    """Share of the room for all pinned texts together in a summary. Those that do not fit are named there."""


def _as_pins(value: object) -> object:
    """Return the settings for a list: `pins: [...]` means `pins: {match: [...]}`. Errors name the entry."""
    if not isinstance(value, list | tuple):
        return value
    if len(value) > MOST_MATCHES:
        raise ValueError(f"must have at most {MOST_MATCHES} entries")
    for at, match in enumerate(value):
        try:
            check_pin_match(match)
        except ValueError as error:
            raise ValueError(f"entry {at + 1} {error}") from None
    return {"match": value}


Pins = Annotated[PinSettings, BeforeValidator(_as_pins, json_schema_input_type=list[str] | PinSettings)]


Secrets = Literal["mask", "keep"]


class PolicySettings(Settings):
    """The policy for conversations: when they are compacted, and how."""

    mode: Literal["on", "off", "shadow"] = "on"
    """`on` compacts, `off` leaves every request unchanged, `shadow` only records what would have been done."""

    compaction_threshold: float = Field(default=0.80, gt=0, le=1)
    """Share of the room from which a request is compacted."""

    overflow_threshold: float = Field(default=0.90, gt=0, le=1)
    """Share of the room from which a compaction must succeed or fall back to the deterministic record."""

    soft_threshold: float = Field(default=0.70, gt=0, le=1)
    """Share of the room from which a summary is prepared in the background for the next request."""

    apply_floor: float = Field(default=0.60, ge=0, le=1)
    """Share of the room below which a request is forwarded unchanged; half of `economy_from`, if that is less."""

    target_ratio: float = Field(default=0.45, gt=0, le=1)
    """Share of the room after a compaction; 0.35 below the trigger, growth costs at most one summary per 0.35."""

    min_target_ratio: float = Field(default=0.40, gt=0, le=1)
    """Minimum target if too few rounds would fit before the next compaction."""

    max_target: TokenCount | None = Field(default=None, ge=1_000)
    """Maximum tokens that a compaction leaves next to tools and instructions; unset: by `target_root`."""

    target_root: int = Field(default=50, ge=1)
    """The same by the root of the room, from some 12,000 tokens of room: 50 leaves 12,000 tokens of 57,000."""

    economy: float = Field(default=4.0, ge=0)
    """Compact early when reading what it removes has cost this many times its price; 0: never."""

    economy_from: Ratio = 0.5
    """Share of the room below which no early compaction is made."""

    token_limit: TokenCount = Field(default=2_000_000, ge=1_000)
    """Tokens not yet summarized from which a request is compacted for any window; every share counts from it."""

    message_limit: int | None = Field(default=None, ge=2)
    """Messages not yet summarized from which a half full request is compacted; unset: 50, with unknown windows only."""

    keep_recent_messages: int = Field(default=10, ge=0)
    """Newest messages that stay word for word while they fit the target."""

    min_overlap: int = Field(default=1, ge=0)
    """Units (a user message, or an assistant message with its tool results) that stay in addition to the newest one."""

    min_rounds: int = Field(default=4, ge=2)
    """Minimum units of a conversation before half of it is summarized."""

    min_gain: MinGain = MinGain()
    """The minimum room that a compaction must free."""

    compress_system_messages: bool = False
    """Summarize system and developer messages inside the conversation too; the leading ones stay."""

    parts_to_keep: tuple[Literal["text", "tool", "reasoning"], ...] = ("text",)
    """Kinds of content that the summarizer sees in full; tool calls and results are always shown shortened."""

    large_messages: LargeMessages = LargeMessages()
    """Short forms in place of single large tool results."""

    media: Media = Media()
    """Notes in place of pictures and papers."""

    summarizer: SummarizerSettings = SummarizerSettings()
    """The model that writes the summaries, and its limits."""

    bisect: BisectSettings = BisectSettings()
    """The bisection of a span that does not fit the summarizer."""

    retry_on_overflow: int = Field(default=3, ge=0, le=3)
    """Maximum further compactions and retries of a request after the upstream refused it as too long."""

    max_iterations: int = Field(default=3, ge=1, le=10)
    """Maximum compactions for one overflow; one before sending does not count."""

    output_floor: TokenCount | None = Field(default=512, ge=1)
    """Tokens of output down to which a request's limit is lowered when only prompt and output together overflow."""

    ledger: LedgerSettings = LedgerSettings()
    """The user's statements that code copies word for word."""

    secrets: Secrets = "mask"
    """`mask` replaces credentials by `[secret:kind:last4]` in everything it writes; the client's messages stay."""

    working_set: WorkingSetSettings = WorkingSetSettings()
    """The names that the work used."""

    recall: Recall = RecallSettings()
    """Recall of covered messages; a mode alone, or a group of settings."""

    dereference: Literal["on", "off"] = "on"
    """Restore the text of a result that refers to one no longer in the prompt."""

    shorten: ShortenSettings = ShortenSettings()
    """Lossless shortening of results, above `apply_floor` or after a record, unless `from_start` is set."""

    pins: Pins = PinSettings()
    """Texts that stay word for word; a list of matches, or a group of settings."""

    separator: Words | None = None
    """A user message of exactly this text starts a new conversation: nothing before it is sent upstream."""

    keepalive: Seconds = Field(default=10.0, ge=0, le=3600)
    """Interval of comments to a streaming client that waits for a summary; 0: never."""

    overflow_error: Literal["upstream", "client", "openai"] = "upstream"
    """Error for an overflow that cannot be solved: unchanged, or in words that clients know (`client`, `openai`)."""

    cache_marks: Literal["on", "off"] = "on"
    """Mark head and record for the provider's cache (`cache_control`) if a client of Claude sets no marks."""

    fail: Literal["open", "closed"] = "open"
    """If compaction fails, forward the request unchanged (open), or refuse it if it no longer fits (closed)."""

    @model_validator(mode="after")
    def _thresholds_fit_together(self) -> Self:
        if broken := [text.format(self) for holds, text in _RULES if not holds(self)]:
            raise ValueError("; ".join(broken))
        return self


# Constraints between two settings, and their error messages.
_RULES: tuple[tuple[Callable[[PolicySettings], bool], str], ...] = (
    (
        lambda policy: policy.apply_floor < policy.compaction_threshold,
        "apply_floor ({0.apply_floor:g}) must be below compaction_threshold ({0.compaction_threshold:g})",
    ),
    (
        lambda policy: policy.compaction_threshold <= policy.overflow_threshold,
        "compaction_threshold ({0.compaction_threshold:g}) exceeds overflow_threshold ({0.overflow_threshold:g})",
    ),
    (
        lambda policy: policy.min_target_ratio <= policy.target_ratio,
        "min_target_ratio ({0.min_target_ratio:g}) must not be above target_ratio ({0.target_ratio:g})",
    ),
    (
        # Rounded: 0.8 - 0.7 is 0.0999… in floating point.
        lambda policy: round(policy.compaction_threshold - policy.target_ratio, 9) >= _LEAST_GAP,
        "target_ratio ({0.target_ratio:g}) must be 0.1 or more below compaction_threshold ({0.compaction_threshold:g})",
    ),
    (
        lambda policy: policy.min_overlap < policy.min_rounds,
        "min_overlap ({0.min_overlap}) must be below min_rounds ({0.min_rounds})",
    ),
)

DEFAULTS = PolicySettings()
