"""A machine is wiped at a random moment and comes back from its archive: the run goes on.

`scripts/lose_machine.py` does the same many times.
"""

import json

import pytest
from loop_under_test import Loop
from lost_machine import LostMachine, prepare_drive, states_of_a_drive


def states_of_a_bucket(bucket):
    found = [json.loads(bucket.read(key)) for key in bucket.names() if key.endswith("/state.json")]
    return sorted(found, key=lambda state: state["at_s"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["drive", "bucket"])
async def test_a_wiped_machine_comes_back_from_its_archive_and_goes_on(kind, tmp_path, request):
    if kind == "drive":
        archive = prepare_drive(tmp_path / "drive")
        states = lambda: states_of_a_drive(tmp_path / "drive")  # noqa: E731
    else:
        bucket = request.getfixturevalue("s3_bucket")
        archive = {"s3_url": f"s3://{bucket.name}/ringrift", "s3_endpoint": bucket.server.url}
        states = lambda: states_of_a_bucket(bucket)  # noqa: E731
    machine = LostMachine(Loop(tmp_path, tiny=True), archive, states, seed=7)
    try:
        await machine.lose_and_restore(wait_s=1.5)
        assert await machine.finish() == []
        (cost,) = machine.rounds
        assert cost["promotions"] >= 1
        assert cost["games"] > 0
    finally:
        machine.loop.kill_everything()
