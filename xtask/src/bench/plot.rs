//! A table as an SVG: one panel per row; per column a dot at the median on a line from minimum to
//! maximum.

use super::report::{Spread, figures};
use std::fmt::Write;

pub struct Panel {
    pub name: &'static str,
    pub unit: &'static str,
    /// From top to bottom.
    pub points: Vec<Point>,
}

pub struct Point {
    pub name: &'static str,
    pub spread: Spread,
    /// Highlighted.
    pub ours: bool,
}

/// All lengths are in pixels.
const PANEL_WIDTH: f64 = 430.0;
const MARGIN: f64 = 14.0;
/// Column names are left of the axis; the space right of it is for the last label.
const AXIS_FROM: f64 = 116.0;
const AXIS_TO: f64 = 376.0;
const HEAD: f64 = 30.0;
const LINE: f64 = 18.0;
const FOOT: f64 = 30.0;
const ACROSS: usize = 2;

/// An axis is logarithmic if the largest value exceeds this multiple of the smallest.
const LINEAR_UP_TO: f64 = 20.0;

/// GitHub's colours, light and dark.
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#1f2328}.name{font-weight:600}.minor{fill:#59636e;font-size:11px}\
    .ground{fill:#ffffff}.grid{stroke:#d1d9e0}.line{stroke:#59636e;stroke-width:2}.dot{fill:#59636e}\
    .ours.line{stroke:#bc4c00}.ours.dot{fill:#bc4c00}\
    @media(prefers-color-scheme:dark){text{fill:#f0f6fc}.minor{fill:#9198a1}.ground{fill:#0d1117}.grid{stroke:#3d444d}\
    .line{stroke:#9198a1}.dot{fill:#9198a1}.ours.line{stroke:#f0883e}.ours.dot{fill:#f0883e}}";

/// Panels of one unit share one axis.
pub fn svg(title: &str, panels: &[Panel]) -> String {
    let one_unit = panels.windows(2).all(|pair| pair[0].unit == pair[1].unit);
    let shared = one_unit.then(|| Axis::of(panels));
    let (mut body, mut top) = (String::new(), MARGIN);
    for line in panels.chunks(ACROSS) {
        for (at, panel) in line.iter().enumerate() {
            let own = Axis::of(std::slice::from_ref(panel));
            let left = MARGIN + at as f64 * (PANEL_WIDTH + MARGIN);
            draw(&mut body, panel, shared.as_ref().unwrap_or(&own), left, top)
                .expect("a string takes everything");
        }
        let points = line.iter().map(|panel| panel.points.len()).max().unwrap_or(0);
        top += HEAD + points as f64 * LINE + FOOT;
    }
    let (width, title) = (MARGIN + ACROSS as f64 * (PANEL_WIDTH + MARGIN), escaped(title));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{top}\" viewBox=\"0 \
         0 {width} {top}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<rect class=\"ground\" width=\"{width}\" \
         height=\"{top}\"/>\n{body}</svg>\n"
    )
}

fn draw(out: &mut String, panel: &Panel, axis: &Axis, left: f64, top: f64) -> std::fmt::Result {
    let unit = if axis.logarithmic {
        format!("{}, logarithmic", panel.unit)
    } else {
        panel.unit.to_owned()
    };
    let bottom = top + HEAD + panel.points.len() as f64 * LINE;
    let across = |value: f64| left + AXIS_FROM + axis.part(value) * (AXIS_TO - AXIS_FROM);
    writeln!(
        out,
        "<text x=\"{left}\" y=\"{:.1}\"><tspan class=\"name\">{}</tspan> <tspan \
         class=\"minor\">{}</tspan></text>",
        top + 14.0,
        escaped(panel.name),
        escaped(&unit)
    )?;
    for tick in axis.ticks() {
        let x = across(tick);
        writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>",
            top + HEAD - 6.0
        )?;
        writeln!(
            out,
            "<text class=\"minor\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 13.0,
            short(tick)
        )?;
    }
    for (at, Point { name, spread, ours }) in panel.points.iter().enumerate() {
        let y = top + HEAD + (at as f64 + 0.5) * LINE - 3.0;
        let ours = if *ours { "ours " } else { "" };
        let [least, median, most] = [spread.least, spread.median, spread.most].map(across);
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left + AXIS_FROM - 10.0,
            y + 4.0,
            escaped(name)
        )?;
        writeln!(
            out,
            "<line class=\"{ours}line\" x1=\"{least:.1}\" y1=\"{y:.1}\" x2=\"{most:.1}\" \
             y2=\"{y:.1}\"/>"
        )?;
        writeln!(out, "<circle class=\"{ours}dot\" cx=\"{median:.1}\" cy=\"{y:.1}\" r=\"4\"/>")?;
        writeln!(
            out,
            "<text class=\"minor\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            most + 8.0,
            y + 4.0,
            figures(spread.median)
        )?;
    }
    Ok(())
}

struct Axis {
    logarithmic: bool,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that covers all values, and zero unless it is logarithmic.
    fn of(panels: &[Panel]) -> Axis {
        let spreads = || panels.iter().flat_map(|panel| &panel.points).map(|point| &point.spread);
        let least = spreads().map(|spread| spread.least).fold(f64::INFINITY, f64::min);
        let most = spreads().map(|spread| spread.most).fold(0.0, f64::max);
        if least > 0.0 && most / least > LINEAR_UP_TO {
            let from = round_values(least / 10.0, least).last().copied().unwrap_or(least);
            let to = round_values(most, most * 10.0).first().copied().unwrap_or(most);
            return Axis { logarithmic: true, from, to };
        }
        let most = if most > 0.0 { most } else { 1.0 };
        let step = step(most);
        Axis { logarithmic: false, from: 0.0, to: (most / step).ceil() * step }
    }

    /// The position of a value as a fraction of the axis.
    fn part(&self, value: f64) -> f64 {
        match self.logarithmic {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => value / self.to,
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            let step = step(self.to);
            return (0..=(self.to / step).round() as usize).map(|n| n as f64 * step).collect();
        }
        let all = round_values(self.from, self.to);
        match self.to / self.from < 1000.0 {
            true => all,
            false => all.into_iter().filter(|value| value.log10().fract().abs() < 1e-9).collect(),
        }
    }
}

/// 1, 2 and 5 times powers of ten within the range.
fn round_values(from: f64, to: f64) -> Vec<f64> {
    let powers = from.log10().floor() as i32 - 1..=to.log10().ceil() as i32;
    let values = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    // Rounding can put a value at the end just beyond it.
    values.filter(|value| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(value)).collect()
}

/// A round step of which two to five reach the end.
fn step(end: f64) -> f64 {
    round_values(end / 50.0, end).into_iter().find(|step| end / step <= 5.0 + 1e-9).unwrap_or(end)
}

/// A value as a short label.
fn short(value: f64) -> String {
    // Sums of tenths are not exact.
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('`', "").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(unit: &'static str, values: &[(f64, f64, f64)]) -> Panel {
        let point = |(least, median, most): &(f64, f64, f64)| Point {
            name: "a < b",
            spread: Spread { least: *least, median: *median, most: *most },
            ours: true,
        };
        Panel { name: "`x` & y", unit, points: values.iter().map(point).collect() }
    }

    fn axis(values: &[(f64, f64, f64)]) -> Axis {
        Axis::of(&[panel("s", values)])
    }

    #[test]
    fn an_axis_is_logarithmic_where_values_are_far_apart() {
        let near = axis(&[(5.0, 6.0, 7.0), (90.0, 95.0, 100.0)]);
        assert!(!near.logarithmic);
        assert_eq!(
            (near.ticks(), near.part(0.0), near.part(50.0)),
            (vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0], 0.0, 0.5)
        );
        let far = axis(&[(4.9, 6.0, 7.0), (90.0, 95.0, 100.0)]);
        assert!(far.logarithmic);
        assert_eq!(
            (far.ticks(), far.part(2.0), far.part(100.0)),
            (vec![2.0, 5.0, 10.0, 20.0, 50.0, 100.0], 0.0, 1.0)
        );
        assert_eq!(
            axis(&[(0.03, 0.03, 0.03), (700.0, 700.0, 700.0)]).ticks(),
            [0.1, 1.0, 10.0, 100.0, 1000.0]
        );
        // A logarithmic axis shows positive values only.
        assert!(!axis(&[(0.0, 0.0, 0.0), (7.0, 7.0, 7.0)]).logarithmic);
        assert_eq!(axis(&[(0.0, 0.0, 0.0)]).part(0.0), 0.0);
        assert_eq!(axis(&[]).ticks().len(), 6);
    }

    #[test]
    fn all_that_was_measured_is_on_the_axis() {
        let mut rng = ebb_bench::Rng(3);
        for _ in 0..1000 {
            let mut draw = || 10f64.powf(rng.below(9000) as f64 / 1000.0 - 4.0);
            let (one, other) = (draw(), draw());
            let axis = axis(&[(one.min(other), one, one.max(other))]);
            assert!(
                [one, other].iter().all(|value| (-1e-9..=1.0 + 1e-9).contains(&axis.part(*value))),
                "{one} {other}"
            );
            let ticks = axis.ticks();
            assert!((2..=10).contains(&ticks.len()), "{one} {other}: {ticks:?}");
            assert!(
                ticks.iter().all(|tick| (-1e-9..=1.0 + 1e-9).contains(&axis.part(*tick))),
                "{one} {other}: {ticks:?}"
            );
        }
    }

    #[test]
    fn panels_of_one_unit_have_one_axis() {
        let dots = |panels: &[Panel]| -> Vec<String> {
            let svg = svg("t", panels);
            let of = |circle: &str| {
                circle
                    .split("cx=\"")
                    .nth(1)
                    .and_then(|rest| rest.split('"').next())
                    .map(str::to_owned)
            };
            svg.lines().filter_map(of).collect()
        };
        let (low, high) = ([(1.0, 1.0, 1.0)], [(10.0, 10.0, 10.0)]);
        // 260 pixels of axis from 130 on, and the second panel 444 further.
        assert_eq!(dots(&[panel("s", &low), panel("s", &high)]), ["156.0", "834.0"]);
        assert_eq!(dots(&[panel("s", &low), panel("MB/s", &high)]), ["390.0", "834.0"]);
    }

    #[test]
    fn text_is_escaped() {
        let svg = svg("a & b", &[panel("s", &[(1.0, 2.0, 3.0)])]);
        assert!(
            svg.contains("x &amp; y")
                && svg.contains("a &lt; b")
                && svg.contains("<title>a &amp; b</title>")
        );
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!(
            [0.1 + 0.2, 20.0, 0.05, 1000.0, 0.0].map(short),
            ["0.3", "20", "0.05", "1000", "0"]
        );
    }
}
