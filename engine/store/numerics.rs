//! The numerics of a memory: the device that computes it, the constants that its keys are coded by, and the
//! devices that computed its first tokens, where it was adopted from them.
//!
//! ```text
//! lanes16/5, keys by 03f2…
//! gpu/2 vulkan NAME DRIVER, keys by 03f2…, after 612 tokens of lanes16/5
//! lanes16/5, keys by 03f2…, after 900 tokens of gpu/2 vulkan NAME DRIVER, after 612 tokens of lanes16/5
//! ```
//! The text is a part of the identity that a memory's addresses depend on. It counts the tokens of each
//! device, so an address stands for the same bytes in every memory, adopted or not.

use std::fmt;

/// Numerics of a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numerics {
    /// Numerics id of the device that computes it.
    pub(crate) device: String,
    /// Name of the constants that its keys are coded by; none where they are not shaped.
    pub(crate) keys: Option<String>,
    /// Devices that computed its first tokens, the latest first: each with the number of tokens that there
    /// were by then.
    past: Vec<(usize, String)>,
}

const KEYS: &str = ", keys by ";
const AFTER: &str = ", after ";
const TOKENS: &str = " tokens of ";

impl Numerics {
    /// Numerics of a memory that one device computes alone.
    pub(crate) fn new(device: &str, keys: Option<&str>) -> Self {
        Self { device: device.to_owned(), keys: keys.map(str::to_owned), past: Vec::new() }
    }

    /// Reads the text of [`fmt::Display`]; any other is a device.
    pub(crate) fn parse(text: &str) -> Self {
        let mut parts = text.split(AFTER);
        let head = parts.next().unwrap_or_default();
        let part = |part: &str| {
            let (n, device) = part.split_once(TOKENS)?;
            Some((n.parse().ok()?, device.to_owned()))
        };
        let Some(past) = parts.map(part).collect::<Option<Vec<_>>>() else { return Self::new(text, None) };
        let (device, keys) =
            head.split_once(KEYS).map_or((head, None), |(device, keys)| (device, Some(keys)));
        Self { past, ..Self::new(device, keys) }
    }

    /// The devices that computed its first tokens, as text; `None`: one device computed all of it.
    pub(crate) fn origin(&self) -> Option<String> {
        let ((_, device), earlier) = self.past.split_first()?;
        let mut text = device.clone();
        earlier.iter().for_each(|(n, device)| text += &format!("{AFTER}{n}{TOKENS}{device}"));
        Some(text)
    }

    /// All devices that computed it.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.device).chain(self.past.iter().map(|(_, device)| device)).map(String::as_str)
    }

    /// Numerics of a memory whose first `n` tokens are those of this one, and whose further tokens `device`
    /// computes.
    pub(crate) fn continued_by(&self, device: &str, n: usize) -> Self {
        let ours = self.past.first().map_or(0, |(n, _)| *n);
        if device == self.device && n >= ours {
            return self.clone();
        }
        // What a device computed past the `n`-th token does not count.
        let latest = std::iter::once((n, self.device.clone()));
        let mut past: Vec<(usize, String)> = latest.chain(self.past.iter().cloned()).collect();
        let gone = past.iter().skip(1).take_while(|(tokens, _)| *tokens >= n).count();
        past.drain(..gone);
        past[0].0 = n;
        // It continues with its own tokens. (Even if all of them are its own, they stay apart from those of a
        // memory that was never handed over.)
        if past.len() > 1 && past[0].1 == device {
            past.remove(0);
        }
        Self { device: device.to_owned(), keys: self.keys.clone(), past }
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        self.keys.iter().try_for_each(|keys| write!(f, "{KEYS}{keys}"))?;
        self.past.iter().try_for_each(|(n, device)| write!(f, "{AFTER}{n}{TOKENS}{device}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "gpu/2 vulkan llvmpipe (LLVM 15.0.6, 256 bits) Mesa 22.3.6";

    #[test]
    fn each_device_keeps_the_tokens_that_it_computed() {
        let cpu = Numerics::new("lanes16/5", Some("03f2"));
        assert_eq!((cpu.to_string().as_str(), cpu.origin()), ("lanes16/5, keys by 03f2", None));
        let there = cpu.continued_by(GPU, 612);
        assert_eq!(there.to_string(), format!("{GPU}, keys by 03f2, after 612 tokens of lanes16/5"));
        assert_eq!(there.origin().as_deref(), Some("lanes16/5"));
        let back = there.continued_by("lanes16/5", 900);
        let text =
            format!("lanes16/5, keys by 03f2, after 900 tokens of {GPU}, after 612 tokens of lanes16/5");
        assert_eq!(back.to_string(), text);
        assert_eq!(back.origin(), Some(format!("{GPU}, after 612 tokens of lanes16/5")));
        assert_eq!(back.devices().collect::<Vec<_>>(), ["lanes16/5", GPU, "lanes16/5"]);
        // Undo: drops what is past the remaining tokens.
        assert_eq!(there.continued_by(GPU, 700), there);
        assert_eq!(there.continued_by(GPU, 612), there);
        assert_eq!(there.continued_by(GPU, 300), cpu.continued_by(GPU, 300));
        assert_eq!(back.continued_by(GPU, 700), there);
        assert_eq!(
            there.continued_by("lanes16/5", 300).to_string(),
            "lanes16/5, keys by 03f2, after 300 tokens of lanes16/5",
            "not what is its own alone"
        );
        assert_eq!(back.continued_by("x", 612), cpu.continued_by("x", 612));
        for numerics in [cpu, there, back] {
            assert_eq!(Numerics::parse(&numerics.to_string()), numerics);
        }
    }

    #[test]
    fn a_text_of_another_form_is_a_device() {
        for text in ["", "test", "a, after lunch", "a, after x tokens of b", "a, after 1 tokens"] {
            let read = Numerics::parse(text);
            assert_eq!((read.to_string().as_str(), read.origin()), (text, None));
        }
    }
}
