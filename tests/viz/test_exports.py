"""Traces for Perfetto and snapshots for torch's viewer: their forms, and their numbers against the replay."""

import json
import pickle
import pickletools

import pytest

from remat.ir import Run
from remat.viz.snapshot import BASE, memory_snapshot, pickle_snapshot
from remat.viz.trace import print_trace
from tests.viz.examples import SPOOF, copied, recomputed


def test_a_trace_has_every_run_and_copy_in_microseconds_on_its_lane():
    memory = recomputed()
    document = json.loads(print_trace(memory, "a model"))
    events = document["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    runs = [(event["name"], lanes[event["tid"]], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert runs == [
        ("F", "forward", 0, 2), ("H", "forward", 2, 3), ("L", "forward", 5, 1), ("BH", "backward", 6, 4),
        ("F", "recomputed", 10, 2), ("BF", "backward", 12, 5),
    ]  # fmt: skip
    assert document["otherData"]["peak_bytes"] == memory.cost.peak
    details = next(event["args"] for event in events if event["name"] == "BH")
    assert details == {
        "step": 4,
        "module": "net.high",
        "option": 0,
        "reads": ["t", "h"],
        "writes": ["s"],
        "workspace": 5,
    }
    copies = [
        event for event in json.loads(print_trace(copied()))["traceEvents"] if event.get("cat", "").startswith("to ")
    ]
    assert [(event["cat"], event["name"], event["dur"]) for event in copies] == [
        ("to host", "P", 0.007), ("to device", "P", 0.007),
    ]  # fmt: skip


def test_the_counters_of_a_trace_reach_the_peak_and_end_with_what_is_kept():
    memory = recomputed()
    counters = [event for event in json.loads(print_trace(memory))["traceEvents"] if event["ph"] == "C"]
    levels = [sum(event["args"].values()) for event in counters]
    assert max(levels) == memory.cost.peak == 81 and levels[-1] == 0
    assert [event["ts"] for event in counters] == sorted({event["ts"] for event in counters})


def replayed(snapshot):
    """Live bytes by address, and the most ever, of the events of a snapshot; overlapping allocations fail."""
    live, most = {}, 0
    (events,) = snapshot["device_traces"]
    assert events[0]["action"] == "segment_alloc"
    for event in events[1:]:
        if event["action"] == "alloc":
            start, end = event["addr"], event["addr"] + event["size"]
            assert all(end <= other or other + size <= start for other, size in live.items())
            assert start >= BASE and end <= BASE + events[0]["size"]
            live[start] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
        most = max(most, sum(live.values()))
    return live, most


@pytest.mark.parametrize("memory", [copied(), recomputed()], ids=["copies", "reruns"])
def test_a_snapshot_replays_to_the_peak_and_to_what_its_blocks_hold(memory):
    snapshot = pickle.loads(pickle_snapshot(memory))
    live, most = replayed(snapshot)
    assert most == memory.cost.peak
    (segment,) = snapshot["segments"]
    blocks = {block["address"]: block["size"] for block in segment["blocks"] if block["state"] == "active_allocated"}
    assert blocks == live and segment["allocated_size"] == sum(live.values())
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    end = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == end
        end += block["size"]


def test_torch_reads_a_snapshot():
    pytest.importorskip("torch")
    from torch.cuda import _memory_viz as viewer

    memory = recomputed()
    snapshot = pickle.loads(pickle_snapshot(memory))
    assert "segments: 1" in viewer.segsum(snapshot)
    events = viewer.trace(snapshot)
    frees = sum(stay.until < len(memory.schedule) for stay in memory.stays)
    assert events.count("free completed") == frees and f"{len(memory.stays) + 2 * frees + 1} entries" in events
    assert "snapshot.pickle" in viewer.trace_plot(snapshot)


def test_a_snapshot_is_made_of_plain_values_and_has_no_categories():
    """The viewer in a browser reads no others, and stops at categories without its word for what has none."""
    words = {op.name for op, _, _ in pickletools.genops(pickle_snapshot(recomputed()))}
    assert not words & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ", "BINFLOAT"}
    assert all("category" not in event for event in memory_snapshot(recomputed())["device_traces"][0])


def test_frames_say_the_datum_its_maker_and_its_modules_from_the_inside_out():
    frames = memory_snapshot(recomputed())["device_traces"][0][1]["frames"]
    assert [(frame["filename"], frame["name"]) for frame in frames] == [
        ("F", "a (activation)"), ("module", "net.low"), ("module", "net"),
    ]  # fmt: skip


def test_names_that_move_a_cursor_are_written_out():
    spoofed = recomputed(SPOOF)
    assert isinstance(spoofed.schedule.steps[0], Run)
    for text in (print_trace(spoofed), str(memory_snapshot(spoofed))):
        assert "\u202e" not in text and "\x1b" not in text and "u202e" in text
