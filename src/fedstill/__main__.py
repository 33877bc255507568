"""`python -m fedstill`."""

from fedstill.cli.main import main

if __name__ == "__main__":
    main()
