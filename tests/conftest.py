"""Hypothesis profiles (light by default, `thorough` by HYPOTHESIS_PROFILE), interrupts, and tests that need a device."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("default", max_examples=20, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("thorough", max_examples=1500, deadline=None, suppress_health_check=_SLOW)
os.environ["REMAT_CACHE_DIR"] = "off"  # what is measured in one test is measured again in the next
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with interrupts ignored
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items):
    """Skip what is marked `cuda` on a machine without a CUDA device."""
    marked = [item for item in items if item.get_closest_marker("cuda") is not None]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
