//! Names of repositories and files on the Hub, as people write them. They become paths and URLs, so nothing
//! else is accepted.

use std::fmt;
use std::str::FromStr;

/// A repository at one of its revisions: `hf:ORG/REPO`, `hf:ORG/REPO@REVISION`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repository {
    /// User or organization.
    pub org: String,
    /// Its repository.
    pub name: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

/// A GGUF file in a repository: `hf:ORG/REPO/FILE.gguf`, `hf:ORG/REPO/FILE.gguf@REVISION`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HubFile {
    /// The repository.
    pub repository: Repository,
    /// Path in it, with `/` between its parts.
    pub file: String,
}

/// The revision that is meant where none is given.
const DEFAULT_REVISION: &str = "main";

/// The most characters of an organization's, a repository's or a revision's name, and of each part of a path.
const MAX_CHARS: usize = 200;

impl Repository {
    /// At its default revision.
    ///
    /// # Errors
    /// One of the names is none.
    pub fn new(org: &str, name: &str) -> Result<Self, String> {
        let plain = |part: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            is_part(part) && part.chars().all(fits)
        };
        // Two hyphens separate organization and repository in the cache.
        if plain(org) && plain(name) && !org.contains("--") && !name.contains("--") {
            Ok(Self { org: org.into(), name: name.into(), revision: DEFAULT_REVISION.into() })
        } else {
            Err(format!("`{org}/{name}` is not a repository name; expected ORG/REPO"))
        }
    }

    fn at(mut self, revision: &str) -> Result<Self, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if !revision.split('/').all(is_part) || !revision.chars().all(fits) {
            return Err(format!("`{revision}` is not a revision; expected a branch, a tag or a commit"));
        }
        self.revision = revision.into();
        Ok(self)
    }

    /// Tells whether no particular revision is meant.
    pub fn is_default(&self) -> bool {
        self.revision == DEFAULT_REVISION
    }
}

impl HubFile {
    /// A file at the default revision.
    ///
    /// # Errors
    /// The path leads elsewhere, or the file is not a GGUF file.
    pub fn new(repository: Repository, file: &str) -> Result<Self, String> {
        if !file.split('/').all(is_part) {
            return Err(format!("`{file}` is not a path within a repository"));
        }
        if !file.to_ascii_lowercase().ends_with(".gguf") {
            return Err(format!("`{file}` is not a GGUF file; expected hf:ORG/REPO/FILE.gguf"));
        }
        Ok(Self { repository, file: file.into() })
    }
}

/// Tells whether a text can be one part of a path on any system: no way up, no separator, no drive, no
/// stream.
fn is_part(part: &str) -> bool {
    let unfit = |c: char| c.is_control() || "/\\:*?\"<>|@".contains(c);
    !part.is_empty()
        && part.chars().count() <= MAX_CHARS
        && !part.starts_with('.')
        && !part.ends_with(['.', ' '])
        && !part.contains("..")
        && !part.contains(unfit)
}

/// `ORG/REPO` and what follows it, without the prefix and the revision.
fn parts(text: &str) -> Result<(Repository, Option<&str>), String> {
    let text = text.strip_prefix("hf:").unwrap_or(text);
    let (path, revision) = text.rsplit_once('@').map_or((text, None), |(path, rev)| (path, Some(rev)));
    let mut parts = path.splitn(3, '/');
    let (Some(org), Some(name), file) = (parts.next(), parts.next(), parts.next()) else {
        return Err("expected hf:ORG/REPO/FILE.gguf".into());
    };
    let repository = Repository::new(org, name)?;
    Ok((revision.map_or(Ok(repository.clone()), |revision| repository.at(revision))?, file))
}

impl FromStr for Repository {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parts(text)? {
            (repository, None) => Ok(repository),
            (..) => Err("expected hf:ORG/REPO".into()),
        }
    }
}

impl FromStr for HubFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parts(text)? {
            (repository, Some(file)) => Self::new(repository, file),
            (..) => Err("expected hf:ORG/REPO/FILE.gguf".into()),
        }
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}/{}", self.org, self.name)?;
        if self.is_default() { Ok(()) } else { write!(f, "@{}", self.revision) }
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repository { org, name, revision } = &self.repository;
        write!(f, "hf:{org}/{name}/{}", self.file)?;
        if self.repository.is_default() { Ok(()) } else { write!(f, "@{revision}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_alike() {
        for text in [
            "hf:org/repo/m.gguf",
            "hf:org/My_Repo-2.5-GGUF/sub/dir/m b.GGUF",
            "hf:org/repo/m.gguf@v1.0",
            "hf:org/repo/m.gguf@refs/pr/1",
        ] {
            assert_eq!(text.parse::<HubFile>().unwrap().to_string(), text);
        }
        assert_eq!("org/repo/m.gguf".parse::<HubFile>().unwrap().file, "m.gguf");
        assert_eq!("hf:org/repo@v1".parse::<Repository>().unwrap().to_string(), "hf:org/repo@v1");
    }

    #[test]
    fn nothing_that_leads_elsewhere_is_an_address() {
        for text in [
            "hf:",
            "hf:org",
            "hf:org/repo",
            "hf:/repo/m.gguf",
            "hf:org//m.gguf",
            "hf:org/repo/",
            "hf:../repo/m.gguf",
            "hf:org/../m.gguf",
            "hf:org/repo/../m.gguf",
            "hf:org/repo/a/../../m.gguf",
            "hf:org/repo/./m.gguf",
            "hf:org/repo//etc/m.gguf",
            "hf:org/repo/a\\..\\m.gguf",
            "hf:org/repo/C:m.gguf",
            "hf:org/re--po/m.gguf",
            "hf:org/repo/m.gguf\n",
            "hf:org/repo/m.safetensors",
            "hf:org/repo/m.gguf@",
            "hf:org/repo/m.gguf@../x",
            "hf:org/repo/m.gguf@a b",
            "hf:org/re?po/m.gguf",
            "hf:o%2e/repo/m.gguf",
        ] {
            assert!(text.parse::<HubFile>().is_err(), "{text}");
        }
    }
}
