"""`python -P -m normtune`: the command line without an installed script."""

from normtune.cli import main

if __name__ == "__main__":
    main()
