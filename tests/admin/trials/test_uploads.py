"""Forms with files are read to the byte, whatever is in them."""

from __future__ import annotations

import pytest

from proxy.admin.trials.uploads import Upload, read
from proxy.errors import InvalidRequestError
from tests.support.forms import multipart

KIND, BODY = multipart(
    {"policy": ["chat", "cost"], "model": [" gpt-4o "]}, {'a "b".json': b"{}\n", "raw": bytes(range(256))}
)


def test_fields_and_files_are_told_apart_and_files_are_whole() -> None:
    upload = read(KIND, BODY)
    assert upload.fields == {"policy": ["chat", "cost"], "model": [" gpt-4o "]}
    assert [content for _, content in upload.files] == [b"{}\n", bytes(range(256))]
    assert (upload.value("model"), upload.value("policy"), upload.value("nothing")) == ("gpt-4o", "chat", "")


def test_a_field_for_files_without_any_is_nothing() -> None:
    assert read(*multipart({}, {"": b""})) == Upload({}, [])


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/mixed; boundary=b"])
def test_other_forms_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="multipart/form-data"):
        read(kind, BODY)


@pytest.mark.parametrize("body", [b"", b"--b\r\n", b"--b--", b"\r\n\r\n--b\r\n\r\n\r\n--b\r\nX\r\n--b--", BODY[:-30]])
def test_what_is_broken_is_read_as_far_as_it_goes(body: bytes) -> None:
    assert isinstance(read(KIND, body), Upload)
    assert isinstance(read("multipart/form-data", body), Upload)
