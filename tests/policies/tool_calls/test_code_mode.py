"""Calls inside the scripts of code mode: which are read, and what becomes of them in a record."""

from __future__ import annotations

import json

import pytest

from policies.conversation.transcript import ToolCall, Utterance
from policies.record.actions import file_changes, key_actions
from policies.record.names import names_in
from policies.record.rules import rule_files
from policies.record.working_set import name_uses
from policies.tool_calls.calls import done_in
from policies.tool_calls.code_mode import calls_in_script, script_in

PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x = 1\n+x = 2\n*** Add File: docs/b.md\n+Text\n*** End Patch"
HEADER = "Script completed\nWall time 0.3 seconds\nOutput:\n\n"
READ = [
    ('const r = await tools.exec_command({cmd: "pytest -q", workdir: "/x"}); text(r.output)',
     [("exec_command", {"cmd": "pytest -q", "workdir": "/x"})]),
    (f"await tools.apply_patch({json.dumps(PATCH)})", [("apply_patch", PATCH)]),
    (f"text(await tools.apply_patch(`{PATCH}`));", [("apply_patch", PATCH)]),
    ("await tools.apply_patch(String.raw`a\\n`)", [("apply_patch", "a\\n")]),
    (f"const patch = {json.dumps(PATCH)};\nawait tools.apply_patch({{input: patch}})",
     [("apply_patch", {"input": PATCH})]),
    ('await tools.apply_patch({patch: ["a", "b"].join("\\n")})', [("apply_patch", {"patch": "a\nb"})]),
    ("const [a, b] = await Promise.all([\n  tools.exec_command({'cmd': 'ls \\'x\\''}),\n"
     "  tools.exec_command({cmd: `cat\\u0020a`}),\n])",
     [("exec_command", {"cmd": "ls 'x'"}), ("exec_command", {"cmd": "cat a"})]),
    ('await tools.update_plan({plan: [{step: "One", status: "completed"}]})',
     [("update_plan", {"plan": [{"step": "One", "status": "completed"}]})]),
    ('text(await tools["exec_command"]({cmd: "a" + " b", yield_time_ms: limit * 2}))',
     [("exec_command", {"cmd": "a b"})]),
    ('try {\n  await tools.f({a: -1, b: "x"});\n} catch (e) { await tools.g({c: "y"}); }\nawait tools.h({d: true})',
     [("h", {"d": True})]),
    ('if (r.exit_code) {\n  await tools.f({a: "1"});\n} else {\n  await tools.f({a: "2"})\n}\nawait tools.g({b: "3"})',
     [("g", {"b": "3"})]),
    ('if (r.exit_code)\n  await tools.f({a: "1"});\nawait tools.g({b: "2"})', [("g", {"b": "2"})]),
    ('text(r.output.match(/\'/g));\nawait tools.g({b: "2"})', [("g", {"b": "2"})]),
    ('// tools.f({a: "1"})\nconst s = "tools.f({a: 1})"; /* tools.f({a: "1"}) */ await tools.g({b: "2"});',
     [("g", {"b": "2"})]),
    ('const x = `a ${"`"} b`; await tools.g({b: "2"})', [("g", {"b": "2"})]),
    ('const dir = "src"; await tools.f({a: `ls ${dir} ${2}`})', [("f", {"a": "ls src 2"})]),
    ('const args = {a: "1"};\nawait tools.f(args)', [("f", {"a": "1"})]),
    ('const base = {w: "/a"};\nawait tools.f({...base, a: "1"})', [("f", {"w": "/a", "a": "1"})]),
    ('const lines = ["a", "b"];\nawait tools.f(lines.join("\\n"))', [("f", "a\nb")]),
    ("await tools.f(`\na\n`.trim())", [("f", "a")]),
    ('const a = "1", b = `2`;\nawait tools.f({a, b})', [("f", {"a": "1", "b": "2"})]),
    ('const {f, g: other} = tools;\nawait f({a: "1"}); await other({b: "2"})', [("f", {"a": "1"}), ("g", {"b": "2"})]),
    ('const run = tools.f, t = tools;\nawait run({a: "1"}); await t.g({b: "2"})',
     [("f", {"a": "1"}), ("g", {"b": "2"})]),
    ('const r = await tools\n  .f({a: "1"})', [("f", {"a": "1"})]),
    ('const run = (a) => tools.f({a});\nawait run("1");\nawait run("2")', [("f", {"a": "1"}), ("f", {"a": "2"})]),
    ('await run("1"); async function run(a) { const b = `${a}2`; return await tools.f({b}) }', [("f", {"b": "12"})]),
    ('async function main() {\n  if (x) { return }\n  await tools.f({a: "1"});\n}\nawait main();\ntools.g({b: "2"})',
     [("f", {"a": "1"}), ("g", {"b": "2"})]),
    ('(async () => {\n  await tools.f({a: "1"});\n  return;\n  await tools.h({});\n})();\ntools.g({b: "2"})',
     [("f", {"a": "1"}), ("g", {"b": "2"})]),
    ('return await tools.f({a: "1"});\nawait tools.g({b: "2"})', [("f", {"a": "1"})]),
    ('const o = {m() { return tools.f({a: "1"}) }};\nawait tools.g({b: "2"})', [("g", {"b": "2"})]),
]  # fmt: skip
UNREAD = [
    "await tools.exec_command({cmd: command})",
    "await tools.exec_command({cmd: `cat ${path}`})",
    'let cmd = "old"; cmd = "new"; await tools.exec_command({cmd})',
    'await tools.exec_command({cmd: "ls", ...options})',
    'await tools.exec_command({cmd: "ls".concat(path)})',
    'if (false) await tools.apply_patch("patch")',
    'ok && await tools.apply_patch("patch")',
    'const unused = () => tools.apply_patch("patch")',
    "for (const path of paths) await tools.exec_command({cmd: path})",
    'function f() { return tools.apply_patch("patch"); }',
    'exit(); await tools.apply_patch("patch")',
    'other.tools.apply_patch("patch")',
    'tools.apply_patch = "patch"',
    'await tools.apply_patch("patch',
    "await tools.apply_patch(`patch",
    "text(ALL_TOOLS.length)",
    'const args = {cmd: "ls"}; args.cmd = "rm"; await tools.f(args)',
    'const args = {cmd: "ls"}; Object.assign(args, other); await tools.f(args)',
    'const lines = ["a"]; lines.push(other); await tools.f(lines.join(""))',
    'const cmd = "ls"; const run = (cmd) => tools.f({cmd}); run(other)',
    'const run = (cmd) => tools.f({cmd}); ok && run("ls")',
    'const run = (cmd) => { cmd = cmd + other; return tools.f({cmd}) }; run("ls")',
    'const run = (cmd) => tools.f({cmd}); ["ls"].map(run)',
    "function run() { run(); } run()",
    'later(async () => { await tools.f({a: "1"}) })()',
    'return\ntools.f({a: "1"})',
    'await tools.f("a".repeat(3))',
    "await tools.f(`a ${1 + x}`)",
]


@pytest.mark.parametrize(("code", "calls"), READ)
def test_calls_with_literal_arguments_are_read(code: str, calls: list[tuple[str, object]]) -> None:
    assert [*calls_in_script(code)] == calls


@pytest.mark.parametrize("code", UNREAD)
def test_what_may_not_run_or_is_no_literal_is_left_unread(code: str) -> None:
    assert calls_in_script(code) == ()


def test_a_few_lines_that_double_a_text_are_bounded() -> None:
    doubled = "".join(f"const a{at + 1} = a{at} + a{at};\n" for at in range(40))
    assert calls_in_script(f'const a0 = "{"x" * 1000}";\n{doubled}await tools.exec_command({{cmd: a40}})') == ()


def test_functions_that_call_each_other_are_bounded() -> None:
    functions = "".join(f"function f{at}() {{ f{at + 1}(); f{at + 1}(); f{at + 1}(); }}\n" for at in range(40))
    assert calls_in_script(f'{functions}function f40() {{ tools.f({{a: "1"}}) }}\nf0()') == ()
    many = 'run("1");' * 200
    assert len(calls_in_script(f"const run = (a) => tools.f({{a}});\n{many}")) == 50


@pytest.mark.parametrize(
    ("name", "arguments", "is_script"),
    [
        ("exec", "text(await tools.f({}))", True),
        ("functions.exec", 'text("x")', True),
        ("exec", json.dumps({"input": "await tools.f({})"}), True),
        ("exec", json.dumps("await tools.f({})"), True),
        ("exec", json.dumps({"command": "ls"}), False),
        ("exec", "ls -la", False),
        ("bash", "await tools.f({})", False),
    ],
)
def test_a_script_is_known_by_its_tool_and_text(name: str, arguments: str, is_script: bool) -> None:
    assert (script_in(name, arguments) is not None) == is_script


def said(code: str, output: str, *, name: str = "exec") -> list[Utterance]:
    return [
        Utterance(1, "assistant", "", (ToolCall(name, code, "c"),)),
        Utterance(2, "tool", output, answers="c", tool=name),
    ]


@pytest.mark.parametrize(
    ("code", "output", "outcome"),
    [
        ('text((await tools.exec_command({cmd: "pytest"})).output)', f"{HEADER}2 failed, 3 passed", "failed"),
        ('text((await tools.exec_command({cmd: "make x"})).output)', f"{HEADER}built", "unknown"),
        ('text(await tools.exec_command({cmd: "make x"}))', f'{HEADER}{{"exit_code":0,"output":"built"}}', "ok"),
        ('text(await tools.exec_command({cmd: "make x"}))', f'{HEADER}{{"exit_code":2,"output":"no rule"}}', "failed"),
        ('await tools.apply_patch("*** Begin Patch\\n*** Delete File: a\\n*** End Patch")', HEADER, "ok"),
        ('text(await tools.apply_patch("*** Begin Patch\\n*** Delete File: a\\n*** End Patch"))',
         f"{HEADER}{{}}", "ok"),
        ('await tools.apply_patch("*** Begin Patch\\n*** Delete File: a\\n*** End Patch")',
         "Script failed\nWall time 0.1 seconds\nOutput:\n\nScript error:\nError: apply_patch failed: no such file",
         "failed"),
        ('await tools.exec_command({cmd: "npm run dev"})',
         "Script running with cell ID 3\nWall time 10 seconds\nOutput:\n", "unknown"),
    ],
)  # fmt: skip
def test_the_only_call_of_a_script_has_its_result(code: str, output: str, outcome: str) -> None:
    (action,) = key_actions(said(code, output))
    assert action.tool in ("exec_command", "apply_patch")
    assert action.outcome == outcome
    assert not action.why.startswith(("Script", "Wall time"))


def test_of_several_calls_each_is_told_and_the_result_is_that_of_the_script() -> None:
    code = (
        f'await tools.apply_patch({json.dumps(PATCH)});\ntext(await tools.exec_command({{cmd: "sed -i s/a/b/ c.py"}}))'
    )
    utterances = said(code, f'{HEADER}{{"exit_code":0,"output":""}}')
    assert [(done.call.name, done.outcome.result) for done in done_in(utterances)] == [
        ("apply_patch", "ok"),
        ("exec_command", "unknown"),
        ("exec", "ok"),
    ]
    assert [(file.path, file.action, file.sure) for file in file_changes((), utterances)] == [
        ("src/a.py", "modified", True),
        ("docs/b.md", "created", True),
        ("c.py", "modified", False),
    ]
    failed = done_in(said(code, f'{HEADER}{{"exit_code":1,"output":"sed: no c.py"}}'))
    assert [done.outcome.result for done in failed] == ["ok", "unknown", "failed"]


def test_a_script_that_cannot_be_read_changes_no_file() -> None:
    code = 'const run = (p) => tools.exec_command({cmd: "rm " + p});\nawait run(name) > 1'
    assert file_changes((), said(code, HEADER)) == []
    assert [action.tool for action in key_actions(said(code, HEADER))] == ["exec"]


def test_names_are_those_of_the_calls_and_of_what_they_printed() -> None:
    code = f"text(await tools.apply_patch({json.dumps(PATCH)})); text(await tools.exec_command({{cmd: 'ls'}}))"
    printed = json.dumps({"exit_code": 0, "output": "first_name.py\nsecond_name.py"})
    names = {use.name for use in name_uses((), said(code, HEADER + printed), 3, names_in)}
    assert {"src/a.py", "docs/b.md", "first_name.py", "second_name.py"} <= names
    assert not any(name.startswith(("nsrc", "ndocs", "nsecond")) for name in names)


def test_a_script_that_prints_a_file_of_rules_is_a_reading_of_it() -> None:
    code = 'const r = await tools.exec_command({cmd: "cat AGENTS.md", workdir: "/r"}); text(r.output)'
    (file,) = rule_files((), said(code, f"{HEADER}# Rules\n- Never push."), ())
    assert (file.name, file.text) == ("AGENTS.md", "# Rules\n- Never push.")
    several = f'{code}; text(await tools.exec_command({{cmd: "cat b.md"}}))'
    assert rule_files((), said(several, f"{HEADER}# Rules\nother"), ()) == ()
