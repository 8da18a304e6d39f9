//! The device that computes, as the command line gives it: `auto`, `cpu`, `gpu`, or `gpu:NAME`.

use greenroom_engine::DeviceChoice;
use std::fmt;
use std::str::FromStr;

/// A device, by its word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device(DeviceChoice);

impl Device {
    /// As the engine takes it.
    pub fn choice(&self) -> &DeviceChoice {
        &self.0
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Gpu(None) => f.write_str("gpu"),
            DeviceChoice::Gpu(Some(name)) => write!(f, "gpu:{name}"),
            _ => f.write_str("auto"),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let name = word.strip_prefix("gpu:").map(str::trim);
        Ok(Self(match (word, name) {
            ("auto", _) => DeviceChoice::Auto,
            ("cpu", _) => DeviceChoice::Cpu,
            ("gpu", _) => DeviceChoice::Gpu(None),
            (_, Some("")) => {
                return Err("there is no name after `gpu:`; `greenroom devices` lists the names".into());
            }
            (_, Some(name)) => DeviceChoice::Gpu(Some(name.to_owned())),
            _ => {
                return Err(format!(
                    "`{word}` is not a device; expected auto, cpu, gpu or gpu:NAME, where NAME is part of a \
                     name that `greenroom devices` lists"
                ));
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_devices_and_mistakes_are_explained() {
        for word in ["auto", "cpu", "gpu", "gpu:llvmpipe", "gpu:Radeon RX 7600"] {
            assert_eq!(word.parse::<Device>().unwrap().to_string(), word);
        }
        assert_eq!(Device::default().to_string(), "cpu");
        for (word, expected) in
            [("tpu", "auto, cpu, gpu or gpu:NAME"), ("", "is not a device"), ("gpu: ", "no name")]
        {
            let error = word.parse::<Device>().unwrap_err();
            assert!(error.contains(expected) && error.contains("greenroom devices"), "{word}: {error}");
        }
    }
}
