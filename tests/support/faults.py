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
        "proxy.upstream.routes.Router.conversation",
        "proxy.gateway.sender.label_of",
        "proxy.engine.plan_input.usable_input",
        "proxy.models.windows.Windows.resolve",
    ),
    "planning": (
        "proxy.engine.planner.needs_attention",
        "proxy.engine.plan_input.legal_cuts",
        "proxy.engine.planner.decide",
        "proxy.upstream.routes.Router.summary_target",
    ),
    "the store": (
        "proxy.records.record_store.RecordStore.find",
        "proxy.records.record_store.RecordStore.publish",
        "proxy.stores.memory.MemoryStore.get_many",
        "proxy.stores.memory.MemoryStore.put",
        "proxy.stores.memory.MemoryStore.lock",
        "proxy.stores.sealing.Sealer.seal",
    ),
    "summarizing": (
        "proxy.upstream.summarizer.Summarizer.send",
        "proxy.callers.spending.Spending.allows",
        "proxy.engine.summary_writer.bisect",
        "proxy.engine.summary_writer.render",
        "proxy.engine.summary_writer.validate",
        "proxy.engine.record_builder.records.build",
    ),
    "assembling": ("proxy.engine.draft.assemble", "proxy.dialects.json_array.rebuild"),
}

# Faults after the upstream was asked: its answer must reach the client all the same.
AFTERWARDS = (
    "proxy.models.windows.Windows.has_news",
    "proxy.gateway.pipeline.headers_of",
)
