"""What the events of a live move say."""
import pytest


def rounds_of(done):
    return [event["bytes"] for event in done.events if event.get("event") == "copied"]


def warnings_of(done):
    return [event["sentence"] for event in done.events if event.get("event") == "warning"]


def skip_if_kernel_cannot(done):
    for event in done.events:
        sentence = event.get("sentence", "")
        if event["event"] == "finding" and "does not track" in sentence:
            pytest.skip(f"NOT TESTED: live moves: {sentence}")
