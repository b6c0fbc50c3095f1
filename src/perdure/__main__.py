"""`python -m perdure`: the same as the command `perdure`."""

from perdure.cli import main

if __name__ == "__main__":
    main()
