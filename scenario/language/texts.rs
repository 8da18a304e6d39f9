//! The table: each text of the stage in each language. English is what recordings hold; not a byte of it
//! changes.

/// A text of the stage.
pub(super) struct StageTextRow {
    /// Its name in a table of a scenario's own.
    pub(super) name: &'static str,
    /// Its placeholder for a value: `{name}`. Those that begin with `!` are required.
    pub(super) takes: &'static [&'static str],
    /// The text in each of [`LANGUAGES`].
    pub(super) in_language: [&'static str; 4],
}

/// Names of the languages, as columns of the table.
pub(super) const LANGUAGES: [&str; 4] = ["en", "de", "fr", "es"];

/// Gives the texts their numbers, and the table its rows, in one order.
macro_rules! table {
    ($($(#[$doc:meta])* $text:ident $name:literal $takes:tt: $en:expr, $de:expr, $fr:expr, $es:expr;)*) => {
        /// A text that the stage says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Text {
            $($(#[$doc])* $text,)*
        }

        /// The texts, as [`Text`] numbers them.
        pub(super) const ROWS: &[StageTextRow] = &[
            $(StageTextRow { name: $name, takes: &$takes, in_language: [$en, $de, $fr, $es] },)*
        ];
    };
}

table! {
    /// The system text of an agent without one and without a role.
    System "system" ["!name"]:
        "You are {name}.", "Du bist {name}.", "Tu es {name}.", "Eres {name}.";
    /// The same, with a role.
    SystemRole "system_role" ["!name", "!role"]:
        "You are {name}, {role}.", "Du bist {name}, {role}.", "Tu es {name}, {role}.", "Eres {name}, {role}.";
    /// Asks for a turn.
    Cue "cue" ["name"]:
        "Your turn, {name}.", "Du bist dran, {name}.", "À toi, {name}.", "Tu turno, {name}.";
    /// Asks for a turn that only some will hear.
    WhisperCue "whisper_cue" ["name", "!to"]:
        "Your turn, {name}. Only {to} will hear you.",
        "Du bist dran, {name}. Was du sagst, ist nur für {to} bestimmt.",
        "À toi, {name}. Ce que tu dis n'est destiné qu'à {to}.",
        "Tu turno, {name}. Lo que digas es solo para {to}.";
    /// Separates names.
    And "and" []: "and", "und", "et", "y";
    /// Asks a moderator for the next speaker.
    Floor "floor" ["name"]:
        "Your turn, {name}. Who speaks next?",
        "Du bist dran, {name}. Wer spricht als Nächstes?",
        "À toi, {name}. Qui prend la parole ensuite ?",
        "Tu turno, {name}. ¿Quién habla ahora?";
    /// Asks whether to cut in.
    Interrupt "interrupt" ["name", "speaker"]:
        "{speaker} has spoken. {name}, do you cut in?",
        "{speaker} hat gesprochen. {name}, willst du einhaken?",
        "{speaker} a parlé. {name}, veux-tu intervenir ?",
        "{speaker} ha hablado. {name}, ¿quieres intervenir?";
    /// The answer of those who don't cut in.
    Wait "wait" []: "I wait", "Ich warte", "J'attends", "Espero";
    /// The answer of those who do.
    CutIn "cut_in" []: "I cut in", "Ich hake ein", "J'interviens", "Intervengo";
    /// Asks for a vote.
    Vote "vote" ["name"]:
        "Your vote, {name}.", "Deine Stimme, {name}.", "Ton vote, {name}.", "Tu voto, {name}.";
    /// The first place of a ranking.
    First "first" []:
        "Your first choice.", "Deine erste Wahl.", "Ton premier choix.", "Tu primera opción.";
    /// The second.
    Second "second" []:
        "Your second choice.", "Deine zweite Wahl.", "Ton deuxième choix.", "Tu segunda opción.";
    /// The third.
    Third "third" []:
        "Your third choice.", "Deine dritte Wahl.", "Ton troisième choix.", "Tu tercera opción.";
    /// A later one.
    Nth "nth" ["!n"]:
        "Your choice number {n}.", "Deine Wahl Nummer {n}.", "Ton choix numéro {n}.", "Tu opción número {n}.";
    /// Lists the options of a choice.
    ReplyOne "reply_one" ["!options"]:
        "Reply with exactly one of: {options}.",
        "Antworte mit genau einer dieser Möglichkeiten: {options}.",
        "Réponds par exactement une de ces options : {options}.",
        "Responde exactamente con una de estas opciones: {options}.";
    /// Lists the options of a choice in one's own words.
    DecideOne "decide_one" ["!options"]:
        "Decide for one of: {options}.",
        "Entscheide dich für eine dieser Möglichkeiten: {options}.",
        "Choisis l'une de ces options : {options}.",
        "Decídete por una de estas opciones: {options}.";
    /// An option in a list.
    Quoted "option" ["!option"]: "\"{option}\"", "„{option}“", "« {option} »", "«{option}»";
    /// The name before a whisper, for whom it is meant for.
    Whispers "whispers" ["!name"]:
        "{name} (whispers)", "{name} (flüstert)", "{name} (chuchote)", "{name} (susurra)";
    /// The name before a whisper, for whom overhears it.
    WhispersTo "whispers_to" ["!name", "!to"]:
        "{name} (whispers to {to})", "{name} (flüstert {to} zu)",
        "{name} (chuchote à {to})", "{name} (susurra a {to})";
    /// The reader's own name in a quoted phase.
    You "you" []: "You", "Du", "Toi", "Tú";
    /// A quoted phase in which the reader heard nothing.
    NoMessages "no_messages" []:
        "(no messages yet)", "(noch keine Nachrichten)",
        "(pas encore de messages)", "(todavía no hay mensajes)";
    /// Asks for a summary of a memory that is full.
    SummaryCue "summary_cue" []:
        "Your memory is full. Write down, for yourself alone, all that you need to remember.",
        "Dein Gedächtnis ist voll. Schreibe, nur für dich selbst, alles auf, was du behalten musst.",
        "Ta mémoire est pleine. Note, pour ton seul usage, tout ce que tu dois retenir.",
        "Tu memoria está llena. Anota, solo para ti, todo lo que necesites recordar.";
    /// Starts a memory over.
    Remembered "remembered" ["!summary"]:
        "What you remember: {summary}", "Woran du dich erinnerst: {summary}",
        "Ce dont tu te souviens : {summary}",
        "Lo que recuerdas: {summary}";
    /// Explains how to call tools, to a model whose chat template has no tools; followed by the form and a
    /// list of the tools.
    Tools "tools" []:
        "You can use the tools below. To use one, reply with nothing but JSON of this form; what you read \
         next is its result.",
        "Du kannst die Werkzeuge unten benutzen. Antworte dazu nur mit JSON in dieser Form; als Nächstes \
         liest du das Ergebnis.",
        "Tu peux utiliser les outils ci-dessous. Pour cela, réponds uniquement en JSON, sous cette forme ; \
         tu liras ensuite le résultat.",
        "Puedes usar las herramientas de abajo. Para usar una, responde solo con JSON de esta forma; lo \
         siguiente que leerás es su resultado.";
    /// The result of a call that failed.
    CallFailed "call_failed" ["!reason"]:
        "Error: {reason}", "Fehler: {reason}", "Erreur : {reason}", "Error: {reason}";
    /// Follows the result of the last call that a turn may make.
    LastCall "last_call" []:
        "(No more tools now: reply.)", "(Jetzt kein Werkzeug mehr: Antworte.)",
        "(Plus d'outils maintenant : réponds.)",
        "(Ahora sin más herramientas: responde.)";
    /// What an agent has noted down, where its memory begins again.
    Note "note" ["!note"]:
        "Your note: {note}", "Deine Notiz: {note}", "Ta note : {note}", "Tu nota: {note}";
    /// A coordinator's decision.
    HasDecided "has_decided" ["name", "!option"]:
        "{name} has decided: {option}.", "{name} hat entschieden: {option}.", "{name} a décidé : {option}.",
        "{name} ha decidido: {option}.";
    /// A coordinator who chose nothing.
    DecidedNothing "decided_nothing" ["name"]:
        "{name} has decided nothing.", "{name} hat nichts entschieden.", "{name} n'a rien décidé.",
        "{name} no ha decidido nada.";
    /// The result of a ranking.
    RunOff "run_off" ["!counts", "!option"]:
        "First places: {counts}. Decided by run-off: {option}.",
        "Erste Plätze: {counts}. In der Stichwahl entschieden: {option}.",
        "Premières places : {counts}. Décidé par éliminations successives : {option}.",
        "Primeros puestos: {counts}. Decidido por eliminación sucesiva: {option}.";
    /// A ranking without a result.
    Level "level" ["!counts"]:
        "First places: {counts}. The options are level: nothing is decided.",
        "Erste Plätze: {counts}. Die Möglichkeiten liegen gleichauf: Es ist nichts entschieden.",
        "Premières places : {counts}. Les options sont à égalité : rien n'est décidé.",
        "Primeros puestos: {counts}. Las opciones están empatadas: no se ha decidido nada.";
    /// The result of a vote.
    Voted "voted" ["!counts", "!option"]:
        "The vote: {counts}. Decided: {option}.",
        "Die Abstimmung: {counts}. Entschieden: {option}.",
        "Le vote : {counts}. Décision : {option}.",
        "La votación: {counts}. Decidido: {option}.";
    /// A vote that not all agree in.
    NoConsensus "no_consensus" ["!counts"]:
        "The vote: {counts}. There is no consensus.",
        "Die Abstimmung: {counts}. Es gibt keinen Konsens.",
        "Le vote : {counts}. Il n'y a pas de consensus.",
        "La votación: {counts}. No hay consenso.";
    /// A vote without a result.
    Undecided "undecided" ["!counts"]:
        "The vote: {counts}. Nothing is decided.",
        "Die Abstimmung: {counts}. Es ist nichts entschieden.",
        "Le vote : {counts}. Rien n'est décidé.",
        "La votación: {counts}. No se ha decidido nada.";
    /// Speakers besides the cast, as scripts have them: a reply ends where one would begin to speak.
    Speakers "speakers" []:
        "You, User, Assistant, Narrator", "Du, Nutzer, Assistent, Erzähler, User, Assistant",
        "Toi, Utilisateur, Assistant, Narrateur, User", "Tú, Usuario, Asistente, Narrador, User, Assistant";
    /// Words that negate the option found in their sentence, in free text; `*` matches a beginning or an end.
    Negations "negations" []:
        "not no never neither nor cannot without refuse instead *n't",
        "nicht nie niemals nein kein keine keinen keinem keiner keines keinesfalls weder ohne statt anstatt \
         stattdessen weigere",
        "ne n' pas jamais non ni aucun aucune sans refuse plutôt",
        "no nunca jamás ni ningún ninguna ninguno tampoco sin rechazo";
    /// Words that are written together with the next one, apostrophe included; `-` alone: there are none.
    Elisions "elisions" []:
        "-", "-", "l' d' j' qu' n' m' t' s' c' jusqu' lorsqu' puisqu'", "-";
    /// The name of a judge from outside.
    Judge "judge" []: "Judge", "Jury", "Jury", "Jurado";
    /// Its system text.
    JudgeSystem "judge_system" []:
        "You took no part in the conversation that you are about to read. You answer a question about it, by \
         nothing but what was said there.",
        "An dem Gespräch, das du gleich liest, warst du nicht beteiligt. Du beantwortest eine Frage dazu und \
         hältst dich allein an das, was dort gesagt wurde.",
        "Tu n'as pas pris part à la conversation que tu vas lire. Tu réponds à une question à son sujet, en \
         te fondant uniquement sur ce qui y a été dit.",
        "No has participado en la conversación que vas a leer. Respondes a una pregunta sobre ella basándote \
         únicamente en lo que se dijo.";
    /// The heading of a phase, for a judge from outside.
    Scene "scene" ["!label"]: "Scene: {label}", "Szene: {label}", "Scène : {label}", "Escena: {label}";
    /// The rules of a free debate, a template.
    Free "free" []:
        include_str!("../formats/free.jinja"),
        "Dies ist ein offenes Gespräch. Sprich, wenn du an der Reihe bist, und geh auf das ein, was vor dir \
         gesagt wurde.",
        "C'est une discussion ouverte. Prends la parole à ton tour et réponds à ce qui vient d'être dit.",
        "Es una conversación abierta. Habla cuando te toque y responde a lo que se ha dicho antes.";
    /// A structured one.
    Structured "structured" []:
        include_str!("../formats/structured.jinja"),
        "Dies ist eine strukturierte Debatte: Nenne zuerst deine Position, begründe sie dann und antworte \
         schließlich auf das stärkste Argument gegen dich.",
        "C'est un débat structuré : expose d'abord ta position, donne ensuite tes raisons, puis réponds au \
         meilleur argument adverse.",
        "Es un debate estructurado: primero expón tu postura, después da tus razones y por último responde \
         al argumento más fuerte en contra.";
    /// For and against.
    ProCon "pro_con" []:
        include_str!("../formats/pro_con.jinja"),
        "Dies ist ein Streitgespräch mit Für und Wider.\n{% for member in cast %}\n\
         {% if loop.index is odd %}\n{{ member }} spricht dafür.\n{% else %}\n{{ member }} spricht dagegen.\n\
         {% endif %}\n{% endfor %}\n",
        "C'est un débat pour et contre.\n{% for member in cast %}\n{% if loop.index is odd %}\n\
         {{ member }} défend le pour.\n{% else %}\n{{ member }} défend le contre.\n{% endif %}\n\
         {% endfor %}\n",
        "Es un debate a favor y en contra.\n{% for member in cast %}\n{% if loop.index is odd %}\n\
         {{ member }} argumenta a favor.\n{% else %}\n{{ member }} argumenta en contra.\n{% endif %}\n\
         {% endfor %}\n";
    /// One attacks all.
    DevilsAdvocate "devils_advocate" []:
        include_str!("../formats/devils_advocate.jinja"),
        "Hier werden Argumente auf die Probe gestellt: {{ (cast|last) }} ist Advocatus Diaboli und greift \
         jede Behauptung an; die anderen verteidigen ihre.",
        "On met ici les arguments à l'épreuve : {{ (cast|last) }} se fait l'avocat du diable et attaque \
         chaque affirmation ; les autres défendent les leurs.",
        "Aquí se ponen a prueba los argumentos: {{ (cast|last) }} hace de abogado del diablo y ataca cada \
         afirmación; los demás defienden las suyas.";
    /// One only asks.
    Socratic "socratic" []:
        include_str!("../formats/socratic.jinja"),
        "Dies ist ein sokratisches Gespräch: {{ (cast|first) }} stellt nur Fragen, eine nach der anderen; \
         die anderen antworten kurz und sagen, wessen sie sich nicht sicher sind.",
        "C'est un dialogue socratique : {{ (cast|first) }} ne fait que poser des questions, une à la fois ; \
         les autres répondent brièvement et disent ce dont ils doutent.",
        "Es un diálogo socrático: {{ (cast|first) }} solo hace preguntas, de una en una; los demás responden \
         brevemente y dicen de qué no están seguros.";
    /// One thought each.
    Roundtable "roundtable" []:
        include_str!("../formats/roundtable.jinja"),
        "Dies ist eine Gesprächsrunde: Jeder spricht einmal je Runde, trägt einen neuen Gedanken bei und \
         sagt, an wen er anknüpft.",
        "C'est une table ronde : chacun parle une fois par tour, apporte une idée nouvelle et dit sur qui il \
         s'appuie.",
        "Es una mesa redonda: cada cual habla una vez por ronda, aporta una idea nueva y dice en quién se \
         apoya.";
    /// Government and opposition.
    Parliamentary "parliamentary" []:
        include_str!("../formats/parliamentary.jinja"),
        "Dies ist eine Parlamentsdebatte über einen Antrag. Sprich zum Präsidium, nicht zur Gegenseite, und \
         erwidere deren letzte Rede.\n{% for member in cast %}\n{% if loop.index is odd %}\n\
         {{ member }} spricht für die Regierung.\n{% else %}\n{{ member }} spricht für die Opposition.\n\
         {% endif %}\n{% endfor %}\n",
        "C'est un débat parlementaire sur une motion. Adresse-toi à la présidence, non à l'autre camp, et \
         réponds à son dernier discours.\n{% for member in cast %}\n{% if loop.index is odd %}\n\
         {{ member }} parle pour le gouvernement.\n{% else %}\n{{ member }} parle pour l'opposition.\n\
         {% endif %}\n{% endfor %}\n",
        "Es un debate parlamentario sobre una moción. Dirígete a la presidencia, no al otro bando, y \
         responde a su último discurso.\n{% for member in cast %}\n{% if loop.index is odd %}\n\
         {{ member }} habla por el gobierno.\n{% else %}\n{{ member }} habla por la oposición.\n{% endif %}\n\
         {% endfor %}\n";
}
