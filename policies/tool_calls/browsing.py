"""Steps of browser agents: the page of each step, the typed text, and the agent's note and next goal.

Their responses are JSON with a memory, a next goal and actions (browser-use and similar), as text or in a call. Pages
come in separate messages before them.
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
    """A response of a browser agent.

    title, url: of the page it saw; empty if unknown.
    typed: the typed values in order.
    """

    position: int
    title: str = ""
    url: str = ""
    typed: tuple[str, ...] = ()
    memory: str = ""
    goal: str = ""


def update_steps(older: Sequence[BrowserStep], utterances: Sequence[Utterance]) -> tuple[BrowserStep, ...]:
    """Return the newest steps of everything covered, those of the span after the older ones."""
    steps: list[BrowserStep] = []
    url, title = (older[-1].url, older[-1].title) if older else ("", "")
    for utterance in utterances:
        if utterance.role != "assistant":
            url, title = _page_in(utterance.text[:_READ]) or (url, title)
            continue
        texts = (utterance.text, *(call.arguments for call in utterance.calls))
        steps += [step for text in texts if (step := _step(text, utterance.position, title, url)) is not None]
    return (*older, *steps)[-_STORED:]


def _page_in(text: str) -> tuple[str, str] | None:
    """Return the address and title of the page that a message shows; None if it shows none."""
    address = _URL.search(text) if "url:" in text.lower() else None
    if address is None:
        return None
    url = address[1]
    tabs = (tab for pattern in _TABS for tab in pattern.finditer(text) if tab[1] == url)
    title = _TITLE.search(text)
    tab = next(tabs, None)
    return url, (title[1] if title else tab[2] if tab else "").strip()


def _step(text: str, position: int, title: str, url: str) -> BrowserStep | None:
    """Return the step that a response contains; None if it contains none."""
    text = text.strip().removeprefix("```json").removesuffix("```").strip()
    if not text.startswith("{") or '"action"' not in text:
        return None
    try:
        response = read(text)
    except UnreadError:
        return None
    if not isinstance(response, dict) or not isinstance(response.get("action"), list):
        return None
    state = response.get("current_state")
    state_fields = state if isinstance(state, dict) else response
    memory, goal = (_line(state_fields.get(key)) for key in ("memory", "next_goal"))
    if not (memory or goal):
        return None
    return BrowserStep(position, title, url, tuple(_typed_texts(response["action"]))[:_MOST_TYPED], memory, goal)


def _typed_texts(actions: Sequence[object]) -> Iterator[str]:
    for action in actions:
        if not isinstance(action, Mapping):
            continue
        for name, action_arguments in action.items():
            if str(name).startswith(_TYPING) and isinstance(action_arguments, Mapping):
                yield from (
                    _line(action_arguments[key]) for key in _TYPED_KEYS if isinstance(action_arguments.get(key), str)
                )


def _line(value: object) -> str:
    return shorten(" ".join(value.split()), _CHARACTERS) if isinstance(value, str) else ""
