"""Patches: which files they touch, and the first line that they change."""

from __future__ import annotations

import pytest

from policies.tool_calls.effects import Effect
from policies.tool_calls.patches import block_effects, first_difference, patch_effects

CODEX = """*** Begin Patch
*** Add File: n.py
+x = 1
*** Update File: a.py
*** Move to: b.py
@@
-y = 1
+y = 2
*** Delete File: o.py
*** End Patch"""
GIT = """diff --git a/x.c b/x.c
--- a/x.c
+++ b/x.c
@@ -1 +1 @@
-int x;
+int y;
--- /dev/null
+++ b/new.c
@@ -0,0 +1 @@
+int z;
--- a/old.c
+++ /dev/null
@@ -1 +0,0 @@
-int z;
"""


@pytest.mark.parametrize(
    ("patch", "effects"),
    [
        (
            CODEX,
            [
                Effect("created", "n.py", "", "x = 1"),
                Effect("renamed", "a.py", "b.py", "y = 2"),
                Effect("deleted", "o.py"),
            ],
        ),
        (
            GIT,
            [
                Effect("modified", "x.c", "", "int y;"),
                Effect("created", "new.c", "", "int z;"),
                Effect("deleted", "old.c"),
            ],
        ),
        ("similarity index 100%\nrename from a.c\nrename to b.c\n", []),
        ("rename from a.c\nrename to b.c\n", [Effect("renamed", "a.c", "b.c")]),
        ("no patch at all", []),
    ],
)
def test_a_patch_names_its_files(patch: str, effects: list[Effect]) -> None:
    assert patch_effects(patch) == effects


def test_blocks_with_nothing_to_search_make_a_file() -> None:
    text = "new.py\n```python\n<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE\n```"
    assert block_effects(text) == [Effect("created", "new.py", "", "x = 1")]
    assert block_effects("I would SEARCH and REPLACE it.") == []


@pytest.mark.parametrize(
    "above",
    [
        "## SearchReplaceNoExactMatch: This SEARCH block failed to exactly match lines in client/src/App.js",
        "In client/src/App.js I change this:",
        "Did you mean to match some of these actual lines from a.py?",
    ],
)
def test_a_sentence_above_a_block_is_no_path(above: str) -> None:
    block = "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n"
    assert block_effects(f"{above}\n{block}") == []
    assert block_effects(f"{above}\n\n**client/src/App.js**\n```js\n{block}```") == [
        Effect("modified", "client/src/App.js", "", "y")
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"), [("a\nb", "a\nc", "c"), ("a\nb", "a", "b"), ("", "\n x", "x"), ("a", "a", "")]
)
def test_the_first_difference_is_a_line_that_came_else_one_that_went(old: str, new: str, line: str) -> None:
    assert first_difference(old, new) == line
