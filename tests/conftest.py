"""Hypothesis profiles (light by default, `thorough` by HYPOTHESIS_PROFILE), interrupts, tests that need a device, a full disk."""

import os
import signal
from contextlib import contextmanager

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


@pytest.fixture
def full_disk():
    """A function whose context takes no file of more than 1000 bytes: what a full disk does to larger ones."""
    resource = pytest.importorskip("resource")

    @contextmanager
    def full():
        limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)

    return full
