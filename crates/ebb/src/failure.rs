/// Why a command did not do what was asked: one line for people, and the exit status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// What was asked cannot be.
    Usage(String),
    /// It could not be done.
    Failed(String),
    /// It was done, and what came out, which has been printed, is not good.
    NotGood,
    /// The same, of a command whose exit statuses say more.
    Found(u8),
    /// What was to be checked could not be.
    Unchecked(String),
}

impl Failure {
    pub fn status(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) | Failure::NotGood => 1,
            Failure::Found(status) => *status,
            // As fsck(8) has it.
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
