"""`python -m fedstill`."""

from fedstill.cli import main

if __name__ == "__main__":
    main()
