//! The memory that outlives processes, from the view of one of them.

use ebb_ports::SharedMemory;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub struct Memory {
    words: Rc<RefCell<Vec<u64>>>,
    /// Ignores writes by destructors of a dead process.
    dead: Cell<bool>,
    /// This word reads as 0.
    forgotten: Option<usize>,
}

impl SharedMemory for Memory {
    fn count(&self) -> usize {
        self.words.borrow().len()
    }

    fn load(&self, at: usize) -> u64 {
        if self.forgotten == Some(at) { 0 } else { self.words.borrow()[at] }
    }

    fn store(&self, at: usize, word: u64) {
        if !self.dead.get() {
            self.words.borrow_mut()[at] = word;
        }
    }
}

impl Memory {
    pub fn of(words: &Rc<RefCell<Vec<u64>>>, forgotten: Option<usize>) -> Rc<Memory> {
        Rc::new(Memory { words: words.clone(), dead: Cell::new(false), forgotten })
    }

    /// The process of this view has died.
    pub fn dies(&self) {
        self.dead.set(true);
    }
}
