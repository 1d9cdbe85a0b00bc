"""The live page as a person sees it, in headless Chromium."""

import msgspec
import pytest

from ringrift.testing.sample_run import TWELVE, SampleRun

ONE = SampleRun()
HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'

CONTRAST = """([front, back]) => {
  const style = getComputedStyle(document.documentElement);
  const light = name => {
    const probe = document.createElement('canvas').getContext('2d');
    probe.fillStyle = style.getPropertyValue(name).trim();
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""


def changed(run, config, **fields):
    """The status of *run* with other numbers for one config."""
    status = run.status()
    configs = {**status.configs, config: msgspec.structs.replace(status.configs[config], **fields)}
    return msgspec.structs.replace(status, configs=configs)


def test_a_run_is_shown_with_its_curve_stages_and_reasons(site, visit):
    site.show(ONE)
    visitor = visit()
    status = ONE.status().configs["square8_2p"]
    assert visitor.text("#state") == "running"
    assert visitor.text("#rating-value") == str(round(status.rating))
    assert "9 champions so far" in visitor.text("#rating-now")
    assert visitor.text("#who-plays").lower() == "model 12 is published, model 15 plays: 3 trainings newer"
    assert visitor.text("#held-back") == "games: training waits 62% of the time for rows"
    assert visitor.page.locator("#held-back").is_visible()
    visitor.wait_for_curve("#rating-plot")
    visitor.page.locator(".as-table summary").click()
    assert visitor.page.locator("#rating-table tbody tr").count() == len(status.curve)
    assert visitor.page.locator("#stages [data-state=active]").all_inner_texts()[0].startswith("Self-play")
    assert visitor.page.locator("#jobs progress").first.evaluate("bar => bar.value") == pytest.approx(
        190 / 512
    )
    assert "the test says stronger" in visitor.text("#decisions li:first-child")
    assert "Training sees every row 6.1 times" in visitor.text("#findings li:first-child")
    assert "no quality for 3 min" in visitor.text("#daemons")
    assert "MODEL_PROMOTED" in visitor.text("#events")
    assert "1.2.3" in visitor.text("#version")
    assert visitor.complaints == []


def test_what_changes_in_the_run_changes_on_the_page(site, visit):
    site.show(ONE)
    visitor = visit()
    mark = visitor.page.locator("#totals .total").first.element_handle()
    last = ONE.status().configs["square8_2p"].curve[-1]
    stronger = msgspec.structs.replace(
        last, model="f" * 16, at_s=last.at_s + 60, rating=999.0, low=970.0, high=1030.0
    )
    curve = (*ONE.status().configs["square8_2p"].curve, stronger)
    site.show(changed(ONE, "square8_2p", games=43_211, rating=999.0, curve=curve, champion="f" * 16))
    visitor.wait_for_text("#rating-value", "999")
    assert "43,211" in visitor.text("#totals")
    assert "10 champions" in visitor.text("#rating-now")
    assert mark.is_visible(), "the element was updated in its place"
    assert visitor.complaints == []


def test_the_page_says_when_the_server_is_gone_and_comes_back_by_itself(site, visit):
    site.show(ONE)
    visitor = visit()
    site.stop()
    visitor.wait_for_text("#banner", "Last seen")
    assert visitor.text("#link-text") in {"connection lost", "stopped"}
    assert visitor.text("#rating-value") == str(round(ONE.status().configs["square8_2p"].rating))
    site.start()
    site.show(changed(ONE, "square8_2p", rating=1234.0))
    visitor.wait_for_text("#rating-value", "1234")
    assert visitor.page.locator("#banner").is_hidden()
    assert visitor.text("#link-text") == "live"


def test_a_control_loop_that_stopped_reporting_is_not_shown_as_well(site, visit):
    site.show(ONE, alive=False, reason="event_router is failed")
    visitor = visit()
    visitor.wait_for_text("#banner", "event_router is failed")
    assert visitor.text("#state") == "not well"


def test_twelve_configs_are_chosen_by_keyboard_and_keep_their_place(site, visit):
    run = SampleRun(configs=TWELVE)
    site.show(run)
    visitor = visit()
    tiles = visitor.page.locator("#configs .tile")
    assert tiles.count() == 12
    hexagonal = tiles.filter(has_text="hexagonal_2p")
    hexagonal.focus()
    visitor.page.keyboard.press("Enter")
    assert visitor.text("#rating-config") == "hexagonal_2p"
    assert hexagonal.get_attribute("aria-pressed") == "true"
    assert visitor.page.url.endswith("#hexagonal_2p")
    site.show(changed(run, "hexagonal_2p", games=777_777))
    visitor.wait_for_text("#counts", "777.8K")
    assert visitor.page.evaluate("document.activeElement.innerText").startswith("hexagonal_2p")
    visitor.page.get_by_role("button", name="this config").click()
    assert "hexagonal_2p" in visitor.text("#decisions") or "Nothing" in visitor.text("#decisions")
    visitor.page.reload()
    visitor.wait_for_text("#rating-config", "hexagonal_2p")
    assert visitor.complaints == []


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("configs", [("square8_2p",), TWELVE])
def test_nothing_sticks_out_at_any_width(site, visit, width, configs):
    site.show(SampleRun(configs=configs))
    visitor = visit(width=width)
    visitor.wait_for_text("#rating-now", "rating points")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width


def test_text_from_outside_stays_text(site, visit):
    status = SampleRun(configs=(HOSTILE, "hex8_2p")).status()
    decisions = tuple(
        msgspec.structs.replace(each, what=HOSTILE, reason=HOSTILE) for each in status.decisions
    )
    finding = {"check": HOSTILE, "level": HOSTILE, "text": HOSTILE, "advice": HOSTILE}
    queue = {HOSTILE: {"ready": 1}}
    run = changed(
        SampleRun(configs=(HOSTILE, "hex8_2p")), HOSTILE, next=HOSTILE, champion=HOSTILE, stage=HOSTILE
    )
    run = msgspec.structs.replace(run, decisions=decisions, findings=(finding,), node=HOSTILE, queue=queue)
    event = {"id": "1", "at_s": 1.0, "type": HOSTILE, "source": HOSTILE, "about": HOSTILE}
    site.show(run, events=[event], version=HOSTILE)
    visitor = visit()
    visitor.wait_for_text("#decisions", "<img")
    visitor.page.locator(".tile").first.click()
    assert visitor.text("#rating-config") == HOSTILE
    assert visitor.page.evaluate("window.pwned") is None
    assert visitor.page.locator("main img, main script").count() == 0
    assert visitor.complaints == []


def test_a_script_that_was_smuggled_in_would_not_run(site, visit):
    site.show(ONE)
    visitor = visit()
    visitor.page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.pwned = 1';"
        " document.body.append(s); }"
    )
    assert visitor.page.evaluate("window.pwned") is None
    visitor.wait_for_complaint("Content Security Policy")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (None, "The loop has not told anything yet"),
        (SampleRun(configs=()), "This run has no configs yet"),
        (SampleRun(promotions=0, findings=False), "No champion yet"),
    ],
)
def test_an_empty_place_says_why_it_is_empty(site, visit, run, words):
    site.show(run)
    visitor = visit()
    visitor.wait_for_text("#rating-plot", words)
    assert visitor.complaints == []


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_can_be_read(site, visit, theme):
    site.show(ONE)
    visitor = visit(theme=theme)
    for front, back in (
        ("--text", "--card"),
        ("--muted", "--card"),
        ("--muted", "--bg"),
        ("--accent", "--card"),
        ("--good", "--good-bg"),
        ("--warn", "--warn-bg"),
        ("--bad", "--bad-bg"),
    ):
        assert visitor.page.evaluate(CONTRAST, [front, back]) >= 4.5, (front, back)


def test_the_theme_is_switched_and_remembered(site, visit):
    site.show(ONE)
    visitor = visit(theme="dark")
    visitor.page.get_by_role("button", name="Switch between dark and light").click()
    assert visitor.page.evaluate("document.documentElement.dataset.theme") == "light"
    visitor.wait_for_curve("#rating-plot")  # it is drawn anew in the other colors
    visitor.page.reload()
    assert visitor.page.evaluate("document.documentElement.dataset.theme") == "light"


def test_the_axis_of_the_curve_can_be_rows(site, visit):
    site.show(ONE)
    visitor = visit()
    visitor.page.get_by_role("button", name="rows").click()
    visitor.wait_for_curve("#rating-plot")
    assert visitor.complaints == []


def test_a_point_of_the_curve_is_told_under_the_mouse(site, visit):
    site.show(ONE)
    visitor = visit()
    visitor.page.locator("#rating-plot .u-over").hover()
    visitor.wait_for_text("#rating-plot .tip", "model")


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_picture_of_it_can_be_taken(site, visit, tmp_path, theme, width):
    site.show(SampleRun(configs=TWELVE))
    visitor = visit(width=width, theme=theme)
    visitor.wait_for_text("#rating-now", "rating points")
    picture = tmp_path / f"page-{theme}-{width}.png"
    visitor.page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 40_000


def test_the_speed_of_the_last_minutes_is_drawn(site, visit):
    site.show(ONE)
    visitor = visit()
    for second in range(1, 4):
        status = changed(ONE, "square8_2p", games_per_s=2.0 + second)
        site.show(msgspec.structs.replace(status, at_s=status.at_s + second))
        visitor.wait_for_text("#totals", f"{2 + second}.0")
    assert visitor.page.locator("#totals .total-plot polyline").count() == 1


def test_cost_is_told_in_cpu_gpu_and_money_for_what_it_brought(site, visit):
    site.show(SampleRun(configs=("square8_2p", "hex8_2p")))
    visitor = visit()
    rows = [row.split("\t") for row in visitor.page.locator("#cost tr").all_inner_texts()]
    assert [row[0].strip() for row in rows] == ["", "in all", "a game", "a promotion", "a rating point"]
    assert [cell.strip() for cell in rows[0][1:]] == ["CPU", "GPU", "money"]
    assert all(any(sign.isdigit() for sign in cell) for row in rows[1:] for cell in row[1:])
    visitor.page.locator("#configs .tile").nth(1).click()
    visitor.page.locator("#cost .note").wait_for()
    assert "[prices]" in visitor.text("#cost")


def test_a_problem_that_the_doctor_found_looks_like_one(site, visit):
    finding = {"check": "disk", "level": "problem", "text": "0.5 GiB are free", "advice": "Make room."}
    site.show(msgspec.structs.replace(ONE.status(), findings=(finding,)))
    visitor = visit()
    badge = visitor.page.locator("#findings .badge")
    assert (badge.inner_text(), badge.get_attribute("data-level")) == ("problem", "bad")


def colors(visitor, selector):
    return visitor.page.locator(selector).first.evaluate(
        "node => [getComputedStyle(node).color, getComputedStyle(node).backgroundColor]"
    )


def test_a_pause_is_no_fault_and_has_a_color_of_its_own(site, visit):
    blocked = {"train": {"reason": "3 failures in a row: out of memory", "until_s": None}}
    site.show(changed(ONE, "square8_2p", stage="blocked", blocked=blocked))
    visitor = visit()
    visitor.wait_for_text("#blocks", "out of memory")
    bad = colors(visitor, "#blocks .block")
    assert visitor.page.locator("#pause").is_hidden()
    site.show(SampleRun(paused=True))
    visitor.wait_for_text("#pause", "Paused by anna")
    assert "the machine is needed" in visitor.text("#pause")
    assert visitor.page.locator("#blocks .block").count() == 0
    assert visitor.page.locator('#stages [data-state="blocked"]').count() == 0
    assert visitor.page.locator('#stages [data-state="paused"]').count() == 5
    assert colors(visitor, "#pause") != bad
    assert visitor.page.locator("#state").get_attribute("data-level") == "calm"
    assert visitor.page.locator("#banner").get_attribute("data-level") == "calm"
    assert colors(visitor, "#banner") == colors(visitor, "#pause")
    assert visitor.complaints == []


# --- the key --------------------------------------------------------------------------------------------


def test_whoever_came_by_a_link_may_act_and_the_code_does_not_stay_in_the_address(site, visit):
    site.show(ONE)
    code = site.keys.new_code()
    visitor = visit(f"/#enter={code}")
    visitor.wait_for_text("#act", "Pause")
    assert code not in visitor.page.url
    visitor.page.locator("#act").click()
    visitor.page.wait_for_timeout(50)
    site.show(msgspec.structs.replace(ONE.status(), state="paused"))
    visitor.wait_for_text("#act", "Resume")
    visitor.page.locator("#act").click()
    visitor.page.wait_for_selector("#act[data-locked=no]")
    assert site.actions[:1] == ["pause"]
    assert visitor.page.locator("#key-note").is_hidden()
    visitor.page.reload()
    visitor.wait_for_text("#link-text", "live")
    visitor.page.wait_for_selector("#act[data-locked=no]")  # the session outlives a reload
    assert visitor.complaints == []


def test_without_the_key_the_page_reads_and_says_what_acting_needs(site, visit):
    site.show(ONE)
    visitor = visit()
    visitor.page.wait_for_selector("#act[data-locked=yes]")
    visitor.page.locator("#act").click()
    visitor.wait_for_text("#key-note", "ringrift link")
    assert visitor.text("#state") == "running"
    assert site.actions == []


def test_a_link_that_was_used_says_so(site, visit):
    site.show(ONE)
    code = site.keys.new_code()
    site.keys.exchange(code)
    visitor = visit(f"/#enter={code}")
    visitor.wait_for_text("#key-note", "used before")


def test_beyond_loopback_the_page_shows_the_run_only_with_the_key(browser, site):
    site.stop()
    site.open_to_read = False
    site.start()
    site.show(ONE)
    context = browser.new_context()
    context.set_default_timeout(60_000)
    page = context.new_page()
    page.goto(site.url)
    page.wait_for_function("() => document.querySelector('#banner').innerText.includes('ringrift link')")
    assert page.locator("#rating-value").inner_text() == ""
    page.goto(f"{site.url}/#enter={site.keys.new_code()}")
    page.wait_for_function("() => document.querySelector('#link-text').innerText.includes('live')")
    assert page.locator("#state").inner_text() == "running"
    context.close()
