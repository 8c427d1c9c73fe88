"""The garbage collector while remat imports and plans: old objects are left alone, new garbage is not."""

import gc
import weakref

import pytest

from remat._collector import collector_paused, old_objects_apart


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.itself = self


def knot():
    made = Knot()
    return weakref.ref(made)


@pytest.fixture(autouse=True)
def unfrozen():
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def test_old_garbage_waits_and_new_garbage_is_collected():
    gc.disable()
    old = knot()
    with old_objects_apart():
        new = knot()
        gc.collect()
        assert new() is None and old() is not None
    gc.collect()
    assert old() is None


def test_what_a_program_has_frozen_stays_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    with pytest.raises(RuntimeError), old_objects_apart():
        raise RuntimeError
    assert 0 < gc.get_freeze_count() <= frozen  # other threads may let go of some


def test_a_block_inside_another_counts_nothing_and_leaves_old_objects_apart(monkeypatch):
    with old_objects_apart():
        with monkeypatch.context() as patched:
            patched.setattr(gc, "get_freeze_count", None)  # it walks all that is frozen
            with old_objects_apart():
                pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_all_is_as_before_after_an_error():
    with pytest.raises(RuntimeError), old_objects_apart(), collector_paused():
        assert gc.get_freeze_count() > 0 and not gc.isenabled()
        raise RuntimeError
    assert gc.get_freeze_count() == 0 and gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
