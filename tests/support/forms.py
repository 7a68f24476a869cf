"""Forms as browsers send them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BOUNDARY = "b"


def multipart(fields: Mapping[str, Sequence[str]], files: Mapping[str, bytes]) -> tuple[str, bytes]:
    """A form's Content-Type and body; all files are of the field `file`."""
    found = [(f'name="{name}"', value.encode()) for name, values in fields.items() for value in values]
    quoted = ((name.replace('"', "%22"), content) for name, content in files.items())
    found += [(f'name="file"; filename="{name}"', content) for name, content in quoted]
    parts = (
        f"--{_BOUNDARY}\r\nContent-Disposition: form-data; {told}\r\n\r\n".encode() + content + b"\r\n"
        for told, content in found
    )
    return f"multipart/form-data; boundary={_BOUNDARY}", b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()
