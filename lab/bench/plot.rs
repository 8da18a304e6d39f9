//! Figures as a picture: lines over a logarithmic axis, as SVG.

use plotters::prelude::*;
use std::path::Path;

/// Width and height, in pixels.
const SIZE: (u32, u32) = (720, 400);
/// Blue, orange and green, which colour-blind people can distinguish.
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115)];

/// A line, by name.
pub(crate) type Line = (&'static str, Vec<(f64, f64)>);

/// The contents of a picture.
pub(crate) struct Plot {
    pub(crate) title: String,
    /// Labels of the axes; the x axis is logarithmic, the y axis begins at 0.
    pub(crate) axes: [&'static str; 2],
    pub(crate) lines: Vec<Line>,
}

impl Plot {
    /// Draws it into a file.
    ///
    /// # Errors
    /// It can't be written.
    pub(crate) fn draw(&self, file: &Path) -> anyhow::Result<()> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let x =
            points().fold((f64::INFINITY, 1.0_f64), |(least, most), (x, _)| (least.min(*x), most.max(*x)));
        let top = points().fold(0.0_f64, |most, (_, y)| most.max(*y)) * 1.1;
        let wrong = |e: &dyn std::fmt::Display| anyhow::anyhow!("{} can't be drawn: {e}", file.display());
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|e| wrong(&e))?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d((x.0.min(x.1 / 2.0)..x.1 * 1.05).log_scale(), 0.0..top.max(f64::MIN_POSITIVE))
            .map_err(|e| wrong(&e))?;
        let [across, up] = self.axes;
        let mut mesh = chart.configure_mesh();
        let number =
            |x: &f64| if *x < 10.0 && x.fract() != 0.0 { format!("{x:.2}") } else { format!("{x:.0}") };
        mesh.x_desc(across)
            .y_desc(up)
            .x_label_formatter(&number)
            .y_label_formatter(&number)
            .light_line_style(WHITE);
        mesh.draw().map_err(|e| wrong(&e))?;
        for ((name, points), colour) in self.lines.iter().zip(COLOURS) {
            let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
            let drawn = chart.draw_series(line).map_err(|e| wrong(&e))?;
            drawn
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        if self.lines.len() > 1 {
            let mut labels = chart.configure_series_labels();
            labels.position(SeriesLabelPosition::UpperLeft).background_style(WHITE.mix(0.8));
            labels.draw().map_err(|e| wrong(&e))?;
        }
        root.present().map_err(|e| wrong(&e))
    }
}
