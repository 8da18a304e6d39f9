//! The model's chat template, made append-only.
//!
//! The template T is rendered three times, over placeholders instead of texts: the first prompt with and
//! without a system message, and the least conversation [user, assistant, user]. What follows the assistant's
//! placeholder there is the *delta* between a reply and the next turn. The prompt of a later turn is then
//! always `P' = P + reply + delta`, whatever T would do to history; texts take the placeholders' places
//! afterwards, so nothing in a message is ever interpreted by T.
//!
//! What a reply itself begins with is found in the same way: the marks of a thought, and what [user, assistant,
//! user] has between the generation prompt and the reply (see [`ReplyForm`]).
//!
//! Where T knows tools, a conversation with tools begins as T renders them, and a call is followed by its
//! result as T has it (see [`calls`](super::calls)). Else the system text says how they are called.

use super::calls::{CallForm, CallForms};
use super::render::{
    Renderer, SkeletonPiece, asks_for_date, cut, jinja, messages, placeholder, without_generation_tags,
};
use crate::conversation::FIXED_DATE;
use crate::model::gguf::Gguf;
use crate::text::prefix::{Segment, SegmentKind};
use crate::text::thoughts::ThoughtForm;
use crate::text::tokenizer::{After, Tokenizer};
use crate::{Conversation, Date, Error, Prompt, Reasoning, ReplyContent, Result, Tools};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

const SYSTEM: usize = 0;
const USER: usize = 1;
const ASSISTANT: usize = 2;
const NEXT: usize = 3;
/// Text between the system text and the instructions after it.
pub(super) const PARAGRAPH: &str = "\n\n";
/// Openings with tools that are remembered.
const MAX_OPENINGS: usize = 8;
/// Days on which the template is remembered as it was taken apart.
const MAX_DAYS: usize = 8;

/// A chat template, taken apart as of a day.
pub(crate) struct Chat {
    date: Date,
    /// What it says around messages, by the [`Reasoning`] of the reply that follows.
    skeletons: [Skeleton; Reasoning::ALL.len()],
    /// The forms of calls.
    calls: CallForms,
    /// T itself, to render tools by.
    source: String,
    /// First prompts with tools, latest last.
    openings: Mutex<Vec<RenderedOpening>>,
    bos: Option<String>,
    eog: Vec<u32>,
    audit: Vec<String>,
    /// The template of conversations with tools, if that is another one.
    with_tools: Option<Box<Chat>>,
    /// The same as of other days, latest last; none of a template that prints no day.
    days: Mutex<Vec<Arc<Chat>>>,
}

/// The chat templates of a model file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Templates<'a> {
    /// That of all conversations.
    pub(crate) default: Option<&'a str>,
    /// That of conversations with tools, if there are two (Hermes, Command R).
    pub(crate) tool_use: Option<&'a str>,
}

impl<'a> Templates<'a> {
    /// Those of a file.
    pub(crate) fn of(gguf: &'a Gguf) -> Self {
        let text = |key: &str| gguf.text(key);
        Self { default: text("tokenizer.chat_template"), tool_use: text("tokenizer.chat_template.tool_use") }
    }
}

impl<'a> From<Option<&'a str>> for Templates<'a> {
    fn from(default: Option<&'a str>) -> Self {
        Self { default, tool_use: None }
    }
}

/// What a template says around messages.
#[derive(Clone)]
struct Skeleton {
    /// First prompt with a system message; `None` if T rejects one, which is then put before the first user
    /// text.
    with_system: Option<Vec<SkeletonPiece>>,
    /// First prompt without a system message.
    without_system: Vec<SkeletonPiece>,
    /// Text from the end of a reply to the next generation prompt.
    delta: Vec<SkeletonPiece>,
    /// Text from the end of a call to the next generation prompt, the result in it; `None`: that of any
    /// message.
    result: Option<Vec<SkeletonPiece>>,
    replies: ReplyForm,
}

/// What replies to a prompt begin with.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplyForm {
    /// How thoughts are marked in them.
    pub(crate) thoughts: ThoughtForm,
    /// Ids between the generation prompt and a reply that is known to hold no thought, such as a choice: the end
    /// of a thought that the prompt has opened, or the rest of the reply's header (harmony's final channel).
    pub(crate) lead: Vec<u32>,
    /// The same before a call that begins with markup: it needs no header of a speech.
    pub(crate) call_lead: Vec<u32>,
    /// Ids that end a thought, and lead to what is said after it.
    pub(crate) close: Vec<u32>,
    /// Ids that begin a thought.
    pub(crate) open: Vec<u32>,
}

impl ReplyForm {
    /// `generation` is the template's generation prompt, `header` what it has in its place before a past reply.
    fn of(
        renderer: &Renderer<'_>,
        (generation, header): (&str, &str),
        tokenizer: &Tokenizer,
    ) -> Result<Self> {
        let [user, content, thought] = [USER, ASSISTANT, NEXT].map(placeholder);
        let [asked] = &messages(&[("user", &user)])[..] else { return Ok(Self::default()) };
        let said = serde_json::json!({
            "role": "assistant", "content": content, "reasoning_content": thought, "reasoning": thought, "thinking": thought,
        });
        let printed = renderer.history(&[asked.clone(), said]).ok();
        let around = printed.as_ref().and_then(|printed| {
            let (before, rest) = printed.split_once(&user)?.1.split_once(&thought)?;
            Some((before, rest.split_once(&content)?.0))
        });
        // The part of both that every reply begins with.
        let common = &header[..tokenizer.common_length(generation, header)];
        let around = around.map(|(before, close)| {
            let opens = [generation, common].map(|known| before.strip_prefix(known));
            (opens.into_iter().flatten().find(|open| !open.trim().is_empty()).unwrap_or_default(), close)
        });
        let form = |header: &str| ThoughtForm::of_template(renderer.source(), around, header);
        let plain = form("");
        let rest = match header.strip_prefix(generation) {
            Some(rest) => rest,
            // A prompt that says that nothing was thought, and then the header that any speech has.
            None if plain.is_thought(&generation[common.len()..]) || generation.ends_with(common) => {
                Some(&header[common.len()..]).filter(|rest| !plain.is_thought(rest)).unwrap_or_default()
            }
            None => "",
        };
        let thoughts = match plain.open().is_some_and(|open| rest.contains(open)) || plain.is_thought(rest) {
            true => plain,
            false => form(rest),
        };
        let close = match (around, thoughts.close()) {
            (Some((_, close)), _) => close.to_owned(),
            (None, Some(close)) => spaced_as_in(&[header, generation], close),
            (None, None) => String::new(),
        };
        let lead = if thoughts.opens(generation) { &close } else { rest };
        // (Without the header of a speech.)
        let end = thoughts.close().and_then(|mark| Some(close.find(mark)? + mark.len()));
        let end = end.map_or(0, |end| close.len() - close[end..].trim_start().len());
        let call_lead = if thoughts.opens(generation) { &close[..end] } else { "" };
        let ids = |text: &str| match text.trim() {
            "" => Ok(Vec::new()),
            _ => tokenizer.encode_template(text, tokenizer.after_template(generation)?),
        };
        let open = thoughts.open().map(|open| tokenizer.encode_template(open, After::Text)).transpose()?;
        let open = open.unwrap_or_default();
        let thoughts = thoughts.after_prompt(generation);
        Ok(Self { lead: ids(lead)?, call_lead: ids(call_lead)?, close: ids(&close)?, open, thoughts })
    }
}

/// A mark that ends a thought, with the line breaks around it that one of these texts has.
fn spaced_as_in(texts: &[&str], close: &str) -> String {
    let around = texts.iter().find_map(|text| text.split_once(close));
    let (before, after) = around.unwrap_or(("\n", "\n\n"));
    let line = if before.ends_with('\n') { "\n" } else { "" };
    let after = &after[..after.len() - after.trim_start().len()];
    format!("{line}{close}{after}")
}

impl Skeleton {
    fn of(renderer: &Renderer<'_>, tokenizer: &Tokenizer) -> Result<Self> {
        let [system, user, assistant, next] = [SYSTEM, USER, ASSISTANT, NEXT].map(placeholder);
        let without_system = renderer.pieces(&[("user", &user)], &[USER])?;
        let with_system = renderer.pieces(&[("system", &system), ("user", &user)], &[SYSTEM, USER]).ok();
        let least = [("user", &*user), ("assistant", &*assistant), ("user", &*next)];
        let mut delta = renderer.pieces(&least, &[USER, ASSISTANT, NEXT])?;
        let reply = delta.iter().position(|p| *p == SkeletonPiece::Content(ASSISTANT)).unwrap_or(0);
        let before = delta.drain(..=reply).nth_back(1);
        let text = |piece: Option<&SkeletonPiece>| match piece {
            Some(SkeletonPiece::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let (generation, header) = (text(without_system.last()), text(before.as_ref()));
        let replies = ReplyForm::of(renderer, (&generation, &header), tokenizer)?;
        let result = CallForm::of(renderer, tokenizer, replies.thoughts.close()).and_then(|form| form.result);
        Ok(Self { with_system, without_system, delta, result, replies })
    }
}

/// The first prompt of conversations that have some tools, with or without a system message.
#[derive(Clone)]
struct RenderedOpening {
    tools: Arc<Tools>,
    has_system: bool,
    reasoning: Reasoning,
    pieces: Arc<[SkeletonPiece]>,
}

/// Families' own templates, for files whose template is missing or can't be used; the first one whose marker
/// the vocabulary has is taken.
const FALLBACKS: [(&str, &str, &str); 5] = [
    ("chatml", "<|im_start|>", include_str!("templates/chatml.jinja")),
    ("llama3", "<|start_header_id|>", include_str!("templates/llama3.jinja")),
    ("gemma", "<start_of_turn>", include_str!("templates/gemma.jinja")),
    ("mistral", "[INST]", include_str!("templates/mistral.jinja")),
    ("harmony", "<|channel|>", include_str!("templates/harmony.jinja")),
];

impl Chat {
    /// Takes the templates of a file apart.
    pub(crate) fn new<'a>(templates: impl Into<Templates<'a>>, tokenizer: &Tokenizer) -> Result<Self> {
        let templates = templates.into();
        let mut chat = Self::of_source(templates.default, tokenizer)?;
        if !tokenizer.is_canonical_by_beginnings() {
            let found =
                "its vocabulary joins words, so a reply's tokens may be others than those of its text";
            chat.audit.push(found.to_owned());
        }
        let needs_other = !chat.knows_tools(Reasoning::None);
        let tried = templates.tool_use.filter(|_| needs_other);
        let tried = tried.map(|it| Self::take_apart(it, FIXED_DATE, tokenizer));
        let with_tools = tried.and_then(Result::ok).filter(|it| it.knows_tools(Reasoning::None));
        if let Some(with_tools) = with_tools {
            let ends = with_tools.eog.iter().filter(|id| !chat.eog.contains(id));
            let ends: Vec<u32> = ends.copied().collect();
            chat.eog.extend(ends);
            chat.audit.push("conversations with tools follow the file's template `tool_use`".to_owned());
            chat.with_tools = Some(Box::new(with_tools));
        }
        Ok(chat)
    }

    /// The template itself, or that of conversations with tools.
    pub(super) fn used(&self, has_tools: bool) -> &Self {
        self.with_tools.as_deref().filter(|_| has_tools).unwrap_or(self)
    }

    /// Takes a template apart; `source` is the file's own, if it has one.
    fn of_source(source: Option<&str>, tokenizer: &Tokenizer) -> Result<Self> {
        let tried = source.map(|source| Self::take_apart(source, FIXED_DATE, tokenizer));
        match tried {
            Some(Ok(chat)) => Ok(chat),
            failed => {
                let marked = FALLBACKS.iter().find(|(_, marker, _)| tokenizer.control(marker).is_some());
                let (name, _, fallback) = marked.unwrap_or(&FALLBACKS[0]);
                let why = match failed {
                    Some(Err(e)) => format!("the file's chat template can't be used ({e})"),
                    _ => "the file has no chat template".to_owned(),
                };
                tracing::warn!("{why}; using the built-in `{name}` template");
                let mut chat = Self::take_apart(fallback, FIXED_DATE, tokenizer)?;
                chat.audit.insert(0, format!("{why}; the built-in `{name}` template is used instead"));
                Ok(chat)
            }
        }
    }

    fn take_apart(source: &str, date: Date, tokenizer: &Tokenizer) -> Result<Self> {
        let (bos, adds_bos) = tokenizer.bos();
        let (jinja, source) = (jinja(date), without_generation_tags(source));
        let renderer = Renderer::new(&jinja, &source, date, tokenizer)?;
        let silent = Skeleton::of(&renderer, tokenizer)?;
        let mut audit = audit(&renderer, &silent);
        let skeletons = Reasoning::ALL.map(|reasoning| {
            let thinking = Renderer::new(&jinja, &source, date, tokenizer);
            let skeleton = thinking.and_then(|it| Skeleton::of(&it.thinking(reasoning), tokenizer));
            let mut skeleton = skeleton.unwrap_or_else(|_| silent.clone());
            skeleton.result = skeleton.result.or_else(|| silent.result.clone());
            skeleton
        });
        audit.extend(switch(&skeletons));
        let calls = CallForm::of(&renderer, tokenizer, silent.replies.thoughts.close());
        let calls = CallForms::new(calls, tokenizer);
        let mut eog = tokenizer.eog().to_vec();
        // What the template puts right after a reply ends a reply.
        if let Some(SkeletonPiece::Text(text)) = silent.delta.first() {
            let first = tokenizer.encode_template(text, After::Text)?.first().copied();
            eog.extend(first.filter(|id| tokenizer.may_end_turn(*id)));
        }
        let bos = bos.filter(|_| adds_bos);
        let (openings, with_tools, days) = (Mutex::default(), None, Mutex::default());
        Ok(Self { date, skeletons, calls, source, openings, bos, eog, audit, with_tools, days })
    }

    /// The template as of another day; `None`: it is the same.
    fn on(&self, date: Option<Date>, tokenizer: &Tokenizer) -> Result<Option<Arc<Self>>> {
        let date = date.unwrap_or(FIXED_DATE);
        if date == self.date || !asks_for_date(&self.source) {
            return Ok(None);
        }
        let mut days = self.days.lock().unwrap_or_else(PoisonError::into_inner);
        let then = match days.iter().position(|it| it.date == date) {
            Some(known) => days.remove(known),
            None => Arc::new(Self::take_apart(&self.source, date, tokenizer)?),
        };
        days.push(then.clone());
        if days.len() > MAX_DAYS {
            days.remove(0);
        }
        Ok(Some(then))
    }

    /// The forms of calls.
    pub(crate) fn calls(&self) -> &CallForms {
        &self.used(true).calls
    }

    /// Effects of the template on history, and what is done about them, a line each.
    pub(crate) fn audit(&self) -> &[String] {
        &self.audit
    }

    /// Tokens that end a reply.
    pub(crate) fn eog(&self) -> &[u32] {
        &self.eog
    }

    /// The prompt of a conversation as segments, each tokenized alone.
    pub(crate) fn prompt(&self, conversation: &Conversation, tokenizer: &Tokenizer) -> Result<Vec<Segment>> {
        self.prompt_after(&[], conversation, tokenizer)
    }

    /// [`Chat::prompt`], in less time: what it has in common with `known`, the prompt of an earlier turn and
    /// its reply, isn't tokenized again.
    pub(crate) fn prompt_after(
        &self,
        known: &[Segment],
        conversation: &Conversation,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<Segment>> {
        if let Some(with_tools) = self.with_tools.as_ref().filter(|_| conversation.tools.is_some()) {
            return with_tools.prompt_after(known, conversation, tokenizer);
        }
        if let Some(then) = self.on(conversation.date, tokenizer)? {
            return then.prompt_after(known, conversation, tokenizer);
        }
        let asked = |n: usize| match conversation.exchanges.get(n) {
            Some(exchange) => (&exchange.user, exchange.reasoning),
            None => (&conversation.next, conversation.reasoning),
        };
        let (first, reasoning) = asked(0);
        let mut segments = Segments { tokenizer, known, out: Vec::new() };
        let (system, tools) = (conversation.system.as_deref(), conversation.tools.as_ref());
        let instructed = tools.filter(|_| !self.knows_tools(reasoning)).map(|tools| {
            let definition: Vec<&str> = system.into_iter().chain([&*tools.instructions]).collect();
            definition.join(PARAGRAPH)
        });
        let system = instructed.as_deref().or(system);
        let pieces = self.first(tools, system.is_some(), reasoning, tokenizer)?;
        self.begin(&pieces, system, first, &mut segments)?;
        for (i, exchange) in conversation.exchanges.iter().enumerate() {
            segments.reply(&exchange.reply, self.replies(exchange.reasoning), self.calls.own())?;
            let (next, reasoning) = asked(i + 1);
            let is_call = matches!(exchange.reply, ReplyContent::Call(_) | ReplyContent::CallText(..));
            let called = || match &exchange.reply {
                ReplyContent::CallText(_, call) => call.tool.clone(),
                ReplyContent::Call(ids) | ReplyContent::Ids(ids) => {
                    self.called(&tokenizer.decode(ids), tools, tokenizer)
                }
                ReplyContent::Text(text) => self.called(text, tools, tokenizer),
            };
            let called: Option<&dyn Fn() -> String> = if is_call { Some(&called) } else { None };
            let is_result = is_call && self.knows_tools(reasoning);
            let next = if is_result { self.calls.own().written_result(next) } else { next.into() };
            segments.fill(&self.between(called, reasoning), &|_| &next)?;
        }
        Ok(segments.out)
    }

    /// The tool that a reply calls first; empty: it can't be read.
    pub(super) fn called(&self, reply: &str, tools: Option<&Arc<Tools>>, tokenizer: &Tokenizer) -> String {
        let calls = tools.map(|tools| self.calls.so_far(tools, reply, tokenizer));
        calls.iter().flatten().next().map(|call| call.tool.to_owned()).unwrap_or_default()
    }

    /// What replies begin with, on any day.
    pub(crate) fn replies(&self, reasoning: Reasoning) -> &ReplyForm {
        &self.skeleton(reasoning).replies
    }

    /// What the replies to a prompt begin with; one that was not rendered has no form.
    pub(crate) fn replies_to(&self, prompt: &Prompt) -> Cow<'_, ReplyForm> {
        match prompt.conversation() {
            Some(conversation) => {
                Cow::Borrowed(self.used(conversation.tools.is_some()).replies(conversation.reasoning))
            }
            None => Cow::Owned(ReplyForm::default()),
        }
    }

    fn skeleton(&self, reasoning: Reasoning) -> &Skeleton {
        &self.skeletons[reasoning as usize]
    }

    /// True if the template itself says what tools there are. (Else the system text does.)
    pub(crate) fn knows_tools(&self, reasoning: Reasoning) -> bool {
        self.skeleton(reasoning).result.is_some()
    }

    /// Text between a reply, or a call of a tool, and the next one. The tool is asked for where the template
    /// names it there.
    pub(super) fn between(
        &self,
        called: Option<&dyn Fn() -> String>,
        reasoning: Reasoning,
    ) -> Cow<'_, [SkeletonPiece]> {
        let Skeleton { delta, result, .. } = self.skeleton(reasoning);
        match result.as_deref().zip(called) {
            Some((result, tool)) => CallForm::between(result, tool),
            None => delta.into(),
        }
    }

    /// The first prompt of conversations with these tools, with or without a system text.
    pub(super) fn first(
        &self,
        tools: Option<&Arc<Tools>>,
        has_system: bool,
        reasoning: Reasoning,
        tokenizer: &Tokenizer,
    ) -> Result<Cow<'_, [SkeletonPiece]>> {
        if let Some(tools) = tools.filter(|_| self.knows_tools(reasoning)) {
            return Ok(self.opening((tools, has_system, reasoning), tokenizer)?.to_vec().into());
        }
        let Skeleton { with_system, without_system, .. } = self.skeleton(reasoning);
        Ok(with_system.as_ref().filter(|_| has_system).unwrap_or(without_system).into())
    }

    /// The first prompt of conversations with these tools, as the template has it.
    fn opening(
        &self,
        (tools, asked_system, reasoning): (&Arc<Tools>, bool, Reasoning),
        tokenizer: &Tokenizer,
    ) -> Result<Arc<[SkeletonPiece]>> {
        let mut openings = self.openings.lock().unwrap_or_else(PoisonError::into_inner);
        let is_asked = |it: &&RenderedOpening| {
            it.tools == *tools && it.has_system == asked_system && it.reasoning == reasoning
        };
        if let Some(known) = openings.iter().find(is_asked) {
            return Ok(known.pieces.clone());
        }
        for tool in &tools.list {
            // A template's own text may be special; an outsider's must not.
            let definition = tool.as_json().to_string();
            if tokenizer.end_of_special(&definition) > 0 {
                let found = format!(
                    "the description of the tool `{}` contains a special token of this model",
                    tool.name
                );
                return Err(Error::request(found));
            }
        }
        let jinja = jinja(self.date);
        let renderer = Renderer::new(&jinja, &self.source, self.date, tokenizer)?.thinking(reasoning);
        let [system, user] = [SYSTEM, USER].map(placeholder);
        let has_system = asked_system && self.skeleton(reasoning).with_system.is_some();
        let (texts, contents) = match has_system {
            true => (messages(&[("system", &system), ("user", &user)]), &[SYSTEM, USER][..]),
            false => (messages(&[("user", &user)]), &[USER][..]),
        };
        let rendered = cut(&renderer.render(&texts, Some(&tools.list))?, contents);
        let pieces: Arc<[SkeletonPiece]> = rendered?.into();
        openings.push(RenderedOpening {
            tools: tools.clone(),
            has_system: asked_system,
            reasoning,
            pieces: pieces.clone(),
        });
        if openings.len() > MAX_OPENINGS {
            openings.remove(0);
        }
        Ok(pieces)
    }

    /// The first prompt. A system text that the template has no place for is put before the user text.
    fn begin(
        &self,
        pieces: &[SkeletonPiece],
        system: Option<&str>,
        user: &str,
        segments: &mut Segments<'_>,
    ) -> Result<()> {
        let folded;
        let user = match system.filter(|_| !pieces.contains(&SkeletonPiece::Content(SYSTEM))) {
            Some(system) => {
                folded = format!("{system}{PARAGRAPH}{user}");
                folded.as_str()
            }
            None => user,
        };
        if let Some(bos) = &self.bos {
            let said =
                matches!(pieces.first(), Some(SkeletonPiece::Text(text)) if text.starts_with(bos.as_str()));
            if !said {
                segments.template(bos)?;
            }
        }
        segments.fill(pieces, &|content| if content == SYSTEM { system.unwrap_or_default() } else { user })
    }
}

/// Collects segments.
struct Segments<'a> {
    tokenizer: &'a Tokenizer,
    /// Segments whose beginning has the texts of `out`; empty once they part.
    known: &'a [Segment],
    out: Vec<Segment>,
}

impl Segments<'_> {
    /// Adds a text with its ids: the known ones, or those that `encode` finds.
    fn push(
        &mut self,
        (kind, text, guessed): (SegmentKind, &str, bool),
        encode: impl FnOnce(&Self) -> Result<Vec<u32>>,
    ) -> Result<()> {
        let known = self.known.get(self.out.len()).filter(|it| it.kind == kind && *it.text == *text);
        let segment = match known {
            Some(known) if known.guessed == guessed => known.clone(),
            _ => Segment { kind, text: text.into(), ids: encode(self)?.into(), guessed },
        };
        self.add(segment);
        Ok(())
    }

    /// Adds a segment. The known segments after it can be used as long as their texts are cut like those
    /// after this one.
    fn add(&mut self, segment: Segment) {
        let known = self.known.get(self.out.len());
        let is_known = known.is_some_and(|it| it.kind == segment.kind && it.text == segment.text);
        self.out.push(segment);
        if !is_known || after(&self.known[..self.out.len()], self.tokenizer) != self.after() {
            self.known = &[];
        }
    }

    /// Kind of the text before the next segment.
    fn after(&self) -> After {
        after(&self.out, self.tokenizer)
    }

    fn template(&mut self, text: &str) -> Result<()> {
        self.push((SegmentKind::Template, text, false), |it| it.tokenizer.encode_template(text, it.after()))
    }

    fn message(&mut self, text: &str) -> Result<()> {
        self.push((SegmentKind::Message, text, false), |it| it.tokenizer.encode_message(text, it.after()))
    }

    fn fill<'t>(&mut self, pieces: &[SkeletonPiece], content: &dyn Fn(usize) -> &'t str) -> Result<()> {
        for piece in pieces {
            match piece {
                SkeletonPiece::Text(text) => self.template(text)?,
                SkeletonPiece::Content(n) => self.message(content(*n))?,
            }
        }
        Ok(())
    }

    /// A reply by its ids.
    fn push_reply(&mut self, ids: &[u32]) -> Result<()> {
        let kind = SegmentKind::Reply;
        let known = self.known.get(self.out.len());
        let known = known.filter(|it| it.kind == kind && !it.guessed && *it.ids == *ids);
        let segment = match known {
            Some(known) => known.clone(),
            None => {
                let n = self.tokenizer.n_vocab();
                if let Some(id) = ids.iter().find(|id| **id as usize >= n) {
                    let found = format!(
                        "a reply has the token {id}, but the vocabulary has {n}; it may have been recorded \
                         with another model"
                    );
                    return Err(Error::request(found));
                }
                Segment { kind, text: self.tokenizer.decode(ids).into(), ids: ids.into(), guessed: false }
            }
        };
        self.add(segment);
        Ok(())
    }

    fn reply(&mut self, reply: &ReplyContent, form: &ReplyForm, calls: &CallForm) -> Result<()> {
        let lead = &form.lead;
        match reply {
            ReplyContent::Ids(ids) | ReplyContent::Call(ids) => self.push_reply(ids),
            ReplyContent::Text(text) => {
                let whole = self.tokenizer.decode(lead) + text;
                self.push((SegmentKind::Reply, &whole, true), |it| {
                    reply_ids(&it.out, lead, text, it.tokenizer)
                })
            }
            ReplyContent::CallText(before, call) => {
                // A call of a form of its own stands in the place of a speech, and its header.
                let lead =
                    if before.is_empty() && calls.replaces_header { &form.call_lead } else { &form.lead };
                let said = calls.pieces(call);
                let line = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
                let before = format!("{before}{line}");
                let [lead_text, opening] = [lead, &calls.opening].map(|ids| self.tokenizer.decode(ids));
                let whole: String = said.iter().map(|(_, text)| text.as_str()).collect();
                let whole = format!("{lead_text}{before}{opening}{whole}");
                self.push((SegmentKind::Reply, &whole, true), |it| {
                    let mut ids = reply_ids(&it.out, lead, &before, it.tokenizer)?;
                    ids.extend(&calls.opening);
                    for (special, text) in &said {
                        match special {
                            Some(id) => ids.push(*id),
                            None => ids = reply_ids(&it.out, &ids, text, it.tokenizer)?,
                        }
                    }
                    Ok(ids)
                })
            }
        }
    }
}

/// Kind of the text that `segments` end with.
pub(crate) fn after(segments: &[Segment], tokenizer: &Tokenizer) -> After {
    tokenizer.after(segments.iter().rev().find_map(|s| s.ids.last().copied()))
}

/// Ids of a text as the reply to a prompt, after the ids that lead to it.
pub(crate) fn reply_ids(
    prompt: &[Segment],
    lead: &[u32],
    text: &str,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    // The text of sampled ids holds the space that began them; none is added to it.
    let after = match lead.last() {
        _ if text.starts_with(' ') => After::Text,
        Some(last) => tokenizer.after(Some(*last)),
        None => after(prompt, tokenizer),
    };
    Ok([lead, &tokenizer.encode_message(text, after)?].concat())
}

/// Says in words where T has a switch for reasoning, if it has one.
fn switch(skeletons: &[Skeleton]) -> Option<String> {
    let [none, low, _, high] = skeletons else { return None };
    let begins = (&none.without_system, &none.delta) != (&high.without_system, &high.delta);
    let switch = if low.without_system == none.without_system { "levels" } else { "a switch" };
    let at_begin = none.delta == high.delta;
    let place = if at_begin { ", set for all replies by the first" } else { "" };
    begins.then(|| format!("it has {switch} for reasoning{place}"))
}

/// Says in words where T, applied to a whole conversation of five turns, would have rewritten what was read.
fn audit(renderer: &Renderer<'_>, skeleton: &Skeleton) -> Vec<String> {
    let Skeleton { with_system, without_system, delta, .. } = skeleton;
    let mut found = Vec::new();
    if with_system.is_none() {
        found.push(
            "it supports no system message; the system text is put before the first user text".to_owned(),
        );
    }
    let contents: Vec<String> = (10..21).map(placeholder).collect();
    let mut messages = Vec::new();
    let mut read = String::new();
    let mut write = |pieces: &[SkeletonPiece], user: &str| {
        for piece in pieces {
            read.push_str(match piece {
                SkeletonPiece::Text(text) => text,
                SkeletonPiece::Content(SYSTEM) => &contents[0],
                SkeletonPiece::Content(_) => user,
            });
        }
    };
    if with_system.is_some() {
        messages.push(("system", contents[0].as_str()));
    }
    write(with_system.as_ref().unwrap_or(without_system), &contents[1]);
    for turn in 0..5 {
        messages.push(("user", &contents[1 + 2 * turn]));
        if turn < 4 {
            messages.push(("assistant", &contents[2 + 2 * turn]));
            write(&[SkeletonPiece::Text(contents[2 + 2 * turn].clone())], "");
            write(delta, &contents[3 + 2 * turn]);
        }
    }
    match renderer.render(&self::messages(&messages), None) {
        Err(e) => found.push(format!("it can't render five turns ({e}); turns are appended one by one")),
        Ok(whole) if whole != read => {
            let moved = with_system.is_some() && whole.find(&contents[0]) != read.find(&contents[0]);
            let at = crate::text::prefix::first_difference(&whole, &read);
            found.push(if moved {
                "it moves the system text with every turn; here it stays where it was first read".to_owned()
            } else {
                format!(
                    "it rewrites history (from character {at} of five turns on); here nothing is rewritten"
                )
            });
        }
        Ok(_) => {}
    }
    let drops = |content: &str, kept: &str| {
        let messages =
            [("user", "a"), ("assistant", content), ("user", "b"), ("assistant", "c"), ("user", "d")];
        renderer.render(&self::messages(&messages), None).is_ok_and(|text| !text.contains(kept))
    };
    if drops("<think>\u{e000}why\u{e001}</think>x", "\u{e000}why\u{e001}") {
        found.push("it drops earlier reasoning; here replies stay as they were sampled".to_owned());
    }
    if drops("  \u{e000}  ", "  \u{e000}  ") {
        found.push("it trims messages; here replies stay as they were sampled".to_owned());
    }
    if asks_for_date(renderer.source()) {
        found.push(format!(
            "it inserts the date: {FIXED_DATE} in scenarios, the day on which a conversation begins in the server's"
        ));
    }
    if found.is_empty() {
        found.push("it leaves history unchanged".to_owned());
    }
    found
}
