"""The parts that answer clients' questions for compactions, as one value."""

from dataclasses import dataclass, replace

from proxy.compaction.provider.clearing import Cleared
from proxy.compaction.provider.expansion import Expander, Settled
from proxy.compaction.provider.making import ItemMaker, MadeItem
from proxy.dialects.base import Dialect
from proxy.dialects.compaction import AT_ONCE, CompactionAnswer, CompactionCost, How, Inserter


@dataclass(frozen=True, slots=True)
class ClientCompactions:
    expander: Expander
    maker: ItemMaker


@dataclass(frozen=True, slots=True)
class ClientCompaction:
    """What a request has to do with a compaction of its client.

    settled: it, without that. began: Unix seconds. made: the item that it gets. cleared: what was left out of it.
    """

    settled: Settled
    model: str
    name: str
    began: int
    made: MadeItem | None = None
    cleared: Cleared | None = None

    @property
    def how(self) -> How | None:
        return self.settled.asked.how

    @property
    def is_alone(self) -> bool:
        """Whether the answer is a compaction and nothing else."""
        return self.how in AT_ONCE or (self.made is not None and self.settled.asked.pauses)

    def inserter(self, dialect: Dialect) -> Inserter | None:
        """What tells of it in a model's answer; None where there is nothing to be told."""
        if (self.made is None and self.cleared is None) or dialect.compacting is None:
            return None
        return dialect.compacting.inserter(self.answer(dialect))

    def answer(self, dialect: Dialect) -> CompactionAnswer:
        """What the client gets; without an item as long as none is made."""
        edits = []
        if self.cleared is not None and dialect.clearing is not None:
            edits.append(dialect.clearing.applied_edits(self.cleared.uses, self.cleared.tokens))
        answer = CompactionAnswer(self.name, self.began, self.model, how=self.how, edits=edits)
        if self.made is None or dialect.compacting is None:
            return answer
        item = dialect.compacting.item_of(self.made.sealed, self.made.text, self.name, self.how)
        spent = CompactionCost(self.made.spent.prompt_tokens, self.made.spent.completion_tokens)
        return replace(answer, item=item, spent=spent)
