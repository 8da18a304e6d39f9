//! Addresses of other engines: `API+URL`, with settings as parameters of the URL. So a scenario, a command
//! line and a trace name an engine by one text, in place of a file.
//!
//! `llamacpp+http://127.0.0.1:8080?tokenizer=model.gguf&slots=4`

use anyhow::{Context as _, bail, ensure};
use std::fmt;
use std::str::FromStr;
use url::Url;

/// Wire API of a remote engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `greenroom serve`.
    Greenroom,
    /// llama.cpp's server.
    LlamaCpp,
    /// vLLM, by its completions with token ids.
    Vllm,
    /// SGLang, by `/generate`.
    SgLang,
    /// OpenAI's chat completions, which many engines speak.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
}

impl Api {
    /// All of them, by their names.
    pub const ALL: [(&'static str, Self); 6] = [
        ("greenroom", Self::Greenroom),
        ("llamacpp", Self::LlamaCpp),
        ("vllm", Self::Vllm),
        ("sglang", Self::SgLang),
        ("openai", Self::OpenAi),
        ("anthropic", Self::Anthropic),
    ];

    /// The API of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, api)| *api)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, api)| *api == self).map_or("", |(name, _)| name)
    }

    /// Names of all, for messages.
    pub fn names() -> String {
        Self::ALL.map(|(name, _)| name).join(", ")
    }

    /// True if it takes prompts as token ids and returns reply token ids.
    pub fn takes_ids(self) -> bool {
        matches!(self, Self::LlamaCpp | Self::Vllm | Self::SgLang)
    }
}

/// A remote engine, and how it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineAddress {
    /// The API.
    pub api: Api,
    /// The base of its URLs, without a slash at the end.
    pub url: String,
    /// The model's name there; `None`: the only one.
    pub model: Option<String>,
    /// The environment variable that holds the key.
    pub key_env: Option<String>,
    /// A model file here whose tokenizer and chat template are the model's: prompts are then sent as token
    /// ids.
    pub tokenizer: Option<String>,
    /// Requests at once.
    pub slots: usize,
    /// Maximum requests a minute.
    pub requests_per_minute: Option<u32>,
    /// Maximum tokens a minute: of prompts and replies.
    pub tokens_per_minute: Option<u64>,
    /// Tokens of prompts and replies after which a run stops.
    pub budget: Option<u64>,
    /// Seconds of silence after which a request is given up.
    pub timeout: u64,
    /// Tokens that the model's context holds, where the engine does not say.
    pub context: Option<usize>,
}

impl EngineAddress {
    /// An engine with the usual settings.
    pub fn new(api: Api, url: &str) -> anyhow::Result<Self> {
        let address = Self {
            api,
            url: url.trim().trim_end_matches('/').to_string(),
            model: None,
            key_env: None,
            tokenizer: None,
            slots: 4,
            requests_per_minute: None,
            tokens_per_minute: None,
            budget: None,
            timeout: 600,
            context: None,
        };
        address.check()?;
        Ok(address)
    }

    /// True if a text is an address, whether a right one or not, and no file's name.
    pub fn is_meant(text: &str) -> bool {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| scheme.contains('+') || ["http", "https"].contains(&scheme))
    }

    /// Host and port, for messages.
    pub fn host(&self) -> String {
        let url = Url::parse(&self.url).ok();
        let host = url.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)));
        host.map_or_else(|| self.url.clone(), |(host, port)| format!("{host}:{port}"))
    }

    fn check(&self) -> anyhow::Result<()> {
        let url = Url::parse(&self.url).with_context(|| format!("`{}` is not a URL", self.url))?;
        ensure!(["http", "https"].contains(&url.scheme()), "`{}`: expected http:// or https://", self.url);
        ensure!(url.has_host(), "`{}` has no host", self.url);
        ensure!(
            url.username().is_empty() && url.password().is_none(),
            "an address can't contain a user name or key: put the key into an environment variable and name \
             it with `key_env`"
        );
        ensure!(self.slots > 0, "`slots` is 0: expected 1 or more");
        ensure!(self.timeout > 0, "`timeout` is 0: expected 1 second or more");
        Ok(())
    }

    /// Gives a setting its value.
    ///
    /// # Errors
    /// There is no such setting, or the value is not one of its kind.
    pub fn set(&mut self, name: &str, value: &str) -> anyhow::Result<()> {
        fn number<T: FromStr>(name: &str, value: &str) -> anyhow::Result<T> {
            value.parse().ok().with_context(|| format!("`{name}` is `{value}`: expected a whole number"))
        }
        match name {
            "model" => self.model = Some(value.to_string()),
            "key_env" => self.key_env = Some(value.to_string()),
            "tokenizer" => self.tokenizer = Some(value.to_string()),
            "slots" => self.slots = number(name, value)?,
            "requests_per_minute" => self.requests_per_minute = Some(number(name, value)?),
            "tokens_per_minute" => self.tokens_per_minute = Some(number(name, value)?),
            "budget" => self.budget = Some(number(name, value)?),
            "timeout" => self.timeout = number(name, value)?,
            "context" => self.context = Some(number(name, value)?),
            _ => {
                let known = Self::SETTINGS.join(", ");
                bail!("there is no engine setting `{name}`: expected one of {known}")
            }
        }
        self.check()
    }

    /// Names of the settings.
    pub const SETTINGS: [&'static str; 9] = [
        "model",
        "key_env",
        "tokenizer",
        "slots",
        "requests_per_minute",
        "tokens_per_minute",
        "budget",
        "timeout",
        "context",
    ];

    /// The settings that are not the usual ones.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let text = |value: &Option<String>| value.clone();
        let number = |value: &dyn fmt::Display| Some(value.to_string());
        let values = [
            text(&self.model),
            text(&self.key_env),
            text(&self.tokenizer),
            number(&self.slots).filter(|_| self.slots != 4),
            self.requests_per_minute.and_then(|n| number(&n)),
            self.tokens_per_minute.and_then(|n| number(&n)),
            self.budget.and_then(|n| number(&n)),
            number(&self.timeout).filter(|_| self.timeout != 600),
            self.context.and_then(|n| number(&n)),
        ];
        Self::SETTINGS.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

impl FromStr for EngineAddress {
    type Err = anyhow::Error;

    /// Reads `API+URL?NAME=VALUE&…`.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let expected = || {
            format!(
                "`{text}` is not an engine address: expected API+URL with one of the APIs {}, e.g. \
                 llamacpp+http://127.0.0.1:8080",
                Api::names()
            )
        };
        let (api, url) = text.split_once('+').with_context(expected)?;
        let api = Api::named(api).with_context(expected)?;
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut address = Self::new(api, base)?;
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            address.set(&name, &value)?;
        }
        Ok(address)
    }
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.api.name(), self.url)?;
        let settings = self.settings();
        if settings.is_empty() {
            return Ok(());
        }
        let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(settings).finish();
        write!(f, "?{query}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in [
            "llamacpp+http://127.0.0.1:8080",
            "openai+https://api.example.com/v1?model=big+one&key_env=KEY&slots=8",
            "vllm+http://[::1]:8000?model=org%2Fname&tokenizer=models%2Fa.gguf&budget=100000&context=4096",
            "greenroom+http://localhost:1?requests_per_minute=60&tokens_per_minute=5&timeout=3",
        ] {
            let address: EngineAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert!(EngineAddress::is_meant(text));
        }
        let address: EngineAddress = "openai+http://a/v1/?slots=4".parse().unwrap();
        assert_eq!(address.to_string(), "openai+http://a/v1");
        assert_eq!(address.host(), "a:80");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("http://a", "expected API+URL"),
            ("ollama+http://a", "expected API+URL"),
            ("openai+ftp://a", "expected http:// or https://"),
            ("openai+a", "is not a URL"),
            ("openai+https://me:secret@a", "key_env"),
            ("openai+http://a?slots=0", "`slots` is 0"),
            ("openai+http://a?slots=x", "expected a whole number"),
            ("openai+http://a?key=secret", "there is no engine setting `key`"),
        ] {
            let error = format!("{:#}", text.parse::<EngineAddress>().unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secret") || !text.contains("me:"), "{error}");
        }
        assert!(
            !EngineAddress::is_meant("models/a+b.gguf") && !EngineAddress::is_meant("hf:org/repo/a.gguf")
        );
    }
}
