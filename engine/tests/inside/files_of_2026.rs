//! What is said to model files of 2026, as `docs/models.md` lists them.

use crate::ModelSource;
use crate::fixtures::RandomModel;
use crate::model::gguf::Gguf;
use crate::model::spec::DecoderSpec;
use crate::text::tokenizer::knows_pre_tokenizer;
use greenroom_kernels::ggml::TensorType;
use std::sync::Arc;

#[test]
fn files_of_2026() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/models.md");
    let page = std::fs::read_to_string(root).expect("the page");
    let rows = page.lines().skip_while(|line| !line.starts_with("| file |")).skip(2);
    let rows: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 40);
    for row in rows {
        let [file, family, tokenizer, types, said] = row[..] else { panic!("{row:?}") };
        let family = family.trim_matches('`');
        let model = RandomModel { architecture: family.to_owned(), ..RandomModel::tiny_of(family, 1) };
        let gguf = Gguf::open(&ModelSource::Bundled("model", model.bytes().leak())).expect("a header");
        let served = DecoderSpec::from_gguf(&Arc::new(gguf));
        let unknown = types.split(' ').find(|name| !TensorType::known().any(|known| known == *name));
        let found = match (served, unknown) {
            (Err(e), _) => {
                let e = e.to_string();
                assert!(e.contains(&format!("unknown family `{family}`")), "{file}: {e}");
                format!("refused: the family `{family}`")
            }
            (Ok(_), Some(name)) => format!("refused: the type {name}"),
            (Ok(_), None) => "served".to_owned(),
        };
        assert_eq!(found, said, "{file}");
        let pre = tokenizer.strip_prefix("gpt2, ").filter(|_| said == "served");
        assert!(pre.is_none_or(knows_pre_tokenizer), "{file}: {pre:?}");
    }
}
