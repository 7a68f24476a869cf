"""Sessions that nobody has seen: seeded generators, and beside each event what is true of it.

A session is a list of events. What people say, and what tools answer, comes from `texts.toml`; code and logs are made.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TEXTS = tomllib.loads((Path(__file__).parent / "texts.toml").read_text())
_NOUNS = ["invoice", "ledger", "cart", "refund", "coupon", "shipment", "tariff", "voucher", "payout", "quota", "basket"]
_VERBS = ["resolve", "settle", "collect", "reserve", "reconcile", "expire", "dispatch", "rebuild", "merge", "audit"]


@dataclass
class Event:
    """One thing that happens. who: person, report, assistant or call.

    pasted: what a person pastes behind the text. kind: rule, value or talk. replaced_by: the text that holds now.
    outcome: ok, failed or unknown, if nothing in the result proves either. files: path and state of each true change.
    """

    who: str
    text: str = ""
    pasted: str = ""
    kind: str = "talk"
    replaced_by: str = ""
    old: str = ""
    new: str = ""
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    result: str = ""
    exit_code: int | None = None
    outcome: str = ""
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of session: the client whose shape it has, the language of its people, the turns of its person."""

    client: str
    language: str
    turns: int


KINDS = {
    "claude-zh": Kind("claude", "zh", 34),
    "claude-en": Kind("claude", "en", 60),
    "cursor-pt": Kind("cursor", "pt", 30),
    "cursor-ja": Kind("cursor", "ja", 30),
    "aider-en": Kind("aider", "en", 64),
    "aider-ru": Kind("aider", "ru", 64),
    "swe-agent-en": Kind("swe-agent", "en", 26),
    "mini-swe-en": Kind("mini-swe", "en", 26),
    "codex-en": Kind("codex", "en", 40),
    "codex-de": Kind("codex", "de", 30),
    "opencode-en": Kind("opencode", "en", 30),
    "openhands-ko": Kind("openhands", "ko", 26),
    "ops-it": Kind("ops", "it", 34),
    "chat-en": Kind("chat", "en", 60),
    "chat-zh": Kind("chat", "zh", 60),
    "chat-ja": Kind("chat", "ja", 60),
    "chat-pt": Kind("chat", "pt", 60),
    "chat-de": Kind("chat", "de", 60),
    "chat-ko": Kind("chat", "ko", 60),
}


class _Writer:
    """The state of one session while it is written."""

    def __init__(self, kind: Kind, seed: int, times: int) -> None:
        self.random = random.Random(seed)
        self.times = times
        self.kind = kind
        self.texts = _TEXTS[kind.language]
        self.events: list[Event] = []
        self.names: list[str] = []
        self.paths = [f"src/{noun}s/{self.pick(_VERBS)}_{noun}.py" for noun in _NOUNS]
        self.existing = set(self.paths)

    def pick(self, choices: list[Any]) -> Any:
        return self.random.choice(choices)

    def name(self) -> str:
        """Return a new name, or at times one that was used long ago."""
        if len(self.names) > 8 and self.random.random() < 0.35:
            return str(self.names[self.random.randrange(len(self.names) // 2)])
        name = (
            f"{self.pick(_VERBS)}_{self.pick(_NOUNS)}_{self.pick(['rows', 'batch', 'total', 'lock', 'page', 'queue'])}"
        )
        self.names.append(name)
        return name

    def fill(self, text: str, path: str, name: str) -> str:
        return text.format(path=path, name=name, n=self.random.randint(11, 480))

    def code(self, name: str, functions: int) -> str:
        """Return a module in which `name` stands, some hundred tokens a function."""
        parts = ["from __future__ import annotations\n\nimport logging\n\nlog = logging.getLogger(__name__)\n"]
        for number in range(functions * self.times):
            own = name if number == 0 else f"{self.pick(_VERBS)}_{self.pick(_NOUNS)}_{self.random.randrange(100)}"
            noun, limit = self.pick(_NOUNS), self.random.randrange(10, 900)
            parts.append(
                f"def {own}({noun}s: list[dict[str, int]], limit: int = {limit}) -> int:\n"
                f'    """Return how many {noun}s were taken."""\n    taken = 0\n    for {noun} in {noun}s[:limit]:\n'
                f'        if {noun}["amount"] <= {limit // 3}:\n            log.info("skipped %s", {noun}["id"])\n'
                f'            continue\n        {noun}["amount"] -= {limit % 7}\n        taken += 1\n    return taken\n'
            )
        return "\n\n".join(parts)

    def log(self, lines: int) -> str:
        levels = ["INFO"] * 10 + ["DEBUG"] * 4 + ["WARN"] * 2 + ["ERROR first attempt failed, retrying:"]
        return "\n".join(
            f"2026-11-{self.random.randrange(1, 28):02d}T{self.random.randrange(24):02d}:07:09Z "
            f"{self.pick(levels)} {self.pick(_NOUNS)}-worker[{self.random.randrange(900, 9000)}] {self.pick(_VERBS)} "
            f"id={self.random.randrange(16**8):08x} took {self.random.randrange(3, 900)}ms"
            for _ in range(lines * self.times)
        )

    def trace(self, path: str, name: str) -> str:
        return (
            "Traceback (most recent call last):\n"
            + "".join(
                f'  File "/srv/app/{self.pick(self.paths)}", line {self.random.randrange(9, 400)}, in run\n'
                f"    return self.{self.pick(_NOUNS)}.{self.pick(_VERBS)}(batch)\n"
                for _ in range(8)
            )
            + f'  File "/srv/app/{path}", line 88, in {name}\n    raise KeyError(cart)\n'
            + f"KeyError: 'cart-{self.random.randrange(999)}'\n"
        )

    def call(self, tool: str, arguments: dict[str, Any], result: str, outcome: str, **rest: Any) -> None:
        self.events.append(Event("call", tool=tool, arguments=arguments, result=result, outcome=outcome, **rest))

    def run(self, command: str, result: str, outcome: str, exit_code: int | None = None, **rest: Any) -> None:
        self.call("run", {"command": command}, result, outcome, exit_code=exit_code, **rest)

    def work(self, path: str, name: str) -> None:
        """Write what an agent does about one request: read, check, change, check."""
        self.call("read", {"path": path}, self.code(name, self.random.randint(3, 7)), "ok")
        if self.random.random() < 0.5:
            self.run(
                f"grep -rn {name} src", f"{path}:12:def {name}(\n{self.pick(self.paths)}:40:    {name}(rows)", "ok", 0
            )
        if self.random.random() < 0.4:
            failed = self.fill(self.texts["failed"], path, name)
            self.check(path, failed, "failed", 1)
        self.change(path, name)
        if self.random.random() < 0.4:
            self.bait(path, name)
        self.check(path, self.fill(self.texts["passed"], path, name), "ok", 0)
        if self.random.random() < 0.25:
            self.run(f"./bin/enqueue {name}", self.fill(self.texts["vague"], path, name), "unknown")
        if self.random.random() < 0.3:
            self.run(f"kubectl logs deploy/{name.replace('_', '-')} --tail 20", self.log(20), "ok", 0)

    def check(self, path: str, telling: str, outcome: str, exit_code: int) -> None:
        """Run a test whose exit code the client tells."""
        command = f"./test.sh {path.rsplit('/', 1)[1]}"
        self.run(command, self.log(6) + "\n" + telling, outcome, exit_code)

    def change(self, path: str, name: str) -> None:
        number = self.random.randrange(12)
        if number <= 2:
            self.call(
                "edit",
                {"path": path, "old": "taken = 0", "new": f"taken = {name}()"},
                f"The file {path} has been updated.",
                "ok",
                files=((path, "modified"),),
            )
        elif number == 3:
            self.call(
                "edit",
                {"path": path, "old": "taken = nil", "new": "taken = 1"},
                "String to replace not found in file.",
                "failed",
            )
        elif number == 4:
            new = f"tests/{name}_test.py"
            self.call(
                "write",
                {"path": new, "content": self.code(name, 2)},
                f"File created successfully at: {new}",
                "ok",
                files=((new, "created" if new not in self.existing else "modified"),),
            )
            self.existing.add(new)
        elif number == 5:
            self.run(f"sed -i 's/taken/{name}/' {path}", "", "ok", 0, files=((path, "modified"),))
        elif number == 6:
            old, new = f"tmp/{name}.log", f"docs/{name}.md"
            self.run(f"echo '{name}' > {old} && mv {old} {new}", "", "ok", 0, files=((new, "created"),))
            self.existing.add(new)
        elif number == 7:
            missing = f"rm: cannot remove 'build/{name}.o': No such file or directory"
            self.run(f"rm build/{name}.o", missing, "failed", 1)
        else:
            self.move(name)

    def move(self, name: str) -> None:
        """Write one command that copies, moves, appends to or deletes a file, or that changes none."""
        notes = f"notes/{name}.md"
        choices: list[tuple[str, str, tuple[tuple[str, str], ...]]] = [
            (f"git mv {notes} notes/old_{name}.md", "", ((notes, "renamed"), (f"notes/old_{name}.md", "created"))),
            (f"cp config/base.yaml config/{name}.yaml", "", ((f"config/{name}.yaml", "created"),)),
            (f"echo port=9072 | tee -a config/{name}.env", "port=9072", ((f"config/{name}.env", "modified"),)),
            (f"rm -f {notes}", "", ((notes, "deleted"),)),
            (f"ls {notes} || touch {notes}", notes, ()),
            (f"echo 'rm {notes} > {notes}'", f"rm {notes} > {notes}", ()),
        ]
        command, result, files = self.pick(choices)
        self.run(command, result, "ok", 0, files=files)

    def bait(self, path: str, name: str) -> None:
        """Write a call that went well, with words of failure in its result."""
        choices = [
            (
                f"grep -rn FAILED docs/{name}.md",
                "12:- [ ] build FAILED on monday, error: exit code 1\n40:3 failed, 2 passed",
            ),
            (
                "git log --oneline -3",
                f"a81c2d0 Fix failed login error in {name}\n77be310 Revert: tests failed\n5512aa9 Abort on error",
            ),
            (f"cat {path}", f'raise RuntimeError("error: {name} failed")\nFAILED = "failed"\nprint("Error: 3 failed")'),
            (
                f"curl -s localhost:9072/{name}",
                '{"status":"ok","errors":0,"failed":0,"error":null,"last_error":"timeout"}',
            ),
            (f"eslint {path}", "0 errors, 4 warnings"),
        ]
        command, result = self.pick(choices)
        self.run(command, result, "ok", 0)

    def operate(self, name: str) -> None:
        """Write the runs of an operator, whose outputs are those of real tools."""
        host = f"node-{self.random.randrange(10, 99)}"
        run = [
            (
                f"ansible-playbook {name}.yml",
                f"PLAY RECAP ****\n{host} : ok=12 changed=2 unreachable=0 failed=1 skipped=3 rescued=0 ignored=0",
                "failed",
                None,
            ),
            (
                f"ansible-playbook {name}-base.yml",
                f"PLAY RECAP ****\n{host} : ok=14 changed=0 unreachable=0 failed=0 skipped=3 rescued=0 ignored=0",
                "ok",
                None,
            ),
            (
                f"terraform apply -target={name}",
                "Apply complete! Resources: 2 added, 0 changed, 0 destroyed.",
                "ok",
                None,
            ),
            (
                f"./gradlew :{name}:test",
                "> Task :test\n42 tests completed, 3 failed\n\nBUILD FAILED in 41s",
                "failed",
                None,
            ),
            (f"./gradlew :{name}:build", "> Task :build UP-TO-DATE\n\nBUILD SUCCESSFUL in 6s\n0 failed", "ok", None),
            (
                f"kubectl apply -f {name}.yaml",
                f'Error from server (Forbidden): error when creating "{name}.yaml": deployments.apps is forbidden',
                "failed",
                None,
            ),
            (
                f"kubectl get pods -l app={name}",
                f"NAME READY STATUS RESTARTS AGE\n{name}-7c9f 0/1 CrashLoopBackOff 6 9m",
                "ok",
                None,
            ),
            (
                f"gh run view {self.random.randrange(10**6)} --json conclusion,jobs",
                '{"conclusion":"failure","jobs":[{"name":"lint","conclusion":"success"}]}',
                "",
                None,
            ),
            (f"./verifica.sh {name}", "3 test superati, 1 non riuscito", "failed", None),
            (
                f"mvn -q -pl {name} verify",
                "Tests run: 40, Failures: 0, Errors: 0, Skipped: 1\nBUILD SUCCESS",
                "ok",
                None,
            ),
            (
                f"dotnet test {name}",
                "Nicht bestanden!   : Fehler: 2, erfolgreich: 31, übersprungen: 0, gesamt: 33",
                "failed",
                None,
            ),
            (f"./gradlew :{name}:lint", "Errors: 0, warnings: 4", "ok", None),
        ]
        for command, telling, outcome, code in self.random.sample(run, 3):
            self.run(command, self.log(14) + "\n" + telling, outcome, code)

    def talk_about(self, path: str, name: str) -> None:
        answer = self.fill(self.pick(self.texts["answers"]), path, name)
        self.events.append(Event("assistant", answer + "\n\n```python\n" + self.code(name, 4) + "```"))

    def plan(self, done: int, total: int) -> None:
        items = [
            {"content": self.paths[n], "status": "completed" if n < done else "in_progress" if n == done else "pending"}
            for n in range(total)
        ]
        self.call("plan", {"todos": items}, "Todos have been modified successfully.", "ok")

    def write(self) -> list[Event]:
        """Return the events of the whole session."""
        texts, turns = self.texts, self.kind.turns
        self.say(self.fill(texts["task"], self.paths[0], ""), "task")
        rules = {2 + 4 * n: rule for n, rule in enumerate(texts["rules"])}
        first = {3 + 4 * n: value for n, value in enumerate(texts["values"])}
        later = {turns // 2 + 4 * n: value for n, value in enumerate(texts["values"])}
        for turn in range(1, turns):
            path, name = self.pick(self.paths), self.name()
            request = self.fill(self.pick(texts["steps"] + texts["questions"]), path, name)
            if turn in first:
                said, replaced_by, old, new = first[turn]
                self.say(said, "value", replaced_by=replaced_by, old=old, new=new)
            elif turn in later:
                self.say(later[turn][1], "value")
            elif turn in rules:
                self.say(rules[turn], "rule")
            elif turn % 9 == 8:
                self.say(self.pick(texts["talk"]))
            else:
                self.say(request, "talk", self.trace(path, name) if self.random.random() < 0.25 else "")
            self.respond(path, name, turn)
        return self.events

    def say(self, text: str, kind: str = "talk", pasted: str = "", **rest: str) -> None:
        self.events.append(Event("person", text, pasted, kind, **rest))

    def respond(self, path: str, name: str, turn: int) -> None:
        client = self.kind.client
        if client == "chat":
            self.talk_about(path, name)
            return
        if client in ("claude", "opencode") and turn % 6 == 1:
            self.plan(min(turn // 6, 5), 6)
        if client == "ops":
            self.operate(name.replace("_", "-"))
            self.bait(path, name)
        elif client == "aider":
            self.talk_about(path, name)
            if self.random.random() < 0.7:
                self.call(
                    "edit",
                    {"path": path, "old": "taken = 0", "new": f"taken = {name}()"},
                    "",
                    "unknown",
                    files=((path, "modified"),),
                )
                return
        else:
            self.work(path, name)
        if client in ("claude", "opencode", "codex", "cursor") and turn % 5 == 4:
            self.events.append(Event("report", self.fill(self.pick(self.texts["reports"]), path, name)))
        if client == "claude" and turn % 7 == 3:
            self.events.append(
                Event("person", self.fill(self.pick(self.texts["steps"]), path, self.name()), kind="steer")
            )
            self.call("read", {"path": path}, self.code(name, 2), "ok")
        self.events.append(Event("assistant", self.fill(self.pick(self.texts["answers"]), path, name)))


def session(kind: Kind, seed: int, times: int = 1) -> list[Event]:
    """Return a session of this kind; the same for the same seed. times: that its files and logs are as large."""
    return _Writer(kind, seed, times).write()
