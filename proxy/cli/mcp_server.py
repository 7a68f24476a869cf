"""`concertina mcp`: a Model Context Protocol server over standard input and output, with one tool for searches.

It searches the newest record of each stored conversation of a tenant. The store has no history: that is only in the
requests of clients. So text that no record contains is not found.
"""

from collections.abc import Iterator, Sequence
from importlib.metadata import version

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

from policies.conversation.transcript import Utterance
from policies.record.blocks import file_line, state_blocks
from policies.record.call_lines import action_line
from policies.record.masking import as_allowed
from policies.record.recall import search_passages
from policies.record.record import Record
from policies.record.search import Index
from policies.record.texts import texts_for
from proxy.admin.sessions.asking import list_named
from proxy.callers.tenants import Caller
from proxy.cli.stored import NothingStoredError, open_sessions
from proxy.config.loading import Config
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer
from proxy.sessions.index import Session
from proxy.sessions.stores import StoreError

NAME = "conversation_search"
# The maximum number of conversations in a search, the last used first; and of tokens in a response.
_MOST_SESSIONS = 50
_TOKENS = 2_000
_ID = 16
_READ_ONLY = ToolAnnotations(title="Search conversations", read_only_hint=True, open_world_hint=False)
_DESCRIPTION = (
    "Search what the proxy has summarized of this user's conversations: what the user said, word for word, and what the"
    " summaries, tool calls and changed files say. Returns passages with the conversation they are from. Messages that"
    " were never summarized are not found."
)


def serve_mcp(config: Config, caller: Caller) -> None:
    """Serve until standard input ends."""
    tokenizer = Tokenizer()
    server = MCPServer("concertina", version=version("concertina"), log_level="WARNING")

    async def conversation_search(query: str, session: str | None = None) -> str:
        """Search. `session` is a conversation's label or the beginning of its id; all without one."""
        try:
            records = await _records(config, caller, session)
        except NothingStoredError:
            records = []
        except StoreError as error:
            return f"The store cannot be searched: {error}."
        index = Index(utterance for entry in records for utterance in _utterances_of(*entry))
        lines = search_passages(
            index, query, budget=_TOKENS, count=lambda text: tokenizer.count(text, DEFAULT_ENCODING)
        )
        return "\n".join(lines) or f"Nothing was found in {len(records)} conversations."

    server.tool(NAME, description=_DESCRIPTION, annotations=_READ_ONLY, structured_output=False)(conversation_search)
    server.run("stdio")


async def _records(config: Config, caller: Caller, name: str | None) -> list[tuple[Session, Record]]:
    """Return the newest record of each session of this name, or of all, the last used first. Raises StoreError."""
    async with open_sessions(config) as stored:
        matches, _ = await list_named(stored, caller, name, 0, _MOST_SESSIONS) if name else ([], True)
        sessions = matches or [each for each in await stored.of(caller) if each.id.startswith(name or "")]
        compacted = [(each, each.record) for each in sessions if each.record][:_MOST_SESSIONS]
        records = [(each, await stored.records.get_by_digest(*location)) for each, location in compacted]
    return [(each, as_allowed(record, caller.policy.secrets)) for each, record in records if record]


def _utterances_of(session: Session, record: Record) -> Iterator[Utterance]:
    """Yield the contents of a record. Each part names its conversation."""
    name = session.label or session.id[:_ID]
    for entry in record.entries:
        yield Utterance(entry.position, "user", entry.text, tool=f"conversation {name}")
    texts = texts_for(record.language)
    state = [block for block in state_blocks(record.work, texts, 0, len) if block.lines]
    parts: Sequence[tuple[str, Sequence[str]]] = (
        ("summary", record.summary.splitlines()),
        ("timeline", [text for segment in record.segments for text in (segment.text, *segment.insights)]),
        ("tool calls", [action_line(action, texts) for action in record.actions]),
        ("files", [file_line(file, texts) for file in record.files]),
        (
            "state",
            [line for block in state if block.lines for line in (block.title, *(each.text for each in block.lines))],
        ),
    )
    for part, lines in parts:
        yield Utterance(record.covered, "tool", "\n".join(lines), tool=f"{part}, conversation {name}")
