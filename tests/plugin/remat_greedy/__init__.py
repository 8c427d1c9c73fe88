"""A plug-in of remat."""
