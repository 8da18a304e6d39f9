//! The models that a part of a name means, among names that are paths: `ORG/REPO/FILE.gguf`, or llama.cpp's
//! `ORG_REPO_FILE.gguf`.

/// Indexes of the names that a text means: those that are the text, else those of the repository or the file
/// that it names, else those that contain it. `:QUANT` at its end is the end of a file's name.
pub(super) fn matching(text: &str, names: &[&str]) -> Vec<usize> {
    let (text, quantization) = match text.rsplit_once(':') {
        Some((text, quantization)) => (text, Some(stem(quantization))),
        None => (text, None),
    };
    let text = stem(text);
    let stems: Vec<String> = names.iter().map(|name| stem(name)).collect();
    let is_quantized = |name: &String| {
        let Some(quantization) = &quantization else { return true };
        let before = without_part(name).strip_suffix(quantization.as_str());
        before.is_some_and(|before| before.ends_with(|c: char| !c.is_alphanumeric()))
    };
    let is_it = |name: &String, _: &str| *name == text;
    let is_in = |name: &String, whole: &str| {
        let file = whole.rsplit('/').next().map(stem);
        file.as_ref() == Some(&text) || name.strip_prefix(&text).is_some_and(|rest| rest.starts_with('_'))
    };
    let has_it = |name: &String, _: &str| name.contains(&text);
    let levels: [&Fits<'_>; 3] = [&is_it, &is_in, &has_it];
    let fitting = |fits: &&Fits<'_>| -> Vec<usize> {
        let all = stems.iter().zip(names).enumerate();
        let fitting = all.filter(|(_, (name, whole))| is_quantized(name) && fits(name, whole));
        fitting.map(|(at, _)| at).collect()
    };
    levels.iter().map(fitting).find(|found| !found.is_empty()).unwrap_or_default()
}

/// Tells whether a model fits, by its stem and its whole name.
type Fits<'a> = dyn Fn(&String, &str) -> bool + 'a;

/// A name in lower case without `.gguf`, as llama.cpp writes it: with `_` for `/`.
fn stem(name: &str) -> String {
    let name = name.to_lowercase().replace('/', "_");
    name.strip_suffix(".gguf").map_or(name.clone(), str::to_owned)
}

/// A stem without `-00001-of-00003`.
fn without_part(stem: &str) -> &str {
    super::folder::part(stem).map_or(stem, |(_, whole)| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = [
        "org/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf",
        "org/Qwen3-4B-GGUF/Qwen3-4B-Q8_0.gguf",
        "org/Tiny/tiny.gguf",
        "other/Tiny/tiny-IQ4_K_M.gguf",
        "big/Model/Model-Q4_K_M-00001-of-00003.gguf",
        "ggml-org_gemma-3-4b-it-GGUF_gemma-3-4b-it-Q4_K_M.gguf",
    ];

    #[track_caller]
    fn chosen(text: &str, expected: &[usize]) {
        assert_eq!(matching(text, &NAMES), expected, "{text}");
    }

    #[test]
    fn the_closest_kind_of_match_counts() {
        chosen("org/Qwen3-4B-GGUF/Qwen3-4B-Q8_0.gguf", &[1]);
        chosen("ORG/qwen3-4b-gguf/qwen3-4b-q8_0", &[1]);
        chosen("org/Qwen3-4B-GGUF", &[0, 1]);
        chosen("org/Tiny", &[2]);
        chosen("tiny", &[2]);
        chosen("tiny.gguf", &[2]);
        chosen("qwen3-4b-q8", &[1]);
        chosen("ggml-org/gemma-3-4b-it-GGUF", &[5]);
        chosen("none", &[]);
    }

    #[test]
    fn a_quantization_is_the_end_of_a_name() {
        chosen("org/Qwen3-4B-GGUF:q4_k_m", &[0]);
        chosen("org/Qwen3-4B-GGUF:Q4", &[]);
        chosen("other/Tiny:Q4_K_M", &[]);
        chosen("other/Tiny:IQ4_K_M", &[3]);
        chosen("big/Model:Q4_K_M", &[4]);
        chosen("ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", &[5]);
        chosen(":Q8_0", &[1]);
    }
}
