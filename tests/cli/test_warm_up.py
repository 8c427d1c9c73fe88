"""`remat warm-up`: compiles, and says where the kernels are cached."""

from remat.algorithms._arrays.kernel_cache import cache_folder, is_incomplete
from remat.cli import main


def test_it_fills_the_cache_and_says_where(capsys):
    assert main(["warm-up"]) == 0
    out = capsys.readouterr().out
    assert str(cache_folder()) in out
    assert not is_incomplete()
    assert main(["warm-up"]) == 0
    assert "compiled   0.0 s" in capsys.readouterr().out
