"""Histories of sessions in the store: every process appends to a session's list, and pages read it."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from policies.conversation.prefix_digests import hash_tag
from proxy.sessions.index import SessionOwner
from proxy.sessions.sessions import Sessions
from proxy.sessions.shelf import Lists, Shelf
from proxy.telemetry.events import PromptComposed
from proxy.telemetry.history_entries import CompactionEntry, HistoryEntry, RequestEntry
from proxy.telemetry.session_history import (
    HistorySums,
    HistoryView,
    Key,
    Newest,
    SessionFigures,
    SessionHistories,
    SessionHistory,
    view_entries,
)

HISTORIES_EVERY = 10.0
# The maximum entries of a list, the newest: at most 800 kB, and about 360 kB.
ENTRIES = 2_000
PROCESSES = 32
"""The maximum number of processes with stored sums of a session, the newest. A process that forgot the session counts
as another."""


class SavedSums(msgspec.Struct, frozen=True):
    """The figures of one process for a session: its newest request, and the sums."""

    newest: Newest
    sums: HistorySums


class StoredHistories:
    """The histories of all processes over one store, including unsaved entries of this process."""

    def __init__(
        self, histories: SessionHistories, sessions: Sessions, owner_of: Callable[[str], SessionOwner | None]
    ) -> None:
        """Create the histories. `owner_of` returns the owner of a tenant's sessions."""
        self._histories = histories
        decoder = msgspec.msgpack.Decoder[HistoryEntry](RequestEntry | CompactionEntry)
        self._lists = Lists(sessions.sealed, decoder, ENTRIES)
        self._prompts = Shelf(sessions.sealed, PromptComposed)
        self._sums = Shelf(sessions.sealed, dict[str, SavedSums])
        self._sessions = sessions
        self._epochs = sessions.epochs
        self._owner_of = owner_of

    async def write(self) -> None:
        """Append the new entries of sessions that are listed in the store. A later call repeats what failed."""
        for history in self._histories.find_unsaved():
            key, owner = history.key, self._owner_of(history.key.tenant)
            if owner is None or await self._is_forgotten(history):
                continue
            history.place = self._sessions.place(owner, key.id, key.label) or history.place
            if history.place is None:
                continue
            await self._append(history, history.place.link)
            await self._note_failure(history, owner, history.place.name)

    async def forget_erased(self) -> list[Key]:
        """Forget the sessions that any process has erased, and return their keys."""
        stored = [history for history in self._histories.newest() if history.place is not None]
        return [history.key for history in stored if await self._is_forgotten(history)]

    async def view(self, key: Key, history: SessionHistory | None, name: bytes | None) -> HistoryView | None:
        """Return a session as all processes saw it, or only this one if the store does not respond.

        history: of this process. name: in the index; None if it is not listed.
        """
        prompt = self._histories.prompt(key)
        place_key = None if name is None else _key(await self._epochs.link(name))
        stored = None if place_key is None else await self._lists.values(place_key)
        if stored is None or place_key is None:
            return None if history is None else history.view(prompt)
        (stored_prompt,) = await self._prompts.look_up([_prompt_key(place_key)])
        prompts = [each for each in (prompt, stored_prompt) if each is not None]
        prompt = max(prompts, key=lambda each: each.at, default=None)
        unsaved, compactions = (history.unsaved, history.compactions) if history else ([], ())
        # A repeated append, or one in flight, leaves equal entries.
        entries = [*dict.fromkeys([*stored, *unsaved])][-ENTRIES:]
        is_cut = len(stored) >= ENTRIES
        return await asyncio.to_thread(view_entries, key, entries, prompt, compactions, is_cut=is_cut)

    async def figures(self, names: Mapping[Key, bytes]) -> dict[Key, SessionFigures]:
        """Return the stored figures of sessions by all processes.

        names: in the index.
        """
        keys = [*names]
        links = await self._epochs.links([names[key] for key in keys])
        stored = await self._sums.look_up([_sums_key(link) for link in links])
        figures_by_key: dict[Key, SessionFigures] = {}
        for key, saved in zip(keys, stored, strict=True):
            parts = dict(saved or {})
            if (history := self._histories.get(key)) is not None:
                parts[history.id] = SavedSums(history.newest, history.sums)
            if parts:
                sums = HistorySums()
                for part in parts.values():
                    sums.merge(part.sums)
                newest = max((part.newest for part in parts.values()), key=lambda each: each.at)
                figures_by_key[key] = SessionFigures(key, newest, sums)
        return figures_by_key

    async def _is_forgotten(self, history: SessionHistory) -> bool:
        """Return True if the session was erased. This process has forgotten it then."""
        place, key = history.place, history.key
        if place is None or await self._epochs.were_erased([place.link]) != [True]:
            return False
        self._histories.forget(key.tenant, key.id, key.label.__eq__)
        return True

    async def _append(self, history: SessionHistory, link: bytes) -> None:
        added, key = history.added, _key(link)
        if await self._lists.append(key, history.unsaved):
            self._histories.mark_saved(history, added)
            await self._save_sums(history, _sums_key(link))
        prompt = self._histories.prompt(history.key)
        if prompt is not None and prompt.at > history.saved_prompt:
            await self._prompts.put(_prompt_key(key), prompt)
            if self._sessions.is_up():
                history.saved_prompt = prompt.at

    async def _save_sums(self, history: SessionHistory, key: str) -> None:
        """Store the sums of this process for a session next to those of the others.

        Of two processes that write concurrently, one may be overwritten. It writes its sums again with its next
        request.
        """
        (saved,) = await self._sums.look_up([key])
        if not self._sessions.is_up():
            return
        parts = {**(saved or {}), history.id: SavedSums(history.newest, history.sums)}
        await self._sums.put(key, dict(sorted(parts.items(), key=lambda part: -part[1].newest.at)[:PROCESSES]))

    async def _note_failure(self, history: SessionHistory, owner: SessionOwner, name: bytes) -> None:
        """List the session as recently failed."""
        if history.failed == history.noted_failure:
            return
        failed = history.failed
        await self._sessions.note_failure(owner, name)
        if self._sessions.is_up():
            history.noted_failure = failed


def _sums_key(link: bytes) -> str:
    return f"figures:{{{hash_tag(link)}}}"


def _prompt_key(key: str) -> str:
    return f"{key}:prompt"


def _key(link: bytes) -> str:
    """Return the key of a session's history. Release 0.2.0 used `trail:`, in another format."""
    return f"history:{{{hash_tag(link)}}}"
