"""Entry point of the `octavo` command. Loads nothing that the SDK alone does not have."""

from __future__ import annotations

import sys

from octavo.cli.failures import report


def main() -> None:
    """Console script."""
    try:
        # Imported here: loads the packages of the `cli` extra, which may not be installed.
        from octavo.cli.program import run
    except ModuleNotFoundError as error:
        sys.exit(report(error))
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
