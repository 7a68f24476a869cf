"""Shell text as commands: quotes, operators, redirections, heredocs, folders."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.tool_calls.shell import UNKNOWN, commands_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b && c; d | e", [("a", "b"), ("c",), ("d",), ("e",)]),
        ("echo 'a > b' \"c && d\"", [("echo", "a > b", "c && d")]),
        ("# rm x\nls # rm y", [("ls",)]),
        ("F=a.txt; cat $F ${F} $G", [("cat", "a.txt", "a.txt", UNKNOWN)]),
        ("sudo -u root rm x", [("rm", "x")]),
        ("timeout -k 5 30 python x.py", [("python", "x.py")]),
        ("touch a{1,2}.py", [("touch", "a1.py", "a2.py")]),
        ("if [[ $a > b ]]; then rm x; fi", [("[[", UNKNOWN, "", "b", "]]"), ("rm", "x")]),
        ("bash -lc 'cd a && ls'", [("cd", "a"), ("ls",)]),
        ("echo $(rm x) `rm y`", [("echo", UNKNOWN, UNKNOWN)]),
        ("a \\\n  b", [("a", "b")]),
    ],
)
def test_words_are_what_a_shell_makes_of_them(text: str, words: list[tuple[str, ...]]) -> None:
    assert [command.words for command in commands_of(text)] == words


@pytest.mark.parametrize(
    ("text", "redirects"),
    [
        ("a > b 2> c", [(">", "b"), ("2>", "c")]),
        ("a >> b 2>&1", [(">>", "b")]),
        ("a &> 'b c'", [("&>", "b c")]),
        ("a < b > /dev/null", [("<", "b"), (">", "/dev/null")]),
        ("diff <(a) <(b)", []),
    ],
)
def test_redirections_are_read(text: str, redirects: list[tuple[str, str]]) -> None:
    assert commands_of(text)[0].redirects == redirects


def test_what_a_heredoc_holds_is_no_command() -> None:
    cat, ls = commands_of("cat > a <<'EOF' && ls\nrm -rf /\nEOF\n")
    assert (cat.fed, cat.redirects, ls.words) == ("rm -rf /", [(">", "a")], ("ls",))
    (late,) = commands_of("cat <<EOF\nnever ended")
    assert late.fed == "never ended"


def test_folders_hold_until_their_parenthesis_closes() -> None:
    found = commands_of("(cd sub && cat x); cat y; cd /r; cat z; cat /abs")
    assert [command.path(command.words[1]) for command in found if command.program == "cat"] == [
        *("sub/x", "y", "/r/z", "/abs")
    ]


@pytest.mark.parametrize("word", ["/dev/null", "", "-", UNKNOWN, f"a/{UNKNOWN}"])
def test_what_is_no_file_has_no_path(word: str) -> None:
    assert commands_of("x")[0].path(word) is None


@given(st.text(alphabet="ab '\"\\$`(){}<>|&;\n#=EOF[]-", max_size=200))
def test_any_text_is_read_to_its_end(text: str) -> None:
    assert all(isinstance(word, str) for command in commands_of(text) for word in command.words)


def test_variables_that_hold_variables_do_not_multiply_the_text() -> None:
    text = "a=0123456789;" + "".join(f"{name}={f'${held}' * 10};" for held, name in pairwise("abcdefghij"))
    words = [word for command in commands_of(f"{text}echo $j $a") for word in command.words]
    assert words[0] == "echo"
    assert sum(map(len, words)) < 100_000
