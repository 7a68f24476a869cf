"""A message as the policies see it."""

from typing import Literal, NamedTuple

import msgspec

from policies.authorship.speech import Speech

Role = Literal["system", "developer", "user", "assistant", "tool"]
Signature = Literal["none", "sealed", "bound"]
INSTRUCTION_ROLES = frozenset({"system", "developer"})


class Call(NamedTuple):
    """A tool call: its id, which the result repeats, and its tool.

    is_foreign: True for a shell call that may show strangers' text.
    """

    id: str
    tool: str
    is_foreign: bool = False


class Message(msgspec.Struct, frozen=True, gc=False):
    """The facts about one message that decisions need. Its bytes stay in the wire layer.

    digest:  of the canonical form, without links to other messages (docs/design.md, "Digests and keys").
    calls:   the tool calls it makes.
    results: ids of the calls whose results it has.
    words:   tokens of a user's text next to results; 0 for none.
    joins:   continues the round of the previous message. continues: does so if that one is an assistant's.
    silent:  has no content of its own. Clients may drop it, so it counts as a part of the next message.
    signed:  has content that some providers verify: `sealed` must be sent unchanged or not at all, `bound` is only
    valid
             after the prompt it was made for.
    media:   has content other than text. media_tokens: of pictures and papers in its results.
    loose:   for an instruction, a digest shared with those that differ only in digits; None if there are none.
    lapses:  for an instruction that applies only until the next user message.
    loads:   names of tools that are available while the history has this message.
    speech:  a person's words in it; None: as its role implies, all of a user message.
    is_typed: a person's words were typed into a result.
    is_known: its content shows a client that puts no unmarked text into the user role except a person's.
    opens:   the unknown element that makes up the message. A further message of the same element is not a person's.
    patterns: digests of a person's unmarked texts, with digits masked.
    rules:   names of the files of rules in it, of `rule_tokens` tokens. is_summary: the client's own summary.
    text_tool: `call`: ends like a tool call in text. `result`: begins like the result of one.
    scripts: script calls, run by the provider, that made the calls in this message.
    stored:  refers to content that only the provider has. barrier: the provider's own compaction of all before it.
    bypass:  why a request with it is forwarded unchanged; None for no reason.
    compacts: has content of a provider's compaction: its result, or a request for one.
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
        """Return True if it is in the user role, or has a user's text next to results."""
        return self.role == "user" or self.words > 0

    @property
    def said(self) -> Speech:
        """Return the speech of a person in it, as far as the message alone shows."""
        if self.speech is not None:
            return self.speech
        return "full" if self.is_user else "none"
