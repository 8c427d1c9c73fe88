"""The only users of torch's private names, with its generators, and where in the user's code a line of a trace is."""
