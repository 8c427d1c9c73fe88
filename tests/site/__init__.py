"""The documentation site and the interactive page in a browser: `make site-check`, never part of `make test`."""
