"""The program: `greenroom`, or `python -m greenroom`."""

import signal
import sys


def main() -> int:
    """Runs the program with this process's arguments; returns its exit code."""
    # Ctrl-C is the program's business, not an exception of Python's.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from greenroom._greenroom import main

    return main(["greenroom", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
