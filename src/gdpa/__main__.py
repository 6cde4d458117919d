"""``python -m gdpa`` and the command ``gdpa``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say which extra it needs."""
    try:
        from gdpa.paper.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "gdpa":
            raise
        sys.stderr.write(
            f"the command line of gdpa needs {error.name}, which is not installed; "
            "install it with: pip install -e '.[experiments]' in a checkout of gdpa\n"
        )
        sys.exit(2)
    app()


if __name__ == "__main__":
    main()
