//! Files of earlier versions, as `docs/compatibility.md` promises them: a scenario, its recording, and the
//! memory that its run left.

use crate::Stage;
use serde_json::Value;
use std::path::Path;

/// Copies a folder and all that is in it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

#[test]
fn files_of_earlier_versions_are_read() {
    for version in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat")).unwrap() {
        let (version, stage) = (version.unwrap().path(), Stage::new());
        let place = version.display();
        copy(&version, stage.dir.path());
        let program = |args: &str| {
            let mut command = assert_cmd::Command::cargo_bin("greenroom").unwrap();
            command.current_dir(stage.dir.path()).env("HOME", stage.path("home")).args(args.split(' '));
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{place}: {args}: {text}");
        };
        program("check tea.yaml");
        program("replay run");
        program("explain run --agent ada");
        // The model of that version, whose memories these are.
        let model = "--model understudy.gguf --cache-dir cache --max-tokens 16 --threads 1";
        program(&format!("run tea.yaml --continue run --out next {model}"));
        let trace = std::fs::read_to_string(stage.path("next/trace.jsonl")).unwrap();
        let turns = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let first = turns.into_iter().find(|line| line["agent"] == "ada").unwrap();
        // What she had read in the earlier version's run.
        assert_eq!(first["source"], "disk", "{place}: {first}");
        assert!(first["tokens"]["reused"].as_u64().unwrap() > 100, "{place}: {first}");
    }
}

/// A log as `docs/design.md` describes it: the payloads.
fn log(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let is_manifest = path.parent().is_some_and(|folder| folder.ends_with("manifests"));
    let name = if is_manifest { path.file_stem() } else { path.file_name() }.unwrap().to_str().unwrap();
    let mut sum = blake3::derive_key("greenroom 2026 store log", name.as_bytes());
    let (mut payloads, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((length, after)) = rest.split_at_checked(4) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        let (checksum, after) = after.split_at(32);
        let (payload, after) = after.split_at(length);
        sum = *blake3::keyed_hash(&sum, payload).as_bytes();
        assert_eq!(checksum, sum, "{name}");
        payloads.push(payload.to_vec());
        rest = after;
    }
    assert!(rest.is_empty());
    payloads
}

/// Checks a block's file as `docs/design.md` describes it; the names of its tensors.
fn block(image: &[u8], address: &[u8; 32]) -> Vec<String> {
    let (n, rest) = image.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(n.try_into().unwrap()) as usize);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let place = |tensor: &Value| {
        let offset = |at: usize| tensor["data_offsets"][at].as_u64().unwrap() as usize;
        offset(0)..offset(1)
    };
    // By layer, keys before values, in the order of the table.
    let order = |name: &str| {
        let (layer, rest) = name.strip_prefix('L').unwrap().split_once("_B").unwrap();
        let tensor = ["K.weights", "K.scales", "K.means", "K.exact", "V.weights", "V.scales", "V.exact"];
        let rest = rest.split_once('_').unwrap().1;
        (layer.parse::<usize>().unwrap(), tensor.iter().position(|known| *known == rest).unwrap())
    };
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    let mut tensors: Vec<_> = tensors.map(|(name, tensor)| (name, place(tensor))).collect();
    tensors.sort_by_key(|(name, _)| order(name));
    let mut hasher = blake3::Hasher::new_keyed(address);
    for (name, place) in &tensors {
        hasher.update(name.as_bytes()).update(&(place.len() as u64).to_le_bytes());
        hasher.update(&data[place.clone()]);
    }
    let metadata = &header["__metadata__"];
    assert_eq!(metadata["blake3"], hasher.finalize().to_hex().to_string());
    assert_eq!(metadata["block"], blake3::Hash::from_bytes(*address).to_hex().to_string());
    tensors.into_iter().map(|(name, _)| name.clone()).collect()
}

#[test]
fn a_reader_written_from_the_design_page_reads_what_a_run_wrote() {
    let stage = Stage::new();
    let run = stage.play("public-goods", "run", &[]);
    // The transcript's chain.
    let mut last = String::new();
    for line in std::fs::read_to_string(run.dir.join("transcript.jsonl")).unwrap().lines() {
        let (body, hash) = line.rsplit_once(",\"hash\":").unwrap();
        let chained = blake3::hash(format!("{last}\n{body}}}").as_bytes()).to_hex().to_string();
        assert_eq!(hash, format!("\"{chained}\"}}"));
        last = chained;
    }
    // Manifests, the addresses that they name, the blocks there, and the tails.
    let folder = stage.path("cache/v4");
    let files = |sub: &str| {
        let entries = std::fs::read_dir(folder.join(sub)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let mut n_blocks = 0;
    for manifest in files("manifests") {
        let steps = log(&manifest);
        let steps: Vec<Value> = steps.iter().map(|step| serde_json::from_slice(step).unwrap()).collect();
        let (mut ids, mut blocks) = (Vec::new(), Vec::new());
        for step in &steps {
            blocks.truncate(step["keep_blocks"].as_u64().unwrap() as usize);
            blocks.extend(step["blocks"].as_array().unwrap());
            ids.truncate(step["keep_segments"].as_u64().unwrap() as usize);
            ids.extend(step["segments"].as_array().unwrap());
        }
        let of = |segment: &&Value| {
            let ids = segment["ids"].as_array().unwrap().iter();
            ids.map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>()
        };
        let ids: Vec<u32> = ids.iter().flat_map(of).collect();
        let identity = &steps[0]["owner"]["identity"];
        let part =
            |name: &str| identity[name].as_str().map_or_else(|| identity[name].to_string(), str::to_string);
        // The last line is of the encryption key: there is none.
        let identity = ["model", "layout", "numerics", "store", "salt"].map(part).join("\n") + "\n";
        let mut address = blake3::derive_key("greenroom 2026 kv cache identity", identity.as_bytes());
        for (at, (ids, named)) in ids.chunks_exact(256).zip(blocks).enumerate() {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            address = *blake3::keyed_hash(&address, &bytes).as_bytes();
            let hex = blake3::Hash::from_bytes(address).to_hex().to_string();
            assert_eq!(*named, hex);
            let file = folder.join(format!("blocks/{}/{hex}.safetensors", &hex[..2]));
            let names = block(&std::fs::read(file).unwrap(), &address);
            assert_eq!(names[0], format!("L0_B{at}_K.weights"));
            n_blocks += 1;
        }
    }
    assert!(n_blocks > 4);
    assert!(files("tails").iter().all(|tail| !log(tail).is_empty()));
}
