"""Items that clients bring back, put in place of what they stand for before anything else looks at the request."""

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

# Of one request; no client keeps more than a few.
_MOST_ITEMS = 50
_ELSEWHERE = (
    "An earlier part of this conversation was compacted elsewhere, in a form that cannot be read here. What follows"
    " goes on from it."
)
_SUMMARIZED = "An earlier part of this conversation, as it was summarised elsewhere:\n\n{text}"


@dataclass(frozen=True, slots=True)
class Settled:
    """A request without anything that is about compaction.

    asked:   what it asked for. covers: names the history that it came with.
    record:  of the newest item that was opened, and where what stands for it ends, counted from the array's beginning;
             None without one.
    read:    items of ours that were opened. foreign: those of others that nobody here can read; unreadable: those of
             which only the text is left. passed: those of others that go upstream as they came. is_ignored: whether
             nothing is done about what was asked. is_erased: whether one of the sessions was erased since.
    places:  of the sessions whose text the opened items hold, as items name them.
    """

    body: bytes
    asked: CompactionRequest
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
        if self.is_erased:
            return "item_erased"
        if self.foreign:
            return "foreign_compaction"
        if self.is_ignored:
            return "context_management_ignored"
        return "item_unreadable" if self.unreadable else None

    def carried_in(self, request: CountedRequest) -> CountedRequest:
        """The request that was read from the body, with the record that it carries."""
        if self.record is None:
            return request
        end, record = self.record
        ends = [span[1] - request.parsed.array[0] for span in request.parsed.spans]
        index = MessageIndex(bisect_left(ends, end))
        if not record.text_tokens:  # it was read from its text
            record = structs.replace(record, text_tokens=request.messages[index].tokens)
        return structs.replace(request, carried=Carried(index, record))


@dataclass(slots=True)
class _Piece:
    """What is sent of the array. message: as it was described; None for an item of ours."""

    raw: bytes
    message: Message | None = None
    record: Record | None = None

    @property
    def is_instruction(self) -> bool:
        return self.message is not None and self.message.role in INSTRUCTION_ROLES


@dataclass(slots=True)
class _Expansion:
    """An array as far as it was expanded.

    passes_foreign: items that others have made stay in it. is_changed: something else than what came stands in it.
    room: bytes that the contents of further items may have.
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

    def put_record(self, item: CompactionItem, covered: str, behind: frozenset[bytes], mark: object = None) -> None:
        """An item of ours, behind a history that this names; `behind`: digests of what the client sends behind it."""
        kept = self.pieces
        if covered == item.covers or self.compacting.DROPS_BEFORE:
            kept = [piece for piece in kept if piece.is_instruction]
        tail = [self._describe_piece(bytes(raw)) for raw in item.tail]
        messages = [piece.message for piece in tail if piece.message is not None]
        before = [piece.message for piece in kept if piece.message is not None]
        stays = {*without_tail(before, messages, item.anchors)}
        at = iter(range(len(before)))
        kept = [piece for piece in kept if piece.message is None or next(at) in stays]
        if item.head and not any(piece.is_instruction for piece in kept):
            kept = [*(self._describe_piece(bytes(raw)) for raw in item.head), *kept]
        digests = frozenset(message.digest for message in before)
        sent = without_kept(messages, item.anchors, digests, behind)
        self.pieces = [*kept, self._piece_of(item.record, mark), *(tail[at] for at in sent)]
        self.places = tuple(dict.fromkeys((*self.places, *item.places)))
        self.read += 1

    def put_text(self, text: str, mark: object) -> None:
        """In the place of an item that cannot be opened: the record whose text this is, or a note with the text."""
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
        """In the place of what cannot be read as an item of ours."""
        texts = texts_for("en")
        if self.compacting.DROPS_BEFORE:
            self.pieces = [piece for piece in self.pieces if piece.is_instruction]
        noted = f"<conversation_record>\n{text}\n{texts.closing}"
        self.pieces.append(_Piece(self.dialect.items.inject(Injected(noted))))

    def keep(self, raw: bytes, message: Message | None = None) -> None:
        self.pieces.append(self._describe_piece(raw) if message is None else _Piece(raw, message))

    def settle(self, request: CountedRequest, asked: CompactionRequest, covered: str) -> Settled:
        """The request around what is sent of its items."""
        body, fields = request.body, request.parsed.envelope.fields
        if request.parsed.envelope.text and self.is_ours:
            said = {"role": "user", "content": request.parsed.envelope.text}
            body = json_array.with_field(body, request.dialect.array.name, [said])
        if request.parsed.spans and self.is_changed:
            body = json_array.rebuild(body, request.parsed, (piece.raw for piece in self.pieces))
        if self.is_ours and any(fields.get(name) for name in self.compacting.FIELDS):
            without = [name for name in self.compacting.FIELDS if name not in asked.kept_fields]
            body = json_array.with_fields(body, asked.kept_fields, without)
        record, end = None, 0
        for piece in self.pieces:
            end += 1 + len(piece.raw)
            if piece.record is not None:
                record = end, piece.record
        counts = self.read, self.foreign, self.unreadable, self.passed
        return Settled(body, asked, covered, record, *counts, places=self.places)

    def holds_item(self, raw: bytes) -> bool:
        """Return True if what an item holds is, or has in it, another item."""
        message = self._describe_piece(raw).message
        return message is not None and message.compacts

    def _describe_piece(self, raw: bytes) -> _Piece:
        described = self.dialect.items.describe(json_array.decode(readable(raw)), lambda _: 0)
        return _Piece(raw, described)


class Expander:
    """Expands requests; one per process."""

    def __init__(self, items: ItemSealer) -> None:
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
        """The request with every item of ours expanded.

        is_ours: nothing is left in it for the provider to compact, nor of what others have compacted. is_strict:
        nothing goes upstream in the place of what cannot be read. passes_foreign: what others have compacted is left
        in it all the same. Raises CompactionRequestError for what no provider takes.
        """
        compacting, messages = _compacting(request.dialect), request.history.messages
        found = _Expansion(request.dialect, compacting, is_ours, is_strict, passes_foreign)
        if sum(message.compacts for message in messages) > _MOST_ITEMS:
            raise CompactionRequestError(f"At most {_MOST_ITEMS} compactions may stand in a request.")
        questions: dict[int, object] = {}
        for at, message in enumerate(messages):
            raw = request.message_bytes(MessageIndex(at))
            if not message.compacts:
                found.keep(bytes(raw), message)
                continue
            for one in json_array.split_items(raw):
                item = json_array.decode(readable(one))
                if compacting.is_question(item) and is_ours:
                    questions[at] = item
                    found.is_changed = True
                elif (held := compacting.find_compaction(item, one)) is None:
                    found.keep(one)
                else:
                    self._put_item(found, held, one, at, messages, tenant)
        fields = request.parsed.envelope.fields
        asked = compacting.parse_request(fields, questions, len(messages)) if is_ours else CompactionRequest()
        covered = history_digest(message for at, message in enumerate(messages) if at not in questions)
        return found.settle(request, asked, covered)

    def expand_settled(self, request: CountedRequest, item: CompactionItem) -> Settled:
        """The same of a request that is settled, as if the client had sent an item for all of it."""
        found = _Expansion(request.dialect, _compacting(request.dialect), is_ours=True, is_changed=True)
        for at, message in enumerate(request.history.messages):
            found.keep(bytes(request.message_bytes(MessageIndex(at))), message)
        found.put_record(item, item.covers, frozenset())
        return found.settle(request, CompactionRequest(), item.covers)

    def _put_item(
        self, found: _Expansion, held: HeldCompaction, raw: bytes, at: int, messages: Sequence[Message], tenant: str
    ) -> None:
        item = self._open_item(found, held, at, tenant)
        is_foreign = item == "foreign" and (held.text is None or record_in(held.text) is None)
        if is_foreign and found.passes_foreign:
            found.passed += 1
        if not isinstance(item, CompactionItem) and (not found.is_ours or (is_foreign and found.passes_foreign)):
            found.keep(raw)
            return
        if held.how == "demand" and found.is_ours and not all(piece.is_instruction for piece in found.pieces):
            raise found.compacting.unreadable(at, "ambiguous" if found.read else "misplaced", held.how)
        found.is_changed = True
        if isinstance(item, CompactionItem):
            behind = frozenset(each.digest for each in messages[at + 1 :])
            found.put_record(item, history_digest(messages[:at]), behind, held.mark)
        elif held.text is not None:
            found.put_text(held.text, held.mark)
            found.unreadable += item != "foreign" or found.pieces[-1].record is not None
        elif item == "foreign":
            if found.is_strict:
                raise found.compacting.unreadable(at, "it was made elsewhere", held.how)
            found.put_note(_ELSEWHERE)
            found.foreign += 1
        if held.remainder is not None:
            found.keep(held.remainder)

    def _open_item(self, found: _Expansion, held: HeldCompaction, at: int, tenant: str) -> CompactionItem | str | None:
        """The item of ours, or why it is none; None where nothing was compacted."""
        if held.sealed is None and held.text is not None:
            return "foreign"
        if held.sealed is None and not held.is_required:
            return None
        if not isinstance(held.sealed, str) or not held.sealed:
            if found.is_ours:
                raise found.compacting.malformed_item_error(at)
            return "foreign"
        opened = self._items.open(tenant, held.sealed, found.room)
        if isinstance(opened, OpenedItem):
            item, size = opened
            found.room -= size
            if item.dialect != found.dialect.name:
                raise found.compacting.unreadable(at, "it was made for another API", held.how)
            if held.how == "demand" and item.text != text_digest(held.text or ""):
                raise found.compacting.unreadable(at, "content mismatch", held.how)
            if any(found.holds_item(bytes(raw)) for raw in (*item.head, *item.tail)):
                raise found.compacting.unreadable(at, "it holds another item", held.how)
            return item
        if opened != "foreign" and (held.text is None or held.how == "demand"):
            raise found.compacting.unreadable(at, "Encrypted content could not be decrypted or parsed", held.how)
        return opened


def _compacting(dialect: Dialect) -> Compacting:
    assert dialect.compacting is not None  # noqa: S101 - no message of another dialect `compacts`
    return dialect.compacting
