//! The hash of a finished reply ([`Completion::digest`](crate::Completion::digest), which says what is
//! hashed).

use crate::store::manifest::Identity;

/// Begins what is hashed: another number where another order or other parts are.
const VERSION: &str = "greenroom completion 1";

/// The digest of a reply to a prompt. The tenant's salt and the model's name have no part in it.
pub(crate) fn digest(identity: &Identity, prompt: &[u32], reply: &[u32], seed: u64) -> String {
    let Identity { model_name: _, model, layout, numerics, store, salt: _ } = identity;
    let mut hasher = blake3::Hasher::new();
    for text in [VERSION, model, layout, numerics] {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.update(&u64::from(*store).to_le_bytes());
    for ids in [prompt, reply] {
        hasher.update(&(ids.len() as u64).to_le_bytes());
        for id in ids {
            hasher.update(&id.to_le_bytes());
        }
    }
    hasher.update(&seed.to_le_bytes());
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_and_so_does_where_it_ends() {
        let identity = Identity {
            model_name: "name".into(),
            model: "model".into(),
            layout: "layout".into(),
            numerics: "numerics".into(),
            store: 3,
            salt: String::new(),
        };
        let expected = digest(&identity, &[1, 2], &[3], 4);
        // As the documentation says it, byte by byte.
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let mut bytes = ["greenroom completion 1", "model", "layout", "numerics"].map(text).concat();
        bytes.extend(3u64.to_le_bytes());
        bytes.extend(2u64.to_le_bytes().into_iter().chain([1, 0, 0, 0, 2, 0, 0, 0]));
        bytes.extend(1u64.to_le_bytes().into_iter().chain([3, 0, 0, 0]));
        bytes.extend(4u64.to_le_bytes());
        assert_eq!(expected, blake3::hash(&bytes).to_hex().to_string());
        let differs = |change: &dyn Fn(&mut Identity)| {
            let mut other = identity.clone();
            change(&mut other);
            digest(&other, &[1, 2], &[3], 4) != expected
        };
        assert!(differs(&|it| it.model.push('x')) && differs(&|it| it.layout.push('x')));
        assert!(differs(&|it| it.numerics.push('x')) && differs(&|it| it.store += 1));
        assert!(!differs(&|it| it.salt.push('x')) && !differs(&|it| it.model_name.push('x')));
        for (prompt, reply, seed) in [(&[1][..], &[2, 3][..], 4), (&[1, 2], &[], 4), (&[1, 2], &[3], 5)] {
            assert_ne!(digest(&identity, prompt, reply, seed), expected);
        }
    }
}
