"""Line plots say of each point what was said of it."""

from math import inf, nan
from xml.etree import ElementTree

import pytest

from ringrift.statistics.line_plot import line_plot

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("heights", "shown"),
    [
        ((1, 2, 3), ["first", "second", "third"]),
        ((nan, 2, 3), ["second", "third"]),
        ((1, inf, 3), ["first", "third"]),
    ],
)
def test_a_note_stays_with_its_point(heights, shown):
    drawn = line_plot(
        "ratings",
        {"one": list(enumerate(heights))},
        x_label="hours",
        y_label="rating",
        notes={"one": ["first", "second", "third"]},
    )
    dots = ElementTree.fromstring(drawn).iter(f"{SVG}circle")
    said = {float(dot.get("cx")): dot.findtext(f"{SVG}title") for dot in dots}
    assert [said[x] for x in sorted(said)] == shown
