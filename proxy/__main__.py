"""`python -m proxy` is `concertina`."""

from proxy.cli.main import main

if __name__ == "__main__":
    main()
