//! `greenroom pull`: gets a model from the Hugging Face Hub.

use super::Exit;
use super::stop::stopped;
use crate::hub::{self, CATALOG, DownloadEvent, HubCache, HubFile, Pulled, Repository};
use crate::terminal::table;
use anyhow::{Context as _, anyhow};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use std::str::FromStr;
use tokio::sync::oneshot;

/// Download a model, or list models that fit this machine
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: greenroom pull qwen3-0.6b\n         greenroom pull \
                        hf:bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q8_0.gguf\n\
                        An interrupted download continues where it stopped. Files go to the Hugging Face \
                        cache, which other programs share; --model finds\n\
                        them there without a network. Environment: HF_TOKEN (for models with terms to \
                        accept), HF_HUB_CACHE, HF_HOME, HF_ENDPOINT")]
pub(super) struct Args {
    /// A name from the list, or hf:ORG/REPO/FILE.gguf[@REVISION]; hf:ORG/REPO lists that repository's files
    /// [default: the list]
    model: Option<Wanted>,
    /// Print only the path of the file
    #[arg(long, short)]
    quiet: bool,
}

/// The requested file or repository.
#[derive(Clone, Debug)]
enum Wanted {
    /// A file, and the name by which it was requested.
    File(HubFile, String),
    Repository(Repository),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(entry) = hub::named(text) {
            return Ok(Self::File(entry.address()?, entry.name.into()));
        }
        if !text.starts_with("hf:") {
            let meant = hub::similar(text).map(|name| format!("; did you mean `{name}`?"));
            let meant = meant.unwrap_or_default();
            return Err(format!(
                "expected a name that `greenroom pull` lists, or hf:ORG/REPO/FILE.gguf{meant}"
            ));
        }
        match text.parse() {
            Ok(repository) => Ok(Self::Repository(repository)),
            Err(_) => text.parse().map(|address| Self::File(address, text.into())),
        }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    match args.model {
        None => show_catalog(),
        Some(Wanted::Repository(repository)) => show_files(&repository),
        Some(Wanted::File(address, name)) => pull(address, &name, args.quiet),
    }
}

fn show_catalog() -> anyhow::Result<Exit> {
    let cache = HubCache::open()?;
    let here = |address: HubFile| if cache.find(&address).is_some() { "yes" } else { "" };
    let mut rows = Vec::new();
    for entry in CATALOG {
        let here = here(entry.address().map_err(|error| anyhow!(error))?);
        let cells = [entry.name, entry.size, entry.licence, entry.tested.word(), here, entry.good_for];
        rows.push(cells.map(str::to_owned).to_vec());
    }
    println!("{}", table(&["name", "size", "licence", "tested on", "downloaded", "good for"], rows, 6));
    println!(
        "\nTested on: which weights of a model have been run with greenroom. `random weights`: its family \
         was checked against llama.cpp\nand transformers on random weights in the same layout, but these \
         weights were never run; `good for` goes by size alone.\n\
         Download one with: greenroom pull NAME. Any other GGUF file of these families: greenroom pull \
         hf:ORG/REPO/FILE.gguf"
    );
    Ok(Exit::Pass)
}

/// A repository alone does not identify a file.
fn show_files(repository: &Repository) -> anyhow::Result<Exit> {
    let files = hub::list(repository)?;
    if files.is_empty() {
        eprintln!("error: {repository} has no GGUF files");
        return Ok(Exit::Environment);
    }
    let address = |file: String| {
        let address = HubFile::new(repository.clone(), &file);
        address.map_or(file, |address| address.to_string())
    };
    let size = |size: Option<u64>| size.map_or("-".into(), |size| DecimalBytes(size).to_string());
    let rows = files.into_iter().map(|listed| vec![address(listed.file), size(listed.size)]).collect();
    println!("{}", table(&["file", "size"], rows, 1));
    eprintln!("error: {repository} is a repository; expected one of its files");
    Ok(Exit::Invalid)
}

/// Downloads on a separate thread, so that the program can end whatever it waits for. Data received by then
/// is kept.
fn pull(address: HubFile, name: &str, quiet: bool) -> anyhow::Result<Exit> {
    let cache = HubCache::open()?;
    let before = cache.find(&address);
    let bar = bar(quiet);
    let (done, pulled) = oneshot::channel();
    let mut show = show(bar.clone(), address.clone(), quiet);
    let work = std::thread::Builder::new().name("greenroom-pull".into());
    work.spawn(move || {
        let _ = done.send(hub::pull(&cache, &address, &mut show));
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let pulled = runtime.block_on(async {
        tokio::select! { pulled = pulled => Some(pulled), () = stopped() => None }
    });
    let (position, length) = (bar.position(), bar.length());
    bar.finish_and_clear();
    let Some(pulled) = pulled else {
        let so_far = length.filter(|_| position > 0);
        let so_far =
            so_far.map(|length| format!(" at {} of {}", DecimalBytes(position), DecimalBytes(length)));
        eprintln!("stopped{}; continue with: greenroom pull {name}", so_far.unwrap_or_default());
        return Ok(Exit::Stopped);
    };
    let pulled = pulled.context("the download ended without a result")?;
    let Pulled { path, size, was_there } = pulled.with_context(|| match &before {
        Some(path) => format!("can't download {name} (an earlier download of it is {})", path.display()),
        None => format!("can't download {name}"),
    })?;
    if !quiet {
        let how = if was_there { "already downloaded" } else { "downloaded" };
        eprintln!("{how}: {}, SHA-256 verified; use it with --model {name}", DecimalBytes(size));
    }
    println!("{}", path.display());
    Ok(Exit::Pass)
}

/// Shows a download's progress: a bar on a terminal, otherwise a line when it begins.
fn show(bar: ProgressBar, address: HubFile, quiet: bool) -> impl FnMut(DownloadEvent) + Send {
    let mut begun = false;
    let say = move |bar: &ProgressBar, text: String| {
        if !quiet {
            bar.suspend(|| eprintln!("{text}"));
        }
    };
    let at = |bar: &ProgressBar, what: &'static str, done: u64, total: u64| {
        bar.set_message(what);
        bar.set_length(total);
        bar.set_position(done);
    };
    move |event| match event {
        DownloadEvent::Waiting => {
            say(&bar, format!("another process is downloading {address}: waiting for it"))
        }
        DownloadEvent::Verifying { done, total } => at(&bar, "verifying", done, total),
        DownloadEvent::Downloading { done, total } => {
            at(&bar, "downloading", done, total);
            if !begun {
                begun = true;
                // The part that was present already must not count towards the download speed.
                bar.tick();
                bar.reset_eta();
                if bar.is_hidden() {
                    let from =
                        if done > 0 { format!(" from {} on", DecimalBytes(done)) } else { String::new() };
                    say(&bar, format!("downloading {address}, {}{from}", DecimalBytes(total)));
                }
            }
        }
        DownloadEvent::Retrying { error, after } => {
            say(&bar, format!("{error}; next attempt in {} s", after.as_secs_f32()));
        }
    }
}

fn bar(quiet: bool) -> ProgressBar {
    if quiet || !console::Term::stderr().is_term() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::no_length();
    let style =
        "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}
