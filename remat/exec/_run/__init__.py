"""From a schedule to a step inside autograd: generated code, its rehearsal, and the meters of real steps."""
