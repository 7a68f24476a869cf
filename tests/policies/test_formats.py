"""The rows of `formats.toml`."""

from __future__ import annotations

from datetime import date

import pytest

from policies.secrets.formats import FORMATS
from policies.tables import read_table

ROWS = read_table("policies.secrets", "formats")["formats"]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['kind']}:{row['begins'][0]}" for row in ROWS])
def test_a_row_names_its_provider_its_source_and_its_date(row: dict[str, object]) -> None:
    assert {"kind", "begins", "pattern", "source", "date"} <= row.keys()
    assert row.keys() <= {"kind", "begins", "pattern", "source", "date", "lead", "lead_length", "left"}
    assert str(row["kind"]).replace("_", "").islower()
    assert row["source"] in ("gitleaks", "kingfisher", "provider", "issued_keys")
    assert isinstance(row["date"], date)
    assert ("lead" in row) == ("lead_length" in row)


def test_no_two_rows_begin_alike() -> None:
    assert len(FORMATS) == sum(len(row["begins"]) for row in ROWS)
