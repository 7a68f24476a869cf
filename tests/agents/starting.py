"""How real agents are started, from their packages at pinned versions, in a home of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

MODULES = Path(__file__).parent / "node_modules"
CLAUDE = "@anthropic-ai/claude-code-linux-*/claude"
CODEX = "@openai/codex-linux-*/vendor/*/bin/codex"
OPENCODE = "opencode-linux-*/bin/opencode"
CLINE = "@cline/cli-linux-*/bin/cline"
QWEN = MODULES / "@qwen-code" / "qwen-code" / "cli.js"
KEY = "sk-test"
NOWHERE = "http://127.0.0.1:9"
# No network but this machine, for what obeys proxies (qwen-code would send everything to one).
ALONE = {"HTTPS_PROXY": NOWHERE, "HTTP_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
QUIET_OPENCODE = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}

Arguments = Callable[[Path, str], list[str]]
"""For its home and the server's address; files that it reads are written there."""


def installed(program: str) -> Iterator[Path]:
    """Programs below node_modules, with * for what is named after this machine."""
    return (path for path in sorted(MODULES.glob(program)) if shutil.which(path) is not None)


def claude(model: str, task: str) -> Arguments:
    return lambda _home, _address: ["-p", "--dangerously-skip-permissions", "--model", model, task]


def claudes(address: str) -> dict[str, str]:
    quiet = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER", "IS_SANDBOX")
    return {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": KEY, **dict.fromkeys(quiet, "1")}


def codex(task: str, settings: str = "") -> Arguments:
    """settings: further lines of its config."""

    def arguments(home: Path, address: str) -> list[str]:
        provider = f'base_url = "{address}/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
        chosen = f'model = "gpt-5"\nmodel_provider = "concertina"\n{settings}'
        (home / ".codex").mkdir()
        config = f'{chosen}[model_providers.concertina]\nname = "Concertina"\n{provider}'
        (home / ".codex" / "config.toml").write_text(config)
        return ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", task]

    return arguments


def codex_built_in(task: str, window: int) -> Arguments:
    """On its own provider, which is moved to the server: its requests are those that OpenAI gets. window: of the model,
    as it is told."""

    def arguments(home: Path, address: str) -> list[str]:
        (home / ".codex").mkdir()
        chosen = f'model = "gpt-5"\nopenai_base_url = "{address}/v1"\nmodel_context_window = {window}\n'
        (home / ".codex" / "config.toml").write_text(chosen)
        return ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", task]

    return arguments


def opencode(task: str, model: str, context: int) -> Arguments:
    """context: the model's window, as it is told."""

    def arguments(home: Path, address: str) -> list[str]:
        models = {model: {"limit": {"context": context, "output": 4_096}}}
        options = {"baseURL": f"{address}/v1", "apiKey": KEY}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": models}
        allowed = {"bash": "allow", "read": "allow", "edit": "allow"}
        config = {"provider": {"concertina": provider}, "model": f"concertina/{model}", "permission": allowed}
        folder = home / ".config" / "opencode"
        folder.mkdir(parents=True)
        (folder / "opencode.json").write_text(json.dumps(config))
        return ["run", task]

    return arguments


def qwen(task: str, model: str, window: int | None = None) -> Arguments:
    """window: the model's, as it is told; by its name unless given."""

    def arguments(home: Path, _address: str) -> list[str]:
        (home / ".qwen").mkdir()
        quiet = {"privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}}
        settings: dict[str, object] = quiet | {"general": {"enableAutoUpdate": False, "disableAutoUpdate": True}}
        if window is not None:
            settings["model"] = {"generationConfig": {"contextWindowSize": window}}
        (home / ".qwen" / "settings.json").write_text(json.dumps(settings))
        return [str(QWEN), "--yolo", "--auth-type", "openai", "-m", model, task]

    return arguments


def cline(task: str, model: str, window: int) -> Arguments:
    """window: the model's, as it is told."""

    def arguments(home: Path, address: str) -> list[str]:
        name, served = "openai-compatible", {"baseUrl": f"{address}/v1", "apiKey": KEY}
        told = {"id": model, "name": model, "contextWindow": window, "maxInputTokens": window}
        models = {model: told | {"capabilities": ["streaming", "tools"]}}
        settings = {"provider": name, "model": model, **served}
        chosen = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
        described = {"name": name, "baseUrl": served["baseUrl"], "defaultModelId": model}
        folder = home / ".cline" / "data" / "settings"
        folder.mkdir(parents=True)
        providers = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: chosen}}
        (folder / "providers.json").write_text(json.dumps(providers))
        known = {"version": 1, "providers": {name: {"provider": described, "models": models}}}
        (folder / "models.json").write_text(json.dumps(known))
        return ["--compaction", "agentic", "-P", name, "-m", model, task]

    return arguments
