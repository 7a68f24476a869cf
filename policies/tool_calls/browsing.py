"""Steps of agents in a browser: the page each was taken on, what was typed, and what the agent noted and wanted next.

Their answers are JSON with a memory, a next goal and actions (browser-use and its kin), in text or in a call;
what they see of a page comes in messages of its own, before them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from policies.authorship.arguments import UnreadError, read
from policies.conversation.transcript import Utterance, shorten

_STORED = 60
_CHARACTERS = 300
_READ = 20_000
_MOST_TYPED = 8
_URL = re.compile(r"^[ \t]{0,4}(?:- )?(?:page |current )?url:[ \t]{0,4}(\S{1,500})", re.IGNORECASE | re.MULTILINE)
_TITLE = re.compile(
    r"^[ \t]{0,4}(?:- )?(?:page |current )?title:[ \t]{0,4}([^\n]{1,200})", re.IGNORECASE | re.MULTILINE
)
_TABS = (
    re.compile(r"url=['\"](\S{1,500}?)['\"], title=['\"]([^'\"\n]{1,200})"),
    re.compile(r"^[ \t]{0,4}Tab \S{1,12}: (\S{1,500}) - ([^\n]{1,200})", re.MULTILINE),
)
_TYPING = ("input", "type", "fill", "select", "search", "send_keys", "enter")
_TYPED_KEYS = ("text", "value", "query", "keys", "option")


class BrowserStep(msgspec.Struct, frozen=True):
    """One answer. title, url: of the page that it saw, empty where that is not known. typed: values, in their order."""

    position: int
    title: str = ""
    url: str = ""
    typed: tuple[str, ...] = ()
    memory: str = ""
    goal: str = ""


def steps_behind(older: Sequence[BrowserStep], utterances: Sequence[Utterance]) -> tuple[BrowserStep, ...]:
    """The newest steps of everything covered, those of a span behind the older ones."""
    found: list[BrowserStep] = []
    url, title = (older[-1].url, older[-1].title) if older else ("", "")
    for utterance in utterances:
        if utterance.role != "assistant":
            url, title = _page_in(utterance.text[:_READ]) or (url, title)
            continue
        said = (utterance.text, *(call.arguments for call in utterance.calls))
        found += [step for text in said if (step := _step(text, utterance.position, title, url)) is not None]
    return (*older, *found)[-_STORED:]


def _page_in(text: str) -> tuple[str, str] | None:
    """Address and title of the page that a message shows; None if it shows none."""
    address = _URL.search(text) if "url:" in text.lower() else None
    if address is None:
        return None
    url = address[1]
    tabs = (tab for pattern in _TABS for tab in pattern.finditer(text) if tab[1] == url)
    title = _TITLE.search(text)
    tab = next(tabs, None)
    return url, (title[1] if title else tab[2] if tab else "").strip()


def _step(text: str, position: int, title: str, url: str) -> BrowserStep | None:
    """The step that an answer is; None if it is none."""
    text = text.strip().removeprefix("```json").removesuffix("```").strip()
    if not text.startswith("{") or '"action"' not in text:
        return None
    try:
        said = read(text)
    except UnreadError:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("action"), list):
        return None
    state = said.get("current_state")
    noted = state if isinstance(state, dict) else said
    memory, goal = (_line(noted.get(key)) for key in ("memory", "next_goal"))
    if not (memory or goal):
        return None
    return BrowserStep(position, title, url, tuple(_typed_texts(said["action"]))[:_MOST_TYPED], memory, goal)


def _typed_texts(actions: Sequence[object]) -> Iterator[str]:
    for action in actions:
        if not isinstance(action, Mapping):
            continue
        for name, given in action.items():
            if str(name).startswith(_TYPING) and isinstance(given, Mapping):
                yield from (_line(given[key]) for key in _TYPED_KEYS if isinstance(given.get(key), str))


def _line(told: object) -> str:
    return shorten(" ".join(told.split()), _CHARACTERS) if isinstance(told, str) else ""
