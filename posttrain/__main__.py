"""The command `posttrain`, or `python -m posttrain`: in a checkout and in an installed wheel."""

from flows.cli import main

if __name__ == "__main__":
    main()
