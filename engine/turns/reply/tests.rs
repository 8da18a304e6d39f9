//! Replies token by token: cuts, refusals, what is streamed, and what each token costs.

use super::*;
use crate::StopConditions;
use crate::text::thoughts::{ThoughtForm, ThoughtReader};

#[test]
fn a_reply_from_elsewhere_is_cut_as_one_from_here() {
    let stop_strings = ["\nBen:".to_string()];
    for (said, is_full, text, stop) in [
        ("I know. You do", false, "I know. You do", StopReason::EndOfTurn),
        ("I know. You do", true, "I know. ", StopReason::Sentence), // a space after it is kept
        ("no end in sight", true, "no end in sight", StopReason::Length),
        ("I know.\nBen: And I", false, "I know.", StopReason::StopString),
        ("", false, "", StopReason::EndOfTurn),
    ] {
        let ends = StopConditions { stop: &stop_strings, head: "", whole_sentences: true, is_full };
        assert_eq!(cut_text(said, ends), (text.to_owned(), stop), "{said}");
    }
    let form = StopConditions { stop: &[], head: "", whole_sentences: false, is_full: true };
    let said = r#"{"a": "I know. You do"#;
    assert_eq!(cut_text(said, form), (said.to_owned(), StopReason::Length), "a form is not cut to sentences");
    // Ids are cut between tokens, never within a character.
    let pieces: [(u32, &[u8]); 3] = [(1, b"So "), (2, b"\xc3"), (3, b"\xa9")];
    let free = StopConditions { stop: &[], head: "", whole_sentences: true, is_full: false };
    assert_eq!(cut(pieces[..2].iter().copied(), ThoughtForm::of_text(), free).0, [1]);
    assert_eq!(cut(pieces, ThoughtForm::of_text(), free).1, "So é");
}

#[test]
fn a_reply_from_elsewhere_is_never_cut_to_nothing_between_its_tokens_either() {
    let stop = ["\nBen:", "[Your turn"].map(str::to_string);
    for (pieces, head, kept) in [
        // The first stop string begins within the first token.
        (&["?!\n", "Ben:", " hi", "\nBen:", " no"][..], "", 3),
        (&["?!", "\nBen:", " hi"], "", 1),
        (&[" ", "\n", "No\n", "Ben: hi"], "", 4),
        (&["<think>", "Ben", "</think>?\n", "Ben: hi", "\nBen:"], "", 4),
        (&["Ann:", " ?\n", "Ben: hi", "[Your turn"], "Ann:", 3),
        (&["Ann: ?\n", "Ben: hi", "[Your turn"], "Ann:", 2),
        (&["Ann:", " ?", "\nBen: hi"], "Ann:", 2),
    ] {
        let ends = StopConditions { stop: &stop, head, whole_sentences: false, is_full: false };
        let said = pieces.iter().enumerate().map(|(id, piece)| (id as u32, piece.as_bytes()));
        let (ids, text, _) = cut(said, ThoughtForm::of_text(), ends);
        assert_eq!((ids.len(), text), (kept, pieces[..kept].concat()), "{pieces:?}");
    }
    // A character may be in several tokens, and is not cut.
    let pieces: [&[u8]; 4] = [b"\xf0\x9f", b"\xa6\x8a\n", b"Ben: hi", b"\nBen:"];
    let said = || (0..).zip(pieces);
    let ends = StopConditions { stop: &stop, head: "", whole_sentences: false, is_full: false };
    assert_eq!(cut(said(), ThoughtForm::of_text(), ends).1, "🦊\nBen: hi");
    for n in 1..pieces.len() {
        assert_eq!(cut(said().take(n), ThoughtForm::of_text(), ends).2, StopReason::EndOfTurn, "{n}");
    }
}

#[test]
fn a_reply_from_elsewhere_is_never_cut_to_nothing() {
    let stop = ["\nBen:", "\nAnn:", "[Your turn", "\n["].map(str::to_string);
    for (said, head, text) in [
        ("Ben: 2\nCas: 1", "", "Ben: 2\nCas: 1"),
        ("Ben: 2\nAnn: 1", "", "Ben: 2"),
        ("\n\nBen: I agree.", "", "\n\nBen: I agree."),
        ("[Your turn, Ann.] Yes.", "", "[Your turn, Ann.] Yes."),
        ("Ann: good day\nBen: hi", "Ann:", "Ann: good day"),
        ("Ann:\nBen: hi\nAnn: oh", "Ann:", "Ann:\nBen: hi"),
        ("Ann: [Your turn", "Ann:", "Ann: [Your turn"),
        (
            "<think>Ben\nBen: hm</think>Ann: \n[nods] Yes.\n[goes]",
            "Ann:",
            "<think>Ben\nBen: hm</think>Ann: \n[nods] Yes.",
        ),
        ("I say so.\nBen: hi", "Ann:", "I say so."),
        ("", "Ann:", ""),
    ] {
        let ends = StopConditions { stop: &stop, head, whole_sentences: false, is_full: false };
        assert_eq!(cut_text(said, ends).0, text, "{said:?}");
        let mut streamed = StreamedReply::new(ends);
        let shown: String = said.chars().filter_map(|c| streamed.push(&c.to_string())).collect();
        let speech = &text[ThoughtForm::of_text().parts(text).speech];
        assert!(speech.starts_with(&shown), "{said:?}: {shown:?}");
    }
}

/// A reply with thoughts of this form.
fn thinking(reply: ReplyText, thoughts: ThoughtForm) -> ReplyText {
    ReplyText { opening: Opening::of_text(thoughts), ..reply }
}

fn empty(stops: &[&str], whole_sentences: bool) -> ReplyText {
    let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
    thinking(ReplyText::new(&stops, whole_sentences, Said::default()), ThoughtForm::of_text())
}

/// The text of pieces that nothing can take back, thoughts and calls included.
fn text_of(pieces: Vec<ReplyPiece>) -> String {
    let text = |piece| match piece {
        ReplyPiece::Thought(text) | ReplyPiece::Text(text) | ReplyPiece::Call(text) => text,
    };
    pieces.into_iter().map(text).collect()
}

/// Feeds pieces (ids 0, 1, …) and returns (ids kept, text, streamed text, stopped by a stop string).
fn play(pieces: &[&[u8]], stops: &[&str]) -> (usize, String, String, bool) {
    let mut reply = empty(stops, false);
    let mut streamed = String::new();
    let mut stopped = false;
    for (id, piece) in pieces.iter().enumerate() {
        stopped = reply.push_bytes(id as u32, piece).is_some();
        if stopped {
            break;
        }
        streamed += &text_of(reply.take_certain());
    }
    streamed += &text_of(reply.finish());
    (reply.ids().len(), reply.text(), streamed, stopped)
}

#[test]
fn a_stop_string_cuts_before_the_first_token_that_overlaps_it() {
    let (n, text, streamed, stopped) = play(&[b"Yes.", b" No\n", b"Mar", b"co:", b" hi"], &["\nMarco:"]);
    assert_eq!((n, text.as_str(), streamed.as_str(), stopped), (1, "Yes.", "Yes.", true));
    let (n, text, streamed, stopped) = play(&[b"a", b"\nMar", b"ble"], &["\nMarco:"]);
    assert_eq!((n, text.as_str(), streamed.as_str(), stopped), (3, "a\nMarble", "a\nMarble", false));
}

#[test]
fn an_incomplete_character_is_cut_with_its_token() {
    let snow = "☃".as_bytes();
    assert_eq!(play(&[b"a", &snow[..1], &snow[1..]], &[]), (3, "a☃".into(), "a☃".into(), false));
    assert_eq!(play(&[b"a", &snow[..2]], &[]), (1, "a".into(), "a".into(), false));
    assert_eq!(play(&[&[b'a', snow[0]], &snow[1..2]], &[]), (0, String::new(), String::new(), false));
}

/// Tokens of one byte each; those refused are left out. Ids kept, text, text streamed, and whether the limit
/// cut it.
fn said(bytes: &[u8], stops: &[&str], whole_sentences: bool) -> (usize, String, String, bool) {
    let mut reply = empty(stops, whole_sentences);
    let (mut streamed, mut stopped) = (String::new(), false);
    for byte in bytes {
        if reply.would_leave_nothing(&[*byte]) {
            continue;
        }
        stopped = reply.push_bytes(u32::from(*byte), &[*byte]).is_some();
        if stopped {
            break;
        }
        streamed += &text_of(reply.take_certain());
    }
    let cut = !stopped && reply.cut_to_sentences();
    streamed += &text_of(reply.finish());
    (reply.ids().len(), reply.text(), streamed, cut)
}

#[test]
fn what_would_leave_nothing_is_refused() {
    let stops = ["\nMarco:", "\n[", "stop"];
    let text = |bytes: &[u8]| said(bytes, &stops, false).1;
    assert_eq!(text(b"Marco: hi"), "Marco hi");
    assert_eq!(text(b" \n Marco: hi"), " \n Marco hi");
    assert_eq!(text(b"[[Your turn"), "Your turn");
    assert_eq!(text(b"stop it"), "sto it");
    assert_eq!(text(b"Hi.\nMarco: hi"), "Hi.", "where something was said it ends the reply");
    assert_eq!(text(b"I, Marco: hi"), "I, Marco: hi");
    let mut reply = empty(&stops, false);
    let mut refuses = |piece: &[u8]| reply.would_leave_nothing(piece);
    assert!(refuses(b"Marco: hi") && refuses(b"\n[") && !refuses(b"Marco"));
    reply.push_bytes(0, b"Hello");
    assert!(!reply.would_leave_nothing(b"\nMarco:"));
}

#[test]
fn in_a_thought_stop_strings_count_for_nothing() {
    let stops = ["\nMarco:", "\n["];
    let text = |bytes: &[u8]| said(bytes, &stops, false).1;
    assert_eq!(
        text(b"<think>\nMarco: what?\n[</think> Yes.\nMarco: no"),
        "<think>\nMarco: what?\n[</think> Yes."
    );
    assert_eq!(text(b"<think>\nMarco: what?"), "<think>\nMarco: what?");
    assert_eq!(text(b"<think></think>\nMarco: I"), "<think></think>\nMarco I", "nothing would be said");
    assert_eq!(text(b"Yes <think>\nMarco:"), "Yes <think>", "a thought stands at the beginning");
    for (prompt, kept) in [("assistant\n<think>\n", "a\n[b</think>c"), ("</think>\n", "a")] {
        let mut reply = thinking(empty(&stops, false), ThoughtForm::of_text().after_prompt(prompt));
        let said = b"a\n[b</think>c\n[d";
        let ends = said.iter().any(|byte| reply.push_bytes(u32::from(*byte), &[*byte]).is_some());
        assert!(ends && reply.text() == kept, "{prompt:?}: {}", reply.text());
    }
}

#[test]
fn a_reply_at_its_limit_ends_with_a_sentence_between_tokens() {
    let cut = |pieces: &[&[u8]]| {
        let mut reply = empty(&[], true);
        for (id, piece) in pieces.iter().enumerate() {
            assert!(reply.push_bytes(id as u32, piece).is_none());
        }
        let mut before = text_of(reply.take_certain());
        let cut = reply.cut_to_sentences();
        before += &text_of(reply.finish());
        assert_eq!(before, reply.text());
        (reply.ids().len(), reply.text(), cut)
    };
    assert_eq!(cut(&[b"Yes.", b" And", b" no"]), (1, "Yes.".into(), true));
    assert_eq!(cut(&[b"Yes", b".\n", b"And"]), (2, "Yes.\n".into(), true));
    assert_eq!(cut(&[b"Yes.", b" No.Wa", b"it"]), (1, "Yes.".into(), true), "a token runs over the end");
    assert_eq!(cut(&[b"Yes", b" and", b" no"]), (3, "Yes and no".into(), false));
    assert_eq!(cut(&[b"Yes. No.", &"☃".as_bytes()[..2]]), (1, "Yes. No.".into(), true));
    assert_eq!(cut(&[]), (0, String::new(), false));
}

/// Replies in which no sentence ends cost a token no more than what it adds, however long they are.
#[test]
fn each_token_costs_what_it_adds() {
    for piece in ["Mr. ", "word, ", "x", "\n", " ", ". ", "1.", "\nMarc", "。」", "<think> "] {
        let n_examined = |n: usize| {
            N_EXAMINED.set(0);
            let mut reply = empty(&["\nMarco:", "\nMarcus:", "stop"], true);
            for _ in 0..n {
                assert!(!reply.would_leave_nothing(piece.as_bytes()));
                assert!(reply.push_bytes(0, piece.as_bytes()).is_none());
                reply.take_certain();
            }
            N_EXAMINED.get() + reply.sentences.n_steps
        };
        let (short, long) = (n_examined(1000), n_examined(10_000));
        assert!(long < 11 * short, "{piece:?}: {short} for 1000 tokens, {long} for 10,000");
        assert!(short < 400 * 1000, "{piece:?}: {short}");
    }
}

/// What is found as a reply grows, by looking at all of it.
mod by_definition {
    use super::*;
    use crate::turns::sentence::ends_sentence;

    /// (How thoughts are read is tested where they are read.)
    fn end_of_thought(reply: &ReplyText, text: &[u8]) -> Option<usize> {
        let mut thoughts = ThoughtReader::new(reply.opening.thoughts.form().clone());
        thoughts.read(text);
        thoughts.after_head()
    }

    fn first_stop(reply: &ReplyText, text: &[u8]) -> Option<(usize, usize)> {
        let thought = end_of_thought(reply, text)?;
        let begin = text.len() - text[thought..].trim_ascii_start().len();
        let first = |(n, stop): (usize, &Vec<u8>)| {
            let at_begin = line_of(stop).filter(|line| text[begin..].starts_with(line)).map(|_| begin);
            at_begin.or_else(|| find(&text[thought..], stop).map(|at| thought + at)).map(|at| (at, n))
        };
        reply.stops.iter().enumerate().filter_map(first).min()
    }

    pub(super) fn stops(reply: &ReplyText, piece: &[u8]) -> Option<usize> {
        first_stop(reply, &[&reply.bytes, piece].concat()).map(|(at, _)| at)
    }

    pub(super) fn refuses(reply: &ReplyText, piece: &[u8]) -> bool {
        stops(reply, piece).is_some_and(|at| {
            let end = reply.end_of(reply.tokens_before(at));
            let begin = end_of_thought(reply, &reply.bytes).unwrap_or(0).min(end);
            reply.bytes[begin..end].trim_ascii().is_empty()
        })
    }

    pub(super) fn tokens_of_sentences(reply: &ReplyText, n: usize, has_ended: bool) -> Option<usize> {
        let text = &reply.bytes[..whole_characters(&reply.bytes)];
        let is_whole = |n: &usize| {
            let (before, after) = text.split_at(reply.end_of(*n).min(text.len()));
            let (before, after) = (String::from_utf8_lossy(before), String::from_utf8_lossy(after));
            (has_ended || !after.trim().is_empty()) && ends_sentence(&before, &after)
        };
        (1..=n).rev().take_while(|n| reply.end_of(*n) >= reply.streamed).find(is_whole)
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(1500))]

    #[test]
    fn a_growing_reply_is_as_if_all_of_it_were_looked_at(
        pieces in proptest::collection::vec(proptest::sample::select(vec![
            &b" "[..], b"\n", b"Mar", b"Marco:", b"co:", b"\nMarco:", b"[", b"sto", b"p", b"Yes.", b" No. ", b"a", b"\"", b"1.",
            b"<think>", b"<thi", b"nk>", b"</think>", b"</thi", b"\xe2", b"\x98", b"\x83", b"\xff", b"", b"\xe3\x80\x82", b"Mr", b".",
        ]), 0..24),
        is_opened in proptest::bool::ANY,
    ) {
        let form = ThoughtForm::of_text().after_prompt(if is_opened { "<think>" } else { "" });
        let mut reply = thinking(empty(&["\nMarco:", "\n[", "stop"], true), form);
        for piece in pieces {
            let refuses = by_definition::refuses(&reply, piece);
            proptest::prop_assert_eq!(reply.would_leave_nothing(piece), refuses);
            if refuses {
                continue;
            }
            let stops = by_definition::stops(&reply, piece).is_some();
            proptest::prop_assert_eq!(reply.push_bytes(0, piece).is_some(), stops);
            if stops {
                break;
            }
            for n in [reply.ids.len(), reply.ids.len() / 2, reply.ids.len() - 1] {
                let expected = by_definition::tokens_of_sentences(&reply, n, false);
                proptest::prop_assert_eq!(
                    reply.tokens_of_sentences(n, false), expected, "{:?}", reply.text()
                );
            }
            reply.take_certain();
        }
        reply.keep(reply.tokens_before(whole_characters(&reply.bytes)));
        let expected = by_definition::tokens_of_sentences(&reply, reply.ids.len(), true);
        proptest::prop_assert_eq!(
            reply.tokens_of_sentences(reply.ids.len(), true), expected, "{:?}", reply.text()
        );
    }
}

#[test]
fn what_is_streamed_is_never_taken_back() {
    let thought = b"<think>\nMarco: so</think>\nMarc\n Ay. He\nMarco: no";
    let text = b"\n Mar. He (Mr. M.) said: \"Go.\" And 3.5 m... 1. then\nMarc\n\nMarco: no";
    let stops = ["\nMarco:".to_string(), "\nMary:".to_string()];
    for text in [&text[..], thought] {
        for (end, whole_sentences) in (1..=text.len()).flat_map(|end| [(end, false), (end, true)]) {
            let (n, text, streamed, _) = said(&text[..end], &["\nMarco:", "\nMary:"], whole_sentences);
            let ReplyParts { thought, speech } = ThoughtForm::of_text().parts(&text);
            assert_eq!((n, [&text[thought], &text[speech]].concat()), (text.len(), streamed));
        }
    }
    // Nor of a reply that comes from elsewhere, in pieces of any length, and may end at its limit.
    let text = std::str::from_utf8(text).unwrap();
    for (end, step) in (1..=text.len()).flat_map(|end| [(end, 1), (end, 7), (end, end)]) {
        let ends = StopConditions { stop: &stops, head: "", whole_sentences: true, is_full: true };
        let mut reply = StreamedReply::new(ends);
        let pieces = text.as_bytes()[..end].chunks(step).map(|piece| str::from_utf8(piece).unwrap());
        let streamed: String = pieces.filter_map(|piece| reply.push(piece)).collect();
        let (kept, _) = cut_text(&text[..end], ends);
        assert!(kept.starts_with(&streamed), "{streamed:?} of {:?}, kept {kept:?}", &text[..end]);
    }
}
