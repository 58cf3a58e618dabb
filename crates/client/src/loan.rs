use std::os::fd::OwnedFd;

/// A file of the node's disk, for whoever reads it past the node.
pub struct Loan {
    pub file: OwnedFd,
    pub held: Held,
}

/// As long as this lives the node knows that the file is read. Mappings may go on afterwards.
pub struct Held {
    give_back: Option<Box<dyn FnOnce()>>,
}

impl Loan {
    pub fn new(file: OwnedFd, give_back: impl FnOnce() + 'static) -> Loan {
        Loan { file, held: Held { give_back: Some(Box::new(give_back)) } }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back();
        }
    }
}
