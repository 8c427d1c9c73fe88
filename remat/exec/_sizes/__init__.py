"""Programs, guards and costs of a structure as functions of the sizes of a call."""
