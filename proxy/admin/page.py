"""The page that the link at the start leads to: where to find what, in a browser and from a shell."""

from html import escape
from pathlib import Path
from shlex import quote
from string import Template

# No script, no style, nothing of anybody else's, and in nobody's frame.
ADMIN_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Concertina</title>
<h1>Concertina</h1>
<ul>
<li><a href="api/sessions">Sessions of which something is stored</a>
<li><a href="api/models">Models and their windows</a>
</ul>
<h2>From a shell</h2>
<pre>
TOKEN=$token
curl -H "Authorization: Bearer $$TOKEN" $address/admin/api/sessions
curl -H "Authorization: Bearer $$TOKEN" $address/admin/api/models
curl -H "Authorization: Bearer $$TOKEN" $address/metrics
curl -X DELETE -H "Authorization: Bearer $$TOKEN" $address/admin/api/sessions/LABEL_OR_ID
</pre>
""")


def admin_page(server: tuple[str, int], token_file: Path | None) -> str:
    """`server` is where we listen; `token_file` holds the token, if a file does."""
    host, port = server
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    token = f'"$(cat {quote(str(token_file.absolute()))})"' if token_file else "..."
    return _PAGE.substitute(address=escape(address), token=escape(token))
