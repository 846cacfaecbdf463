"""`python -m sntg` is the same as the command `sntg`."""

from sntg.cli import main

if __name__ == "__main__":
    main()
