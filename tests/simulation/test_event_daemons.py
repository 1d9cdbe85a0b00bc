"""What the daemons of events do, and that without one nobody does it."""

from lever_world import HOUR_S, lived

from ringrift.coordination.dead_letter_queue import (
    DeadLetterQueue,
    enable_dead_letter_queue,
)
from ringrift.daemons.types import DaemonType
from ringrift.events.event import RouterEvent, to_log
from ringrift.process import process_scope

CROSSING = "TRAINING_COMPLETED"


def heard_from_elsewhere(machine):
    """A cause: another process writes an event into the log; it happens when it is heard here."""

    async def cause(number):
        job = f"job-{number}"
        payload = {"job_id": job, "config_key": "hex8_2p"}
        event = RouterEvent(event_type=CROSSING, payload=payload, event_id=job, source="a job")
        await machine.here.engine.events.append([to_log(event, session="another process")])

        async def is_heard():
            return job in {each.get("job_id") for each in machine.heard(CROSSING)}

        return is_heard

    return cause


def test_events_of_other_processes_are_heard_only_while_event_router_runs():
    async def body(machine):
        await machine.shows_lever("event_router", heard_from_elsewhere(machine))

    lived(body)


def test_events_of_this_process_are_handled_once_also_while_nobody_reads():
    async def body(machine):
        payload = {"config_key": "hex8_2p"}

        async def mine():
            return [each["job_id"] for each in machine.heard(CROSSING)]

        await machine.start("event_router")
        await machine.router.publish(CROSSING, {**payload, "job_id": "before"}, "here")
        instance = await machine.router.identify()
        assert await machine.manager.stop(DaemonType.EVENT_ROUTER)
        other = await heard_from_elsewhere(machine)(1)
        for number in range(100):
            await machine.router.publish(CROSSING, {**payload, "job_id": f"mine-{number}"}, "here")
            await machine.runtime.sleep(1.0)
        positions = (await machine.here.engine.events.positions(instance)).values()
        piled_up = max(len(each.done_above) for each in positions)
        assert piled_up < 10, "what is handled here does not pile up in the positions meanwhile"
        assert await machine.manager.start(DaemonType.EVENT_ROUTER)
        assert await machine.happens(other, HOUR_S)
        assert sorted(await mine()) == sorted(["before", "job-1", *(f"mine-{n}" for n in range(100))])

    lived(body)


def test_cross_process_poller_goes_on_hearing_them_when_event_router_is_stopped():
    async def body(machine):
        cause = heard_from_elsewhere(machine)
        router, poller = DaemonType.EVENT_ROUTER, DaemonType.CROSS_PROCESS_POLLER
        await machine.start("cross_process_poller")
        assert await machine.manager.stop(router)
        assert await machine.happens(await cause(1), HOUR_S)
        assert await machine.manager.stop(poller)
        second = await cause(2)
        assert not await machine.happens(second, HOUR_S)
        assert await machine.manager.start(poller, wait_for_deps=True)
        assert await machine.manager.stop(router)
        assert await machine.happens(second, HOUR_S)

    lived(body)


def test_dead_letters_are_delivered_again_only_while_dlq_retry_runs():
    async def body(machine):
        letters = DeadLetterQueue(machine.here.settings.data_dir / "letters.db", runtime=machine.runtime)
        process_scope().put(DeadLetterQueue, letters)
        enable_dead_letter_queue(letters, machine.router)
        taken, works = [], []

        async def shaky(event):
            if not works:
                raise OSError("the disk is away")
            taken.append(event.payload["n"])

        machine.router.subscribe("MY_EVENT", shaky, "shaky")

        async def cause(number):
            works.clear()
            await machine.router.publish("MY_EVENT", {"n": number})
            works.append(1)

            async def is_taken():
                return number in taken

            return is_taken

        await machine.shows_lever("dlq_retry", cause)
        letters.close()

    lived(body)


# Daemon: the test that stops it and sees the machine do without.
SHOWN_BY = {
    "cross_process_poller": test_cross_process_poller_goes_on_hearing_them_when_event_router_is_stopped,
    "dlq_retry": test_dead_letters_are_delivered_again_only_while_dlq_retry_runs,
    "event_router": test_events_of_other_processes_are_heard_only_while_event_router_runs,
}
