"""Batches of a few lengths."""

import itertools
import pickle
import random
from collections import OrderedDict

import pytest
import torch
from torch.utils.data import DataLoader

import remat.exec
from remat.errors import BadArgument
from remat.exec import BucketCollator, bucket_lengths
from remat.zoo import GPT2


def added(lengths, buckets):
    return sum(min(bucket for bucket in buckets if bucket >= length) - length for length in lengths)


@pytest.mark.parametrize("seed", range(20))
def test_chosen_lengths_add_the_fewest_positions(seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 30) for _ in range(rng.randint(1, 40))]
    count = rng.randint(1, 4)
    distinct = sorted(set(lengths))
    least = min(
        added(lengths, [*few, distinct[-1]])
        for few in itertools.combinations(distinct[:-1], min(count, len(distinct)) - 1)
    )
    chosen = bucket_lengths(lengths, count)
    assert chosen == tuple(sorted(set(chosen))) and chosen[-1] == distinct[-1] and len(chosen) <= count
    assert added(lengths, chosen) == least


def rows(*lengths):
    return [{"tokens": torch.arange(length), "kind": torch.tensor(1)} for length in lengths]


def longest(samples):
    """Collates to the longest of the batch, as tokenizers' collators do."""
    longest = max(len(sample["tokens"]) for sample in samples)
    tokens = [
        torch.nn.functional.pad(sample["tokens"], (0, longest - len(sample["tokens"])), value=9) for sample in samples
    ]
    mask = torch.stack([torch.arange(longest) < len(sample["tokens"]) for sample in samples])
    pairs = mask[:, :, None] & mask[:, None, :]
    return OrderedDict(tokens=torch.stack(tokens), mask=mask, pairs=pairs, scale=torch.ones(len(samples), 7))


def test_named_tensors_are_filled_to_the_next_length_and_others_stay():
    collate = BucketCollator(
        lengths=(8, 4),
        pad={"tokens": 9, "mask": 0, "pairs": 0},
        leave=("scale",),
        dims={"pairs": (1, 2)},
        collate=longest,
    )
    batch = pickle.loads(pickle.dumps(collate))(rows(3, 5))
    assert isinstance(batch, OrderedDict) and list(batch) == ["tokens", "mask", "pairs", "scale"]
    assert batch["tokens"].tolist() == [[0, 1, 2, 9, 9, 9, 9, 9], [0, 1, 2, 3, 4, 9, 9, 9]]
    assert batch["mask"].dtype == torch.bool and batch["mask"].sum().item() == 8
    assert batch["pairs"].shape == (2, 8, 8) and batch["pairs"].sum().item() == 9 + 25
    assert batch["scale"].shape == (2, 7)
    assert collate(rows(4, 4))["tokens"].shape == (2, 4) and (collate.given, collate.added, collate.share) == (4, 0, 0)
    collate(rows(5))
    assert (collate.given, collate.added, collate.share) == (9, 3, 0.25)


def test_tuples_are_padded_by_position_through_a_loader():
    samples = [(torch.full((3,), i), torch.tensor(i)) for i in range(4)]
    loader = DataLoader(samples, batch_size=2, collate_fn=BucketCollator(lengths=(5,), pad={0: -1}))
    for tokens, label in loader:
        assert tokens.shape == (2, 5) and tokens[:, 3:].eq(-1).all() and label.shape == (2,)


@pytest.mark.parametrize(
    ("settings", "samples", "said"),
    [
        ({}, rows(9), "a batch of length 9 is longer than 8.*truncate"),
        ({"leave": ()}, rows(3), r"\['scale'\] may have the padded length.*`leave`"),
        ({"pad": {"tokens": 9, "mask": 0, "pairs": 0, "labels": 1}}, rows(3), r"no tensor \['labels'\].*tokens"),
        ({"dims": {"pairs": (1, 3)}}, rows(3), r"\['pairs'\] has too few dimensions"),
        ({"pad": {"tokens": 9, "mask": 0, "pairs": 0, "scale": 0}, "leave": ()}, rows(3), "lengths differ"),
    ],
)
def test_nothing_is_padded_or_left_silently(settings, samples, said):
    chosen = {"pad": {"tokens": 9, "mask": 0, "pairs": 0}, "leave": ("scale",), "dims": {"pairs": (1, 2)}}
    collate = BucketCollator(lengths=(4, 8), collate=longest, **(chosen | settings))
    with pytest.raises(BadArgument, match=f"(?s){said}"):
        collate(samples)


@pytest.mark.parametrize(
    "settings",
    [
        {"lengths": (), "pad": {"a": 0}},
        {"lengths": (0, 4), "pad": {"a": 0}},
        {"lengths": (4,), "pad": {}},
        {"lengths": (4,), "pad": {"a": 0}, "leave": ("a",)},
        {"lengths": (4,), "pad": {"a": 0}, "dims": {"b": (1,)}},
    ],
)
def test_settings_that_pad_nothing_are_refused(settings):
    with pytest.raises(BadArgument, match="X-ARG"):
        BucketCollator(**settings)
    with pytest.raises(BadArgument, match="X-ARG"):
        bucket_lengths([], 2)
    with pytest.raises(BadArgument, match="X-ARG"):
        bucket_lengths([3, 0], 2)


def test_a_wrapped_module_meets_few_shapes():
    torch.manual_seed(0)
    samples = [torch.randint(64, (length,)) for length in (9, 11, 14, 16, 10, 12)]
    collate = BucketCollator(
        lengths=bucket_lengths([len(sample) for sample in samples], 2),
        pad={0: 0},
        collate=lambda few: (torch.stack(few),),
    )
    model = GPT2(vocabulary=64, layers=1, width=16, heads=2, context=16)
    wrapped = remat.exec.wrap(model, None, "80%", on_infeasible="best")
    for sample in samples:
        (tokens,) = collate([sample])
        wrapped(tokens, tokens).backward()
    assert len(wrapped.remat.plans) == 2
