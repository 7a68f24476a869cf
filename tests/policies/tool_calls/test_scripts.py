"""Scripts: the files that they write, as far as their names stand in them."""

from __future__ import annotations

import pytest

from policies.tool_calls.effects import Effect
from policies.tool_calls.scripts import script_effects


@pytest.mark.parametrize(
    ("code", "effects"),
    [
        ("open('a.txt', 'w').write('x')", [Effect("written", "a.txt")]),
        ("with open('a.txt') as f: f.read()", []),
        ("with open(name, mode='ab') as f: ...", []),
        ("name = 'b.txt'\nwith open(name, mode='a') as f: ...", [Effect("appended", "b.txt")]),
        ("from pathlib import Path\nPath('c.py').write_text('x')", [Effect("written", "c.py")]),
        ("base = Path('d')\np = base / 'e.py'\np.write_text(s)", [Effect("written", "d/e.py")]),
        ("os.rename('a', 'b'); os.remove('c')", [Effect("deleted", "c"), Effect("renamed", "a", "b")]),
        ("shutil.copy('a', 'b')", [Effect("copied", "b", "a")]),
        ("text = text.replace('a', 'b')", []),
        ("const fs = require('fs');\nfs.writeFileSync('a.js', 'x')", [Effect("written", "a.js")]),
        ("fs.unlinkSync(`a.js`)", [Effect("deleted", "a.js")]),
        ("File.write('a.rb', 'x')", [Effect("written", "a.rb")]),
        ("open(f'{d}/a.txt', 'w')", []),
    ],
)
def test_a_script_writes_what_it_names(code: str, effects: list[Effect]) -> None:
    assert script_effects(code) == effects
