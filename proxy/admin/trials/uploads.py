"""Files that a form sends, as browsers send them: multipart/form-data (RFC 7578)."""

from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import HTTP
from typing import NamedTuple

from proxy.errors import InvalidRequestError

_KIND = "multipart/form-data"


class Upload(NamedTuple):
    """What a form holds. fields: all values of each name, in their order. files: name and content of each."""

    fields: dict[str, list[str]]
    files: list[tuple[str, bytes]]

    def value(self, name: str) -> str:
        """The first of a field's values; empty without one."""
        return next(iter(self.fields.get(name, ())), "").strip()


def read(kind: str, body: bytes) -> Upload:
    """`kind` is the Content-Type of the request; raises InvalidRequestError."""
    if kind.partition(";")[0].strip().lower() != _KIND:
        raise InvalidRequestError(f"This form is sent as {_KIND}.")
    head = b"Content-Type: " + kind.encode("latin-1") + b"\r\n\r\n"
    message = BytesParser(EmailMessage, policy=HTTP).parsebytes(head + body)
    upload = Upload({}, [])
    for part in message.iter_parts() if message.is_multipart() else ():
        content, file = part.get_payload(decode=True), part.get_filename()
        if not isinstance(content, bytes):  # a form within the form
            continue
        if file:
            upload.files.append((file, content))
        elif file is None:  # else it is a field for files that none was chosen for
            name = str(part.get_param("name", header="content-disposition"))
            upload.fields.setdefault(name, []).append(content.decode("utf-8", "replace"))
    return upload
