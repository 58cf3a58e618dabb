/// Why a command failed: one line for people, and the exit status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The request is invalid.
    Usage(String),
    /// The command failed.
    Failed(String),
    /// The command was carried out, and its result, which has been printed, is bad.
    NotGood,
    /// The same, for a command with exit statuses of its own.
    Found(u8),
    /// The check could not be carried out.
    Unchecked(String),
}

impl Failure {
    pub fn status(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) | Failure::NotGood => 1,
            Failure::Found(status) => *status,
            // As in fsck(8).
            Failure::Unchecked(_) => 8,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Failure::Usage(text) | Failure::Failed(text) | Failure::Unchecked(text) => Some(text),
            Failure::NotGood | Failure::Found(_) => None,
        }
    }

    /// `{subject}: {error}`
    pub fn of(subject: impl std::fmt::Display, error: impl std::fmt::Display) -> Failure {
        Failure::Failed(format!("{subject}: {error}"))
    }
}
