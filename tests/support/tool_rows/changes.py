"""Calls of many agents' tools and what each did to files: one half to write rules by, one written before the rules.

A row: agent, calls (tool, arguments, result), and the files as (path, what, for a renamed one its new path).
"""

from __future__ import annotations

import json
from typing import NamedTuple

OK = "Exit code: 0\nOutput:\n"


class Change(NamedTuple):
    path: str
    action: str
    other: str = ""


class Case(NamedTuple):
    agent: str
    calls: tuple[tuple[str, str, str], ...]
    files: tuple[Change, ...]


def _one(agent: str, tool: str, arguments: object, result: str, *files: tuple[str, ...]) -> Case:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Case(agent, ((tool, text, result),), tuple(Change(*file) for file in files))


def _sh(command: str, *files: tuple[str, ...], result: str = OK, tool: str = "bash", agent: str = "shell") -> Case:
    return _one(agent, tool, {"command": command}, result, *files)


_READ = ("Read", json.dumps({"file_path": "/r/a.py"}), "1\timport os\n2\tprint(1)\n")
_ADD = "*** Begin Patch\n*** Add File: src/new.py\n+x = 1\n*** End Patch"
_MANY = (
    "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** Delete File: old.py\n"
    "*** Update File: b.py\n*** Move to: lib/b.py\n@@\n-y\n+z\n*** End Patch"
)
_DIFF = "--- a/src/a.c\n+++ b/src/a.c\n@@ -1 +1 @@\n-int x;\n+int y;\n"

TUNED: tuple[Case, ...] = (
    _one("anthropic", "str_replace_based_edit_tool", {"command": "view", "path": "/r/a.py"}, "1\tx = 1"),
    _one(
        "anthropic",
        "str_replace_based_edit_tool",
        {"command": "create", "path": "/r/a.py", "file_text": "x"},
        "File created successfully at: /r/a.py",
        ("/r/a.py", "created"),
    ),
    _one(
        "anthropic",
        "str_replace_based_edit_tool",
        {"command": "str_replace", "path": "/r/a.py", "old_str": "x", "new_str": "y"},
        "The file /r/a.py has been edited.",
        ("/r/a.py", "modified"),
    ),
    _one(
        "anthropic",
        "str_replace_based_edit_tool",
        {"command": "str_replace", "path": "/r/a.py", "old_str": "x", "new_str": "y"},
        "No replacement was performed, old_str `x` did not appear verbatim in /r/a.py.",
    ),
    _one(
        "claude-code",
        "Write",
        {"file_path": "/r/n.py", "content": "x"},
        "File created successfully at: /r/n.py",
        ("/r/n.py", "created"),
    ),
    Case(
        "claude-code",
        (_READ, ("Write", json.dumps({"file_path": "/r/a.py", "content": "x"}), "The file /r/a.py has been updated.")),
        (Change("/r/a.py", "modified"),),
    ),
    _one(
        "claude-code",
        "Edit",
        {"file_path": "/r/a.py", "old_string": "x", "new_string": "y"},
        "<tool_use_error>String to replace not found in file.</tool_use_error>",
    ),
    _one(
        "claude-code",
        "MultiEdit",
        {"file_path": "/r/a.py", "edits": [{"old_string": "x", "new_string": "y"}]},
        "Applied 1 edit to /r/a.py",
        ("/r/a.py", "modified"),
    ),
    _one(
        "claude-code",
        "NotebookEdit",
        {"notebook_path": "/r/a.ipynb", "new_source": "x"},
        "Updated cell 1 with x",
        ("/r/a.ipynb", "modified"),
    ),
    _one(
        "opencode",
        "edit",
        {"filePath": "src/a.ts", "oldString": "x", "newString": "y"},
        "Edit applied successfully.",
        ("src/a.ts", "modified"),
    ),
    _one(
        "opencode",
        "write",
        {"filePath": "src/b.ts", "content": "x"},
        "Wrote file successfully.",
        ("src/b.ts", "created"),
    ),
    _one(
        "codex",
        "apply_patch",
        {"input": _ADD},
        "Success. Updated the following files:\nA src/new.py",
        ("src/new.py", "created"),
    ),
    _one(
        "codex",
        "apply_patch",
        _MANY,
        OK + "Success. Updated the following files:\nM a.py\nD old.py\nM lib/b.py",
        ("a.py", "modified"),
        ("old.py", "deleted"),
        ("b.py", "renamed", "lib/b.py"),
    ),
    _sh(f"apply_patch <<'EOF'\n{_ADD}\nEOF", ("src/new.py", "created"), agent="codex", tool="shell"),
    _one("codex", "shell", {"command": ["apply_patch", _MANY]}, "Exit code: 1\nOutput:\nverification failed"),
    _one(
        "qwen",
        "write_file",
        {"file_path": "/r/q.py", "content": "x"},
        "Successfully created and wrote to new file: /r/q.py.",
        ("/r/q.py", "created"),
    ),
    _one(
        "qwen",
        "replace",
        {"file_path": "/r/q.py", "old_string": "x", "new_string": "y"},
        "Successfully modified file: /r/q.py (1 replacements).",
        ("/r/q.py", "modified"),
    ),
    _one(
        "cline",
        "replace_in_file",
        {"path": "a.js", "diff": "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE"},
        "The content was successfully saved to a.js.",
        ("a.js", "modified"),
    ),
    _one(
        "goose",
        "developer__text_editor",
        {"command": "write", "path": "/r/g.rs", "file_text": "x"},
        "Successfully wrote to /r/g.rs",
        ("/r/g.rs", "created"),
    ),
    _sh("git mv src/a.py src/b.py", ("src/a.py", "renamed", "src/b.py")),
    _sh("git rm -q old.py", ("old.py", "deleted")),
    _sh("rm -f a.tmp 'b c.tmp' && echo done", ("a.tmp", "deleted"), ("b c.tmp", "deleted")),
    _sh("sed -i 's/8080/8443/' app.py conf/x.yml && git diff", ("app.py", "modified"), ("conf/x.yml", "modified")),
    _sh("echo x | tee -a log/notes.md > /dev/null", ("log/notes.md", "appended")),
    _sh("echo done >> TODO.md 2>/dev/null", ("TODO.md", "appended")),
    _sh(
        "cd sub && cat > new.py <<'EOF'\nrm -rf /\nx > y\nEOF\npython new.py > out.txt 2>&1",
        ("sub/new.py", "created"),
        ("sub/out.txt", "created"),
    ),
    _sh(
        "python3 - <<'EOF'\nfrom pathlib import Path\np = Path('src/m.py')\np.write_text('x')\nEOF",
        ("src/m.py", "created"),
    ),
    _sh("python -c \"open('gen.json','w').write('{}')\"", ("gen.json", "created")),
    _sh("grep -rn 'a > b' src | sort > /dev/null; diff <(cat a) <(cat b)"),
    _sh("sed -i s/a/b/ x.py", result="sed: can't read x.py: No such file or directory"),
)

HELD_OUT: tuple[Case, ...] = (
    _one(
        "openhands",
        "str_replace_editor",
        {"command": "insert", "path": "/w/a.py", "insert_line": 3, "new_str": "y"},
        "The file /w/a.py has been edited. Here's the result",
        ("/w/a.py", "modified"),
    ),
    _one(
        "openhands",
        "str_replace_editor",
        {"command": "undo_edit", "path": "/w/a.py"},
        "Last edit to /w/a.py undone successfully.",
        ("/w/a.py", "modified"),
    ),
    _one("openhands", "file_editor", {"command": "view", "path": "/w/a.py"}, "Here's the result of running `cat -n`"),
    _one(
        "roo",
        "write_to_file",
        {"path": "docs/r.md", "content": "x", "line_count": 1},
        '{"path":"docs/r.md","operation":"created","notice":"ok"}',
        ("docs/r.md", "created"),
    ),
    _one(
        "roo",
        "apply_diff",
        {"path": "src/r.ts", "diff": "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE"},
        "<file_write_result><path>src/r.ts</path><operation>modified</operation></file_write_result>",
        ("src/r.ts", "modified"),
    ),
    _one(
        "mcp",
        "mcp__filesystem__move_file",
        {"source": "a.txt", "destination": "b.txt"},
        "Successfully moved a.txt to b.txt",
        ("a.txt", "renamed", "b.txt"),
    ),
    _one(
        "mcp",
        "mcp__filesystem__create_directory",
        {"path": "out"},
        "Successfully created directory out",
        ("out", "created"),
    ),
    _one(
        "mcp",
        "mcp__filesystem__edit_file",
        {"path": "m.txt", "edits": [{"oldText": "a", "newText": "b"}]},
        "```diff\n-a\n+b\n```",
        ("m.txt", "modified"),
    ),
    _one("mcp", "mcp__filesystem__list_directory", {"path": "out"}, "[FILE] a\n[FILE] b"),
    _one(
        "cursor",
        "edit_file",
        {"target_file": "c.go", "instructions": "x", "code_edit": "y"},
        "The file has been updated.",
        ("c.go", "modified"),
    ),
    _one("cursor", "delete_file", {"target_file": "c.go"}, "Successfully deleted file: c.go", ("c.go", "deleted")),
    _one(
        "windsurf",
        "write_to_file",
        {"TargetFile": "/r/w.ts", "CodeContent": "x"},
        "Created file /r/w.ts",
        ("/r/w.ts", "created"),
    ),
    _one(
        "copilot",
        "insert_edit_into_file",
        {"filePath": "/r/v.ts", "code": "y"},
        "The file was edited successfully",
        ("/r/v.ts", "modified"),
    ),
    _one(
        "copilot",
        "create_file",
        {"filePath": "/r/n.ts", "content": "y"},
        "File created successfully at: /r/n.ts",
        ("/r/n.ts", "created"),
    ),
    _one(
        "responses",
        "apply_patch",
        {"type": "delete_file", "path": "z.py"},
        '{"status": "completed"}',
        ("z.py", "deleted"),
    ),
    _sh("mv a.py b.py c/", ("a.py", "renamed", "c/a.py"), ("b.py", "renamed", "c/b.py")),
    _sh("cp -r base.cfg 'new cfg.ini'", ("new cfg.ini", "copied")),
    _sh("perl -pi -e 's/a/b/g' one.txt two.txt", ("one.txt", "modified"), ("two.txt", "modified")),
    _sh(
        "touch a/__init__.py b/__init__.py; mkdir -p data/raw",
        ("a/__init__.py", "created"),
        ("b/__init__.py", "created"),
        ("data/raw", "created"),
    ),
    _sh("git checkout -- src/a.py && git restore src/b.py", ("src/a.py", "modified"), ("src/b.py", "modified")),
    _sh("patch -p1 <<'EOF'\n" + _DIFF + "EOF", ("src/a.c", "modified"), result=OK + "patching file src/a.c"),
    _sh("git apply <<'EOF'\n" + _DIFF + "EOF", ("src/a.c", "modified")),
    _sh('F=conf/app.ini; printf \'%s\\n\' "a=1" > "$F"', ("conf/app.ini", "created")),
    _sh("bash -lc 'cd web && npm run build &> build.log'", ("web/build.log", "created")),
    _sh("(cd sub && echo x > in.txt); echo y > out.txt", ("sub/in.txt", "created"), ("out.txt", "created")),
    _sh("curl -sSL https://x.dev/a.tgz -o dl/a.tgz", ("dl/a.tgz", "created")),
    _sh("for f in a b; do cat $f; done | awk '$3 > 5' && [ 1 -gt 0 ] && echo \"x > y\" 2>&1"),
    _sh("cat > s.py <<EOF\nopen('other.txt','w')\nEOF", ("s.py", "created")),
    _sh(
        "python - <<'PY'\nimport json, os\npath = 'd/out.json'\nwith open(path, 'a', encoding='utf-8') as f:\n"
        "    json.dump({}, f)\nos.remove('tmp.txt')\nPY",
        ("d/out.json", "appended"),
        ("tmp.txt", "deleted"),
    ),
    _one("swe-agent", "bash", "create fix.py", "[File: /r/fix.py (1 lines total)]\n1:", ("fix.py", "created")),
)
