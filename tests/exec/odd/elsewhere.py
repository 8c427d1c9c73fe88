"""A file of functions that odd modules of other files call; they read its global."""

FACTOR = 1.0


def scaled(x):
    return x * FACTOR


class Scales:
    def of(self, x):
        return x * FACTOR
