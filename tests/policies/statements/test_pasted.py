"""What people paste into a message is told by its ends; their own sentences never count as pasted."""

from __future__ import annotations

import pytest

from policies.statements.sentences import sentences
from tests.support import statement_pairs as pairs
from tests.support.natural_sessions import SESSIONS

PASTED = {
    "java": """Exception in thread "main" java.lang.IllegalStateException: cart is closed
\tat com.acme.cart.CartService.add(CartService.java:88)
\tat com.acme.Main.main(Main.java:12)
Caused by: java.sql.SQLException: connection reset
\t... 14 more""",
    "go": """panic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x47b6f1]

goroutine 1 [running]:
main.(*Server).Handle(0xc000010000)
\t/srv/app/server.go:42 +0x1d
exit status 2""",
    "rust": """thread 'main' panicked at 'index out of bounds: the len is 3 but the index is 7', src/main.rs:4:5
stack backtrace:
   0: rust_begin_unwind
             at /rustc/90b35a62/library/std/src/panicking.rs:584:5
   1: core::panicking::panic_fmt
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace""",
    "rustc": """error[E0382]: borrow of moved value: `cart`
  --> src/main.rs:10:20
   |
10 |     println!("{}", cart);
   |                    ^^^^ value borrowed here after move
help: consider cloning the value""",
    "cs": """Unhandled exception. System.NullReferenceException: Object reference not set to an instance of an object.
   at Acme.Cart.Add(Item item) in /src/Cart.cs:line 42
   at Acme.Program.Main(String[] args) in /src/Program.cs:line 9""",
    "kotlin": """Exception in thread "main" kotlin.KotlinNullPointerException
\tat com.acme.MainKt.main(Main.kt:5)
\tat com.acme.MainKt.main(Main.kt)""",
    "php": """PHP Fatal error:  Uncaught TypeError: Cart::add(): must be of type Item, null given in /srv/cart.php:12
Stack trace:
#0 /srv/index.php(8): Cart->add(NULL)
#1 {main}
  thrown in /srv/cart.php on line 12""",
    "python": """Traceback (most recent call last):
  File "/srv/app/cart.py", line 88, in add
    raise KeyError(cart)
KeyError: 'cart-7'""",
    "js": """TypeError: Cannot read properties of undefined (reading 'id')
    at Cart.add (/srv/cart.js:12:9)
    at async main (/srv/index.js:3:1)""",
    "yaml": """services:
  api:
    image: acme/api:1.2
    ports:
      - "8080:8080"
    environment:
      LOG_LEVEL: debug
volumes:
  data: {}""",
    "sql": """SELECT id, total
FROM orders
WHERE status = 'open'
  AND total > 100
ORDER BY created_at DESC;""",
    "sql2": """CREATE TABLE orders (
    id bigint PRIMARY KEY,
    total numeric NOT NULL
);
INSERT INTO orders VALUES (1, 20);""",
    "json": """{
  "name": "acme",
  "scripts": {
    "test": "vitest"
  }
}""",
    "diff": """diff --git a/src/a.py b/src/a.py
index 3f1..9ab 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,3 +1,3 @@
 def total(rows):
-    return sum(rows)
+    return sum(row.total for row in rows)""",
    "shell": """$ npm test
> acme@1.0.0 test
> vitest run
 FAIL  src/cart.test.ts > adds an item
Tests  1 failed | 3 passed (4)""",
    "shell2": """user@host:~/app$ git push
To github.com:acme/app.git
 ! [rejected]        main -> main (fetch first)
error: failed to push some refs to 'github.com:acme/app.git'
hint: Updates were rejected because the remote contains work that you do not have.""",
    "log": """2026-11-02T10:11:12Z ERROR worker must retry
2026-11-02T10:11:13Z INFO never mind""",
    "log2": """Nov 12 10:11:12 web1 sshd[311]: Failed password for root from 10.0.0.1 port 22
Nov 12 10:11:13 web1 cron[12]: job must not run twice""",
    "log3": """[INFO] Building acme 1.0
[ERROR] Failed to execute goal: tests must pass
[WARNING] never do this""",
    "log4": """12/Nov/2026:10:11:12 "GET /cart HTTP/1.1" 500
10.0.0.1 - - [12/Nov/2026:10:11:12 +0000] "GET /cart HTTP/1.1" 500 12
worker-3  | must retry, never give up
worker-3  | connection refused""",
    "log5": """level=error ts=2026-11-02T10:11:12Z caller=main.go:12 msg="must retry"
time="2026-11-02" level=info msg="never mind\"""",
    "table": """| id | name | rule |
|----|------|------|
| 1 | a | must never |""",
    "table2": """NAME          READY   STATUS             RESTARTS   AGE
api-7d9f      0/1     CrashLoopBackOff   12         3h
worker-55c    1/1     Running            0          3h""",
    "csv": """id,name,total
1,acme,20
2,globex,30""",
    "mail": """From: Bob <bob@acme.io>
To: Maria <maria@acme.io>
Subject: Release
Date: Mon, 2 Nov 2026 10:11:12 +0100

> Never deploy before I am back.
> Always deploy on Friday.""",
    "ini": """[server]
port = 8080
host = 0.0.0.0""",
    "env": """export DB_URL=postgres://localhost/a
LOG_LEVEL=debug""",
    "html": """<div class="cart">
  <span>must</span>
</div>""",
    "css": """.cart {
  color: red;
}""",
    "dockerfile": """FROM python:3.11
RUN pip install acme
CMD ["python", "-m", "acme"]""",
    "toml": """[tool.ruff]
line-length = 120
select = ["E", "F"]""",
}

OWN = (
    *("UPDATE: the port is 9090", "SELECT the second option, not the first.", "KeyError: what does that mean?"),
    *(
        "#1 priority is the cart.",
        "Rules:\n- never push\n- always test",
        "Rules:\nnever: push\nalways: test\nport: 8080",
    ),
    *("From now on use tabs.", "To: whom it may concern, never push.", "Date: Monday", "port = 8080", "a,b,c"),
    *("The port is 8080.  The host is a.  The user is b.", "error: it fails when I click save"),
    *("Nov 12 10:30 is the deadline", "RUN the tests again", "note: never push", "Subject: Release\nNever deploy."),
    *("ADD a test for this\nRUN it twice", "FROM now on use tabs\nUSER names stay private"),
    *("Deadline: Friday\nOwner: Maria\nBudget: 500\nPort: 8080\nHost: a", "API: https://a.b/c"),
    *("CREATE TABLE orders must never be run on production.", "panic: we ship today!", "index the table first"),
    *("Exception in thread handling: never swallow it.", "Use A  or B  or C please\nand D  or E  or F too"),
)
BELOW = (
    *("Tests should never hit the network.", "AND never push to main", "error handling must stay as it is", "Fix it."),
    *(
        "note: never push",
        "hint: use the helper",
        "Set the port to 9090.",
        "ON Fridays we don't deploy",
        "- never push",
    ),
    *("SELECT nothing else please", "Can you fix this?", "Use `a`, please", "不要修改它"),
)


@pytest.mark.parametrize("name", PASTED)
def test_what_is_pasted_gives_no_sentence(name: str) -> None:
    told = [*sentences(f"Look at this:\n{PASTED[name]}\n")]
    assert [sentence for sentence, prose in told if prose] == ["Look at this:"]
    assert 1 <= len(told) - 1 <= 4


def test_a_persons_own_sentence_is_never_pasted() -> None:
    said = [text for session in SESSIONS for text in session.said]
    for group in (pairs.UPDATES, pairs.DISTINCT, pairs.CARELESS_UPDATES, pairs.CARELESS_DISTINCT, pairs.OTHER_THINGS):
        said += [text for pair in group for text in pair]
    assert [part for text in (*OWN, *said) for part, prose in sentences(text) if not prose] == []


@pytest.mark.parametrize("own", BELOW)
def test_a_sentence_below_what_is_pasted_stays_a_sentence(own: str) -> None:
    for pasted in PASTED.values():
        for gap in ("", "\n"):
            last = [*sentences(f"{pasted}\n{gap}{own}")][-1]
            assert last == (own.removeprefix("- "), True)
