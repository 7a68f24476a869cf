"""Places in the code that tests make fail."""

from __future__ import annotations

# Where a fault of ours may strike, by what is done there.
FAULTS = {
    "counting": (
        "proxy.dialects.reader.RequestReader._count_request",
        "proxy.dialects.chat.messages.ITEMS.describe",
        "proxy.dialects.reader.json_array.parse",
        "proxy.dialects.prefixes.PrefixCache.find",
        "proxy.dialects.prefixes.PrefixCache.remember",
    ),
    "routing": (
        "proxy.upstreams.routes.Router.conversation",
        "proxy.pipeline.sender.label_of",
        "proxy.compaction.plan_input.usable_input",
        "proxy.models.windows.Windows.resolve",
    ),
    "planning": (
        "proxy.compaction.planner.needs_attention",
        "proxy.compaction.plan_input.legal_cuts",
        "proxy.compaction.planner.decide",
        "proxy.upstreams.routes.Router.summary_target",
    ),
    "the store": (
        "proxy.sessions.record_store.RecordStore.find",
        "proxy.sessions.record_store.RecordStore.publish",
        "proxy.sessions.stores.memory.MemoryStore.get_many",
        "proxy.sessions.stores.memory.MemoryStore.put",
        "proxy.sessions.stores.memory.MemoryStore.lock",
        "proxy.sessions.stores.sealing.Sealer.seal",
    ),
    "summarizing": (
        "proxy.upstreams.summarizer.Summarizer.send",
        "proxy.callers.spending.Spending.allows",
        "proxy.compaction.summary_writer.bisect",
        "proxy.compaction.summary_writer.render",
        "proxy.compaction.summary_writer.validate",
        "proxy.compaction.record_builder.records.build",
    ),
    "assembling": ("proxy.compaction.prompt.assemble", "proxy.dialects.json_array.rebuild"),
}

# Faults after the upstream was asked: its answer must reach the client all the same.
AFTERWARDS = (
    "proxy.models.windows.Windows.has_news",
    "proxy.pipeline.pipeline.headers_of",
)
