"""`python -m tests.support.fourth_dialect.serve` is `concertina` with the dialect's row in the table."""

from tests.support.fourth_dialect import row

if __name__ == "__main__":
    row.add()  # before whatever else asks the table
    from proxy.cli.main import main

    main()
