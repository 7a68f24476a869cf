"""The services that handle clients' requests for compactions, as one value."""

from dataclasses import dataclass, replace

from proxy.compaction.provider.clearing import Cleared
from proxy.compaction.provider.expansion import Expander, Settled
from proxy.compaction.provider.making import ItemMaker, MadeItem
from proxy.dialects.base import Dialect
from proxy.dialects.compaction import AT_ONCE, CompactionAnswer, CompactionCost, How, Inserter


@dataclass(frozen=True, slots=True)
class ClientCompactions:
    """The services that open and make compaction items."""

    expander: Expander
    maker: ItemMaker


@dataclass(frozen=True, slots=True)
class ClientCompaction:
    """The part of a request that concerns a compaction by its client.

    settled:   the request without that part.
    began:     Unix seconds.
    made_item: the item for the client.
    cleared:   the results that were cleared.
    """

    settled: Settled
    model: str
    name: str
    began: int
    made_item: MadeItem | None = None
    cleared: Cleared | None = None

    @property
    def how(self) -> How | None:
        """Return the way in which the client asks; None if it does not."""
        return self.settled.compaction_request.how

    @property
    def is_alone(self) -> bool:
        """Return True if the response is only a compaction."""
        return self.how in AT_ONCE or (self.made_item is not None and self.settled.compaction_request.pauses)

    def inserter(self, dialect: Dialect) -> Inserter | None:
        """Return an inserter into a model's response; None if there is nothing to insert."""
        if (self.made_item is None and self.cleared is None) or dialect.compacting is None:
            return None
        return dialect.compacting.inserter(self.answer(dialect))

    def answer(self, dialect: Dialect) -> CompactionAnswer:
        """Return the response of the client. It has no item until one is made."""
        edits = []
        if self.cleared is not None and dialect.clearing is not None:
            edits.append(dialect.clearing.applied_edits(self.cleared.uses, self.cleared.tokens))
        answer = CompactionAnswer(self.name, self.began, self.model, how=self.how, edits=edits)
        if self.made_item is None or dialect.compacting is None:
            return answer
        item = dialect.compacting.item_of(self.made_item.sealed, self.made_item.text, self.name, self.how)
        spent = CompactionCost(self.made_item.spent.prompt_tokens, self.made_item.spent.completion_tokens)
        return replace(answer, item=item, spent=spent)
