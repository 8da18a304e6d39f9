//! Words that negate a sentence, or leave open what it says, in the languages and scripts that replies are
//! likely to be in.
//!
//! They add to the texts `negations` of the table, and a scenario's own `negations` replace all of them. They
//! are not part of a plan: the transcript has what a reply chose.
//!
//! An entry is a word or several, and entries are separated by commas. `*` at the beginning or end of a word
//! matches anything; `^` means first in its clause, and `=` not written together with other characters (for
//! scripts whose characters are words here).

use super::words::{Words, is_unspaced};
use super::{LANGUAGES, Language, ROWS, Text};
use std::sync::LazyLock;

/// Words of the table that mean something else in another of its languages: there they negate nothing.
const AMBIGUOUS: &[&str] = &["not", "ne", "ni", "sin", "plutôt"];

/// Words besides the table's that negate in any scenario's language. Those with another meaning in one of the
/// table's languages are in [`MORE_IN`].
const MORE: &[&str] = &[
    // English
    "refuses, refused, refusing, *n't've, nobody, none, noone, no one, nothing, nowhere, nope, nay, except, \
     excepting, excluding",
    "barring, unless, dont, doesnt, didnt, wont, cant, couldnt, wouldnt, shouldnt, isnt, arent, wasnt, \
     werent, hasnt, havent, hadnt",
    "mustnt, neednt, aint, hardly, barely, scarcely, unable, unwilling, rather than, other than, apart from, \
     aside from, anyone but",
    "anybody but, everyone but, everybody but, all but, anything but, far from, abstain, abstains, \
     abstained, abstaining, decline",
    "declines, declined",
    // German
    "niemand, niemanden, niemandem, niemandes, nichts, keins, keinerlei, keineswegs, mitnichten, anstelle, \
     außer, ausser",
    "ausgenommen, bis auf, weigert, weigern, enthalte mich, kaum",
    // French
    "aucunement, nullement, rien, sauf, hormis, excepté, guère, abstiens, à part, au lieu, à moins, n'*",
    // Spanish, Portuguese, Italian
    "nadie, nada, ningunos, ningunas, excepto, en vez, en lugar, niego, abstengo, a menos, aparte de, não, \
     ninguém, ninguem, nenhum",
    "nenhuma, exceto, sem, nessuno, nessuna, niente, senza, eccetto, tranne, invece, nemmeno, neanche, \
     neppure",
    // Dutch, Scandinavian languages
    "niet, niets, nooit, geen, zonder, behalve, inte, ingen, inget, aldrig, ikke, aldri, ingenting",
    // Slavic languages
    "nikt, nigdy, żaden, bez, oprócz, nikdo, nikdy, kromě, не, ни, нет, никто, никого, никому, никогда, \
     ничего, ничто, нельзя, без",
    "кроме, вместо, ніхто, ніколи, крім",
    // Others with spaces
    "asla, değil, hayır, nem, senki, soha, kivéve, ei, älä, δεν, μην, μη, όχι, κανείς, ποτέ, χωρίς, εκτός, \
     لا, لن, لم, ليس, غير",
    "بدون, إلا, לא, אין, בלי, מלבד, नहीं, बिना, सिवाय, không, đừng, ngoại trừ, tidak, jangan, tanpa, \
     kecuali, bukan",
    // Chinese
    "不, 不是, 没, 没有, 沒, 别, 別, 勿, 莫, 否, 未, 从未, 無法, 无法, 毫无, 毫無, 除了, 除外, 以外, 拒绝, 拒絕, 弃权, 棄權, 无辜, 無辜",
    // Japanese
    "ない, なく, なかっ, ません, せず, るな, 除い, 除く, 棄権, 拒否, 無実, やめ",
    // Korean
    "않, 못, 없, 아니, 아닙, 말고, 마세요, 마라, 말자, 말아, 제외, 빼고, 기권, 거부, =안",
    // Thai, Lao, Khmer, Burmese
    "ไม่, อย่า, ห้าม, ยกเว้น, นอกจาก, เว้นแต่, ปราศจาก, งดออกเสียง, มิได้, มิใช่, ບໍ່, ຢ່າ, មិន, កុំ, គ្មាន, \
     ဘူး, မဟုတ်",
];

/// Words beside the table's that negate in one of its languages, and mean something else in another, by
/// language.
const MORE_IN: [&str; LANGUAGES.len()] =
    ["ne", "nix", "not, nul, nulle, ^personne, pour personne", "ne, not, salvo, menos, apenas"];

/// Words that leave open what a sentence chooses: it is not a vote, and does not withdraw one.
const DOUBTFUL: &[&str] = &[
    "against, oppose, opposes, opposed, reject, rejects, rejected, doubt, doubts, doubtful, undecided, \
     unsure, stop, avoid, forget",
    "innocent, gegen, dagegen, bezweifle, unschuldig, contre, innocente, contra, dudo, inocente, против, 反对, \
     反對, 反対, 吗, 嗎, ですか, ますか",
    "반대, คัดค้าน, หรือเปล่า, หรือไม่",
];

/// Words that contain one of those in writing, and negate nothing.
const HARMLESS: &[&str] = &[
    "特别, 特別, 别人, 別人, 分别, 分別, 区别, 區別, 级别, 級別, 性别, 性別, 告别, 告別, 个别, 個別, 识别, 識別, 不错, 不錯, 不仅, 不僅, 不但, 不过, 不過, 不管, \
     不论, 不論, 差不多, 不得不, 不好意思",
    "对不起, 對不起, 没错, 沒錯, 未来, 未來, 莫名, 間違いない, 間違いなく, 違いない, しかない, しかありません, 少ない, 少なく, 危ない, 仕方ない, るなら, かもしれない, \
     かもしれません, なければならない, なければなりません",
    "なくてはならない, ないといけない, すみません, 틀림없, 잘못",
];

/// What stands in a text, by the places of its words: from and to.
pub(crate) type WordSpan = (usize, usize);

/// An entry of a list.
#[derive(Debug)]
struct NegationEntry {
    words: Vec<Pattern>,
    is_first: bool,
    is_apart: bool,
}

#[derive(Debug)]
enum Pattern {
    Is(String),
    Begins(String),
    Ends(String),
}

/// The lists of a language that is built in.
#[derive(Debug)]
struct Lists {
    denying: Vec<NegationEntry>,
    doubtful: Vec<NegationEntry>,
}

static HARMLESS_ENTRIES: LazyLock<Vec<NegationEntry>> =
    LazyLock::new(|| entries(HARMLESS.iter().flat_map(|line| line.split(','))));
static BUILT_IN: LazyLock<Vec<Lists>> = LazyLock::new(|| {
    let rows = ROWS[Text::Negations as usize].in_language;
    let of = |(base, own): (usize, &&'static str)| {
        let table = rows.iter().enumerate().flat_map(|(at, row)| {
            let words = row.split_whitespace();
            words.filter(move |word| at == base || !AMBIGUOUS.contains(word))
        });
        let more = MORE.iter().chain([own]).flat_map(|line| line.split(','));
        Lists {
            denying: entries(table.chain(more)),
            doubtful: entries(DOUBTFUL.iter().flat_map(|line| line.split(','))),
        }
    };
    MORE_IN.iter().enumerate().map(of).collect()
});

impl Language {
    /// Places in a text that negate their sentence.
    pub(crate) fn denials(&self, words: &Words) -> Vec<WordSpan> {
        let own =
            self.is_own(Text::Negations).then(|| entries(self.text(Text::Negations).split_whitespace()));
        let harmless = find_entries(&HARMLESS_ENTRIES, words);
        let mut places = find_entries(own.as_ref().unwrap_or(&BUILT_IN[self.base].denying), words);
        places.retain(|(from, to)| {
            own.is_some() || !harmless.iter().any(|(begin, end)| begin <= from && to <= end)
        });
        places
    }

    /// Places in a text that leave open what their sentence chooses.
    pub(crate) fn doubts(&self, words: &Words) -> Vec<WordSpan> {
        find_entries(&BUILT_IN[self.base].doubtful, words)
    }
}

fn entries<'a>(list: impl Iterator<Item = &'a str>) -> Vec<NegationEntry> {
    list.map(str::trim)
        .map(|text| {
            let (is_first, is_apart) = (text.starts_with('^'), text.starts_with('='));
            let words = text.trim_start_matches(['^', '=']).split_whitespace();
            let words = words.flat_map(|word| match (word.strip_prefix('*'), word.strip_suffix('*')) {
                (Some(end), _) => vec![Pattern::Ends(end.to_string())],
                (None, Some(start)) => vec![Pattern::Begins(start.to_string())],
                (None, None) if word.contains(is_unspaced) => {
                    word.chars().map(|c| Pattern::Is(c.to_string())).collect()
                }
                (None, None) => vec![Pattern::Is(word.to_string())],
            });
            NegationEntry { words: words.collect(), is_first, is_apart }
        })
        .collect()
}

/// The places of entries, each within a sentence.
fn find_entries(entries: &[NegationEntry], words: &Words) -> Vec<WordSpan> {
    let all = &words.all;
    let stands = |entry: &NegationEntry, from: usize| {
        let here = all.get(from..from + entry.words.len())?;
        let fits = here.iter().zip(&entry.words).all(|(word, pattern)| {
            word.sentence == here[0].sentence
                && match pattern {
                    Pattern::Is(text) => word.text == *text,
                    Pattern::Begins(text) => word.text.starts_with(text),
                    Pattern::Ends(text) => word.text.ends_with(text),
                }
        });
        let to = from + here.len();
        let is_first = from == 0 || all[from - 1].clause != here[0].clause;
        (fits && (is_first || !entry.is_first) && (!entry.is_apart || words.are_apart(from, to)))
            .then_some((from, to))
    };
    (0..all.len()).flat_map(|from| entries.iter().filter_map(move |entry| stands(entry, from))).collect()
}
