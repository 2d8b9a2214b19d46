"""Entry point of the `octavo` command. Loads nothing that the SDK alone does not have."""

from __future__ import annotations

import sys

from octavo.cli.failures import report
from octavo.cli.probing import plain_probe, probe_server
from octavo.runtime.descriptors import keep_standard_descriptors


def main() -> None:
    """Console script."""
    keep_standard_descriptors()
    probed = plain_probe(sys.argv[1:])
    try:
        if probed is not None:
            sys.exit(probe_server(*probed))
        # Imported here: loads the packages of the `cli` extra, which may not be installed.
        from octavo.cli.program import run
    except ModuleNotFoundError as error:
        sys.exit(report(error))
    except (KeyboardInterrupt, UnicodeError) as error:
        sys.exit(report(error))
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
