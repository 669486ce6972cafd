"""`python -m duly.cli`: how `duly up` starts its worker, whatever the entry point is called and wherever it lies."""

from duly.cli.main import main

if __name__ == "__main__":
    main()
