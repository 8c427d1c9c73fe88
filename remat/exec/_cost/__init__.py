"""What operations and steps take: estimated, measured, or by the model of a device that this machine does not have."""
