"""Traces: with and without an SDK, through functions, events, headers and processes."""

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from ringrift.events import tracing
from ringrift.events.tracing import TraceContext, continued, extract, get_trace_id, inject, span, traced
from ringrift.events.unified_router import UnifiedEventRouter


def test_outside_every_trace_there_is_no_id():
    assert get_trace_id() is None
    assert inject() == {}
    assert extract({}) is None


def test_spans_share_the_trace_of_their_parent():
    with span("outer") as outer:
        trace_id = get_trace_id()
        with span("inner", games=3) as inner:
            assert get_trace_id() == trace_id
        assert inner.get_span_context().span_id != outer.get_span_context().span_id
    assert len(trace_id) == 32
    assert get_trace_id() is None


async def test_decorated_functions_run_as_spans():
    @traced("selfplay_game")
    async def play(config):
        await asyncio.sleep(0)
        return config, get_trace_id()

    @traced
    def save():
        return get_trace_id()

    assert (await play("hex8_2p"))[0] == "hex8_2p"
    assert (await play("x"))[1] != (await play("x"))[1]
    assert len(save()) == 32
    assert play.__name__ == "play"


def test_errors_pass_through_a_span():
    with pytest.raises(ValueError, match="no"), span("broken"):
        raise ValueError("no")
    assert get_trace_id() is None


def test_headers_carry_the_trace_in_any_case():
    with span("request"):
        headers, trace_id = inject({"accept": "x"}), get_trace_id()
    found = extract({"TraceParent": headers["traceparent"]})
    assert found.trace_id == trace_id
    with continued(found), span("handler"):
        assert get_trace_id() == trace_id


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-zz-1-01",
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
        f"00-{'g' * 32}-{'1' * 16}-01",
        f"00-0x{'1' * 30}-{'1' * 16}-01",
        f"00-{'1_' * 15}11-{'1' * 16}-01",
        f"00-{'1' * 32}-+{'1' * 15}-01",
        f"00-{'1' * 32}- {'1' * 15}-01",
    ],
)
def test_a_wrong_header_is_no_trace(header):
    assert TraceContext.parse(header) is None
    with continued(extract({"traceparent": header})):
        assert get_trace_id() is None


async def test_events_carry_the_trace_of_their_publisher_to_their_handlers():
    router, seen = UnifiedEventRouter(), []

    async def handle(event):
        await asyncio.sleep(0)
        seen.append((event.trace_id, get_trace_id(), extract(inject()).trace_id))

    router.subscribe("MY_EVENT", handle)
    with span("publisher"):
        trace_id = get_trace_id()
        await router.publish("MY_EVENT")
    assert seen == [(trace_id,) * 3]


async def test_an_event_without_a_trace_starts_one():
    router, seen = UnifiedEventRouter(), []
    router.subscribe("MY_EVENT", lambda event: seen.append(get_trace_id()))
    events = [await router.publish("MY_EVENT") for _ in range(2)]
    assert seen == [event.trace_id for event in events]
    assert seen[0] != seen[1]
    assert get_trace_id() is None


async def test_a_span_in_a_handler_belongs_to_the_trace_of_the_event():
    router, seen = UnifiedEventRouter(), []

    def handle(event):
        with span("work"):
            seen.append(get_trace_id())

    router.subscribe("MY_EVENT", handle)
    event = await router.publish("MY_EVENT")
    assert seen == [event.trace_id]


def test_with_an_sdk_the_spans_are_its_own(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing.trace, "get_tracer", provider.get_tracer)
    with span("outer"):
        trace_id = get_trace_id()
        with span("inner", games=3):
            pass
    inner, outer = exporter.get_finished_spans()
    assert (inner.name, inner.attributes["games"]) == ("inner", 3)
    assert f"{outer.context.trace_id:032x}" == trace_id
    assert inner.parent.span_id == outer.context.span_id


def test_spans_are_logged_on_request(monkeypatch):
    monkeypatch.setenv("RINGRIFT_TRACE_DEBUG", "true")
    with capture_logs() as lines, span("export", rows=5):
        pass
    [line] = lines
    assert (line["event"], line["span"], line["rows"]) == ("trace.span", "export", 5)
    assert len(line["trace_id"]) == 32
