//! Checks servers of tools: the program or the URL, and the headers that are sent to it.

use super::Checker;
use crate::ToolKind;
use crate::schema::{LongTool, WrittenServer};
use crate::tools::{ServerAddress, ToolServer};
use anyhow::{Context as _, ensure};
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::Diagnostic;
use indexmap::IndexMap;
use url::Url;

/// Headers that the protocol or HTTP itself sets.
const OWN_HEADERS: &[&str] = &[
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

impl Checker {
    pub(super) fn server(&mut self, written: LongTool, has_about: bool, path: &Path) -> Option<ToolKind> {
        let timeout = self.timeout(written.timeout, &path.key("timeout"));
        if has_about {
            let message = "`about` has no effect here: a server describes its own tools";
            self.unused(&path.key("about"), message, "remove it");
        }
        let address = match written.mcp? {
            WrittenServer::List(line) => {
                if written.headers.is_some() {
                    let message = "`headers` has no effect here: this server is a program, not a URL";
                    self.unused(&path.key("headers"), message, "remove it");
                }
                self.line(Some(line), &path.key("mcp")).map(ServerAddress::Program)
            }
            WrittenServer::Text(url) => {
                let headers = self.headers(written.headers.unwrap_or_default(), &path.key("headers"));
                self.server_url(&url, &path.key("mcp")).map(|url| ServerAddress::Http { url, headers })
            }
        };
        let only = written.only.map(|only| only.into_iter().flatten().collect());
        Some(ToolKind::Server(ToolServer { address: address?, only, timeout }))
    }

    fn server_url(&mut self, written: &str, path: &Path) -> Option<String> {
        let url = written.trim();
        let (message, help) = match server_url(url) {
            Ok(address) if address.username().is_empty() && address.password().is_none() => {
                return Some(url.to_string());
            }
            Ok(_) => (
                "a server's URL can't contain a user name or password".to_string(),
                "put the secret into an environment variable and name that: `headers: { Authorization: MCP_TOKEN }`",
            ),
            Err(error) => (
                format!("{error:#}"),
                "e.g. `mcp: https://example.com/mcp`, or `mcp: [npx, a-server]` for a program",
            ),
        };
        self.error("bad-value", path, message).help = Some(help.into());
        None
    }

    /// Names of headers and of the environment variables that hold their values.
    fn headers(&mut self, written: IndexMap<String, Option<String>>, path: &Path) -> Vec<(String, String)> {
        let mut headers: Vec<(String, String)> = Vec::new();
        for (name, variable) in written {
            let here = path.key(name.clone());
            if let Some((message, help)) = header_mistake(&name, &headers) {
                let span = self.tree.key(&here);
                self.push(Diagnostic::error("bad-name", here.to_string(), span, message).help(help));
                continue;
            }
            let example = format!("e.g. `{name}: MCP_TOKEN`, and set MCP_TOKEN before the run");
            match variable {
                None => {
                    let message = format!("the header `{name}` needs the name of an environment variable");
                    self.missing(&here, &message, &example);
                }
                // The value may be the secret itself, so the message does not repeat it.
                Some(variable) if !is_variable(&variable) => {
                    let message = format!(
                        "the value of the header `{name}` must be the name of an environment variable: \
                         letters, digits and `_`"
                    );
                    self.error("bad-value", &here, message).help = Some(example);
                }
                Some(variable) => headers.push((name, variable)),
            }
        }
        headers
    }
}

/// # Errors
/// A text is not a URL that messages can be posted to.
fn server_url(text: &str) -> anyhow::Result<Url> {
    let url = Url::parse(text);
    let url =
        url.with_context(|| format!("`{text}` is not a URL, nor a list of a program and its arguments"))?;
    ensure!(["http", "https"].contains(&url.scheme()), "`{text}`: expected http:// or https://");
    ensure!(url.has_host(), "`{text}` has no host");
    Ok(url)
}

/// What is wrong with the name of a header, if anything, and the remedy.
fn header_mistake(name: &str, others: &[(String, String)]) -> Option<(String, &'static str)> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(is_token) {
        return Some((format!("`{name}` is not a valid name of an HTTP header"), "e.g. `Authorization`"));
    }
    if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        return Some((format!("the header `{name}` is set by the protocol and can't be given"), "remove it"));
    }
    let twice = others.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    twice.then(|| (format!("the header `{name}` is given twice; case is ignored"), "remove one"))
}

fn is_variable(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(is_part) && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}
