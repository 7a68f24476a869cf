"""What the documents say is so: commands, targets, files, links, names, headers, presets, numbers and the example."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from bisect import bisect_left
from functools import cache
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from policies import model_profile, numbers
from policies.conversation.conversation import Conversation
from policies.conversation.prefix_digests import prefix_digests
from policies.conversation.transcript import Utterance
from policies.decision.assemble import Injected, assemble
from policies.decision.budget import usable_input
from policies.decision.cut import Cut
from policies.record import record as records
from policies.record.record import Occasion, Record, RecordContext, Span
from policies.settings import DEFAULTS, PolicySettings
from proxy.cli import main as cli
from proxy.cli import printing
from proxy.cli.main import app
from proxy.compaction.plan_input import Mode, Outcome
from proxy.config.loading import load, load_text, preset_names
from proxy.dialects.table import CHAT
from proxy.models.tokenizer import DEFAULT_ENCODING, Tokenizer

describe = CHAT.items.describe
utterances = CHAT.items.utterances

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
DESIGN = (ROOT / "docs/design.md").read_text("utf-8")
LOCKS = ("requirements.lock", "requirements-image.lock", "requirements-dev.lock")
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.parent.name != "reference" or path.name in ("index.md", "headers.md", "log.md")
)

_COMMAND = re.compile(r"\bconcertina ([a-z]+)(?: ([a-z]+)(?![\w./-]))?")
_OF_EARLIER = ("CHANGELOG.md", "docs/upgrading.md")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_REFERENCE = re.compile(r'docs/design\.md`?,\s+(?:#\s+)?"([^"]+)"')


@cache
def files() -> tuple[Path, ...]:
    """Every file of the repository, also those that are not added yet; a checkout without git has no list."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this is no git checkout: run `git clone`")
    return tuple(path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file())


@cache
def source() -> str:
    """All code, prompts and presets of the two packages, and the config."""
    found = [path for code in ("policies", "proxy", "tests/real") for path in sorted((ROOT / code).glob("**/*.*"))]
    texts = [path.read_text("utf-8") for path in found if path.suffix in (".py", ".md", ".yaml")]
    found += [path for folder in ("tests", "benchmarks") for path in sorted((ROOT / folder).glob("**/*.py"))]
    return "\n".join(
        [
            *texts,
            (ROOT / "config.yaml").read_text("utf-8"),
            *(name for path in found for name in (path.stem, path.parent.name)),
        ]
    )


@cache
def words() -> list[str]:
    return sorted(set(re.findall(r"\w+", source())))


def begins_a_word(text: str) -> bool:
    """Whether a word of the code is this, or goes on from it."""
    at = bisect_left(words(), text)
    return at < len(words()) and words()[at].startswith(text)


def text_of(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def block(kind: str) -> str:
    """The one fenced block of this kind in docs/design.md."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)\n```$", DESIGN, re.MULTILINE | re.DOTALL)
    return str(found)


def table(heading: str) -> list[list[str]]:
    """The rows below a table's heading row in docs/design.md, without the line under it."""
    lines = DESIGN[DESIGN.index(heading) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_that_is_mentioned_exists(document: str) -> None:
    mentioned = [found for code in _CODE.findall(text_of(document)) for found in _COMMAND.findall(code)]
    removed = {command for command, option in cli._REMOVED if not option} if document in _OF_EARLIER else set()
    for command, sub in mentioned:
        if command in removed:
            continue
        assert command in app, command
        known = {*printing._FILES, "helm", "client"} if command == "print" else app[command]
        assert not sub or sub in known, f"{command} {sub}"


# What README's commands need to run to their end; of the others the help is asked for.
_ARGUMENTS = {"check": "", "explain": "request.json", "models": "gpt-4o", "sessions ls": "", "replay": "request.json"}


def test_the_commands_of_the_readme_run_after_the_line_that_puts_them_on_the_path(tmp_path: Path) -> None:
    activate = ". .venv/bin/activate"
    assert README.index(activate) < README.index("`concertina check`")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "request.json").write_text(
        json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "a"}]})
    )
    mentioned = {" ".join(filter(None, found)) for found in _COMMAND.findall(README)}
    assert mentioned >= {"check", "explain", "models", "replay"}
    named = {name if name in _ARGUMENTS or "sessions" in name else name.partition(" ")[0] for name in mentioned}
    lines = [f"concertina {name} {_ARGUMENTS.get(name, '--help')}" for name in sorted(named)]
    script = "\n".join(["set -e", activate, *lines])
    ended = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    nothing = "nothing is stored: var/concertina.db does not exist; `concertina serve` creates it\n"
    assert (ended.returncode, ended.stderr) == (0, nothing), script


# Traefik's config, and what needs a module or a server.
PARTS_OF_OTHERS = ("http:\n", "hooks:", "store: ")


def test_the_configs_of_the_documents_are_taken() -> None:
    blocks = [
        (document, text)
        for document in DOCUMENTS
        for text in re.findall(r"^```yaml\n(.*?)^```$", text_of(document), re.MULTILINE | re.DOTALL)
        if not text.startswith(PARTS_OF_OTHERS)
    ]
    assert len(blocks) >= 10
    for document, text in blocks:
        load_text(document, text.replace("sha256:…", f"sha256:{'0' * 64}"), {"ACME_OPENAI_KEY": "key"})


def test_the_documents_mention_commands_at_all() -> None:
    mentioned = {command for document in DOCUMENTS for command, _ in _COMMAND.findall(text_of(document))}
    assert {"serve", "check"} <= mentioned


@pytest.mark.parametrize("document", [*DOCUMENTS, ".ci/run", "Dockerfile"])
def test_every_make_target_that_is_mentioned_exists(document: str) -> None:
    makefile = text_of("Makefile")
    mentioned = re.findall(
        r"(?:^|`|\s)make ([a-z]+)", "\n".join([*_CODE.findall(text_of(document)), *commands(document)])
    )
    for target in mentioned:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def commands(document: str) -> list[str]:
    """Lines of shell: fenced ones, and whole scripts."""
    text = text_of(document)
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if document.endswith(".md") else [text]


def test_every_make_target_says_what_it_does() -> None:
    makefile = text_of("Makefile")
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    for target in phony.split():
        assert re.search(rf"^{target}:.* ## \S", makefile, re.MULTILINE), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_inside_the_repository_leads_somewhere(document: str) -> None:
    for target in _LINK.findall(text_of(document)):
        if "://" not in target:
            assert (ROOT / document).parent.joinpath(target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if document not in _OF_EARLIER])
def test_every_file_that_is_named_exists(document: str) -> None:
    named = [
        code for code in _CODE.findall(text_of(document)) if re.fullmatch(r"[\w.-][\w./-]*\.(?:py|md|yaml|json)", code)
    ]
    for name in set(named) - FILES_OF_OTHERS:
        places = [ROOT / name, *(ROOT / package / name for package in ("proxy", "policies"))]
        assert any(place.exists() for place in places), name


# Files and names of other programs.
FILES_OF_OTHERS = {"opencode.json", "tokenizer.json", "config.toml", "request.json", "compose.yaml"}
OF_OTHERS = {
    *("openai_base_url", "http_headers", "context_window_fallbacks", "model_context_window_exceeded", "held_out"),
    *("flush_interval", "lb_try_duration", "normalize_path", "merge_slashes", "lb_policy", "hash_policy"),
    *("allow_chunked_length", "runbook_url", "non_idempotent", "default_headers", "get_spec"),
}


@pytest.mark.requirement("R3 8.2 documents")
@pytest.mark.parametrize("document", [document for document in DOCUMENTS if document != "CHANGELOG.md"])
def test_every_name_in_code_marks_is_one_of_the_code(document: str) -> None:
    """Settings, modules, functions, reasons and fields: whatever is written like an identifier."""
    for code in _CODE.findall(text_of(document)):
        for name in set(re.findall(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+", code)) - OF_OTHERS:
            metric = name.removeprefix("concertina_").removesuffix("_total")
            assert any(begins_a_word(prefix + metric) for prefix in ("", "_", "concertina_")), name


def test_the_table_of_presets_names_settings() -> None:
    (header,) = re.findall(r"^\| preset \|(.+)$", DESIGN, re.MULTILINE)
    assert set(_CODE.findall(header)) <= PolicySettings.model_fields.keys()


def test_the_headers_and_outcomes_of_the_reference_are_those_of_the_code() -> None:
    page = text_of("docs/reference/headers.md")
    headers = page.partition("## Of a response")[2].partition("What `x-compaction` says")[0]
    report = (ROOT / "proxy/pipeline/report.py").read_text("utf-8")
    sent = set(re.findall(r'b"(x-compaction[\w-]*|server-timing)"', report))
    rows = re.findall(r"^\| (`[^|]+) \|", headers, re.MULTILINE)
    named = [name.lower() for row in rows for name in _CODE.findall(row)]
    assert {f"x-compaction{name}" if name.startswith("-") else name for name in named} == sent
    (outcomes,) = re.findall(r"^\| `x-compaction` \| (.+) \|$", headers, re.MULTILINE)
    assert set(_CODE.findall(outcomes)) == set(get_args(Outcome))
    assert f"`x-compaction: {' | '.join(get_args(Mode))}`" in page
    assert f"`x-compaction: {' | '.join(get_args(Mode))}`" in DESIGN
    assert {row[0].strip("`") for row in table("| `x-compaction` | reasons |")} == set(get_args(Outcome))


@pytest.mark.requirement("R3 3.1 compactionThreshold")
def test_the_presets_table_is_right() -> None:
    heading = DESIGN[DESIGN.index("| preset |") :].splitlines()[0]
    settings = _CODE.findall(heading)
    rows = table("| preset |")
    policies = load(None, {}).policies
    assert {row[0].strip("`") for row in rows} == set(preset_names())
    for name, *values in rows:
        policy = policies[name.strip("`")]
        assert values == [str(getattr(policy, setting)) for setting in settings], name
        changed = {key for key in PolicySettings.model_fields if getattr(policy, key) != getattr(DEFAULTS, key)}
        assert changed <= {*settings, "min_target_ratio", "summarizer", "working_set", "recall", "shorten"}, (
            "a preset changes what the table does not show"
        )


def test_the_budgets_of_memory_are_those_of_the_presets() -> None:
    memory = (ROOT / "docs/memory.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) % \| (\d+) % \|$", memory, re.MULTILINE)
    assert {name for name, *_ in rows} == set(preset_names())
    for name, share, recalled in rows:
        policy = load(None, {}).policies[name]
        assert policy.working_set.budget_ratio == int(share) / 100
        assert policy.working_set.max_tokens == (16_000 if name == "cost" else None)
        assert policy.recall.budget_ratio == int(recalled) / 100


@pytest.mark.requirement("R1 5.2 end", "R3 4.3 response", "R3 8.2 documents")
@pytest.mark.parametrize(
    ("said", "holds"),
    [
        ("what is asked for, at most 32,000", (numbers.MOST_RESERVED,)),
        ("unasked a tenth of W, at most 8,000", (numbers.DEFAULT_RESERVED,)),
        ("small windows: 1,400, at most 30 % of M), 8,000", (numbers.SMALL_RECORD, 30, numbers.MOST_RECORD)),
        ("worst of the last 16 ratios", (model_profile.CALIBRATION_OBSERVATIONS,)),
        ("to estimated tokens, 1 to 6", tuple(map(int, model_profile.CALIBRATION_RANGE))),
        ("24 hours, or until", (model_profile.LEARNED_TTL // 3600,)),
        ("at 0.50, 0.25 and 0.125 of", numbers.RETRY_TARGETS),
        ("Requests below 0.60 M", (DEFAULTS.apply_floor,)),
        ("at most 6 times, not below 4 messages", (DEFAULTS.bisect.max_depth, DEFAULTS.bisect.min_messages)),
        ("At most 16 calls, 60 s for all", (DEFAULTS.bisect.max_calls, DEFAULTS.summarizer.timeout)),
        ("2,000 tokens or 15 % of M", (DEFAULTS.min_gain.tokens, 15)),
    ],
)
def test_the_numbers_are_those_in_force(said: str, holds: tuple[float, ...]) -> None:
    assert said in " ".join(DESIGN.split())
    assert tuple(float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?<!,)", said)) == holds


def test_front_ends_of_the_documents_let_pass_what_the_proxy_takes() -> None:
    sizes = re.findall(r"client_max_body_size (\d+)m;", text_of("docs/front-ends.md"))
    assert [int(size) << 20 for size in sizes] == [load(None, {}).server.max_body_bytes]


def example() -> tuple[Conversation, Record]:
    """The example's conversation, and the record of everything before its last message."""
    tokenizer = Tokenizer()
    messages = [json.loads(line) for line in block("jsonl").splitlines()]
    described = [describe(message, lambda text: tokenizer.count(text, DEFAULT_ENCODING)) for message in messages]
    conversation = Conversation([message for message in described if message is not None])
    cut = len(conversation.body) - 1
    digests = prefix_digests(b"scope", conversation.body)
    units = len(conversation.units)
    kept = conversation.kept_tokens(cut)
    span = Span(
        utterances=tuple(spoken(messages[1:-1])),
        cut=Cut(cut, "L0", "turn-boundary", kept, units_total=units, units_kept=1),
        digest=digests[cut].hex(),
        first_digest=digests[1].hex(),
        last_digest=digests[cut].hex(),
        first_user=0,
        repeated=conversation.anchors(cut),
    )
    context = RecordContext(
        span=span,
        parent=None,
        statements=records.statements_of(span, None, DEFAULTS.ledger),
        budget=usable_input(8_192, None, exact=True),
        settings=DEFAULTS.ledger,
        segments=DEFAULTS.summarizer.history_segments,
        count=lambda text: tokenizer.count(text, DEFAULT_ENCODING),
    )
    occasion = Occasion(
        trigger="proactive",
        tokens_before=conversation.total_tokens,
        tokens_kept=conversation.head_tokens + kept,
        title="Summary of conversation from 2026-11-21T23:06:40+00:00 to 2026-11-22T00:26:56+00:00",
        started=1_795_302_400.0,
        now=1_795_304_816.0,
    )
    return conversation, records.build(context, None, occasion)


def spoken(messages: list[object]) -> list[Utterance]:
    return [said for position, message in enumerate(messages) for said in utterances(message, position, ())]


@pytest.mark.requirement("R0 2.2 strategy", "R0 2.3", "R0 11 B3", "R3 3.3 ids", "R3 3.4 title", "R3 7.3 example")
def test_the_example_record_is_what_the_code_makes() -> None:
    conversation, record = example()
    assert block("text") == record.text
    made = json.loads(re.sub(r"[0-9a-f]{48}(?=\")", "…", msgspec.json.encode(record).decode()))
    stored = json.loads((Path(__file__).parent / "example_record.json").read_text("utf-8"))
    assert stored == made | {"text": "…", "uses": "…"}
    assert assemble(conversation, record.covered, record.text) == [0, Injected(record.text), 6]


def test_the_digests_formulas_are_those_of_the_code() -> None:
    conversation, _ = example()
    scope, body = b"scope", conversation.body
    start = hashlib.sha256(b"v1" + scope).digest()
    first = hashlib.sha256(start + body[0].digest).digest()
    assert prefix_digests(scope, body)[:2] == [start, first]


@pytest.mark.parametrize(
    "pattern", [r"pypi\.org", r"pythonhosted", r"npmjs\.", r"index-url", r"/work/(?:main|shared)", r"/tmp/boot"]
)
def test_no_file_names_a_registry_or_what_lies_outside(pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        if re.search(pattern.encode(), line)
    ]
    assert not found


def test_nothing_is_installed_from_an_index_that_lacks_it() -> None:
    told = [path for path in files() if "pip install 'concertina" in path.read_text("utf-8", "ignore")]
    assert told == [Path(__file__)]


def test_nothing_built_lies_in_the_repository() -> None:
    built = (".whl", ".gz", ".egg", ".so", ".pyc", ".zip", ".db", ".sqlite")
    assert not [path.name for path in files() if path.suffix in built]


def test_the_locks_hold_a_hash_for_everything_and_name_no_host() -> None:
    for name in LOCKS:
        lock = text_of(name)
        assert "://" not in lock
        assert not re.search(r"^-", lock, re.MULTILINE)
        pinned = re.split(r"\n(?=[\w])", lock.strip())
        assert all(" --hash=sha256:" in entry and "==" in entry for entry in pinned), name


def test_what_is_installed_for_tests_holds_all_that_is_installed_to_run() -> None:
    run, image, test = (dict(re.findall(r"^([\w-]+)==([\w.]+)", text_of(name), re.MULTILINE)) for name in LOCKS)
    assert run.items() <= image.items() <= test.items()
    assert {"mcp", "opentelemetry-sdk"} <= image.keys()


def test_sections_of_the_design_are_referred_to_by_names_that_it_has() -> None:
    names = set(re.findall(r"^(?:## |\*\*)([^*\n]+?)\.?(?:\*\*|$)", DESIGN, re.MULTILINE))
    texts = {path: path.read_text("utf-8") for path in files() if path.suffix in (".py", ".md")}
    found = [(path, name) for path, text in texts.items() for name in _REFERENCE.findall(text)]
    assert len(found) > 20
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in found if name not in names]
    assert not [
        path.relative_to(ROOT) for path, text in texts.items() if re.search(r"design\.md`?, sections? \d", text)
    ]
