"""A figure that a notebook shows where a cell ends with it. Imported only where a picture is drawn: it needs matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Shown(Figure):
    """A figure that belongs to no window; notebooks ask for its bytes."""

    def _repr_png_(self) -> bytes:
        """As PNG."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=150)
        return file.getvalue()


__all__ = ["Shown"]
