//! Limits on where a file may lead: a scenario includes files, a recording names its scenario and earlier
//! runs.
//!
//! A recording outside a checkout finds its scenario in its own folder or below the current one, nowhere
//! else; `--root` overrides that.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The folder that holds everything that a file may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// That of a file that a person named: its checkout (the nearest folder above it that holds `.git`), else
    /// its own folder.
    ///
    /// # Errors
    /// The file's folder can't be found.
    pub fn of(file: &Path) -> io::Result<Self> {
        let folder = folder_of(file).canonicalize()?;
        let checkout = folder.ancestors().find(|folder| folder.join(".git").exists()).map(Path::to_path_buf);
        Ok(Self(checkout.unwrap_or(folder)))
    }

    /// The folder that was given, or else that of a file.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn given_or_of(given: Option<&Path>, file: &Path) -> io::Result<Self> {
        match given {
            Some(folder) if folder.is_dir() => Ok(Self(folder.canonicalize()?)),
            Some(folder) => {
                let message = format!("there is no folder {} (given with --root)", folder.display());
                Err(io::Error::new(ErrorKind::NotADirectory, message))
            }
            None => Self::of(file),
        }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Resolves a path, links followed, if it leads to a file in the folder.
    ///
    /// # Errors
    /// There is no such file; [`ErrorKind::PermissionDenied`] where it leads out of the folder.
    pub fn admit(&self, path: &Path) -> io::Result<PathBuf> {
        let real = path.canonicalize();
        // Whether a file exists is not revealed for places outside.
        let inside = |path: &Path| path.starts_with(&self.0);
        match real {
            Ok(real) if inside(&real) => Ok(real),
            Err(error) if inside(&nearest(path)) => Err(error),
            _ => {
                let message = format!("it leads out of {}", self.0.display());
                Err(io::Error::new(ErrorKind::PermissionDenied, message))
            }
        }
    }
}

/// The folder of a file.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Resolves the nearest folder above a path that exists.
fn nearest(path: &Path) -> PathBuf {
    let there = folder_of(path).ancestors().find_map(|folder| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        folder.canonicalize().ok()
    });
    there.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn nothing_leads_out_of_a_checkout_or_a_folder() {
        let outside = tempfile::tempdir().unwrap();
        let at = |name: &str| outside.path().join(name);
        std::fs::create_dir_all(at("checkout/.git")).unwrap();
        std::fs::create_dir_all(at("checkout/a/b")).unwrap();
        for file in ["secret", "checkout/cast.yaml", "checkout/a/b/x.yaml"] {
            std::fs::write(at(file), "").unwrap();
        }
        std::os::unix::fs::symlink(at("secret"), at("checkout/link")).unwrap();
        std::os::unix::fs::symlink("../cast.yaml", at("checkout/a/inside")).unwrap();
        let root = Root::of(&at("checkout/a/b/x.yaml")).unwrap();
        assert_eq!(root.folder(), at("checkout").canonicalize().unwrap());
        for inside in ["checkout/cast.yaml", "checkout/a/b/../../cast.yaml", "checkout/a/inside"] {
            assert!(root.admit(&at(inside)).is_ok(), "{inside}");
        }
        let kind = |name: &str| root.admit(&at(name)).unwrap_err().kind();
        for leads_out in ["secret", "checkout/../secret", "checkout/link", "checkout/../nothing", "nothing"] {
            assert_eq!(kind(leads_out), ErrorKind::PermissionDenied, "{leads_out}");
        }
        assert_eq!(kind("checkout/nothing"), ErrorKind::NotFound);
        let alone = Root::of(&at("secret")).unwrap();
        assert!(alone.admit(&at("checkout/cast.yaml")).is_ok());
        let narrow = Root::given_or_of(Some(&at("checkout/a")), &at("checkout/a/b/x.yaml")).unwrap();
        assert!(narrow.admit(&at("checkout/cast.yaml")).is_err());
        assert!(Root::given_or_of(Some(&at("nowhere")), &at("secret")).is_err());
    }
}
