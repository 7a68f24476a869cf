"""What tools do, by name and arguments."""

from __future__ import annotations

import pytest

from policies.tool_calls.tools import Kind, arguments_of, commands_in, deed_of, kind_of, words_of


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MultiEdit", ("multi", "edit")),
        ("mcp__filesystem__move_file", ("move", "file")),
        ("developer__text_editor", ("text", "editor")),
        ("functions.exec_command", ("exec", "command")),
        ("HTTPGet", ("http", "get")),
    ],
)
def test_names_are_read_as_words_without_their_server(name: str, words: tuple[str, ...]) -> None:
    assert words_of(name) == words


@pytest.mark.parametrize(
    ("name", "deed"),
    [
        *(("write_file", "written"), ("create_or_update_file", "written"), ("str_replace", "modified")),
        *(("search_replace", "modified"), ("apply_diff", "modified"), ("view_diff", None), ("read_file", None)),
        *(("delete_file", "deleted"), ("rename_symbol", "renamed"), ("git_diff", "modified"), ("run_tests", None)),
    ],
)
def test_verbs_say_what_a_tool_does_to_its_file(name: str, deed: str | None) -> None:
    assert deed_of(words_of(name)) == deed


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("read_file", {"path": "a"}, "read"),
        ("get_user", {"id": 1}, "other"),
        ("bash", {"command": "cd a && cat b | head -3"}, "read"),
        ("bash", {"command": "cat a > b"}, "shell"),
        ("bash", {"command": "find . -delete"}, "shell"),
        ("bash", {"command": "git log -3"}, "read"),
        ("bash", {"command": "git commit -m x"}, "shell"),
        ("str_replace_editor", {"command": "view", "path": "a"}, "read"),
        ("str_replace_editor", {"command": "insert", "path": "a"}, "change"),
        ("TodoWrite", {"todos": []}, "plan"),
        ("Task", {"prompt": "x"}, "agent"),
        ("spawn_agent", {"message": "x"}, "agent"),
        ("delegate_to_subagent", {"prompt": "x"}, "agent"),
        ("TaskCreate", {"subject": "x"}, "plan"),
        ("list_agents", {}, "other"),
        ("grep", {"q": "x"}, "read"),
    ],
)
def test_a_call_reads_changes_or_runs(name: str, arguments: object, kind: Kind) -> None:
    words = words_of(name)
    assert kind_of(words, arguments, commands_in(words, arguments)) == kind


def test_arguments_are_json_tags_or_a_text() -> None:
    assert arguments_of('{"a": 1}') == {"a": 1}
    assert arguments_of("<path>a.py</path>\n<content>\nx < 1\n</content>") == {"path": "a.py", "content": "x < 1"}
    assert arguments_of("ls -la") == "ls -la"


def test_an_argument_vector_is_one_command_or_a_shells_script() -> None:
    words = words_of("shell")
    assert [c.words for c in commands_in(words, {"command": ["rm", "a b"]})] == [("rm", "a b")]
    assert [c.words for c in commands_in(words, {"command": ["bash", "-lc", "rm a && ls"]})] == [("rm", "a"), ("ls",)]
    assert commands_in(words_of("shell"), {"action": 1}) == ()
