"""Copies between a device and the host while a step runs: streams, events, host buffers, and what a step does with them."""
