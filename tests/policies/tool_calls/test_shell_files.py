"""Shell commands: what each program does to files."""

from __future__ import annotations

import pytest

from policies.tool_calls.shell import commands_of
from policies.tool_calls.shell_files import command_effects


@pytest.mark.parametrize(
    ("command", "effects"),
    [
        ("echo x > a", [("written", "a", "")]),
        ("echo x >> a 2> b", [("appended", "a", ""), ("written", "b", "")]),
        ("tee -a a b", [("appended", "a", ""), ("appended", "b", "")]),
        ("mv a b", [("renamed", "a", "b")]),
        ("mv -t d a b", [("renamed", "a", "d/a"), ("renamed", "b", "d/b")]),
        ("cp -r a b/", [("copied", "b/a", "a")]),
        ("rm -rf a 'b c'", [("deleted", "a", ""), ("deleted", "b c", "")]),
        ("sed -i.bak -e s/a/b/ -e s/c/d/ x y", [("modified", "x", ""), ("modified", "y", "")]),
        ("sed -i '' s/a/b/ x", [("modified", "x", "")]),
        ("sed -n 1,5p x", []),
        ("sed -E s/a/b/ x", []),
        ("perl -i -pe s/a/b/ x", [("modified", "x", "")]),
        ("perl -ne print x", []),
        ("git -C r mv a b", [("renamed", "a", "b")]),
        ("git rm --cached a", []),
        ("git checkout main", []),
        ("git restore --staged a", []),
        ("dd if=a of=b bs=1", [("written", "b", "")]),
        ("ln -s a b", [("created", "b", "")]),
        ("truncate -s 0 a", [("written", "a", "")]),
        ("install -m 755 a /usr/bin/a", [("copied", "/usr/bin/a", "a")]),
        ("curl -o a x", [("written", "a", "")]),
        ("Remove-Item -Path a -Force", [("deleted", "a", "")]),
        ("Set-Content -Path a -Value x", [("written", "a", "")]),
        ("Move-Item a b", [("renamed", "a", "b")]),
        ("python s.py", []),
        ("python -c \"open('a','w')\"", [("written", "a", "")]),
        ("str_replace_editor view a", []),
        ("cat a | grep b", []),
    ],
)
def test_a_program_does_what_its_row_says(command: str, effects: list[tuple[str, str, str]]) -> None:
    assert [(effect.deed, effect.path, effect.other) for effect in command_effects(commands_of(command))] == effects


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("ls x || mkdir y", []),
        ("[ -f a ] || touch a; echo b > c", ["c"]),
        ("make || { rm -rf out; echo x > y; }; touch z", ["z"]),
        ("(cd x || mkdir x; touch q) || (touch r; touch s)", ["x/q"]),
        ("a | tee x || cat b | tee y", ["x"]),
        ("if test -f a; then touch b; elif test -f c; then touch d; else touch e; fi; touch f", ["f"]),
        ("case $x in a) touch b;; *) touch c;; esac; touch d", ["d"]),
        ("bash -c 'mkdir q' || bash -c 'mkdir r > s'", ["q"]),
        ("cd x || exit 1\ntouch y", ["x/y"]),
        ("mkdir a || true && touch b", ["a", "b"]),
        ("false || touch z", ["z"]),
        ("[ -d build ] && rm -rf build; make", []),
        ("test -f .env && cp .env .env.bak; ls", []),
        ("grep -q x a && rm a; true", []),
        ("! [[ -e a ]] && touch a && touch b\ntouch c", ["c"]),
        ("cat a | grep x && rm a; ls", []),
        ("command -v node && touch a || touch b", []),
        ("git diff --quiet && rm a; ls", []),
        ("(( n > 1 )) && rm a; ls", []),
        ("[ -d a ] && { rm -rf a; touch b; }; touch c", ["c"]),
        ("[ -d a ] && (rm -rf a); touch c", ["c"]),
        ("for f in *; do [ -f a ] && rm a; done", []),
        ("bash -c '[ -d a ] && rm -rf a'; make", []),
        ("bash -c '[ -d a ] && rm -rf a; make'", []),
        ("[ -d a ] && rm -rf a &", []),
        ("ls && [ -d a ] && touch b && touch c", ["b", "c"]),
        ("bash -lc 'grep -q x a && rm a'\n", ["a"]),
        ("mkdir a && touch b; ls", ["a", "b"]),
    ],
)
def test_what_may_not_have_run_changes_no_file(command: str, paths: list[str]) -> None:
    assert [effect.path for effect in command_effects(commands_of(command))] == paths
