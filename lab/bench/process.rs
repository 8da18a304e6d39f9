//! A measurement in a separate process: this program again, on the same model. Peak memory is counted by
//! process.

use super::lab::Bench;
use super::report::Figure;
use anyhow::{Context as _, bail};
use greenroom::files::{self, FileKind};
use serde_json::Value;
use std::process::Command;

/// The row that another process found.
pub(super) struct Answer(Value);

/// Runs `greenroom-lab bench ARGS` on the same model; `args` may name other formats of the cache.
pub(super) fn in_a_process(bench: &mut Bench, args: &[&str]) -> anyhow::Result<Answer> {
    let common = &bench.common;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("bench").args(args).arg("--json");
    if !args.contains(&"--kv") {
        command.args(["--kv", common.kv.word()]);
    }
    match &common.model {
        Some(model) => command.args(["--model", model]),
        None => command.args(["--shape", &common.shape, "--weights", &common.weights]),
    };
    if let Some(folder) = &common.shape_dir {
        command.arg("--shape-dir").arg(folder);
    }
    command.args(["--device", &common.device.to_string()]);
    if let Some(threads) = common.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    let output = command.output().context("can't start this program again")?;
    if !output.status.success() {
        bail!("bench {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut answer: Value = serde_json::from_slice(&output.stdout)?;
    bench.numerics = answer["model"]["numerics"].as_str().unwrap_or_default().to_owned();
    Ok(Answer(answer["rows"][0].take()))
}

impl Answer {
    /// A word.
    pub(super) fn text(&self, name: &'static str) -> anyhow::Result<(&'static str, Figure)> {
        self.cell(name, |value| Some(Figure::Text(value.as_str()?.to_owned())))
    }

    /// A count.
    pub(super) fn count(&self, name: &'static str) -> anyhow::Result<(&'static str, Figure)> {
        self.cell(name, |value| Some(Figure::Count(value.as_u64()? as usize)))
    }

    /// A size.
    pub(super) fn bytes(&self, name: &'static str) -> anyhow::Result<(&'static str, Figure)> {
        self.cell(name, |value| Some(Figure::Bytes(value.as_u64()?)))
    }

    /// A measured value: its median, minimum and maximum.
    pub(super) fn measured(&self, name: &'static str) -> anyhow::Result<(&'static str, Figure)> {
        let numbers = |value: &Value| ["min", "median", "max"].map(|what| value[what].as_f64());
        self.cell(name, |value| Some(Figure::Measured(numbers(value).into_iter().collect::<Option<_>>()?)))
    }

    fn cell(
        &self,
        name: &'static str,
        read: impl Fn(&Value) -> Option<Figure>,
    ) -> anyhow::Result<(&'static str, Figure)> {
        let cell = read(&self.0[name]);
        Ok((name, cell.with_context(|| format!("the process did not report its `{name}`"))?))
    }
}

/// The peak memory of this process.
pub(super) fn peak_bytes() -> anyhow::Result<u64> {
    let status = files::read_text("/proc/self/status".as_ref(), FileKind::System)
        .context("peak memory can be measured on Linux only")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("/proc/self/status does not contain the peak memory")? * 1024)
}
