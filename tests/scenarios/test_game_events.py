"""Games and models of a run that learns: files made, checked, refused and taken back."""

from learning_run import lived
from recording import scenario


@scenario(
    "DATABASE_CREATED",
    "MODEL_SYNC_REQUESTED",
    "PARITY_VALIDATION_COMPLETED",
    "PARITY_VALIDATION_STARTED",
    "PER_BUFFER_REBUILT",
)
def test_games_are_made_checked_and_learned_from(recording):
    async def body(world):
        await world.until_proven(
            recording,
            "DATABASE_CREATED",
            "MODEL_SYNC_REQUESTED",
            "PARITY_VALIDATION_COMPLETED",
            "PARITY_VALIDATION_STARTED",
            "PER_BUFFER_REBUILT",
        )

    lived(body)


@scenario("PARITY_FAILURE_RATE_CHANGED")
def test_games_that_break_the_rules_are_refused(recording):
    async def body(world):
        check = world._validate

        def refuse_some(order):
            reports, told = check(order)
            for report in reports:
                report.counts["refused"] = report.counts["games"] // 4
            return reports, told

        world._validate = refuse_some
        await world.until_proven(recording, "PARITY_FAILURE_RATE_CHANGED", hours=1.0)

    lived(body)


@scenario("PER_PRIORITIES_UPDATED")
def test_a_worker_that_alters_its_games_is_found_and_they_are_taken_back(recording):
    async def body(world):
        world.cheats = {"w0": 1.0}
        await world.until_proven(recording, "PER_PRIORITIES_UPDATED", hours=1.0)

    lived(body)
