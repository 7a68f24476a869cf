"""`python -m proxy` is `concertina`."""

from proxy.commands.cli import main

if __name__ == "__main__":
    main()
