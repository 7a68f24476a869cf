"""Expansion of the compaction items in a request, before anything else reads the request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from policies.conversation.conversation import MessageIndex
from policies.conversation.message import INSTRUCTION_ROLES, Message
from policies.decision.assemble import Injected
from policies.record.compaction_item import history_digest, without_kept, without_tail
from policies.record.reading import record_in
from policies.record.record import Record
from policies.record.texts import texts_for
from proxy.compaction.provider.sealed_items import (
    MOST_CONTENTS,
    CompactionItem,
    ItemSealer,
    OpenedItem,
    text_digest,
)
from proxy.dialects import json_array
from proxy.dialects.base import Dialect
from proxy.dialects.compaction import Compacting, CompactionRequest, CompactionRequestError, HeldCompaction
from proxy.dialects.reader import Carried, CountedRequest
from proxy.dialects.surrogates import readable

# Most items in one request. No client keeps more than a few.
_MOST_ITEMS = 50
_ELSEWHERE = (
    "An earlier part of this conversation was compacted elsewhere, in a form that cannot be read here. What follows"
    " goes on from it."
)
_SUMMARIZED = "An earlier part of this conversation, as it was summarised elsewhere:\n\n{text}"


@dataclass(frozen=True, slots=True)
class Settled:
    """A request without anything that concerns compaction.

    compaction_request: the compaction that it asked for.
    covers:             a digest of the history that it came with.
    record:             that of the newest opened item, and the offset of its end from the beginning of the array; None
                        without one.
    read:               the number of items of the proxy that were opened.
    foreign:            the number of unreadable items from elsewhere. unreadable: the number of items with only their
                        text left.
    passed:             the number of items from elsewhere that go upstream unchanged.
    is_ignored:         True if the requested compaction is ignored.
    is_erased:          True if one of the sessions was erased since.
    places:             the sessions whose text the opened items hold, as items name them.
    """

    body: bytes
    compaction_request: CompactionRequest
    covers: str
    record: tuple[int, Record] | None = None
    read: int = 0
    foreign: int = 0
    unreadable: int = 0
    passed: int = 0
    is_ignored: bool = False
    is_erased: bool = False
    places: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def warning(self) -> str | None:
        """Return the warning for the client; None without one."""
        if self.is_erased:
            return "item_erased"
        if self.foreign:
            return "foreign_compaction"
        if self.is_ignored:
            return "context_management_ignored"
        return "item_unreadable" if self.unreadable else None

    def carried_in(self, request: CountedRequest) -> CountedRequest:
        """Return the request that was read from the body, with the record that it carries."""
        if self.record is None:
            return request
        end, record = self.record
        ends = [span[1] - request.parsed.array[0] for span in request.parsed.spans]
        index = MessageIndex(bisect_left(ends, end))
        if not record.text_tokens:  # the record was read from its text
            record = structs.replace(record, text_tokens=request.messages[index].tokens)
        return structs.replace(request, carried=Carried(index, record))


@dataclass(slots=True)
class _Piece:
    """A piece of the array to send. message: its description; None for an injected item."""

    raw: bytes
    message: Message | None = None
    record: Record | None = None

    @property
    def is_instruction(self) -> bool:
        """Return True if the piece is an instruction."""
        return self.message is not None and self.message.role in INSTRUCTION_ROLES


@dataclass(slots=True)
class _Expansion:
    """An array during its expansion.

    is_ours:        True if the proxy compacts for the client.
    is_strict:      True if unreadable items are an error.
    passes_foreign: True if items from elsewhere stay in the array.
    is_changed:     True if the array differs from the client's.
    room:           the bytes that the contents of further items may have.
    """

    dialect: Dialect
    compacting: Compacting
    is_ours: bool
    is_strict: bool = False
    passes_foreign: bool = False
    is_changed: bool = False
    room: int = MOST_CONTENTS
    pieces: list[_Piece] = field(default_factory=list)
    read: int = 0
    foreign: int = 0
    unreadable: int = 0
    passed: int = 0
    places: tuple[tuple[bytes, bytes], ...] = ()

    def put_record(self, item: CompactionItem, covered: str, later: frozenset[bytes], mark: object = None) -> None:
        """Replace an item of the proxy by its record and its messages.

        covered: a digest of the history before it. later: digests of the messages that the client sends after it.
        """
        pieces = self.pieces
        if covered == item.covers or self.compacting.DROPS_BEFORE:
            pieces = [piece for piece in pieces if piece.is_instruction]
        tail = [self._describe_piece(bytes(raw)) for raw in item.tail]
        messages = [piece.message for piece in tail if piece.message is not None]
        messages_before = [piece.message for piece in pieces if piece.message is not None]
        kept_positions = {*without_tail(messages_before, messages, item.anchors)}
        positions = iter(range(len(messages_before)))
        pieces = [piece for piece in pieces if piece.message is None or next(positions) in kept_positions]
        if item.head and not any(piece.is_instruction for piece in pieces):
            pieces = [*(self._describe_piece(bytes(raw)) for raw in item.head), *pieces]
        digests = frozenset(message.digest for message in messages_before)
        tail_positions = without_kept(messages, item.anchors, digests, later)
        self.pieces = [*pieces, self._piece_of(item.record, mark), *(tail[positions] for positions in tail_positions)]
        self.places = tuple(dict.fromkeys((*self.places, *item.places)))
        self.read += 1

    def put_text(self, text: str, mark: object) -> None:
        """Replace an item that cannot be opened: by the record with this text, or by a note with the text."""
        record = record_in(text)
        if record is None:
            self.put_note(_SUMMARIZED.format(text=text))
            return
        self.pieces = [*(piece for piece in self.pieces if piece.is_instruction), self._piece_of(record, mark)]

    def _piece_of(self, record: Record, mark: object) -> _Piece:
        raw = self.dialect.items.inject(Injected(record.text))
        if mark is not None and self.dialect.breakpoints is not None:
            raw = self.dialect.breakpoints.mark_record(raw)
        return _Piece(raw, record=record)

    def put_note(self, text: str) -> None:
        """Replace an item that cannot be read by a note."""
        texts = texts_for("en")
        if self.compacting.DROPS_BEFORE:
            self.pieces = [piece for piece in self.pieces if piece.is_instruction]
        noted = f"<conversation_record>\n{text}\n{texts.closing}"
        self.pieces.append(_Piece(self.dialect.items.inject(Injected(noted))))

    def keep(self, raw: bytes, message: Message | None = None) -> None:
        """Keep an item of the client unchanged."""
        self.pieces.append(self._describe_piece(raw) if message is None else _Piece(raw, message))

    def settle(self, request: CountedRequest, compaction_request: CompactionRequest, covered: str) -> Settled:
        """Return the request with the expanded array."""
        body, fields = request.body, request.parsed.envelope.fields
        if request.parsed.envelope.text and self.is_ours:
            message = {"role": "user", "content": request.parsed.envelope.text}
            body = json_array.with_field(body, request.dialect.array.name, [message])
        if request.parsed.spans and self.is_changed:
            body = json_array.rebuild(body, request.parsed, (piece.raw for piece in self.pieces))
        if self.is_ours and any(fields.get(name) for name in self.compacting.FIELDS):
            without = [name for name in self.compacting.FIELDS if name not in compaction_request.kept_fields]
            body = json_array.with_fields(body, compaction_request.kept_fields, without)
        record, end = None, 0
        for piece in self.pieces:
            end += 1 + len(piece.raw)
            if piece.record is not None:
                record = end, piece.record
        counts = self.read, self.foreign, self.unreadable, self.passed
        return Settled(body, compaction_request, covered, record, *counts, places=self.places)

    def holds_item(self, raw: bytes) -> bool:
        """Return True if the content of an item is, or has, another compaction item."""
        message = self._describe_piece(raw).message
        return message is not None and message.compacts

    def _describe_piece(self, raw: bytes) -> _Piece:
        described = self.dialect.items.describe(json_array.decode(readable(raw)), lambda _: 0)
        return _Piece(raw, described)


class Expander:
    """Expands requests. One per process."""

    def __init__(self, items: ItemSealer) -> None:
        """Create an expander. items: opens sealed items."""
        self._items = items

    def settle(
        self,
        request: CountedRequest,
        tenant: str,
        *,
        is_ours: bool,
        is_strict: bool = False,
        passes_foreign: bool = False,
    ) -> Settled:
        """Return the request with every item of the proxy expanded. Raises CompactionRequestError for invalid items.

        is_ours:        the proxy compacts, so nothing is left for the provider to compact, and no item from elsewhere.
        is_strict:      unreadable items are an error instead of being replaced.
        passes_foreign: items from elsewhere stay all the same.
        """
        compacting, messages = _compacting(request.dialect), request.history.messages
        expansion = _Expansion(request.dialect, compacting, is_ours, is_strict, passes_foreign)
        if sum(message.compacts for message in messages) > _MOST_ITEMS:
            raise CompactionRequestError(f"At most {_MOST_ITEMS} compaction items are allowed in a request.")
        questions: dict[int, object] = {}
        for position, message in enumerate(messages):
            raw = request.message_bytes(MessageIndex(position))
            if not message.compacts:
                expansion.keep(bytes(raw), message)
                continue
            for raw_item in json_array.split_items(raw):
                item = json_array.decode(readable(raw_item))
                if compacting.is_question(item) and is_ours:
                    questions[position] = item
                    expansion.is_changed = True
                elif (compaction := compacting.find_compaction(item, raw_item)) is None:
                    expansion.keep(raw_item)
                else:
                    self._put_item(expansion, compaction, raw_item, position, messages, tenant)
        fields = request.parsed.envelope.fields
        compaction_request = (
            compacting.parse_request(fields, questions, len(messages)) if is_ours else CompactionRequest()
        )
        covered = history_digest(message for position, message in enumerate(messages) if position not in questions)
        return expansion.settle(request, compaction_request, covered)

    def expand_settled(self, request: CountedRequest, item: CompactionItem) -> Settled:
        """Return a settled request expanded as if the client had sent an item for all of it."""
        expansion = _Expansion(request.dialect, _compacting(request.dialect), is_ours=True, is_changed=True)
        for position, message in enumerate(request.history.messages):
            expansion.keep(bytes(request.message_bytes(MessageIndex(position))), message)
        expansion.put_record(item, item.covers, frozenset())
        return expansion.settle(request, CompactionRequest(), item.covers)

    def _put_item(
        self,
        expansion: _Expansion,
        compaction: HeldCompaction,
        raw: bytes,
        position: int,
        messages: Sequence[Message],
        tenant: str,
    ) -> None:
        item = self._open_item(expansion, compaction, position, tenant)
        is_foreign = item == "foreign" and (compaction.text is None or record_in(compaction.text) is None)
        if is_foreign and expansion.passes_foreign:
            expansion.passed += 1
        if not isinstance(item, CompactionItem) and (
            not expansion.is_ours or (is_foreign and expansion.passes_foreign)
        ):
            expansion.keep(raw)
            return
        if (
            compaction.how == "demand"
            and expansion.is_ours
            and not all(piece.is_instruction for piece in expansion.pieces)
        ):
            raise expansion.compacting.unreadable(
                position, "ambiguous" if expansion.read else "misplaced", compaction.how
            )
        expansion.is_changed = True
        if isinstance(item, CompactionItem):
            later = frozenset(message.digest for message in messages[position + 1 :])
            expansion.put_record(item, history_digest(messages[:position]), later, compaction.mark)
        elif compaction.text is not None:
            expansion.put_text(compaction.text, compaction.mark)
            expansion.unreadable += item != "foreign" or expansion.pieces[-1].record is not None
        elif item == "foreign":
            if expansion.is_strict:
                raise expansion.compacting.unreadable(position, "it was made elsewhere", compaction.how)
            expansion.put_note(_ELSEWHERE)
            expansion.foreign += 1
        if compaction.remainder is not None:
            expansion.keep(compaction.remainder)

    def _open_item(
        self, expansion: _Expansion, compaction: HeldCompaction, position: int, tenant: str
    ) -> CompactionItem | str | None:
        """Return the item of the proxy, or the reason why it is not one; None if nothing was compacted."""
        if compaction.sealed is None and compaction.text is not None:
            return "foreign"
        if compaction.sealed is None and not compaction.is_required:
            return None
        if not isinstance(compaction.sealed, str) or not compaction.sealed:
            if expansion.is_ours:
                raise expansion.compacting.malformed_item_error(position)
            return "foreign"
        opened = self._items.open(tenant, compaction.sealed, expansion.room)
        if isinstance(opened, OpenedItem):
            item, size = opened
            expansion.room -= size
            if item.dialect != expansion.dialect.name:
                raise expansion.compacting.unreadable(position, "it was made for another API", compaction.how)
            if compaction.how == "demand" and item.text != text_digest(compaction.text or ""):
                raise expansion.compacting.unreadable(position, "content mismatch", compaction.how)
            if any(expansion.holds_item(bytes(raw)) for raw in (*item.head, *item.tail)):
                raise expansion.compacting.unreadable(position, "it holds another item", compaction.how)
            return item
        if opened != "foreign" and (compaction.text is None or compaction.how == "demand"):
            raise expansion.compacting.unreadable(
                position, "Encrypted content could not be decrypted or parsed", compaction.how
            )
        return opened


def _compacting(dialect: Dialect) -> Compacting:
    assert dialect.compacting is not None  # noqa: S101 - only its messages have `compacts`
    return dialect.compacting
