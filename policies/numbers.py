"""Constants of compaction: unit, reason, and the benchmark that measured them, if any."""

# The budget.
MOST_RESERVED = 32_000
"""Maximum tokens reserved for the response. Longer ones are rare, and the room is needed."""
DEFAULT_RESERVED = 8_000
"""Tokens reserved for a response without a stated limit, at most a tenth of the window."""
LEAST_RESERVED = 1_024
"""Minimum tokens reserved for the response, even if all earlier responses were shorter."""
ANSWER_MARGIN = 1.5
"""The reserve for the next response, as a multiple of the longest recent one."""
MOST_RECORD = 8_000
"""Maximum tokens of a record, without its names; `python -m benchmarks.memory`."""
LEAST_USABLE = 0.39
"""Minimum usable share of a window: half for the response, a tenth as margin, the rest for rounding."""
SMALL_RECORD = 1_400
"""Tokens that a record may have even if a tenth of the room is less: rules do not shrink with a window."""
NAMES_ROOT = 26
"""Tokens of names per square root of a token of room: the names that work needs grow slowly; `python -m
benchmarks.memory`.
"""
MOST_NAMES = 12_000
"""Maximum tokens of names; `python -m benchmarks.memory`."""

# The cut.
ROUNDS_TO_BUY = 8
"""Minimum rounds of average size that must fit after a compaction, or it gains no time."""
LEAST_TAIL_SMALL = 0.20
"""Share of a small room that stays word for word even if the record needs it; `python -m benchmarks.memory`."""
LEAST_TAIL = 0.25
"""The same share in larger rooms."""
SMALL_ROOM = 16_000
"""Tokens of a small room."""
LEAST_UNITS = 2
"""Minimum rounds that stay word for word."""

# The plan.
MOST_MESSAGES = 50
"""Messages from which a request of unknown window is compacted (source document 003)."""
LEAST_SPAN = 4_000
"""Minimum tokens that a summary of such a request covers."""
RECORD_OF_WORK = 0.4
"""Tokens of a record per token of calls and results, if there is room; `python -m benchmarks.fresh`, 336 records."""
RECORD_OF_WORDS = 0.25
"""Tokens of a record per token of other text; measured in the same way."""
MESSAGES_COUNT_FROM = 0.5
"""Share of a known window from which the number of messages counts: fifty may be tiny."""
NAMES_STEP = 50
"""Step in tokens to which the budget of names is rounded, so that equal requests have equal budgets."""
LEAST_GROWTH = 0.3
"""Minimum share of the room by which a request may grow before the next compaction."""
MOST_INJECTED = 0.3
"""Maximum share of the room for record and names together."""
MOST_RAISED = 0.5
"""Maximum share of the room that a request keeps for the minimum tail."""
USUAL_TAIL = 0.3
"""Share of the room that stays word for word if the record leaves it; `python -m benchmarks.memory`."""
LEAST_FITTED_ROOM = 4_000
"""Minimum tokens of room for the tail to use what the record leaves."""

# Retries after an overflow.
RETRY_TARGETS = (0.50, 0.25, 0.125)
"""Target shares of the room for the retries after an overflow."""
RETRY_SHRINKS = 0.90
"""Maximum size of the next prompt as a share of the refused one."""
RETRY_RECORD = 0.40
"""Maximum share of a retry's target for the injected text, next to tools and head."""
RETRY_LEAST_RECORD = 0.10
"""Minimum share of a retry's whole target for the injected text."""
RETRY_LEAST_TAIL = 64
"""Minimum tokens of messages that a retry keeps."""
GUESSED_WINDOW = 0.90
"""The presumed window as a share of a refused prompt, if the error states none."""
FULL = 0.75
"""Share of a window from which an ambiguous error counts as an overflow."""
SMALL_PROMPT = 1_500
"""Tokens of a prompt, by the proxy's estimate, that fits every window."""
STATED_MARGIN = 0.01
"""Share left free below a limit up to which the upstream has counted."""
MISCOUNTED = 0.15
"""Additional share to cut, since the cut part may have fewer tokens than the average."""
LEAST_ANSWER = 0.05
"""Share of a window reserved for a response without a limit when contents are cut for it."""
ESTIMATE_MARGIN = 0.10
"""Share left free next to a prompt of estimated size."""
EXACT_MARGIN = 0.03
"""Share left free next to a prompt that the model's own tokenizer counted."""
COUNTED_MARGIN = 32
"""Tokens left free next to a prompt that the upstream counted."""

# Large results.
LARGE_RESULT = 0.04
"""Share of the room from which a result is large."""
LARGE_RESULT_RANGE = (2_000, 20_000)
"""Minimum and maximum tokens of that threshold."""
HOT_RESULTS = 0.25
"""Share of the room whose newest results stay unchanged."""
MOST_HOT_RESULTS = 40_000
"""Maximum tokens of these results."""
RELIEF = 0.5
"""Share of the limit at which shortening stops, so that the next batch comes later."""
MOST_EXCERPT_TOKENS = 300
"""Tokens of the summary of one large result."""
EXCERPT = 400
"""Characters at either end of a result that is shortened without a model."""

# Contents that fit no window.
OVERSIZE_LEFT = 0.5
"""Share of the room to which contents too large for any window are cut, next to tools, head and a record."""
OVERSIZE_STEP = 0.75
"""Factor by which that share is lowered, at first in advance: the cached prompt stays valid."""
OVERSIZE_LEAST = 64
"""Minimum tokens left of such contents."""

# Histories that change.
PLACE_MESSAGES = 4
"""Assistant messages that name a place in a history. Fewer are often equal in unrelated conversations."""
PLACE_DIFFERENT = 3
"""Minimum number of different ones among them."""
ENOUGH_NOTES = 2
"""Minimum notes that prove a changed history. The first one may come from a fork or an edit."""
REGROWTH = 0.25
"""Share of the room by which a history must grow before a model is called again."""
MOST_DOUBLINGS = 10
"""Maximum number of times this share doubles."""
