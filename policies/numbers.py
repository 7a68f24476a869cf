"""The numbers by which conversations are cut: unit, reason, and the benchmark that measured it, if one did."""

# The budget.
MOST_RESERVED = 32_000
"""Tokens kept for the answer at most: longer ones are rare, and the room is missed."""
DEFAULT_RESERVED = 8_000
"""Tokens kept for an answer whose limit is not stated, at most a tenth of the window."""
LEAST_RESERVED = 1_024
"""Tokens kept for the answer even if all answers so far were shorter."""
ANSWER_MARGIN = 1.5
"""Times the longest answer seen lately, that are kept for the next one."""
MOST_RECORD = 8_000
"""Tokens of a record at most, without its names; `python -m benchmarks.memory`."""
LEAST_USABLE = 0.39
"""Share of a window that is usable at least: half of it for the answer, a tenth as the margin, the rest by
rounding."""
SMALL_RECORD = 1_400
"""Tokens that a record may have even if a tenth of the room is less: rules do not shrink with a window."""
NAMES_ROOT = 26
"""Tokens of names for the root of a token of room: what work needs again grows more slowly; `python -m
benchmarks.memory`."""
MOST_NAMES = 12_000
"""Tokens of names at most; `python -m benchmarks.memory`."""

# The cut.
ROUNDS_TO_BUY = 8
"""Rounds of the average size that a compaction must leave room for, or it buys no time."""
LEAST_TAIL_SMALL = 0.20
"""Share of a small room that stays word for word even if the record needs it; `python -m benchmarks.memory`."""
LEAST_TAIL = 0.25
"""The same in larger rooms."""
SMALL_ROOM = 16_000
"""Tokens of a small room."""
LEAST_UNITS = 2
"""Rounds that stay word for word at least."""

# The plan.
MOST_MESSAGES = 50
"""Messages from which on a request of unknown window is compacted (source document 003)."""
LEAST_SPAN = 4_000
"""Tokens that a summary of such a request covers at least."""
RECORD_OF_WORK = 0.4
"""Tokens of a record that a token of calls and results brings, as long as there is room; `python -m benchmarks.fresh`,
336 records."""
RECORD_OF_WORDS = 0.25
"""Tokens of a record that a token of what is said brings; measured so too."""
MESSAGES_COUNT_FROM = 0.5
"""Share of a known window from which on the number of messages counts: fifty may be next to nothing."""
NAMES_STEP = 50
"""Tokens in which the budget of names is rounded, so that equal requests have equal budgets."""
LEAST_GROWTH = 0.3
"""Share of the room by which a request may grow at least until it is compacted again."""
MOST_INJECTED = 0.3
"""Share of the room that record and names may take together."""
MOST_RAISED = 0.5
"""Share of the room that a request may come down to for the least tail."""
USUAL_TAIL = 0.3
"""Share of the room that stays word for word if the record leaves so much; `python -m benchmarks.memory`."""
LEAST_FITTED_ROOM = 4_000
"""Tokens of room from which on the tail takes what the record leaves."""

# Retries after an overflow.
RETRY_TARGETS = (0.50, 0.25, 0.125)
"""Shares of the room that the retries after an overflow aim at."""
RETRY_SHRINKS = 0.90
"""Share of the refused prompt that the next one has at most."""
RETRY_RECORD = 0.40
"""Share of a retry's target that the injected text may take next to tools and head."""
RETRY_LEAST_RECORD = 0.10
"""Share of a retry's whole target that the injected text may take at least."""
RETRY_LEAST_TAIL = 64
"""Tokens of messages that a retry keeps at least."""
GUESSED_WINDOW = 0.90
"""Share of a refused prompt that the window is taken for if the error states none."""
FULL = 0.75
"""Share of a window from which on an error that may mean anything is taken for an overflow."""
SMALL_PROMPT = 1_500
"""Tokens of a prompt that no window is too small for, by our estimate."""
STATED_MARGIN = 0.01
"""Share that is left free below a limit that the upstream has counted up to."""
MISCOUNTED = 0.15
"""Share of what must be cut that is cut in addition: it may count for less than the average."""
LEAST_ANSWER = 0.05
"""Share of a window that is kept for an answer without a limit when contents are cut for it."""
ESTIMATE_MARGIN = 0.10
"""Share that is left free next to a prompt whose size is estimated."""
EXACT_MARGIN = 0.03
"""Share that is left free next to a prompt that the model's own tokenizer counted."""
COUNTED_MARGIN = 32
"""Tokens that are left free next to a prompt that the upstream counted."""

# Large results.
LARGE_RESULT = 0.04
"""Share of the room from which on a result is large."""
LARGE_RESULT_RANGE = (2_000, 20_000)
"""Tokens within which that share is kept."""
HOT_RESULTS = 0.25
"""Share of the room whose newest results stay as they are."""
MOST_HOT_RESULTS = 40_000
"""Tokens of them at most."""
RELIEF = 0.5
"""Share of the limit at which shortening stops, so that the next time is some way off."""
MOST_EXCERPT_TOKENS = 300
"""Tokens of the summary of one large result."""
EXCERPT = 400
"""Characters of either end of a result that is shortened without a model."""

# Contents that fit no window.
OVERSIZE_LEFT = 0.5
"""Share of the room that contents too large for any window are cut to, next to tools, head and a record."""
OVERSIZE_STEP = 0.75
"""Factor by which that is lowered, the first time for what is to come: so the prompt's cache holds."""
OVERSIZE_LEAST = 64
"""Tokens that are left of such contents at least."""

# Histories that change.
PLACE_MESSAGES = 4
"""Assistant messages that name a place in a history; fewer are the same in conversations that share nothing else."""
PLACE_DIFFERENT = 3
"""Of these, how many must differ from one another."""
ENOUGH_NOTES = 2
"""Notes of a changed history that are believed; the first may come from a fork or an edit."""
REGROWTH = 0.25
"""Share of the room by which a history must grow before a model is asked again."""
MOST_DOUBLINGS = 10
"""Times that this share doubles at most."""
