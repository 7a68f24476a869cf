"""The settings of a policy: defaults, bounds and cross-field rules."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from policies.settings import DEFAULTS, PolicySettings
from proxy.config.loading import preset_names
from proxy.config.presets import presets


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("250ms", 0.25), ("10s", 10), ("2m", 120), ("1h", 3600), (" 1.5 m ", 90), ("7", 7), (3, 3), (0.5, 0.5), (0, 0)],
)
def test_a_duration_is_a_number_with_or_without_a_unit(written: object, seconds: float) -> None:
    assert PolicySettings.model_validate({"keepalive": written}).keepalive == seconds


@pytest.mark.parametrize("written", ["", "s", "10 years", "-1s", "1e3", "٣s", None, [], "9" * 5000, "inf"])
def test_anything_else_is_no_duration(written: object) -> None:
    with pytest.raises(ValidationError, match="must be a duration such as 250ms, 10s, 2m, 1h or 7d"):
        PolicySettings.model_validate({"keepalive": written})


@pytest.mark.parametrize(
    ("written", "tokens"),
    [("32k", 32_000), ("1M", 1_000_000), (" 1.5 K ", 1_500), ("62500", 62_500), (62_500, 62_500), ("0.001m", 1_000)],
)
def test_tokens_are_a_number_with_or_without_a_unit(written: object, tokens: int) -> None:
    assert PolicySettings.model_validate({"token_limit": written}).token_limit == tokens


@pytest.mark.parametrize("written", ["", "k", "32 kB", "-1k", "1e3", "1.0005k", "٣k", "9" * 5000])
def test_anything_else_is_no_number_of_tokens(written: object) -> None:
    with pytest.raises(ValidationError, match="must be a whole number of tokens, such as 32768, 32k or 1M"):
        PolicySettings.model_validate({"token_limit": written})


@pytest.mark.requirement("R0 3.2 overlap")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"apply_floor": 0.8}, "apply_floor (0.8) must be below compaction_threshold (0.8)"),
        ({"compaction_threshold": 0.95}, "compaction_threshold (0.95) exceeds overflow_threshold (0.9)"),
        ({"min_target_ratio": 0.5}, "min_target_ratio (0.5) must not be above target_ratio (0.45)"),
        ({"target_ratio": 0.75}, "target_ratio (0.75) must be 0.1 or more below compaction_threshold (0.8)"),
        ({"min_overlap": 4}, "min_overlap (4) must be below min_rounds (4)"),
        (
            {"apply_floor": 0.9, "target_ratio": 0.3},
            (
                "apply_floor (0.9) must be below compaction_threshold (0.8);"
                " min_target_ratio (0.4) must not be above target_ratio (0.3)"
            ),
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_both_values(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        PolicySettings.model_validate(changes)
    assert caught.value.errors()[0]["msg"] == f"Value error, {message}"


def test_a_gap_of_exactly_a_tenth_is_enough_despite_binary_fractions() -> None:
    assert PolicySettings(target_ratio=0.7, compaction_threshold=0.8).target_ratio == 0.7


@pytest.mark.parametrize(
    "changes",
    [
        {"message_limit": True},
        {"retry_on_overflow": 4},
        {"compaction_threshold": float("nan")},
        {"compaction_threshold": 80},
        {"ledger": {"directives": [" "]}},
        {"summarizer": {"timeout": 0}},
        {"mode": True},
        {"unknown": 1},
        {"bisect": {"unknown": 1}},
        {"pins": "tool:spec"},
        {"pins": ["spec"]},
        {"pins": ["tool: "]},
        {"pins": [f"file:{'a' * 200}"]},
        {"pins": ["tool:spec"] * 33},
        {"pins": {"match": ["tool:spec"], "budget_ratio": 0.31}},
    ],
)
def test_values_out_of_bounds_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PolicySettings.model_validate(changes)


def test_a_list_of_pins_says_what_a_group_does() -> None:
    matches = ["tool:spec", " file: docs/*.md"]
    short, long = ({"pins": matches}, {"pins": {"match": matches, "budget_ratio": 0.15}})
    assert PolicySettings.model_validate(short) == PolicySettings.model_validate(long)
    assert PolicySettings.model_validate(short).pins.match == ("tool:spec", "file:docs/*.md")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        DEFAULTS.mode = "off"


def test_every_setting_says_in_one_line_what_it_is() -> None:
    def undescribed(model: type[BaseModel]) -> list[str]:
        return [name for name, field in model.model_fields.items() if not one_line(field.description)]

    def one_line(text: str | None) -> bool:
        return text is not None and "\n" not in text and text.endswith(".")

    groups = [value for _, value in DEFAULTS if isinstance(value, BaseModel)]
    assert [undescribed(type(group)) for group in (DEFAULTS, *groups)] == [[]] * (1 + len(groups))


def test_the_presets_are_those_that_the_documentation_names() -> None:
    assert preset_names() == ("chat", "coding-agent", "cost", "default", "observe")


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_valid_and_writes_only_what_it_changes(name: str) -> None:
    written = presets()[name]
    policy = PolicySettings.model_validate(written)
    assert all(getattr(policy, key) != getattr(DEFAULTS, key) for key in written)
