"""One message as the policies see it."""

from typing import Literal, NamedTuple

import msgspec

from policies.authorship.speech import Speech

Role = Literal["system", "developer", "user", "assistant", "tool"]
Signature = Literal["none", "sealed", "bound"]
INSTRUCTION_ROLES = frozenset({"system", "developer"})


class Call(NamedTuple):
    """A tool call: its id, by which its result names it, and the tool it calls.

    is_foreign: whether it is a shell's that may show what strangers wrote.
    """

    id: str
    tool: str
    is_foreign: bool = False


class Message(msgspec.Struct, frozen=True, gc=False):
    """What the decisions need to know of one message; its bytes stay with the wire layer.

    digest:  content digest of the canonical form, without links to other messages (docs/design.md, "Digests and keys").
    calls:   the tool calls it makes.
    results: ids of the calls whose results it holds.
    words:   beside results, tokens of what a user says in the same message; 0 for nothing.
    joins:   continues the round of the message before it. continues: does so where that is the model's too: its answer.
    silent:  says nothing of its own, and clients drop it or keep it: read as a part of the message behind it.
    signed:  carries what some providers verify: `sealed` goes out as it came or not at all, `bound` holds only behind
             the very prompt that it was made for.
    media:   carries something that is no text. media_tokens: of pictures and papers in its results.
    loose:   of an instruction, what it shares with one that differs in digits alone. None: with no other.
    lapses:  of an instruction that holds until the next user message only.
    loads:   names of tools that are there for as long as the history holds this message.
    speech:  what a person says in it; None: what its role says, all that a user message holds.
    is_typed: what a person says was typed into a result.
    is_known: holds what only a client does that puts nothing bare into the user role but what a person typed.
    opens:   the unknown element of which it is made: what is made of the same again is no person's.
    patterns: digests of the bare texts that a person typed, with their digits masked.
    rules:   names of the files of rules in it, which count `rule_tokens`. is_summary: the client's own summary.
    text_tool: `call`: an answer that ends as with a tool call in its text. `result`: begins as the result of one.
    scripts: calls of scripts that the provider runs, by which calls in this message were made.
    stored:  refers to what only the provider has. barrier: the provider's own compaction of what stands before it.
    bypass:  why a request that holds it goes out as it came; None for no reason.
    compacts: holds what only a provider's compaction knows: an item that it has made, or a question for one.
    """

    role: Role
    tokens: int
    digest: bytes
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    words: int = 0
    joins: bool = False
    continues: bool = False
    silent: bool = False
    signed: Signature = "none"
    media: bool = False
    media_tokens: int = 0
    loose: bytes | None = None
    lapses: bool = False
    loads: tuple[str, ...] = ()
    speech: Speech | None = None
    is_typed: bool = False
    is_known: bool = False
    opens: str = ""
    patterns: tuple[bytes, ...] = ()
    rules: tuple[str, ...] = ()
    rule_tokens: int = 0
    is_summary: bool = False
    scripts: tuple[str, ...] = ()
    text_tool: Literal["", "call", "result"] = ""
    stored: bool = False
    barrier: bool = False
    bypass: str | None = None
    compacts: bool = False

    @property
    def is_user(self) -> bool:
        """Whether it stands in the user role, or says something there beside results."""
        return self.role == "user" or self.words > 0

    @property
    def said(self) -> Speech:
        """What a person says in it, as far as it tells by itself."""
        if self.speech is not None:
            return self.speech
        return "full" if self.is_user else "none"
