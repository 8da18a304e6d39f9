//! Embeddings of a trained model: what is about one thing is near, and the same on any engine.

use super::{SMOLLM2, open};
use greenroom_engine::{KvChoice, KvFormat};

/// Each question beside the text that answers it.
const PAIRS: [[&str; 2]; 6] = [
    ["How do bees make honey?", "Bees gather nectar from flowers and turn it into honey in the hive."],
    ["What does a lighthouse warn of?", "The keeper lit the lamp so that ships would not strike the rocks."],
    [
        "How is sourdough bread raised?",
        "The dough rises by wild yeast that lives in a starter of flour and water.",
    ],
    ["Why do volcanoes erupt?", "Molten rock and gas press upwards until lava breaks through the crust."],
    ["How did Gutenberg print books?", "He cast letters of metal, inked them and pressed them on paper."],
    ["What causes the tides?", "The gravity of the moon lifts the sea twice a day."],
];

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn what_answers_a_question_is_near_it() {
    let Some(path) = SMOLLM2.path() else { return };
    let engine = open(&path, KvChoice::Auto, None);
    let embed = |of: usize| engine.blocking_embed(PAIRS.map(|pair| pair[of].to_string()).to_vec()).unwrap();
    let (questions, answers) = (embed(0), embed(1));
    let mut ranks = Vec::new();
    for (at, question) in questions.iter().enumerate() {
        let scores: Vec<f64> = answers.iter().map(|answer| cosine(question, answer)).collect();
        ranks.push(1 + scores.iter().filter(|score| **score > scores[at]).count());
        eprintln!("{}: {scores:.3?}", PAIRS[at][0]);
    }
    // By chance they would add up to 21. Measured: 1, 2, 1, 2, 2, 1. So small a model finds short texts near
    // to everything.
    assert!(ranks.iter().all(|rank| *rank <= 2), "{ranks:?}");
    // The format of the cache has no part in it.
    let other = open(&path, KvChoice::Uniform(KvFormat::Q8), None);
    assert_eq!(other.blocking_embed(vec![PAIRS[0][0].to_string()]).unwrap(), questions[..1]);
}
