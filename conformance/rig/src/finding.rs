//! Findings: violated guarantees, as opposed to failures of the test itself.

use std::error::Error;
use std::fmt;

/// A violated guarantee.
#[derive(Debug)]
pub struct Finding(pub String);

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Finding {}

/// Prefixes an error with its location; a finding stays a finding.
pub fn at(place: impl fmt::Display) -> impl FnOnce(Box<dyn Error>) -> Box<dyn Error> {
    move |error| {
        let text = format!("{place}: {error}");
        if error.is::<Finding>() { Finding(text).into() } else { text.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_makes_no_finding_of_an_error_and_none_less() {
        let found = at("here")(Finding("lost".into()).into());
        assert!(found.is::<Finding>() && found.to_string() == "here: lost");
        assert!(!at("here")("no mount".into()).is::<Finding>());
    }
}
