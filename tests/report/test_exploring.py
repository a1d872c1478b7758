"""The page in a browser: no word on the console, no request; hovering, choosing, switching and sorting act."""

import numpy as np
import pytest

from tests.support.report_pages import HOSTILE, full_page, png
from warpgrad.report import (
    Chart,
    Column,
    Forest,
    ForestRow,
    Mark,
    Page,
    Paragraph,
    Reference,
    Section,
    Series,
    Table,
    Value,
)
from warpgrad.report.looks import DARK_PALETTE, PALETTE
from warpgrad.report.tables import Sized
from warpgrad.statistics.estimates import paired_difference

__all__ = ["png"]

SIZES = [(1280, False), (1280, True), (400, False), (400, True)]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A comparison: a forest plot, a table that is too wide for a telephone, and a chart."""
    random, x = np.random.default_rng(0), np.arange(40.0)
    scores = random.normal(60, 5, size=(5, 8))
    others = {"Leap": scores - 6 + random.normal(size=(5, 8)), "MAML": scores + random.normal(size=(5, 8))}
    forest = Forest(
        [ForestRow(name, paired_difference(scores, own, names=("Warp-Leap", name))) for name, own in others.items()],
        "How far Warp-Leap is ahead", "points", "the other", "Warp-Leap",
    )  # fmt: skip
    names = ("Warp-Leap", "Leap", "MAML")
    series = [
        Series.quartiles(name, x, [np.exp(-x / (10 + 5 * i)) + 0.01 * j for j in range(3)], seeds=range(3))
        for i, name in enumerate(names)
    ]
    columns = ["Method", *(Column(f"accuracy at the batch size {i}", "%", best="highest") for i in range(7))]
    rows = [[name, *(Value(10.0 * i + j, i - 1.0, i + 1.0) for j in range(7))] for i, name in enumerate(names)]
    section = Section("Result").add(forest, Table(columns, rows, "All rows"), Chart(series, "step", "loss"))
    path = tmp_path_factory.mktemp("page") / "page.html"
    return Page("A comparison").add(section, Section("Words").add(Paragraph("Last."))).write(path)


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_a_page_of_every_block_says_nothing_and_asks_nobody(browser, tmp_path, png, width, dark):
    path = Page("Every block").add(*full_page(png, HOSTILE).sections).write(tmp_path / "page.html")
    with browser.page(path, width=width, dark=dark) as visit:
        visit.box("figure.chart")
        visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")
        assert visit.value("document.documentElement.dataset.ready") == "true"
        assert visit.value("document.querySelectorAll('nav a[aria-current]').length") == 1
        assert visit.value("[...document.querySelectorAll('button')].every((button) => !button.hidden)")
        assert visit.value("document.documentElement.scrollWidth") <= width
        assert visit.console() == []
        assert visit.requests() == []


def test_a_value_that_never_changes_has_an_axis_around_it(browser, tmp_path):
    """A step size of 0.003 must not look like 0 on an axis from −1 to 1."""
    chart = Chart([Series("Leap", np.arange(5.0), np.full(5, 0.003))], "step", "lr")
    with browser.page(Page("Constant").add(Section("Chart").add(chart)).write(tmp_path / "page.html")) as visit:
        visit.box("figure.chart")
        visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")
        ends = visit.value("(() => { const r = Bokeh.documents[0].roots()[0].y_range; return [r.start, r.end]; })()")
        assert 0 < ends[0] < 0.003 < ends[1] < 0.01


def test_an_error_and_a_request_would_be_noticed(browser, tmp_path):
    broken = Page("Broken").html().replace("</main>", '<img src="https://example.org/a.png"></main>')
    path = tmp_path / "broken.html"
    path.write_text(broken.replace("document.documentElement", "document.nowhere"))
    with browser.page(path) as visit:
        assert visit.value("document.documentElement.dataset.ready") is None
        visit.wait("true")
        assert any("example.org" in line for line in visit.console())


def test_what_each_side_of_a_plot_favours_stands_on_that_side(browser, tmp_path):
    """On a telephone the two names may need a line each."""
    one, other = "the method with the longest name of all", "another method with a name as long"
    row = ForestRow("MAML", paired_difference(np.arange(12.0).reshape(4, 3), np.zeros((4, 3)), names=("a", "b")))
    forest = Forest([row], "How far it is ahead", "points", f"{one} is ahead", f"{other} is ahead")
    path = Page("Sides").add(Section("Result").add(forest)).write(tmp_path / "page.html")
    with browser.page(path, width=400) as visit:
        ends = visit.value(
            "[...document.querySelectorAll('.sides span')].map((side) => { const box = side.getBoundingClientRect(); "
            "const around = side.parentElement.getBoundingClientRect(); "
            "return [box.top, box.left - around.left, around.right - box.right]; })"
        )
    (first, left, _), (second, _, right) = ends
    assert first < second
    assert max(left, right) < 12


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_hovering_tells_the_values_of_all_curves_at_that_place(browser, page, width, dark):
    with browser.page(page, width=width, dark=dark) as visit:
        x, y, *_ = visit.box(".chart .plot")
        visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")
        assert visit.value("document.querySelector('.tip').hidden")
        visit.move(x, y)
        visit.wait("!document.querySelector('.tip').hidden")
        told = visit.value("document.querySelector('.tip').innerText")
        assert told.startswith("step ")
        assert all(name in told for name in ("Warp-Leap", "Leap", "MAML"))
        visit.move(2, 2)
        visit.wait("document.querySelector('.tip').hidden")


def test_a_curve_is_hidden_and_shown_by_its_name_and_with_its_method(browser, page):
    with browser.page(page) as visit:
        x, y, *_ = visit.box(".chart .plot")
        visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")

        def told():
            visit.move(x + 3, y)
            visit.move(x, y)
            visit.wait("!document.querySelector('.tip').hidden")
            return visit.value("document.querySelector('.tip').innerText")

        visit.click(".key:nth-child(3)")
        x, y, *_ = visit.box(".chart .plot")
        assert "MAML" not in told()
        visit.click(".key:nth-child(3)")
        x, y, *_ = visit.box(".chart .plot")
        assert "MAML" in told()
        visit.click(".choice input[value='Leap']")
        assert visit.value("[...document.querySelectorAll('tr[data-method=Leap]')].map((row) => row.hidden)") == [
            True,
            True,
        ]
        x, y, *_ = visit.box(".chart .plot")
        assert [line.split()[0] for line in told().splitlines()[1:]] == ["MAML", "Warp-Leap"]


def test_who_chooses_among_single_runs_sees_them(browser, page):
    with browser.page(page) as visit:
        visit.box(".chart .plot")
        visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")
        pressed = "[...document.querySelectorAll('.buttons button')].find((b) => b.textContent === 'Runs').ariaPressed"
        assert visit.value(pressed) == "false"
        visit.click(".choice[data-choice='seed'] input[value='1']")
        assert visit.value(pressed) == "true"


def test_the_axis_is_switched_zoomed_reset_and_smoothed(browser, page):
    with browser.page(page) as visit:
        visit.box(".chart .plot")
        visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")
        assert visit.value("document.querySelector('.buttons button').textContent") == "Log"
        before = shot(visit)
        visit.click(".buttons button")
        visit.wait("document.querySelector('.buttons button').getAttribute('aria-pressed') === 'true'")
        settle(visit)
        logarithmic = shot(visit)
        assert logarithmic != before
        x, y, width, tall = visit.box(".chart .plot")
        visit.move(x - width / 4, y - tall / 4)
        visit.press(x - width / 4, y - tall / 4)
        visit.move(x, y)
        visit.release(x, y)
        visit.move(2, 2)
        settle(visit)
        assert shot(visit) != logarithmic
        visit.click(".buttons button:last-child")
        visit.move(2, 2)
        settle(visit)
        assert shot(visit) == logarithmic
        visit.value(
            "(() => { const slider = document.querySelector('.smooth input'); slider.value = 0.9; "
            "slider.dispatchEvent(new Event('input')); })()"
        )
        settle(visit)
        assert shot(visit) != logarithmic


def test_curves_beyond_the_first_are_hidden_until_they_are_chosen(browser, tmp_path):
    x = np.arange(5.0)
    chart = Chart([Series.line(name, x, x + i) for i, name in enumerate("abc")], "step", "loss", first=["b"])
    with browser.page(Page("Few at first").add(Section("s").add(chart)).write(tmp_path / "page.html")) as visit:
        visit.box("figure.chart")
        visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")
        pressed = "[...document.querySelectorAll('.key')].map((key) => key.getAttribute('aria-pressed'))"
        assert visit.value(pressed) == ["false", "true", "false"]
        visit.click(".key")
        assert visit.value(pressed) == ["true", "true", "false"]


def test_labels_of_lines_stay_on_the_axis_that_reaches_to_a_star(browser, tmp_path):
    chart = Chart(
        [Series.line("Leap", [1.0, 2.0, 4.0], [0.0, 1.0, 2.0])], "updates", "return", log_x=True,
        references=[Reference("wandering", 2.5), Reference("random moves", 1.0)], marks=[Mark("150", 1e5, 150.0)],
    )  # fmt: skip
    with browser.page(Page("Star").add(Section("s").add(chart)).write(tmp_path / "page.html")) as visit:
        visit.box("figure.chart")
        visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")
        places = visit.value(
            "Bokeh.documents[0].roots()[0].center.filter((one) => one.type === 'Label').map((one) => [one.text, one.x])"
        )
        assert dict(places) == {"wandering": 1, "random moves": 1e5, "150": 1e5}


def test_the_key_of_points_is_a_point(browser, tmp_path):
    series = [Series("all", np.arange(3.0), np.arange(3.0), points=True), Series.line("best", [0, 2], [0, 2])]
    chart = Chart(series, "trial", "loss")
    with browser.page(Page("Keys").add(Section("s").add(chart)).write(tmp_path / "page.html")) as visit:
        caps = "[...document.querySelectorAll('.key line')].map((line) => line.getAttribute('stroke-linecap'))"
        assert visit.value(caps) == ["round", None]


def test_dark_pages_have_dark_charts(browser, page):
    seen = {}
    for dark, palette in ((False, PALETTE), (True, DARK_PALETTE)):
        with browser.page(page, dark=dark) as visit:
            visit.box(".chart .plot")
            visit.wait("document.querySelector('.chart .card').dataset.drawn === 'true'")
            seen[dark] = visit.value("getComputedStyle(document.querySelector('.chart .card')).backgroundColor")
            stroke = visit.value("getComputedStyle(document.querySelector('.key line')).stroke")
            assert stroke == "rgb({}, {}, {})".format(*(int(palette[0][i : i + 2], 16) for i in (1, 3, 5)))
    assert seen == {False: "rgb(255, 255, 255)", True: "rgb(28, 32, 38)"}


def test_a_click_on_its_head_sorts_a_column(browser, page):
    first = "[...document.querySelectorAll('.sortable tbody th')].map((cell) => cell.textContent)"
    with browser.page(page) as visit:
        assert visit.value(first) == ["Warp-Leap", "Leap", "MAML"]
        visit.click(".sortable thead th:nth-child(2) button")
        assert visit.value(first) == ["MAML", "Leap", "Warp-Leap"]
        visit.click(".sortable thead th:nth-child(2) button")
        assert visit.value(first) == ["Warp-Leap", "Leap", "MAML"]


def test_numbers_are_sorted_by_size_however_they_are_written(browser, tmp_path):
    """Durations have two units, small numbers a power of ten, and a remark is no number."""
    rows = [
        ["a", Sized("10 min 26 s", 626.0), "3·10⁻⁵", "684a39690e43", Value(2.0)],
        ["b", Sized("45.7 s", 45.7), "0.01", "fbd166e3c35f", "not finite in 1 of 2 runs"],
        ["c", Sized("2 h 05 min", 7500.0), "1·10⁻⁴", "19a7d0f3e2b1", Value(-3.0)],
    ]
    table = Table(["Run", "Wall time", "step size", "Commit", "loss"], rows)
    order = "[...document.querySelectorAll('.sortable tbody th')].map((cell) => cell.textContent).join('')"
    with browser.page(Page("Sorted").add(Section("s").add(table)).write(tmp_path / "page.html")) as visit:
        for place, expected in ((2, "cab"), (3, "bca"), (4, "cab"), (5, "acb")):
            visit.click(f".sortable thead th:nth-child({place}) button")
            assert visit.value(order) == expected


def test_on_a_telephone_a_number_has_its_unit_and_an_empty_cell_no_line(browser, tmp_path):
    table = Table(["Method", Column("meta-training", "min"), "preset"], [["a", "6.2", ""], ["b", None, "small"]])
    path = Page("Units").add(Section("s").add(table)).write(tmp_path / "page.html")
    with browser.page(path, width=400) as visit:
        cells = visit.value(
            "[...document.querySelectorAll('.sortable td')].filter((cell) => cell.offsetHeight)"
            ".map((cell) => `${cell.dataset.label}: ${cell.innerText.trim()}`)"
        )
        assert cells == ["meta-training, min: 6.2", "preset: small"]


def test_on_a_telephone_a_long_label_breaks_and_not_the_number_beside_it(browser, tmp_path):
    label = Column("Accuracy after 300 steps of adaptation, minus Warp-Leap", "points")
    table = Table(["Method", label, label, "short"], [["a", Value(-1.3, digits=1), "0.752", "0.752"]])
    path = Page("Long").add(Section("s").add(table)).write(tmp_path / "page.html")
    with browser.page(path, width=400) as visit:
        heights = visit.value(
            "[...document.querySelectorAll('.sortable td')].map((cell) => { const range = document.createRange(); "
            "range.selectNodeContents(cell.querySelector('.mean') ?? cell); "
            "return range.getBoundingClientRect().height; })"
        )
        assert max(heights) <= 1.5 * heights[-1]


def test_on_a_telephone_every_number_is_within_the_screen(browser, page):
    with browser.page(page, width=400) as visit:
        ends = visit.value(
            "[...document.querySelectorAll('.mean, .interval, .forest .number')].filter((e) => e.tagName !== 'line' "
            "&& e.tagName !== 'circle').map((e) => { const b = e.getBoundingClientRect(); return [b.left, b.right]; })"
        )
        assert len(ends) > 40
        assert all(0 <= left < right <= 400 for left, right in ends)
        # Nothing lies over a number: what is found at its middle is the number.
        covered = visit.value(
            "[...document.querySelectorAll('td .mean')].filter((e) => { e.scrollIntoView({block: 'center', behavior: "
            "'instant'}); const b = e.getBoundingClientRect(); "
            "const at = document.elementFromPoint(b.left + b.width / 2, b.top + b.height / 2); "
            "return !e.contains(at) && !at.contains(e); }).length"
        )
        assert covered == 0


def shot(visit):
    """The pixels of the first chart's canvases."""
    return visit.value(
        "(() => { const found = []; const walk = (root) => { for (const e of root.querySelectorAll('*')) { "
        "if (e.tagName === 'CANVAS') found.push(e.toDataURL()); if (e.shadowRoot) walk(e.shadowRoot); } }; "
        "walk(document.querySelector('.chart .plot')); return found.join(' '); })()"
    )


def settle(visit):
    """Until two looks in a row see the same."""
    before = None
    for _ in range(100):
        now = shot(visit)
        if now and now == before:
            return
        before = now
        visit.value("new Promise((done) => setTimeout(() => requestAnimationFrame(() => done(1)), 150))")
    raise AssertionError("the chart never came to rest")
