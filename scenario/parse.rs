//! Replies in free text: words, read as one of several options.
//!
//! Ambiguous replies are invalid, not guessed. A reply chooses an option if it names that one, no other, in
//! no sentence with a negation, and not only in questions or in words of doubt. `Not A. B it is.` and
//! `B, not A.` name B: if a whole sentence, or the end of one, is only a negation and an option, that option
//! is left out.

use super::language::{Language, Words};
use std::cmp::Reverse;

/// A mention of an option: the indices of its first and last words.
#[derive(Clone, Copy, Debug)]
struct Mention {
    option: usize,
    from: usize,
    to: usize,
}

/// The option that a reply chooses, each of which has some names; `None`: that is not clear.
pub(super) fn parse(options: &[Vec<&str>], reply: &str, language: &Language) -> Option<usize> {
    let words = language.words(reply);
    let mut mentions = mentions(options, &words, language);
    if mentions.is_empty() {
        return None;
    }
    // A negation that is part of an option negates nothing.
    let is_within = |mention: &Mention, (from, to): (usize, usize)| mention.from < to && from < mention.to;
    let is_own = |place: (usize, usize)| mentions.iter().any(|mention| is_within(mention, place));
    let mut denials = language.denials(&words);
    denials.retain(|place| !is_own(*place));
    let mut doubts = language.doubts(&words);
    doubts.retain(|place| !is_own(*place));
    let left_out: Vec<Mention> =
        mentions.iter().copied().filter(|mention| is_left_out(*mention, &words, &denials)).collect();
    let clause = |at: usize| words.all[at].clause;
    denials.retain(|(from, _)| !left_out.iter().any(|mention| clause(mention.from) == clause(*from)));
    mentions.retain(|mention| !left_out.iter().any(|other| other.from == mention.from));
    let sentences = |mention: &Mention| words.all[mention.from].sentence..=words.all[mention.to - 1].sentence;
    let is_beside = |mention: &Mention, places: &[(usize, usize)]| {
        places.iter().any(|(from, _)| sentences(mention).contains(&words.all[*from].sentence))
    };
    let mut votes = mentions.iter().filter(|mention| {
        !is_beside(mention, &doubts) && !sentences(mention).any(|sentence| words.is_question(sentence))
    });
    let is_unclear = mentions.iter().any(|mention| is_beside(mention, &denials))
        || mentions.iter().any(|mention| mention.option != mentions[0].option);
    votes.next().filter(|_| !is_unclear).map(|vote| vote.option)
}

/// All places of an option's name as whole words, in any case. An option that is part of a longer one that is
/// there does not count; of several with the same words, each does, so that none of them is chosen.
fn mentions(options: &[Vec<&str>], words: &Words, language: &Language) -> Vec<Mention> {
    let names =
        options.iter().enumerate().flat_map(|(option, names)| names.iter().map(move |name| (option, name)));
    let names = names.map(|(option, name)| (option, language.words(name)));
    let mut wanted: Vec<(usize, Words)> = names.filter(|(_, name)| !name.all.is_empty()).collect();
    wanted.sort_by_key(|(_, name)| Reverse(name.all.len()));
    let mut found: Vec<Mention> = Vec::new();
    for (option, name) in wanted {
        for from in 0..(words.all.len() + 1).saturating_sub(name.all.len()) {
            let to = from + name.all.len();
            let here = &words.all[from..to];
            let is_taken = |other: &Mention| {
                from < other.to
                    && other.from < to
                    && (other.option == option || (other.from, other.to) != (from, to))
            };
            let is_same = here.iter().zip(&name.all).all(|(word, wanted)| word.text == wanted.text);
            // A single character of a script without spaces is a word only if it is alone.
            if is_same
                && !found.iter().any(is_taken)
                && (!name.is_one_character() || words.are_apart(from, to))
            {
                found.push(Mention { option, from, to });
            }
        }
    }
    found.sort_by_key(|mention| mention.from);
    found
}

/// True if a mention's clause is only a negation and the mention, and is a whole sentence or the end of one.
fn is_left_out(mention: Mention, words: &Words, denials: &[(usize, usize)]) -> bool {
    let (first, last) = (&words.all[mention.from], &words.all[mention.to - 1]);
    if first.clause != last.clause {
        return false;
    }
    let is_denying = |at: usize| denials.iter().any(|(from, to)| (*from..*to).contains(&at));
    let own = words.all.iter().enumerate().filter(|(_, word)| word.clause == first.clause);
    let mut others = own.map(|(at, _)| at).filter(|at| !(mention.from..mention.to).contains(at)).peekable();
    let is_bare = others.peek().is_some() && others.all(is_denying);
    let follows = words.all.iter().any(|word| word.sentence == first.sentence && word.clause > first.clause);
    is_bare && !follows
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: [(&str, &str); 9] = [
        ("p1", "Player1"),
        ("p10", "Player10"),
        ("p2", "Player2"),
        ("el", "Élodie"),
        ("zs", "助手"),
        ("ja", "健太"),
        ("th", "สมชาย"),
        ("ko", "민수"),
        ("ru", "Борис"),
    ];

    /// The options of the rows about numbers.
    const NUMBERS: [(&str, &str); 8] = [
        ("-1", "-1"),
        ("1", "1"),
        ("3", "3"),
        ("4", "4"),
        ("3.5", "3.5"),
        ("0.5", "0.5"),
        ("1000", "1000"),
        ("most", "90%"),
    ];

    /// The name of the option that is read; `-`: none.
    fn read_as(options: &[(&'static str, &'static str)], language: &str, text: &str) -> &'static str {
        let names: Vec<Vec<&str>> = options.iter().map(|(value, text)| vec![*text, *value]).collect();
        parse(&names, text, &Language::named(language).unwrap()).map_or("-", |option| options[option].0)
    }

    fn read(language: &str, text: &str) -> &'static str {
        read_as(&OPTIONS, language, text)
    }

    #[test]
    fn votes_refusals_and_unclear_replies_in_many_languages_are_distinguished() {
        let table = include_str!("tests/votes.tsv");
        let rows = table.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let row: Vec<&str> = line.split('\t').collect();
            let [part, language, meaning, text] = row[..] else { panic!("{line:?}") };
            (part, language, meaning, text)
        });
        let rows: Vec<_> = rows.collect();
        assert!(rows.len() > 200);
        let wrong = rows.iter().filter_map(|(part, language, meaning, text)| {
            let options = if *part == "numbers" { &NUMBERS[..] } else { &OPTIONS };
            let found = read_as(options, language, text);
            (found != *meaning)
                .then(|| format!("{part} {language}: `{text}` is {found}, should be {meaning}"))
        });
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    }

    #[test]
    fn an_option_with_the_words_of_another_is_not_chosen() {
        let options = [vec!["Yes"], vec!["yes!"], vec!["no"], vec!["maybe", "no way"]];
        let read = |text: &str| parse(&options, text, &Language::named("de").unwrap());
        assert_eq!(read("Yes."), None);
        assert_eq!(read("no"), Some(2));
        assert_eq!(read("no way"), Some(3));
        let swapped = [vec!["a", "b"], vec!["b", "a"]];
        assert_eq!(parse(&swapped, "a", &Language::default()), None);
    }

    #[test]
    fn one_character_is_a_word_only_where_it_stands_alone() {
        let options = [vec!["是"], vec!["否"], vec!["不要"], vec!["要"]];
        let read = |text: &str| parse(&options, text, &Language::default());
        assert_eq!(read("是。"), Some(0));
        assert_eq!(read("我是觉得可以的"), None);
        assert_eq!(read("不要"), Some(2));
    }

    #[test]
    fn a_negation_within_an_option_negates_nothing() {
        let options = [vec!["with sugar"], vec!["without sugar"], vec!["nobody"], vec!["stop"]];
        let read = |text: &str| parse(&options, text, &Language::default());
        assert_eq!(read("I take it without sugar."), Some(1));
        assert_eq!(read("I vote for nobody."), Some(2));
        assert_eq!(read("We stop here."), Some(3));
        assert_eq!(read("I never stop."), None);
    }

    #[test]
    fn negations_of_the_scenario_replace_all_others() {
        let mut language = Language::default();
        language.set("negations", "nay 非 un*").unwrap();
        let options = [vec!["Ann"], vec!["Ben"]];
        let read = |text: &str| parse(&options, text, &language);
        assert_eq!(read("Never mind Ann."), Some(0));
        for text in ["Nay, Ann.", "Unlike Ann.", "我非Ann"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn any_text_is_read_without_a_panic() {
        for text in ["'", "’’", ".", "e.", "e.g", "\u{301}", "不", "n'", "?!", "A.\u{301}.B", "''a''.'"]
        {
            read("fr", text);
            read("en", &format!("{text}Player2{text}"));
        }
    }
}
