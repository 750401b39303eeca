"""`python -m model_garden ...` runs the `model-garden` binary with the same arguments."""
import os
import sys

from .binary import BinaryNotFound, find_binary


def main():
    try:
        binary = find_binary()
    except BinaryNotFound as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    # The binary takes this process's place, so signals and the exit code are its own.
    os.execv(binary, [binary, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
