//! Bar charts as SVG, with a legend. Legible on light and dark backgrounds.
//!
//! *Rejected*: a plotting crate, which would bring fonts and rasters for one kind of picture.

use std::fmt::Write;

use super::number::{number, whole};
use super::outcome::{Plot, Series};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
/// Borders of the plot area: left, top, right, bottom.
const FRAME: [f64; 4] = [80.0, 40.0, 560.0, 320.0];
/// Colours that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999", "#f0e442"];

/// Draws a plot.
pub(crate) fn draw(plot: &Plot) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    let [left, _, right, _] = FRAME;
    text(
        &mut svg,
        (left, 22.0),
        "start",
        &format!("<tspan font-weight=\"bold\">{}</tspan>", escaped(&plot.title)),
    );
    text(&mut svg, ((left + right) / 2.0, HEIGHT - 12.0), "middle", &escaped(&plot.x));
    text(&mut svg, (left - 70.0, 22.0), "start", &escaped(&plot.y));
    bars(&mut svg, plot);
    legend(&mut svg, &plot.series);
    svg + "</svg>\n"
}

/// Mapping of values to vertical coordinates.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// Makes an axis of whole steps that contains 0 and all values.
    fn new(values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = values.fold((0.0, 0.0), |(low, high), value| (value.min(low), value.max(high)));
        let step = step(high - low);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        // All values are zero: make a non-empty axis.
        Axis { low, high: if high > low { high } else { low + step } }
    }

    fn at(&self, value: f64) -> f64 {
        let [_, top, _, bottom] = FRAME;
        bottom + (value - self.low) / (self.high - self.low) * (top - bottom)
    }

    /// Returns the values of the tick marks.
    fn ticks(&self) -> Vec<f64> {
        let step = step(self.high - self.low);
        let steps = ((self.high - self.low) / step).round() as i32;
        (0..=steps).map(|tick| self.low + f64::from(tick) * step).collect()
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten that divides the range into four to ten parts.
fn step(whole: f64) -> f64 {
    let whole = if whole > 0.0 { whole } else { 1.0 };
    let power = 10_f64.powf((whole / 4.0).log10().floor());
    [5.0, 2.0].into_iter().find(|step| step * power * 4.0 <= whole).unwrap_or(1.0) * power
}

/// Formats the round numbers of an axis: 0, 0.05, 1,000.
fn tick_text(value: f64) -> String {
    let rounded = value.round();
    if (value - rounded).abs() < 1e-9 {
        return whole(rounded as i64);
    }
    format!("{value:.4}").trim_end_matches('0').to_owned()
}

fn bars(svg: &mut String, plot: &Plot) {
    let [left, _, right, bottom] = FRAME;
    let groups = &plot.groups;
    let values = plot.series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let y = Axis::new(values);
    grid(svg, &y);
    let group = (right - left) / groups.len().max(1) as f64;
    let bar = group * 0.8 / plot.series.len().max(1) as f64;
    for (at, name) in groups.iter().enumerate() {
        // Two lines if one has not enough room.
        let line = bottom + if groups.len() > 4 && at % 2 == 1 { 32.0 } else { 18.0 };
        text(svg, (left + group * (at as f64 + 0.5), line), "middle", &escaped(name));
    }
    for (index, (series, colour)) in plot.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        for (at, value) in &series.points {
            let x = left + group * (at + 0.1) + bar * index as f64;
            let (from, to) = (y.at(0.0).max(y.at(*value)), y.at(0.0).min(y.at(*value)));
            put(
                svg,
                format_args!(
                    "<rect x=\"{x:.1}\" y=\"{to:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{}: {}</title></rect>",
                    bar * 0.9,
                    (from - to).max(0.5),
                    escaped(&series.name),
                    number(*value)
                ),
            );
        }
    }
}

fn grid(svg: &mut String, y: &Axis) {
    let [left, _, right, _] = FRAME;
    for tick in y.ticks() {
        let place = y.at(tick);
        put(
            svg,
            format_args!(
                "<line x1=\"{left}\" y1=\"{place:.1}\" x2=\"{right}\" y2=\"{place:.1}\" stroke=\"#dddddd\"/>"
            ),
        );
        text(svg, (left - 8.0, place + 4.0), "end", &tick_text(tick));
    }
}

fn legend(svg: &mut String, series: &[Series]) {
    let [_, top, right, _] = FRAME;
    for (row, (series, colour)) in series.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let (x, y) = (right + 16.0, top + 10.0 + 20.0 * row as f64);
        put(
            svg,
            format_args!(
                "<rect x=\"{x}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
                y - 10.0
            ),
        );
        text(svg, (x + 18.0, y), "start", &escaped(&series.name));
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    put(
        svg,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222222\">{content}</text>"
        ),
    );
}

fn put(svg: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(svg, "{what}");
}

fn escaped(content: &str) -> String {
    content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_starts_at_zero_unless_values_are_negative() {
        let axis = |values: [f64; 2]| Axis::new(values.into_iter());
        assert_eq!(axis([3.0, 7.0]).ticks(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(axis([-30.0, 97.0]).ticks(), [-40.0, -20.0, 0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let zeros = axis([0.0, 0.0]);
        assert_eq!((zeros.low, zeros.high), (0.0, 0.2), "nothing but zeros is still an axis");
    }

    #[test]
    fn axis_numbers_are_round() {
        let ticks = [0.0, 0.05, 1.0, -20.0, 2.5, 1_000_000.0].map(tick_text);
        assert_eq!(ticks, ["0", "0.05", "1", "-20", "2.5", "1,000,000"]);
    }

    #[test]
    fn every_point_and_name_is_drawn() {
        let series = vec![
            Series { name: "a < b".into(), points: vec![(0.0, 1.0), (1.0, 20.0)] },
            Series { name: "c".into(), points: vec![(0.0, 2.0)] },
        ];
        let groups = vec!["g".into(), "h".into()];
        let plot = Plot { name: "n".into(), title: "t".into(), x: "x".into(), y: "y".into(), groups, series };
        let bars = draw(&plot);
        assert_eq!(bars.matches("<title>").count(), 3);
        assert!(bars.contains("a &lt; b") && !bars.contains("NaN"), "{bars}");
    }
}
